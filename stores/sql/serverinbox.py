"""`ServerInbox`: what the inboxes of all database servers have in common."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.transaction import Progress
from ackwise.stores.sql.connections import Connections, Driver, Pool
from ackwise.stores.sql.inbox import Statements, take_over
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Runner, Steps
from ackwise.stores.sql.schema import Maintenance, SQLStore
from ackwise.stores.sql.transaction import InboxTransaction, Session, Turning
from ackwise.stores.sql.watching import Effects, Watch, Watcher

P = TypeVar("P", bound=Pool[Any])
C = TypeVar("C")


class ServerSession(Session[C]):
    """A connection of a pool that is ours for one batch."""

    def __init__(
        self,
        connection: C,
        statements: Statements,
        driver: Driver[Any, C],
        runner: Runner,
        watched: Callable[[C, Watcher[Any]], Watch[Any]],
    ) -> None:
        self.connection, self.statements = connection, statements
        self.address = driver.address
        self.timeout: float | None = driver.timeout
        self._driver, self._runner = driver, runner
        self._watch, self._turning = watched(connection, self), Turning(statements)

    @abc.abstractmethod
    async def begin(self) -> None:
        """Raises `Failure`."""

    @abc.abstractmethod
    def tidying(self) -> Packet:
        """Return what puts back what the handler did to the session, once its transaction has ended."""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        return await self._runner.send(packet)

    def before(self, effects: Effects) -> Awaitable[object] | None:
        return self._look() if self._turning.is_about_to(effects) else None

    async def regain(self) -> None:
        """See `Session.regain`. Statements are still watched: a task that the handler left behind may execute some."""
        if self._turning.put_back:
            await self.send(self._turning.put_back)

    async def cut(self) -> None:
        self.unwatch()
        self._driver.cut(self.connection)

    def unwatch(self) -> None:
        """Its transaction has ended, and nothing is to be seen any more."""
        self._watch.stop()

    def unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(str(self._driver.as_store_error(error, self._driver.timeout)))

    async def _look(self) -> None:
        try:
            (answer,) = await self.send(self.statements.state)
        except Failure as failure:
            raise failure.error from None  # a handler knows the driver's errors
        self._turning.found(answer.rows[0])


class ServerInbox(SQLStore[Connections[P, C]]):
    """An inbox on `connections`; `session` makes of one what a batch works with, and `maintenance` finds out the statements."""

    def __init__(
        self, connections: Connections[P, C], maintenance: Maintenance[Statements], session: Callable[[C, Statements], ServerSession[C]]
    ) -> None:
        self._statements: Statements | None = None

        def prepare() -> Steps[None]:
            self._statements = yield from maintenance.prepare()

        super().__init__(connections, Maintenance(prepare, maintenance.create, maintenance.check, maintenance.clean))
        self._session = session

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[InboxTransaction]:
        """See `TransactionalStore.begin`; waits for a connection, and replaces a lost one before anything was done."""
        pool = self._connections.require_open()
        connection, session = await self._begin(pool)
        try:
            async with InboxTransaction(session, retention) as transaction:
                yield transaction
        finally:
            await self._give_back(pool, connection, session)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`; waits up to the timeout for a batch of the owner before."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; waits up to the timeout for batches of the owners before."""
        self._connections.require_open()
        statements = self._known()
        return await self._connections.run(lambda: take_over(statements, owner, positions))

    def _known(self) -> Statements:
        assert self._statements is not None, "open() has found them"
        return self._statements

    async def _begin(self, pool: P) -> tuple[C, ServerSession[C]]:
        replaced = False
        while True:
            connection = await self._connections.acquire(pool)
            session = self._session(connection, self._known())
            try:
                async with asyncio.timeout(self._connections.timeout):
                    await session.begin()
            except BaseException as raised:
                await session.cut()
                await self._connections.release(pool, connection)
                if not isinstance(raised, Failure | TimeoutError):
                    raise
                error, problem = (raised.error, raised.problem) if isinstance(raised, Failure) else (raised, Problem.BUSY)
                if replaced or problem is not Problem.LOST:
                    raise self._connections.unavailable(error) from None
                replaced = True
                await self._connections.replace(pool)
            else:
                return connection, session

    async def _give_back(self, pool: P, connection: C, session: ServerSession[C]) -> None:
        """Nobody gets a connection that is not as it was."""
        session.unwatch()
        try:
            if tidying := session.tidying():
                async with asyncio.timeout(self._connections.timeout):
                    await session.send(tidying)
        except (Failure, TimeoutError):
            await session.cut()
        except BaseException:
            await session.cut()
            raise
        finally:
            await self._connections.release(pool, connection)
