"""`PostgresSession`: an asyncpg connection for one batch of an inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.failures import FAILURES, problem_of
from ackwise.stores.postgres.runner import AsyncpgRunner
from ackwise.stores.postgres.watching import watched
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement
from ackwise.stores.sql.transaction import Turning
from ackwise.stores.sql.watching import Effects

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["PostgresSession", "reset"]

#: SQLSTATEs of a commit that say nothing about what the handler wrote.
_NOT_THE_HANDLERS: Final = ("08", "25", "40001", "40P01", "53", "55", "57", "58", "XX")

_DISCARD: Final = Statement("DISCARD TEMP")

#: What a handler may have turned to or made, and asyncpg's own reset leaves.
_LEFT: Final = "RESET SESSION AUTHORIZATION; RESET ROLE; DISCARD TEMP; DISCARD SEQUENCES"


async def reset(connection: Connection) -> None:
    """Restore a connection of our own, in the trip that asyncpg makes anyway when it is given back."""
    await connection.execute(f"{_LEFT}; {connection.get_reset_query()}")


class PostgresSession:
    """See `ServerSession`. PostgreSQL begins no transaction by itself: what fails leaves one that takes nothing any more."""

    def __init__(self, connection: PoolConnectionProxy, statements: Statements, driver: Asyncpg) -> None:
        self.connection, self.statements = connection, statements
        self.address, self.timeout = driver.address, driver.timeout
        self._driver, self._runner = driver, AsyncpgRunner(connection)
        self._transaction = connection.transaction(isolation="read_committed")
        self._watching = ExitStack()
        self._turning = Turning(statements)

    @property
    def is_open(self) -> bool:
        """See `Session.is_open`."""
        return self.connection.is_in_transaction()

    async def begin(self) -> None:
        """See `ServerSession.begin`."""
        with _failures():
            await self._transaction.start()
        self._watching.enter_context(watched(self.connection, self))

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        return await self._runner.send(packet)

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
        with _failures():
            try:
                await self._transaction.commit()
            except asyncpg.PostgresError as error:
                if str(error.sqlstate).startswith(_NOT_THE_HANDLERS):
                    raise
                raise TransactionAborted(f"PostgreSQL refuses to commit what the handler wrote: {error.args[0]}") from None

    async def rollback(self, *, is_marked: bool) -> bool:
        """See `Session.rollback`; nothing in PostgreSQL commits a transaction from within."""
        self._watching.close()
        with _failures():
            await self._transaction.rollback()
        return True

    async def tidy(self) -> None:
        """See `ServerSession.tidy`; a pool of our own has its `reset`."""
        if self._driver.given is not None:
            await self.regain()
            await self.send([_DISCARD])

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


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise Failure(problem_of(error), error) from error
