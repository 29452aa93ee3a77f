"""Rows of an outbox on a connection of asyncmy, in the transaction of the business."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asyncmy.connection import Connection as AsyncmyConnection

from ackwise.stores.mysql.failures import FAILURES, as_store_error
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.watching import watched
from ackwise.stores.protocol.outboxliterals import MAX_PACKET, TO_SEND, inserts, is_small, require_room
from ackwise.stores.protocol.outboxrows import RowColumns, text_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.outbox.transaction import Business, require
from ackwise.stores.sql.outbox.writing import Writes

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["business", "insert", "place", "writes"]


def insert(table: str, rows: Sequence[RowColumns], before: Packet, address: str, more: str = TO_SEND) -> Steps[None]:
    """Insert rows, `before` with the first of them. Raises `ConfigurationError` for one that the server does not take."""
    packets = list(inserts(table, rows, more))
    if not is_small(packets):
        (limit,) = yield [Statement(MAX_PACKET)]
        require_room(packets, rows, int(limit.rows[0][0]), address)
    for packet in packets:
        yield [*before, Statement(packet)]
        before = ()


def writes(connection: Connection, table: str, address: str) -> Writes:
    """Return the statements. A connection in autocommit is out of it from before BEGIN until COMMIT or ROLLBACK was answered."""

    def inserting(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        return insert(table, rows, before, address)

    leave, back = ("SET autocommit = 0", "SET autocommit = 1") if connection.get_autocommit() else ("", "")
    return Writes(
        inserting,
        begin=_packet(leave, "START TRANSACTION"),
        commit=_packet("COMMIT", back),
        rollback=_packet("ROLLBACK", back),
        restore=_packet(back),
        open=_OPEN,
        proves_first=True,
    )


async def place(connection: Connection, table: str) -> str:
    """Return `table` with its database: a business may turn to another one. Raises `Failure`."""
    (answer,) = await AsyncmyRunner(connection).send([Statement("SELECT HEX(DATABASE())")])
    database = bytes.fromhex(text_of(answer.rows[0][0])).decode()
    return f"`{database.replace('`', '``')}`.{table}"


def _packet(*texts: str) -> Packet:
    return [Statement(text) for text in texts if text]


#: What an error of the server did to a transaction, the driver does not know.
_OPEN: Final = _packet("SAVEPOINT ackwise_open", "RELEASE SAVEPOINT ackwise_open")


def business(connection: Any, table: str, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of asyncmy's."""
    require(connection, AsyncmyConnection, "MySQL", "asyncmy")

    async def look() -> None:
        # Without autocommit asyncmy passes over answers that nothing is open any more.
        if connection.get_transaction_status() and not connection.get_autocommit():
            with suppress(*FAILURES):
                await connection.ping(reconnect=False)

    return Business(
        writes(connection, table, address),
        AsyncmyRunner(connection),
        is_open=connection.get_transaction_status,
        watched=functools.partial(watched, connection),
        close=connection.close,
        as_error=lambda error: as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init),
        timeout=timeout,
        look=look,
        begins_by_itself=not connection.get_autocommit(),
    )
