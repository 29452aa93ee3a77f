"""`SQLAlchemyOutbox`: rows to be sent, in the transactions of sessions of SQLAlchemy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.asyncblock import asynchronous_block
from ackwise.middleware.storage.outbox import Outbox
from ackwise.stores.protocol.outbox import RowColumns, Sends
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run_now
from ackwise.stores.sql.outboxdialect import Dialect
from ackwise.stores.sql.outboxrelaying import read_id, set_barrier
from ackwise.stores.sql.outboxwriting import Block, Business, Rows, Writes, transaction
from ackwise.stores.sqlalchemy.driver import SyncRunner, as_outbox_error, failures, problem_of
from ackwise.stores.sqlalchemy.inbox import begin_as_writer, is_undone, prove_commit, require_transaction, sync, watched

T = TypeVar("T")

#: The URL of the outbox whose relay sends what a session of a dialect has written.
_URLS: Final = {
    "postgresql": "postgresql://host/database",
    "mysql": "mysql://host/database",
    "mariadb": "mariadb://host/database",
    "sqlite": "sqlite:///path",
}

_ADDRESS: Final = "the database of the session"

#: Seconds for a rollback; a connection that takes longer is given up, which rolls back as well.
_TIMEOUT: Final = 5.0


class SQLAlchemyOutbox(Sends):
    """The business side of an outbox for an `AsyncSession`, on PostgreSQL, MariaDB, MySQL or SQLite:

        async with outbox.transaction(session):
            session.add(order)
            outbox.send("orders", value, key=key)

    It writes into the tables of the database's own outbox, which `ackwise outbox init URL` makes and whose relay sends the rows:
    `ackwise relay --outbox postgresql://…`, `mariadb://…` or `sqlite:///…`. `schema` and `prefix` are that outbox's. `store` may be that
    outbox in this process (a `PostgresOutbox`, `MySQLOutbox` or `SQLiteOutbox`): commits wake its relay; without it the relay looks every
    second. A session starts its transaction by the first thing that it does: then the block joins, and you commit.
    """

    def __init__(self, store: Outbox | None = None, *, schema: str | None = None, prefix: str = "ackwise_") -> None:
        super().__init__()
        self._store = store
        self._schema, self._prefix = schema, prefix
        self._known: dict[str, _Words] = {}

    def __repr__(self) -> str:
        return f"<SQLAlchemyOutbox {self._store or ''}>".replace(" >", ">")

    async def open(self) -> None:
        """Refused: there is no relay here. Raises `ConfigurationError`."""
        raise ConfigurationError(
            f"SQLAlchemyOutbox is the side of the business only; give the relay the URL of the database: {', '.join(_URLS.values())}"
        )

    @asynchronous_block
    async def transaction(self, session: AsyncSession | async_scoped_session[Any]) -> AsyncIterator[Block]:
        """See `Outbox.transaction`. Errors of the session are SQLAlchemy's own, those of writing rows `AckwiseError`."""
        mine = _session(session)
        async with transaction(self._through(mine), mine, self, self.wake) as block:
            yield block
        if block.has_written and not block.commits:
            _once_ended(mine.sync_session, self.wake)

    def writer(self, session: AsyncSession | async_scoped_session[Any]) -> Rows:
        return Rows(self._through(_session(session)))

    def wake(self) -> None:
        """See `Outbox.wake`; does something if there is a `store`."""
        if self._store is not None:
            self._store.wake()

    async def barrier(self, session: AsyncSession | async_scoped_session[Any], tx_id: str) -> None:
        mine = _session(session)
        if not mine.in_transaction():
            raise ConfigurationError(
                f"the barrier of {tx_id} has to be in the local transaction, and none is open in the session; start one"
            )
        await self._ask(mine, lambda words: set_barrier(words.sql, tx_id), writes=True)

    async def database_id(self, session: AsyncSession | async_scoped_session[Any]) -> str:
        return await self._ask(_session(session), lambda words: read_id(words.sql))

    def _through(self, session: AsyncSession) -> Business:
        """Return how rows get to `session`, which starts, commits and makes savepoints itself."""
        runner = _Runner(session, self._insert)
        return Business(
            Writes(_insert),
            runner,
            is_open=session.in_transaction,
            watched=lambda block: watched(session.sync_session, runner.connection, block),
            close=session.invalidate,  # it gives its connection up
            as_error=as_outbox_error,
            timeout=_TIMEOUT,
            now=_Listening(runner),
        )

    async def _ask(self, session: AsyncSession, steps: Callable[[_Words], Steps[T]], *, writes: bool = False) -> T:
        try:
            with failures():
                connection = await session.connection()
            if writes:
                await connection.run_sync(_require_begun)
            return await connection.run_sync(lambda its: run_now(steps(self._words(its)), SyncRunner(its)))
        except Failure as failure:
            raise as_outbox_error(failure.error) from None

    def _insert(self, connection: Connection, rows: Sequence[RowColumns]) -> None:
        _require_begun(connection)
        run_now(self._words(connection).insert(rows, ()), SyncRunner(connection))

    def _words(self, connection: Connection) -> _Words:
        """Return what the database says to it. Raises `ConfigurationError` for one that has no outbox."""
        name = connection.dialect.name
        if name not in _URLS:
            raise ConfigurationError(f"the SQLAlchemy outbox does not know {name}; it knows {', '.join(_URLS)}")
        if name not in self._known:
            self._known[name] = _words(name, self._schema, self._prefix)
        return self._known[name]


