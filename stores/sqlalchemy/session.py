"""`SQLAlchemySession`: a session for one batch of an inbox, with all that happens in its transaction; and `watched`, which looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session as SyncSession
from sqlalchemy.orm import SessionTransaction

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.sql.inbox import ENDED, Statements
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement, Steps, run
from ackwise.stores.sql.transaction import Session, Turning
from ackwise.stores.sql.watching import MARIADB, POSTGRES, SQLITE, Effect, Effects, Watched, Watcher
from ackwise.stores.sqlalchemy.failures import ADDRESS, failures, refusing, unavailable
from ackwise.stores.sqlalchemy.runner import SQLAlchemyRunner, SyncRunner

_GRAMMARS: Final = {"postgresql": POSTGRES, "mysql": MARIADB, "mariadb": MARIADB, "sqlite": SQLITE}


@contextmanager
def watched(session: SyncSession, connection: Connection, watcher: Watcher[None]) -> Iterator[None]:
    """Let `watcher` see what is executed on `connection`, which is that of `session`, until the block ends.

    The watcher does itself what has to be done before; it is told at once, as nobody is called once a statement was executed.
    """
    seen = Watched[None](_GRAMMARS[connection.dialect.name])

    def see(*effects: Effect) -> None:
        if effects:
            for _ in seen.steps(effects):
                pass
            seen.done(effects)

    def before_cursor_execute(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        see(*seen.effects(statement))

    def commit(_c: Connection) -> None:
        see(Effect.COMMITS)

    def rollback(_c: Connection) -> None:
        seen.done((Effect.ROLLS_BACK,))  # the session also rolls back by itself, after an error: nobody can refuse that

    def after_transaction_create(_s: SyncSession, transaction: SessionTransaction) -> None:
        # The session would execute SAVEPOINT with its next statement, and what was added by then would seem to be from before it.
        if transaction.nested:
            see(Effect.SAVEPOINT)
            session.connection()

    listeners: list[tuple[Any, Any]] = [(connection, before_cursor_execute), (connection, commit), (connection, rollback)]
    listeners.append((session, after_transaction_create))
    for target, listener in listeners:
        event.listen(target, listener.__name__, listener)
    try:
        with seen.by(watcher):
            yield
    finally:
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
        """Connect, and begin. Raises `Failure` and `ConfigurationError`."""
        with failures():
            connection = await self.connection.connection()
            await connection.run_sync(_require_transactions)
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


def sync(connection: AsyncConnection) -> Connection:
    """The connection under an asynchronous one."""
    assert connection.sync_connection is not None
    return connection.sync_connection


async def begin_as_writer(connection: AsyncConnection) -> None:
    """SQLite's driver begins only with the first change, and a savepoint before that would be the whole transaction."""
    await SQLAlchemyRunner(connection).send([Statement("BEGIN IMMEDIATE")])


def _require_transactions(connection: Connection) -> None:
    """Raise `ConfigurationError` for a connection on which each statement commits by itself."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name != "sqlite" and connection.dialect.detect_autocommit_setting(raw):
        raise ConfigurationError(f"{ADDRESS}: its engine is in autocommit; give the sessions one that is not")
