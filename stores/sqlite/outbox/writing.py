"""`SQLiteOutboxTransaction`: the rows of one business transaction, on the connection of whoever calls."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.protocol.outboxrows import RowColumns, columns_of
from ackwise.stores.protocol.outboxwriting import ENDED, Buffer
from ackwise.stores.sqlite.file import File, result_code
from ackwise.stores.sqlite.outbox.tables import as_error

__all__ = ["Block", "SQLiteOutboxTransaction", "begin", "insert", "sqlite_connection"]

_INSERT: Final = """
INSERT INTO ackwise_outbox (message_id, shard, topic, message_key, key_hash, partition, headers, value, size, created, state, next_at,
    tx_id, producer_group, barrier_in)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_TO_SEND: Final = (2, None, "", "", "")

#: Seconds between two tries for the file while another connection writes to it.
_TRY_AGAIN: Final = 0.005


def sqlite_connection(connection: Any) -> sqlite3.Connection:
    """Return the connection. Raises `ConfigurationError` for what is none of sqlite3's."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigurationError(
            f"the SQLite outbox got a {type(connection).__name__}, and writes through connections of sqlite3; "
            "for a session of SQLAlchemy use SQLAlchemyOutbox"
        )
    return connection


def insert(
    connection: sqlite3.Connection,
    rows: Iterable[RowColumns],
    now: float,
    more: tuple[int, float | None, str, str, str] = _TO_SEND,
) -> None:
    """Insert rows; `more` is their state, next_at, tx_id, producer group and database of the barrier."""
    connection.executemany(_INSERT, [(*row, now, *more) for row in rows])


async def begin(connection: sqlite3.Connection, timeout: float) -> None:
    """Become the writer of the file, for `timeout` seconds, without holding up the event loop. Raises what sqlite3 raises."""
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if result_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_TRY_AGAIN)
        else:
            return


class SQLiteOutboxTransaction(Buffer):
    """The rows of the transaction that is open on `connection`. They are inserted at once: SQLite tells nobody of savepoints, and an
    insert is a call within the process."""

    def __init__(self, connection: sqlite3.Connection, file: File, clock: Callable[[], float]) -> None:
        super().__init__()
        self._connection, self._file, self._clock = connection, file, clock

    def add(self, message: Outgoing) -> str:
        """See `OutboxTransaction.add`. Raises `StoreUnavailable` too."""
        super().add(message)
        self.rows.clear()
        if not self._connection.in_transaction:
            raise TransactionAborted(ENDED.format(count=1))
        try:
            insert(self._connection, [columns_of(message)], self._clock())
        except sqlite3.Error as error:
            raise as_error(self._file, error) from error
        self.has_written = True
        return message.message_id

    async def flush(self) -> None:
        """Nothing is left to write."""


class Block:
    """The block of `outbox.transaction`: a transaction, or a savepoint in the one that is open."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.is_ours = not connection.in_transaction

    async def start(self, timeout: float) -> None:
        """Begin as the writer of the file, or make a savepoint. Raises what sqlite3 raises."""
        if not self.is_ours:
            self._connection.execute("SAVEPOINT ackwise_outbox")
            return
        (patience,) = _plain(self._connection, "PRAGMA busy_timeout")
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            await begin(self._connection, timeout)
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(patience)}")

    def commit(self) -> None:
        """Commit, unless that was done inside the block; or leave the rest to whoever began."""
        if self.is_ours and not self._connection.in_transaction:
            return
        self._connection.execute("COMMIT" if self.is_ours else "RELEASE ackwise_outbox")

    def rollback(self) -> None:
        """Undo the block, and nothing before it."""
        if not self._connection.in_transaction:
            return
        if self.is_ours:
            self._connection.execute("ROLLBACK")
        else:
            self._connection.execute("ROLLBACK TO ackwise_outbox")
            self._connection.execute("RELEASE ackwise_outbox")


def _plain(connection: sqlite3.Connection, statement: str) -> tuple[int, ...]:
    """The first row, whatever the row factory of the connection."""
    cursor = connection.cursor()
    cursor.row_factory = None
    row: tuple[int, ...] = cursor.execute(statement).fetchone()
    return row
