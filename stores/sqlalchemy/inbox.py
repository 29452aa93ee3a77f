"""`SQLAlchemyInbox`: exactly once in the database of an SQLAlchemy session, for handlers that work with sessions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session as SyncSession
from sqlalchemy.orm import SessionTransaction

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.transaction import Progress
from ackwise.stores.sql.connections import Patient
from ackwise.stores.sql.inbox import ENDED, Statements, take_over
from ackwise.stores.sql.inboxtransaction import InboxTransaction, Session, Turning
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run
from ackwise.stores.sql.schema import Maintenance
from ackwise.stores.sql.watching import MARIADB, POSTGRES, SQLITE, Effect, Effects, Watched, Watcher, undoes
from ackwise.stores.sqlalchemy.driver import ADDRESS, SQLAlchemyRunner, SyncRunner, as_store_error, failures, refusing, unavailable

_GRAMMARS: Final = {"postgresql": POSTGRES, "mysql": MARIADB, "mariadb": MARIADB, "sqlite": SQLITE}


@contextmanager
def watched(session: SyncSession, connection: Connection, watcher: Watcher[None]) -> Iterator[None]:
    """Let `watcher` see what is executed on `connection`, which is that of `session`, until the block ends.

    The watcher does itself what has to be done before; it is called at once, as there is no call after a statement was executed.
    """
    seen = Watched[None](_GRAMMARS[connection.dialect.name])

    def see(*effects: Effect) -> None:
        if effects:
            for _ in seen.steps(effects):
                pass
            seen.done(effects)

    def before_cursor_execute(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        effects = seen.effects(statement)
        if not seen.is_ours and is_undone(connection) and not (effects and undoes(effects)):
            effects = (Effect.COMMITS_BY_ITSELF,)
        see(*effects)

    def commit(_c: Connection) -> None:
        see(Effect.COMMITS)

    def rollback(_c: Connection) -> None:
        seen.done((Effect.ROLLS_BACK,))  # the session also rolls back by itself, after an error: that can't be refused

    def after_transaction_create(_s: SyncSession, transaction: SessionTransaction) -> None:
        # The session would execute SAVEPOINT with its next statement, and what was added by then would seem to be from before it.
        if transaction.nested:
            see(Effect.SAVEPOINT)
            session.connection()

    listeners: list[tuple[Any, Any]] = [(connection, before_cursor_execute), (connection, commit), (connection, rollback)]
    listeners.append((session, after_transaction_create))
    for target, listener in listeners:
        event.listen(target, listener.__name__, listener)
    seen.watchers.append(watcher)
    try:
        yield
    finally:
        seen.watchers.remove(watcher)
        for target, listener in listeners:
            event.remove(target, listener.__name__, listener)


class SQLAlchemySession(Session[AsyncSession]):
    """Engine, pool and settings are the user's."""

    def __init__(self, session: AsyncSession, timeout: float) -> None:
        self.connection, self.address = session, ADDRESS
        self.timeout: float | None = timeout
        self._ours: SessionTransaction | None = None
        self._watching = ExitStack()

    @property
    def is_open(self) -> bool:
        return self.connection.sync_session.get_transaction() is self._ours

    async def begin(self, steps: Callable[[], Steps[Statements]]) -> None:
        """Connect, and start. Raises `Failure` and `ConfigurationError`."""
        with failures():
            connection = await self.connection.connection()
            await connection.run_sync(require_transaction, ADDRESS)
        self._ours = self.connection.sync_session.get_transaction()
        self.statements = await run(steps(), SQLAlchemyRunner(connection))
        self._turning = Turning(self.statements)
        self._watching.enter_context(watched(self.connection.sync_session, sync(connection), self))

    async def send(self, packet: Packet) -> Sequence[Answer]:
        with failures():
            connection = await self.connection.connection()
        return await SQLAlchemyRunner(connection).send(packet)

    def before(self, effects: Effects) -> None:
        """See `Watcher.before`; what it asks itself has no effects."""
        if self._turning.is_about_to(effects):
            try:
                (answer,) = SyncRunner(self._sync).send(self.statements.state)
            except Failure as failure:
                raise failure.error from None
            self._turning.found(answer.rows[0])

    async def regain(self) -> None:
        """See `Session.regain`; what the handler has not flushed is flushed first."""
        self._require_ours()
        with failures(), refusing("flush"):
            await self.connection.flush()
            await self.connection.connection()
        self._require_ours()
        await self._put_back()

    async def commit(self) -> None:
        self._watching.close()
        with failures(), refusing("commit"):
            prove_commit(sync(await self.connection.connection()), self.statements.proof)
            await self.connection.commit()

    async def rollback(self, *, is_marked: bool) -> bool:
        """See `Session.rollback`. The session of a database outlives the transaction, except where that undoes changes of it as well."""
        self._watching.close()
        is_there = self.is_open and await self._is_there(is_marked=is_marked)
        if not self.statements.undoes_all:
            await self._put_back()
        with failures():
            await self.connection.rollback()
        return is_there

    async def cut(self) -> None:
        self._watching.close()
        with suppress(SQLAlchemyError):
            await self.connection.invalidate()

    def unavailable(self, error: Exception) -> StoreUnavailable:
        return unavailable(error)

    async def _is_there(self, *, is_marked: bool) -> bool:
        if not is_marked or not self.statements.still_there:
            return True
        try:
            await self.send(self.statements.still_there)
        except Failure as failure:
            if failure.problem is not Problem.ENDED:
                raise
            return False
        return True

    async def _put_back(self) -> None:
        if self._turning.put_back:
            await self.send(self._turning.put_back)

    def _require_ours(self) -> None:
        if not self.is_open:
            raise TransactionAborted(ENDED)

    @property
    def _sync(self) -> Connection:
        return self.connection.sync_session.connection()


