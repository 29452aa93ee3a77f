"""`OpenTransaction`: one transaction of an `SQLAlchemyInbox`, around the statements of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import SessionTransaction

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionAnswer
from ackwise.stores.sqlalchemy.failures import FAILURES, aborted, bounded, refusing
from ackwise.stores.sqlalchemy.tables import Tables

__all__ = ["OpenTransaction", "abandon", "begin_as_writer"]

_ROLLBACK_TIMEOUT = 1.0
"""Seconds; a connection that takes longer is cut, which rolls back as well."""

#: A savepoint at the start of the transaction, which a commit or a rollback of the handler takes away.
_OURS = "ackwise_began"


class OpenTransaction:
    """A transaction of an `SQLAlchemyInbox`."""

    def __init__(self, session: AsyncSession, tables: Tables, retention: float, timeout: float) -> None:
        self.connection = session
        self._tables = tables
        self._retention = retention
        self._timeout = timeout
        self._ours: SessionTransaction | None = None
        self._finished = False

    async def start(self) -> None:
        """Connect, and begin. Raises `StoreUnavailable`."""
        async with bounded(self._timeout, "see whether the database runs and has a connection left"):
            connection = await self.connection.connection()
            if connection.dialect.name == "sqlite":
                await begin_as_writer(connection)
            await connection.execute(text(f"SAVEPOINT {_OURS}"))
            self._ours = self.connection.sync_session.get_transaction()

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; one statement locks, in the order of the keys, and one reads."""
        inbox, ids = self._tables.inbox, sorted({key.id.hex() for key in keys})
        found: dict[str, Any] = {}
        if ids:
            async with bounded(self._timeout, "another transaction may hold a key of this batch, or the database does not answer"):
                connection = await self.connection.connection()
                await connection.execute(self._tables.lock(self._retention), [{"k": id} for id in ids])
                found = {row.k: row for row in await connection.execute(select(inbox).where(inbox.c.k.in_(ids)))}
        return [_answer(found[key.id.hex()], key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`; what the handler has not flushed is flushed first."""
        rows = [_row(finish) for finish in sorted(finishes, key=lambda finish: finish.key.id)]
        async with bounded(self._timeout, "the database does not answer"):
            self._require_ours()
            with refusing("flush"):
                await self.connection.flush()
                self._require_ours()
                connection = await self.connection.connection()
            try:
                await connection.execute(text(f"RELEASE SAVEPOINT {_OURS}"))
            except DBAPIError as error:
                raise aborted(error) from None
            if rows:
                await connection.execute(self._tables.finish(self._retention), rows)
        self._finished = True

    async def commit(self) -> None:
        """Raise `TransactionAborted` if the database refuses what the handler wrote, and `StoreUnavailable`, also if that is not known."""
        if not self._finished:
            await self.finish(())
        async with bounded(self._timeout, "it is not known whether it committed; the next claim tells"):
            with refusing("commit"):
                await self.connection.commit()

    def _require_ours(self) -> None:
        if self.connection.sync_session.get_transaction() is not self._ours:
            raise TransactionAborted(
                "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
            )


async def abandon(session: AsyncSession) -> None:
    """Roll back, or cut the connection where that does not work at once."""
    try:
        async with asyncio.timeout(_ROLLBACK_TIMEOUT):
            await session.rollback()
    except FAILURES:
        await session.invalidate()
    except BaseException:
        await session.invalidate()
        raise


async def begin_as_writer(connection: AsyncConnection) -> None:
    """SQLite's driver begins only with the first change, and a savepoint before that would be the whole transaction."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    if not driver.in_transaction:
        await connection.execute(text("BEGIN IMMEDIATE"))


def _row(finish: Finish) -> dict[str, object]:
    topic, partition, offset = finish.origin
    return {
        "k": finish.key.id.hex(),
        "outcome": 0 if finish.outcome is None else int(finish.outcome),
        "next_attempt": finish.next_attempt,
        "origin_topic": topic,
        "origin_partition": partition,
        "origin_offset": offset,
        "exec_id": finish.exec_id,
    }


def _answer(row: Any, attempt: int) -> TransactionAnswer:
    if row.outcome:
        return Finished(Outcome(row.outcome), (row.origin_topic, row.origin_partition, row.origin_offset), row.exec_id)
    return Stale() if attempt < row.next_attempt else Taken()
