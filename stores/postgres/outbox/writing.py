"""`PostgresOutboxTransaction`: the rows of one business transaction, on the connection of whoever calls."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.stores.postgres.failures import FAILURES, as_store_error
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.protocol.outboxwriting import BROKEN, ENDED, Buffer
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.watching import Effects, undoes

if TYPE_CHECKING:
    from asyncpg import Connection

__all__ = ["Joined", "PostgresOutboxTransaction", "asyncpg_connection", "insert"]

_COLUMNS: Final = "message_id, shard, topic, message_key, key_hash, partition, headers, value, size"

#: Rows of a transaction that are written as VALUES, which costs the server less than arrays; each number of rows is a statement to prepare.
_FEW: Final = 8

# The ids are given in the order of the rows, which is that of the calls.
_INSERT_FEW: Final = f"INSERT INTO {{rows}} ({_COLUMNS}) VALUES {{values}}"
_INSERT: Final = f"""
INSERT INTO {{rows}} ({_COLUMNS}, state, next_at, tx_id, producer_group, barrier_in)
SELECT {_COLUMNS}, {{more}}
FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::int[], $7::text[], $8::bytea[], $9::int[])
    WITH ORDINALITY AS added (message_id, shard, topic, message_key, key_hash, partition, headers, value, size, place)
ORDER BY place
"""
_TO_SEND: Final = "2, NULL, '', '', ''"
_PREPARED: Final = "1, clock_timestamp() + $10 * interval '1 s', $11, $12, $13"


def asyncpg_connection(connection: Any) -> Connection | PoolConnectionProxy:
    """Return the connection. Raises `ConfigurationError` for what is none of asyncpg's."""
    if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        raise ConfigurationError(
            f"the PostgreSQL outbox got a {type(connection).__name__}, and writes through connections of asyncpg; "
            "for a session of SQLAlchemy use SQLAlchemyOutbox"
        )
    return connection


async def insert(
    connection: Connection | PoolConnectionProxy,
    tables: OutboxTables,
    rows: Sequence[RowColumns],
    prepared: tuple[float, str, str, str] | None = None,
) -> None:
    """Insert rows with one statement, to be sent; or `prepared`: first check in seconds, tx_id, producer group, database of the barrier."""
    if prepared is None and len(rows) <= _FEW:
        await connection.execute(_few(tables.rows, len(rows)), *chain.from_iterable(rows))
        return
    columns = zip(*rows, strict=True)
    more = _TO_SEND if prepared is None else _PREPARED
    await connection.execute(_INSERT.format(rows=tables.rows, more=more), *columns, *(prepared or ()))


@functools.cache
def _few(table: str, count: int) -> str:
    width = len(RowColumns._fields)
    rows = (", ".join(f"${place}" for place in range(row * width + 1, (row + 1) * width + 1)) for row in range(count))
    return _INSERT_FEW.format(rows=table, values=", ".join(f"({each})" for each in rows))


class PostgresOutboxTransaction(Buffer):
    """The rows of the transaction that is open on `connection`."""

    def __init__(self, connection: Connection | PoolConnectionProxy, tables: OutboxTables, address: str, timeout: float) -> None:
        super().__init__()
        self._connection = connection
        self._tables = tables
        self._address = address
        self._timeout = timeout

    async def flush(self) -> None:
        """See `OutboxTransaction.flush`; the time that it may take is the connection's own."""
        if not self.rows:
            return
        if not self._connection.is_in_transaction():
            raise TransactionAborted(ENDED.format(count=len(self.rows)))
        count = len(self.rows)
        try:
            await insert(self._connection, self._tables, self.rows[:count])
        except asyncpg.InFailedSQLTransactionError as error:
            raise TransactionAborted(BROKEN.format(database="PostgreSQL")) from error
        except FAILURES as error:
            raise as_store_error(error, self._address, self._timeout, OUTBOX.tables, OUTBOX.init) from error
        self.written(count)

    def before(self, effects: Effects) -> Awaitable[None] | None:
        """See `Watcher.before`: what was added before a savepoint or a commit is written before it."""
        return None if undoes(effects) else self.flush()

    def after(self, effects: Effects) -> None:
        """See `Watcher.after`: what was not written belongs to what was rolled back."""
        if undoes(effects):
            self.rows.clear()


class Joined:
    """A block in a transaction that somebody else began: a savepoint, so that rows and writes of the block stay together if it raises."""

    def __init__(self, connection: Connection | PoolConnectionProxy) -> None:
        self._connection = connection

    async def start(self) -> None:
        """Raise what asyncpg raises, as the other two."""
        await self._connection.execute("SAVEPOINT ackwise_outbox")

    async def commit(self) -> None:
        """Leave the rest to whoever began."""
        await self._connection.execute("RELEASE SAVEPOINT ackwise_outbox")

    async def rollback(self) -> None:
        """Undo the block, and nothing before it."""
        await self._connection.execute("ROLLBACK TO SAVEPOINT ackwise_outbox")
        await self._connection.execute("RELEASE SAVEPOINT ackwise_outbox")