def is_undone(connection: Connection) -> bool:
    """Return whether SQLite has no transaction open: `OR ROLLBACK` undoes it, and what comes next may commit by itself."""
    driver: Any = connection.connection.driver_connection
    return connection.dialect.name == "sqlite" and not driver.in_transaction


def prove_commit(connection: Connection, proof: Packet) -> None:
    """Let the next commit of `connection` fail unless its transaction is there, whatever listeners of its session do before.

    A session believes in its transaction: PostgreSQL answers the COMMIT of a broken one with ROLLBACK, and others do nothing.
    """

    def prove(_: Connection) -> None:
        if is_undone(connection):
            raise TransactionAborted(ENDED)
        try:
            SyncRunner(connection).send(proof)
        except Failure as failure:
            raise failure.error from None

    event.listen(connection, "commit", prove, once=True)


def sync(connection: AsyncConnection) -> Connection:
    """The connection under an asynchronous one."""
    assert connection.sync_connection is not None
    return connection.sync_connection


async def begin_as_writer(connection: AsyncConnection) -> None:
    """SQLite's driver starts only with the first change, and a savepoint before that would be the whole transaction."""
    await SQLAlchemyRunner(connection).send([Statement("BEGIN IMMEDIATE")])


def require_transaction(connection: Connection, address: str) -> None:
    """Raise `ConfigurationError` if each statement commits by itself. On SQLite we start the transaction, so that it does not."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name != "sqlite" and connection.dialect.detect_autocommit_setting(raw):
        raise ConfigurationError(f"{address}: its engine is in autocommit; give the sessions one that is not")


#: Starts a batch in the transaction of a session.
Begins: TypeAlias = Callable[[], Steps[Statements]]


def database(dialect: str, schema: str | None, prefix: str) -> Maintenance[Begins]:
    """Return it for the database that SQLAlchemy calls `dialect`. Raises `ConfigurationError`."""
    if dialect == "postgresql":
        from ackwise.stores.postgres import inbox as postgres
        from ackwise.stores.postgres.tables import Tables as PostgresTables

        return _beginning(postgres.maintained(PostgresTables(schema, prefix), ADDRESS))
    if dialect in ("mysql", "mariadb"):
        from ackwise.stores.mysql import inbox as mysql
        from ackwise.stores.mysql.inbox import BEGAN
        from ackwise.stores.mysql.schema import Tables as MySQLTables

        return _beginning(mysql.maintained(MySQLTables(prefix, schema), ADDRESS), Statement(f"SAVEPOINT {BEGAN}"))
    if dialect == "sqlite":
        return _sqlite(schema, prefix)
    raise ConfigurationError(f"the SQLAlchemy inbox does not know {dialect}; it knows postgresql, mariadb, mysql and sqlite")


def _beginning(inbox: Maintenance[Statements], *first: Statement) -> Maintenance[Begins]:
    def prepare() -> Steps[Begins]:
        statements = yield from inbox.prepare()

        def begin() -> Steps[Statements]:
            if first:
                yield first
            return statements

        return begin

    return Maintenance(prepare, inbox.create, inbox.check, inbox.clean)


def _sqlite(schema: str | None, prefix: str) -> Maintenance[Begins]:
    from ackwise.stores.sqlite.clock import FileClock, clocks_of
    from ackwise.stores.sqlite.inbox import SQLiteStatements, begin
    from ackwise.stores.sqlite.schema import INBOX, clean, complaints, set_up

    if schema is not None or prefix != "ackwise_":
        raise ConfigurationError("the tables of an inbox in SQLite have names that nothing changes; leave out schema and prefix")
    clock = FileClock(INBOX.name, Path(ADDRESS), clocks_of(time.time))

    def begin_batch() -> Steps[Statements]:
        # Where SQLAlchemy itself has started, it was not as a writer.
        yield [Statement("BEGIN IMMEDIATE"), Statement("DELETE FROM ackwise_inbox WHERE FALSE")]
        return SQLiteStatements((yield from begin(clock)))

    def prepare() -> Steps[Begins]:
        yield from set_up(INBOX, ADDRESS)
        return begin_batch

    return Maintenance(
        prepare, lambda: set_up(INBOX, ADDRESS), lambda: complaints(ADDRESS, INBOX), lambda: clean(ADDRESS, INBOX, time.time)
    )


T = TypeVar("T")


class SQLAlchemyInbox:
    """An inbox in the database of `sessions`, in which the handler's own tables are as well: PostgreSQL, MariaDB, MySQL or SQLite.

    The handler gets an `AsyncSession` in the middle of a transaction; what it has not flushed is flushed. Engine, pool and
    settings are yours: each batch under way takes a connection. `timeout` (seconds) bounds each of our own statements, with
    its wait for another worker's batch that holds the same key. The tables are those of the database's own inbox, with its driver's
    extra; `schema` and `prefix` say where they are. Raises `ConfigurationError`.
    """

    def __init__(
        self, sessions: async_sessionmaker[AsyncSession], *, schema: str | None = None, prefix: str = "ackwise_", timeout: float = 5.0
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that a statement of the inbox may take, more than 0")
        self._sessions = sessions
        self._schema, self._prefix, self._timeout = schema, prefix, timeout
        self._begin: Begins | None = None

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the database does not answer now.
        """
        if self._begin is None:
            self._begin = await self._run(lambda tables: tables.prepare())

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[InboxTransaction]:
        if self._begin is None:
            raise StoreUnavailable("the SQLAlchemy inbox is not open; open it before the first batch")
        session = SQLAlchemySession(self._sessions(), self._timeout)
        try:
            await self._start(session, self._begin)
            async with InboxTransaction(session, retention) as transaction:
                yield transaction
        finally:
            with suppress(SQLAlchemyError):
                await session.connection.close()

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        begin = self._begin
        if begin is None:
            raise StoreUnavailable("the SQLAlchemy inbox is not open; open it before the first batch")

        def steps(_: object) -> Steps[dict[tuple[str, int], Progress]]:
            return (yield from take_over((yield from begin()), owner, positions))

        return await self._run(steps)

    async def close(self) -> None:
        """Nothing to give back: the engine is yours. Closing twice does nothing."""
        self._begin = None

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        await self._run(lambda tables: tables.create())

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._run(lambda tables: tables.check())

    async def cleanup(self) -> int:
        """Delete what is forgotten, some records at a time; return how many."""
        return await self._run(lambda tables: tables.clean())

    async def _start(self, session: SQLAlchemySession, begin: Begins) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await session.begin(begin)
        except TimeoutError:
            await session.cut()
            raise StoreUnavailable(
                f"{ADDRESS}: no answer within {self._timeout} s; see whether the database runs and has a connection left"
            ) from None
        except Failure as failure:
            raise unavailable(failure.error) from None
        except BaseException:
            await session.cut()
            raise

    async def _run(self, steps: Callable[[Maintenance[Begins]], Steps[T]]) -> T:
        """Return what steps return on a connection outside of any session. Raise `ConfigurationError` or `StoreUnavailable`."""
        try:
            async with self._connected() as connection:
                found = database(connection.dialect.name, self._schema, self._prefix)
                return await run(steps(found), Patient(SQLAlchemyRunner(connection), self._timeout))
        except TimeoutError:
            raise StoreUnavailable(f"{ADDRESS}: no answer within {self._timeout} s; see whether the database runs") from None
        except Failure as failure:
            raise as_store_error(failure.error) from None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        """A connection of the engine of the sessions, on which each statement commits by itself; SQLite's only once all is done."""
        with failures():
            async with asyncio.timeout(self._timeout), self._sessions() as session:
                engine = (await session.connection()).engine
            async with engine.connect() as connection:
                if connection.dialect.name != "sqlite":
                    await connection.execution_options(isolation_level="AUTOCOMMIT")
                yield connection
                await connection.commit()
