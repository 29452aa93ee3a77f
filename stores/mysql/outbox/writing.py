"""Rows of an outbox on a connection of asyncmy, in the transaction of the business."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asyncmy.connection import Connection as AsyncmyConnection

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.failures import FAILURES, as_store_error
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.watching import watched
from ackwise.stores.protocol import outboxliterals
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.outbox.transaction import Business
from ackwise.stores.sql.outbox.writing import Writes

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["asyncmy_connection", "business", "writes"]


def asyncmy_connection(connection: Any) -> Connection:
    """Return the connection. Raises `ConfigurationError` for what is none of asyncmy's."""
    if not isinstance(connection, AsyncmyConnection):
        raise ConfigurationError(
            f"the MySQL outbox got a {type(connection).__name__}, and writes through connections of asyncmy; "
            "for a session of SQLAlchemy use SQLAlchemyOutbox"
        )
    return connection


def writes(connection: Connection, tables: OutboxTables, address: str) -> Writes:
    """Return the statements. A connection in autocommit is out of it from before BEGIN until COMMIT or ROLLBACK was answered."""

    def insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        packets = [packet for _, packet in outboxliterals.inserts(tables.rows, rows)]
        if not outboxliterals.is_small(packets):
            (limit,) = yield [Statement(outboxliterals.MAX_PACKET)]
            outboxliterals.require_room(packets, rows, int(limit.rows[0][0]), address)
        for packet in packets:
            yield [*before, Statement(packet)]
            before = ()

    leave, back = ("SET autocommit = 0", "SET autocommit = 1") if connection.get_autocommit() else ("", "")
    return Writes(
        insert,
        begin=_packet(leave, "START TRANSACTION"),
        commit=_packet("COMMIT", back),
        rollback=_packet("ROLLBACK", back),
        restore=_packet(back),
        open=_OPEN,
        proves_first=True,
    )


def _packet(*texts: str) -> Packet:
    return [Statement(text) for text in texts if text]


#: What an error of the server did to a transaction, the driver does not know.
_OPEN: Final = _packet("SAVEPOINT ackwise_open", "RELEASE SAVEPOINT ackwise_open")


def business(connection: Connection, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`."""

    async def look() -> None:
        # Without autocommit asyncmy passes over answers that nothing is open any more.
        if connection.get_transaction_status() and not connection.get_autocommit():
            with suppress(*FAILURES):
                await connection.ping(reconnect=False)

    return Business(
        AsyncmyRunner(connection),
        is_open=connection.get_transaction_status,
        watched=functools.partial(watched, connection),
        close=connection.close,
        as_error=lambda error: as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init),
        timeout=timeout,
        look=look,
    )
