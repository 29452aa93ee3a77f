"""`ServerInbox`: what the inboxes of all database servers have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from ackwise.middleware.transaction import Progress
from ackwise.stores.sql.connections import Connections, Pool
from ackwise.stores.sql.inbox import Statements, take_over
from ackwise.stores.sql.operation import Failure, Owned, Problem
from ackwise.stores.sql.transaction import InboxTransaction, Session

__all__ = ["ServerInbox", "ServerSession"]

P = TypeVar("P", bound=Pool[Any])
C = TypeVar("C")


class ServerSession(Session, Protocol):
    """A connection of a pool that is ours for one batch."""

    async def begin(self) -> None:
        """Raises `Failure`."""
        ...

    async def tidy(self) -> None:
        """Put back what the handler did to the session, once its transaction has ended. Raises `Failure`."""
        ...


class ServerInbox(Generic[P, C]):
    """An inbox on `connections`; `session` makes of one what a batch works with, once the statements are known."""

    def __init__(self, connections: Connections[P, C], session: Callable[[C, Statements], ServerSession]) -> None:
        self._connections, self._session = connections, session
        self._statements: Statements | None = None

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[InboxTransaction]:
        """See `TransactionalStore.begin`; waits for a connection, and replaces a lost one before anything was done."""
        pool = self._connections.require_open()
        connection, session = await self._begin(pool)
        try:
            async with InboxTransaction(session, retention).ending() as transaction:
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
        return await self._connections.run(Owned(lambda: take_over(statements, owner, positions)))

    async def close(self) -> None:
        """Wait for the batches under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    def _known(self) -> Statements:
        assert self._statements is not None, "open() has found them"
        return self._statements

    async def _begin(self, pool: P) -> tuple[C, ServerSession]:
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

    async def _give_back(self, pool: P, connection: C, session: ServerSession) -> None:
        """Nobody gets a connection that is not as it was."""
        try:
            with suppress(Failure, TimeoutError):
                async with asyncio.timeout(self._connections.timeout):
                    await session.tidy()
                    return
            await session.cut()
        except BaseException:
            await session.cut()
            raise
        finally:
            await self._connections.release(pool, connection)
