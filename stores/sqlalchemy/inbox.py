"""`SQLAlchemyInbox`: exactly once in the database of an SQLAlchemy session, for handlers that work with sessions."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import delete, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.serverclock import refuse_jumped
from ackwise.stores.sqlalchemy.failures import bounded
from ackwise.stores.sqlalchemy.tables import VERSION, Tables
from ackwise.stores.sqlalchemy.transaction import OpenTransaction, abandon

__all__ = ["SQLAlchemyInbox"]

_MISSING = "the table of the SQLAlchemy inbox is missing; call its init() as a user who may create tables"

_AT_ONCE = 1000
"""Records that one step of a cleanup deletes."""


class SQLAlchemyInbox:
    """An inbox in the database of `sessions`, in which the handler's own tables are as well: PostgreSQL, MariaDB, MySQL or SQLite.

    The handler gets an `AsyncSession` in the middle of a transaction; what it has not flushed is flushed. Engine, pool and
    settings are yours: each batch under way takes a connection. `timeout` (seconds) bounds each of our own statements, with
    its wait for another worker's batch that holds the same key. `schema` and `prefix` say where the table is. It is not the
    table of the other inboxes. Raises `ConfigurationError`.
    """

    def __init__(
        self, sessions: async_sessionmaker[AsyncSession], *, schema: str | None = None, prefix: str = "ackwise_", timeout: float = 5.0
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that a statement of the inbox may take, more than 0")
        self._sessions = sessions
        self._schema, self._prefix, self._timeout = schema, prefix, timeout
        self._tables: Tables | None = None

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the database does not answer now.
        """
        if self._tables is None:
            async with self._connected() as (connection, tables):
                await self._create(connection, tables)
            self._tables = tables

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[OpenTransaction]:
        """See `TransactionalStore.begin`."""
        if self._tables is None:
            raise StoreUnavailable("the SQLAlchemy inbox is not open; open it before the first batch")
        session = self._sessions()
        opened = OpenTransaction(session, self._tables, retention, self._timeout)
        try:
            await opened.start()
            yield opened
            await opened.commit()
        except BaseException:
            await abandon(session)
            raise
        finally:
            await session.close()

    async def close(self) -> None:
        """Nothing to give back: the engine is yours. Closing twice does nothing."""
        self._tables = None

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        async with self._connected() as (connection, tables):
            await self._create(connection, tables)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        async with self._connected() as (connection, tables):
            if not await self._has_table(connection, tables):
                return [_MISSING]
            await self._require_version(connection, tables)
        return []

    async def cleanup(self) -> int:
        """Delete what is forgotten, some records at a time; return how many."""
        deleted = _AT_ONCE
        total = 0
        while deleted == _AT_ONCE:
            async with self._connected() as (connection, tables):
                await self._require_version(connection, tables)
                refuse_jumped(float(await connection.scalar(select(tables.now)) or 0.0), "the database of the SQLAlchemy inbox")
                inbox, forgotten = tables.inbox, tables.inbox.c.kept_until <= tables.now
                found = (await connection.scalars(select(inbox.c.k).where(forgotten).order_by(inbox.c.k).limit(_AT_ONCE))).all()
                done = await connection.execute(delete(inbox).where(inbox.c.k.in_(found), forgotten))
            deleted, total = len(found), total + done.rowcount
        return total

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[AsyncConnection, Tables]]:
        """A connection in a transaction that commits in the end, and the tables in the words of its database."""
        async with bounded(self._timeout, "see whether the database runs"), self._sessions() as session, session.begin():
            connection = await session.connection()
            if connection.dialect.name not in Tables.DIALECTS:
                raise ConfigurationError(
                    f"the SQLAlchemy inbox does not know {connection.dialect.name}; it knows {', '.join(Tables.DIALECTS)}"
                )
            yield connection, Tables(connection.dialect.name, self._schema, self._prefix)

    async def _create(self, connection: AsyncConnection, tables: Tables) -> None:
        if connection.dialect.name == "postgresql":
            if (await connection.scalar(text("SHOW synchronous_commit"))) == "off":
                raise ConfigurationError(
                    "synchronous_commit is off, so a crash of the server can lose what Kafka was told is done; turn it on for this user"
                )
            # Without it CREATE TABLE fails for all but one of those who try at once.
            await connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('ackwise session inbox', 0))"))
        if not await self._has_table(connection, tables):
            await connection.run_sync(tables.metadata.create_all)
            await connection.execute(tables.add_version())
        await self._require_version(connection, tables)

    async def _has_table(self, connection: AsyncConnection, tables: Tables) -> bool:
        name = tables.inbox.name
        return bool(await connection.run_sync(lambda sync: inspect(sync).has_table(name, schema=self._schema)))

    async def _require_version(self, connection: AsyncConnection, tables: Tables) -> None:
        if not await self._has_table(connection, tables):
            raise ConfigurationError(_MISSING)
        versions = tables.versions
        found = await connection.scalar(select(versions.c.version).where(versions.c.part == "session_inbox"))
        if found is not None and found != VERSION:
            raise ConfigurationError(
                f"the table of the SQLAlchemy inbox has version {found}, and this Ackwise knows version {VERSION} alone; "
                "start the Ackwise that made it, or choose another prefix"
            )
