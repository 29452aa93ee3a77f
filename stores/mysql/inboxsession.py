"""`MySQLSession`: an asyncmy connection for one batch of an inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import StoreUnavailable
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.inboxstatements import BEGAN
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.watching import unwatched, watched
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement
from ackwise.stores.sql.transaction import Turning
from ackwise.stores.sql.watching import Effects

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["MySQLSession"]

#: Out of autocommit before anything begins: what follows an error that undid the transaction does not commit by itself then.
_NO_AUTOCOMMIT: Final = Statement("SET autocommit = 0")
_BEGIN: Final = (
    Statement("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
    Statement("START TRANSACTION"),
    Statement(f"SAVEPOINT {BEGAN}"),
)
_AUTOCOMMIT: Final = Statement("SET autocommit = 1")
_COMMIT: Final = Statement("COMMIT")
_ROLLBACK: Final = Statement("ROLLBACK")


class MySQLSession:
    """See `ServerSession`. What goes wrong may have left the connection in the middle of an answer, so it is closed.

    Connections of our own are in autocommit between batches: out of it, asyncmy does not learn that a transaction has ended, and gives
    the connection up.
    """

    def __init__(self, connection: Connection, statements: Statements, driver: Asyncmy) -> None:
        self.connection, self.statements = connection, statements
        self.address, self.timeout = driver.address, driver.timeout
        self._driver, self._runner = driver, AsyncmyRunner(connection)
        self._commits_by_itself = connection.get_autocommit()
        self._watching = ExitStack()
        self._turning = Turning(statements)

    @property
    def is_open(self) -> bool:
        """See `Session.is_open`."""
        return self.connection.get_transaction_status()

    async def begin(self) -> None:
        """See `ServerSession.begin`."""
        await self.send((_NO_AUTOCOMMIT, *_BEGIN) if self._commits_by_itself else _BEGIN)
        self._watching.enter_context(watched(self.connection, self))

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        try:
            with unwatched(self.connection):
                return await self._runner.send(packet)
        except BaseException as error:
            if not (isinstance(error, Failure) and error.problem is Problem.ENDED):
                self.connection.close()
            raise

    def before(self, effects: Effects) -> Awaitable[object] | None:
        """See `Watcher.before`."""
        return self._look() if self._turning.is_about_to(effects) else None

    def after(self, effects: Effects) -> None:
        """See `Watcher.after`."""

    async def regain(self) -> None:
        """See `Session.regain`."""
        if self._turning.put_back:
            await self.send(self._turning.put_back)

    async def commit(self) -> None:
        """See `Session.commit`."""
        self._watching.close()
        await self.send([_COMMIT, _AUTOCOMMIT] if self._commits_by_itself else [_COMMIT])

    async def rollback(self, *, is_marked: bool) -> bool:
        """See `Session.rollback`."""
        self._watching.close()
        ends = [_ROLLBACK, _AUTOCOMMIT] if self._commits_by_itself else [_ROLLBACK]
        try:
            await self.send([*self.statements.still_there, *ends] if is_marked else ends)
        except Failure as failure:
            if failure.problem is not Problem.ENDED:
                raise
            await self.send(ends)
            return False
        return True

    async def tidy(self) -> None:
        """See `ServerSession.tidy`."""
        await self.regain()

    async def cut(self) -> None:
        """See `Session.cut`."""
        self._watching.close()
        self._driver.cut(self.connection)

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """See `Session.unavailable`."""
        return StoreUnavailable(str(self._driver.as_store_error(error, self.timeout)))

    async def _look(self) -> None:
        try:
            (answer,) = await self.send(self.statements.state)
        except Failure as failure:
            raise failure.error from None  # a handler knows the driver's errors
        self._turning.found(answer.rows[0])