class _Words(NamedTuple):
    sql: Dialect
    insert: Callable[[Sequence[RowColumns], Packet], Steps[None]]


def _words(dialect: str, schema: str | None, prefix: str) -> _Words:
    if dialect == "postgresql":
        from ackwise.stores.postgres.outbox import Postgres, inserting
        from ackwise.stores.postgres.tables import Tables

        tables = Tables(schema, prefix)
        return _Words(Postgres(tables), inserting(tables.named("outbox")))
    if dialect == "sqlite":
        from ackwise.stores.sqlite.outbox import SQLite
        from ackwise.stores.sqlite.outbox import inserting as inserting_into
        from ackwise.stores.sqlite.schema import Tables as Files

        names = Files(prefix, schema)
        return _Words(SQLite(time.time, names), inserting_into(names.named("outbox"), time.time))
    from ackwise.stores.mysql.outbox import MySQL, insert
    from ackwise.stores.mysql.schema import Tables as MySQLTables

    tables_there, address = MySQLTables(prefix, schema), _ADDRESS
    return _Words(MySQL(tables_there, address), lambda rows, before: insert(tables_there.named("outbox"), rows, before, address))


def _session(given: Any) -> AsyncSession:
    """Return the session. Raises `ConfigurationError` for what is none."""
    session = given() if isinstance(given, async_scoped_session) else given
    if not isinstance(session, AsyncSession):
        raise ConfigurationError(f"the SQLAlchemy outbox got a {type(given).__name__}, and writes through an AsyncSession")
    return session


def _require_begun(connection: Connection) -> None:
    """Raise an error where what is written would be committed by itself."""
    require_transaction(connection, _ADDRESS)
    driver: Any = connection.connection.driver_connection
    if is_undone(connection) and driver.isolation_level is None:  # else it starts one before an INSERT
        raise _undone()


def _undone() -> Failure:
    return Failure(Problem.ENDED, InvalidRequestError("SQLite has no transaction open, as an error that was caught has undone it"))


def _insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
    yield [*before, Statement(_INSERT, rows)]


#: Elsewhere the savepoint of the block was proof enough: no error that is caught breaks a transaction and leaves it open.
_PROOF: Final = (Statement("SELECT 1"),)

#: Stands for the statements of whichever database it turns out to be.
_INSERT: Final = "INSERT"


class _Runner:
    connection: Connection  #: while a block is open

    def __init__(self, session: AsyncSession, insert: Callable[[Connection, Sequence[RowColumns]], None]) -> None:
        self._session, self.insert = session, insert
        self._is_block = False
        self._savepoint: AsyncSessionTransaction | None = None

    async def send(self, packet: Packet) -> Sequence[Answer]:
        with failures():
            for statement in packet:
                await self._do(statement)
        return [Answer()] * len(packet)

    async def _do(self, statement: Statement) -> None:
        match statement.text.split():
            case [_] if statement.text == _INSERT:
                self.require_transaction()
                # What the session has not flushed goes first: its locks give the rows of a key their order.
                await self._session.flush()
                await (await self._session.connection()).run_sync(self.insert, statement.values)
            case ["BEGIN"]:
                await self._session.begin()
            case ["SAVEPOINT", _]:
                connection = await self._session.connection()
                await connection.run_sync(require_transaction, _ADDRESS)
                if sync(connection).dialect.name == "sqlite":
                    await begin_as_writer(connection)
                self._savepoint = await self._session.begin_nested()
                self.connection, self._is_block = sync(await self._session.connection()), True
            case ["ROLLBACK", "TO", *_] if self._savepoint is not None:
                await self._savepoint.rollback()
                self._savepoint = None
            case ["RELEASE", *_] if self._savepoint is not None:
                self.require_transaction()
                await self._savepoint.commit()
            case ["COMMIT"]:
                await self._commit()
            case ["ROLLBACK"]:
                await self._session.rollback()

    def require_transaction(self) -> None:
        """Raise `Failure` if SQLite has undone the transaction of the block: a savepoint of the session would be one by itself."""
        if self._is_block and is_undone(self.connection):
            raise _undone()

    async def _commit(self) -> None:
        prove_commit(self.connection, _PROOF if self.connection.dialect.name == "postgresql" else ())
        try:
            await self._session.commit()
        except DBAPIError as error:
            if isinstance(error, IntegrityError) and not error.connection_invalidated:
                raise  # a constraint
            if problem_of(error) is Problem.ENDED:
                raise Failure(Problem.ENDED, as_outbox_error(error)) from None
            raise Failure(Problem.LOST, error) from None


class _Listening:
    """Writes rows while SQLAlchemy is about to send a statement. The session releases its savepoints itself."""

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner

    def send(self, packet: Packet) -> Sequence[Answer]:
        self._runner.require_transaction()
        for text, rows in packet:
            if text == _INSERT:
                self._runner.insert(self._runner.connection, rows)
        return [Answer()] * len(packet)


def _once_ended(session: Session, wake: Callable[[], None]) -> None:
    """Call `wake` when the transaction that is open in `session` has ended, savepoints apart."""

    def ended(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            wake()
            # Those who listen are being told, and can't be changed meanwhile.
            asyncio.get_running_loop().call_soon(_forget, session, ended)

    event.listen(session, "after_transaction_end", ended)


def _forget(session: Session, listener: Callable[..., None]) -> None:
    if event.contains(session, "after_transaction_end", listener):
        event.remove(session, "after_transaction_end", listener)
