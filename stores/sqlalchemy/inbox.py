"""`SQLAlchemyInbox`: exactly once in the database of an SQLAlchemy session, for handlers that work with sessions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import delete, inspect, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InvalidRequestError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import SessionTransaction

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionAnswer
from ackwise.stores.serverclock import refuse_jumped
from ackwise.stores.sqlalchemy.tables import VERSION, Tables

__all__ = ["SQLAlchemyInbox"]

_FAILURES = (SQLAlchemyError, OSError)

_ROLLBACK_TIMEOUT = 1.0
"""Seconds; a connection that takes longer is cut, which rolls back as well."""

_MISSING = "the table of the SQLAlchemy inbox is missing; call its init() as a user who may create tables"

_AT_ONCE = 1000
"""Records that one step of a cleanup deletes."""

_BROKEN = "25P02"
"""The SQLSTATE of a transaction of PostgreSQL in which a statement failed."""

_REFUSED = ("22", "23", "27", "42", "44", "P0")
"""SQLSTATEs of data and statements that a database does not take, which SQLAlchemy has no class for with every driver."""

#: A savepoint at the start of the transaction, which a commit or a rollback of the handler takes away.
_OURS = "ackwise_began"


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
    async def begin(self, *, retention: float) -> AsyncIterator[_Open]:
        """See `TransactionalStore.begin`."""
        if self._tables is None:
            raise StoreUnavailable("the SQLAlchemy inbox is not open; open it before the first batch")
        session = self._sessions()
        opened = _Open(session, self._tables, retention, self._timeout)
        try:
            await opened.start()
            yield opened
            await opened.commit()
        except BaseException:
            await _abandon(session)
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
        async with _bounded(self._timeout, "see whether the database runs"), self._sessions() as session, session.begin():
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
        if found is not None and found > VERSION:
            raise ConfigurationError(
                f"the table of the SQLAlchemy inbox has version {found}, and this Ackwise knows version {VERSION}; upgrade, "
                "or choose another prefix"
            )


class _Open:
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
        async with _bounded(self._timeout, "see whether the database runs and has a connection left"):
            connection = await self.connection.connection()
            if connection.dialect.name == "sqlite":
                await _begin_as_writer(connection)
            await connection.execute(text(f"SAVEPOINT {_OURS}"))
            self._ours = self.connection.sync_session.get_transaction()

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; one statement locks, in the order of the keys, and one reads."""
        inbox, ids = self._tables.inbox, sorted({key.id.hex() for key in keys})
        found: dict[str, Any] = {}
        if ids:
            async with _bounded(self._timeout, "another transaction may hold a key of this batch, or the database does not answer"):
                connection = await self.connection.connection()
                await connection.execute(self._tables.lock(self._retention), [{"k": id} for id in ids])
                found = {row.k: row for row in await connection.execute(select(inbox).where(inbox.c.k.in_(ids)))}
        return [_answer(found[key.id.hex()], key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`; what the handler has not flushed is flushed first."""
        rows = [_row(finish) for finish in sorted(finishes, key=lambda finish: finish.key.id)]
        async with _bounded(self._timeout, "the database does not answer"):
            self._require_ours()
            with _refusing("flush"):
                await self.connection.flush()
                self._require_ours()
                connection = await self.connection.connection()
            try:
                await connection.execute(text(f"RELEASE SAVEPOINT {_OURS}"))
            except DBAPIError as error:
                raise _aborted(error) from None
            if rows:
                await connection.execute(self._tables.finish(self._retention), rows)
        self._finished = True

    async def commit(self) -> None:
        """Raise `TransactionAborted` if the database refuses what the handler wrote, and `StoreUnavailable`, also if that is not known."""
        if not self._finished:
            await self.finish(())
        async with _bounded(self._timeout, "it is not known whether it committed; the next claim tells"):
            with _refusing("commit"):
                await self.connection.commit()

    def _require_ours(self) -> None:
        if self.connection.sync_session.get_transaction() is not self._ours:
            raise TransactionAborted(
                "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
            )


async def _begin_as_writer(connection: AsyncConnection) -> None:
    """SQLite's driver begins only with the first change, and a savepoint before that would be the whole transaction."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    if not driver.in_transaction:
        await connection.execute(text("BEGIN IMMEDIATE"))


async def _abandon(session: AsyncSession) -> None:
    """Roll back, or cut the connection where that does not work at once."""
    try:
        async with asyncio.timeout(_ROLLBACK_TIMEOUT):
            await session.rollback()
    except _FAILURES:
        await session.invalidate()
    except BaseException:
        await session.invalidate()
        raise


@asynccontextmanager
async def _bounded(timeout: float, why: str) -> AsyncIterator[None]:
    """Bound a step by `timeout`, and raise our error for SQLAlchemy's, which may hold a statement's values; `why` says what it can mean."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except AckwiseError:
        raise
    except (TimeoutError, PoolTimeout):
        raise StoreUnavailable(f"the database of the SQLAlchemy inbox: no answer within {timeout} s; {why}") from None
    except ProgrammingError as error:
        raise ConfigurationError(f"the database of the SQLAlchemy inbox refuses its statement: {_first_line(error)}") from None
    except DBAPIError as error:
        raise StoreUnavailable(f"the database of the SQLAlchemy inbox failed: {_first_line(error)}") from None
    except OSError as error:
        raise StoreUnavailable(
            f"the database of the SQLAlchemy inbox can't be reached ({error.strerror or 'connection lost'}); {why}"
        ) from None
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"SQLAlchemy can't go on with the inbox: {_first_line(error)}") from None


@contextmanager
def _refusing(step: str) -> Iterator[None]:
    """What the database refuses of the handler's own is the handler's fault."""
    try:
        yield
    except DBAPIError as error:
        if _state(error) == _BROKEN:
            raise _aborted(error) from None
        if not isinstance(error, (IntegrityError, DataError, ProgrammingError)) and not _state(error).startswith(_REFUSED):
            raise
        raise TransactionAborted(f"the database refuses to {step} what the handler wrote: {_first_line(error)}") from None
    except InvalidRequestError as error:
        raise TransactionAborted(f"the handler left its session in the middle of an error: {_first_line(error)}") from None


def _aborted(error: DBAPIError) -> TransactionAborted | StoreUnavailable:
    if error.connection_invalidated:
        return StoreUnavailable(f"the database of the SQLAlchemy inbox failed: {_first_line(error)}")
    if _state(error) == _BROKEN:
        return TransactionAborted(
            "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
            "or run what may fail in `async with session.begin_nested():`"
        )
    return TransactionAborted(
        "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
    )


def _state(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", ""))


def _first_line(error: SQLAlchemyError) -> str:
    """What happened, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.partition("\n")[0].rpartition(">: ")[2]


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
