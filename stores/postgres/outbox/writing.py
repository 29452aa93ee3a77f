"""Rows of an outbox on a connection of asyncpg, in the transaction of the business."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ackwise.middleware.errors import TransactionAborted
from ackwise.stores.postgres.failures import FAILURES, as_store_error, problem_of
from ackwise.stores.postgres.runner import AsyncpgRunner
from ackwise.stores.postgres.watching import watched
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.protocol.outboxwriting import BROKEN
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement, Steps
from ackwise.stores.sql.outbox.transaction import Business, require
from ackwise.stores.sql.outbox.writing import Writes

if TYPE_CHECKING:
    from asyncpg import Connection

__all__ = ["business", "place", "writes"]

_COLUMNS: Final = "message_id, shard, topic, message_key, key_hash, partition, headers, value, size"

#: Rows of a transaction that are written as VALUES, which costs the server less than arrays; each number of rows is a statement to prepare.
_FEW: Final = 8

# The ids are given in the order of the rows, which is that of the calls.
_INSERT_FEW: Final = f"INSERT INTO {{rows}} ({_COLUMNS}) VALUES {{values}}"
_INSERT: Final = f"""
INSERT INTO {{rows}} ({_COLUMNS}) SELECT {_COLUMNS}
FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::int[], $7::text[], $8::bytea[], $9::int[])
    WITH ORDINALITY AS added (message_id, shard, topic, message_key, key_hash, partition, headers, value, size, place)
ORDER BY place
"""

_PLACE: Final = """
SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass($1)
"""


def _insert(table: str, rows: Sequence[RowColumns]) -> Statement:
    if len(rows) <= _FEW:
        return Statement(_few(table, len(rows)), [*chain.from_iterable(rows)])
    return Statement(_INSERT.format(rows=table), [*zip(*rows, strict=True)])


@functools.cache
def _few(table: str, count: int) -> str:
    width = len(RowColumns._fields)
    rows = (", ".join(f"${place}" for place in range(row * width + 1, (row + 1) * width + 1)) for row in range(count))
    return _INSERT_FEW.format(rows=table, values=", ".join(f"({each})" for each in rows))


def writes(table: str) -> Writes:
    """Return the statements. Each answer says whether a transaction is open, and a failure breaks it, so that it needs no mark."""

    def inserting(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        yield [*before, _insert(table, rows)]

    return Writes(inserting, restore=[Statement("COMMIT")], is_marked=False, as_ours=_as_ours)


def _as_ours(steps: Steps[None]) -> Steps[None]:
    """In the role that the session began with; the other one is remembered where no codec of the user's sees it."""
    yield [Statement("SELECT set_config('ackwise.role', current_setting('role'), true)"), Statement("SET LOCAL role TO DEFAULT")]
    yield from steps
    yield [Statement("SELECT set_config('role', current_setting('ackwise.role'), true)")]


async def place(connection: Connection | PoolConnectionProxy, table: str) -> str:
    """Return `table` with its schema: a business may turn to another one. Raises what asyncpg raises."""
    return str(await connection.fetchval(_PLACE, table))


def business(connection: Any, sql: Writes, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of asyncpg's."""
    require(connection, asyncpg.Connection | PoolConnectionProxy, "PostgreSQL", "asyncpg")

    def as_error(error: Exception) -> Exception:
        if isinstance(error, asyncpg.InFailedSQLTransactionError):
            return TransactionAborted(BROKEN.format(database="PostgreSQL"))
        return as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init)

    def cut() -> None:
        with suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
            connection.terminate()

    return Business(
        sql,
        _Runner(connection),
        is_open=connection.is_in_transaction,
        watched=functools.partial(watched, connection),
        close=cut,
        as_error=as_error,
        timeout=timeout,
    )


class _Runner(AsyncpgRunner):
    """Transactions are asyncpg's own, so that it makes savepoints of those inside."""

    def __init__(self, connection: Connection | PoolConnectionProxy) -> None:
        super().__init__(connection)
        transaction = connection.transaction()
        self._ends = {"BEGIN": transaction.start, "COMMIT": transaction.commit, "ROLLBACK": transaction.rollback}

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        if (end := self._ends.get(packet[0].text)) is None:
            return await super().send(packet)
        try:
            await end()
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error
        return [Answer()]
