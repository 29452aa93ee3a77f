"""Deaths of a worker in a test: the points at which it can die, and the guarantee that later calls have no effect.

A killed process does nothing more. A worker in the test's process would go on to clean up, so each of its calls leads through its
`Life`: once that is over no call passes, and a caller waits for its answer until the test ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast, get_args

from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore, ColumnExchange, ColumnResult, Exchange, ExchangeResult, in_columns
from ackwise.middleware.storage.transaction import Transaction, TransactionalStore

CrashPoint = Literal[
    "before the claim",
    "after the claim",
    "before the handler",
    "after the handler",
    "before the copy",
    "after the copy",
    "before the completion",
    "after the completion",
    "before the commit",
    "after the commit",
]

CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)
"""Where a worker can be made to die, in the order in which a message passes them.

*After* something it has happened, and the worker never hears of it. The claim and the completion are those of `Dedup`, the copy is one
that comes later or a dead letter.
"""


class Killed(SystemExit):
    """Ends a worker that is dead, without a ruling on what it has in flight."""


class Life:
    """One worker from its start to its death. `name` is the client id of what it asks of Kafka."""

    def __init__(self, name: str, deadly: dict[CrashPoint, int]) -> None:
        """`deadly` has the points at which it ends, and how often each is passed until then; one that was met leaves it."""
        self.name = name
        self.is_over = asyncio.Event()
        self._deadly = deadly

    def passes(self, point: CrashPoint | None) -> None:
        """The worker comes to `point`, which may be its end."""
        if point in self._deadly and not self.is_over.is_set():
            self._deadly[point] -= 1
            if self._deadly[point] == 0:
                del self._deadly[point]
                self.is_over.set()

    def live(self, point: CrashPoint) -> None:
        """As `passes`. Raises `Killed` of a worker that is dead by then: a transaction that its handler is in is rolled back at once."""
        self.passes(point)
        if self.is_over.is_set():
            raise Killed(-9)

    async def reach(self, point: CrashPoint | None = None) -> None:
        """As `passes`. A dead caller goes no further."""
        self.passes(point)
        if self.is_over.is_set():
            await asyncio.get_running_loop().create_future()


class MortalStore:
    """A claim store as one worker sees it."""

    def __init__(self, store: ClaimStore, life: Life) -> None:
        self._store = store
        self._columns = in_columns(store)
        self._life = life

    async def open(self) -> None:
        """As the store does."""
        await self._store.open()

    async def close(self) -> None:
        """The store stays open for the worker that comes after this one."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """As the store does, while the worker lives."""
        await self._before(claims=bool(exchange.claims), completes=bool(exchange.completes))
        result = await self._store.exchange(exchange)
        await self._after(claims=bool(exchange.claims), completes=bool(exchange.completes))
        return result

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """As the store does, while the worker lives."""
        await self._before(claims=bool(exchange.claims), completes=bool(exchange.completes))
        result = await self._columns.exchange_columns(exchange)
        await self._after(claims=bool(exchange.claims), completes=bool(exchange.completes))
        return result

    async def _before(self, *, claims: bool, completes: bool) -> None:
        await self._life.reach("before the claim" if claims else None)
        await self._life.reach("before the completion" if completes else None)

    async def _after(self, *, claims: bool, completes: bool) -> None:
        await self._life.reach("after the claim" if claims else None)
        await self._life.reach("after the completion" if completes else None)


class MortalInbox:
    """A database as one worker sees it. A transaction that is open when the worker dies is rolled back at once, whatever it waits for."""

    def __init__(self, inbox: TransactionalStore, life: Life) -> None:
        self._inbox = inbox
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[Transaction]:
        """As the database does, while the worker lives."""
        await self._life.reach()
        async with self._inbox.begin(retention=retention) as transaction:
            end = asyncio.create_task(self._end(cast("asyncio.Task[Any]", asyncio.current_task())))
            try:
                yield transaction
            finally:
                end.cancel()

    async def _end(self, working: asyncio.Task[Any]) -> None:
        await self._life.is_over.wait()
        working.cancel()


def mortal(agent: Agent, life: Life) -> Agent:
    """`agent` as it runs in one worker."""
    call = cast(Callable[[object], Awaitable[object]], agent.call)

    async def run(argument: object) -> object:
        life.live("before the handler")
        result = await call(argument)
        life.live("after the handler")
        return result

    return dataclasses.replace(agent, call=run)
