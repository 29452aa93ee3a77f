"""A worker's part in a share group on a desk: real pipelines, and a broker's share of the work that a test plays itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.breaker import Breaker
from ackwise.middleware.errors import PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.flowcontrol import FlowControl
from ackwise.middleware.leases import Leases
from ackwise.middleware.message import TopicPartition
from ackwise.middleware.pipeline import Pipeline
from ackwise.middleware.policies import Dedup
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.share import Share
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.middleware.wire import Copy
from ackwise.middleware.worker import Worker
from ackwise.plugin.group.routes import Routes
from ackwise.plugin.group.sharecounts import ShareCounts
from ackwise.plugin.share.client import Poll, Record
from ackwise.plugin.share.sharing import Sharing
from ackwise.stores.memory import MemoryStore

__all__ = ["ORDERS", "Client", "Desk", "Publisher", "Sink", "Store"]

ORDERS = TopicPartition("orders", 0)


class Publisher:
    """Keeps what was published; `answer` may refuse."""

    def __init__(self) -> None:
        self.sent: list[Copy] = []
        self.answer: Callable[[Copy], PublishUnavailable | PublishRefused | None] = lambda copy: None
        self.asked = asyncio.Event()

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        self.asked.set()
        answers = [self.answer(copy) for copy in copies]
        self.sent += [copy for copy, answer in zip(copies, answers, strict=True) if answer is None]
        return answers


class Sink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    async def open(self) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def codes(self, offset: int) -> list[EventCode]:
        return [event.code for event in self.events if event.offset == offset and event.code < EventCode.COMMITTED]


class Store:
    """A memory store that may be out of reach."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.inner = MemoryStore(clock=clock)
        self.fail: Callable[[Exchange], bool] = lambda exchange: False

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if self.fail(exchange):
            raise StoreUnavailable("the store is out of reach")
        return await self.inner.exchange(exchange)


class Client:
    """Keeps what was acknowledged."""

    def __init__(self) -> None:
        self.accepted: list[tuple[TopicPartition, int]] = []
        self.released: list[tuple[TopicPartition, int]] = []

    def accept(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        self.accepted += [(place, offset) for offset in offsets]

    def release(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        self.released += [(place, offset) for offset in offsets]


class Desk:
    """One worker with one handler; `deliver` is a poll."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        *,
        kind: Literal["batch", "message"] = "batch",
        dedup: bool = True,
        max_batch: int = 200,
        share: Share | None = None,
        later: ConsumeLater | None = None,
        decode: Callable[[bytes | None], object] = lambda value: value,
        store: Store | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.now = 1_000_000.0
        self.publisher, self.sink, self.client = Publisher(), Sink(), Client()
        self.store = store or Store(self.clock)
        self.leases = Leases(self.store, clock=self.clock) if dedup else None
        self.failed: list[BaseException] = []
        self.share = share or Share()
        later = later or ConsumeLater(16)
        worker = Worker(
            "billing",
            later,
            self.publisher,
            "billing.retry",
            "billing.dlq",
            [f"billing.delay.{level}" for level in later.levels.names()],
            dedup=Dedup(self.store) if dedup else None,
            leases=self.leases,
            sink=self.sink,
            flow=FlowControl(breaker=breaker, clock=self.clock),
            monotonic=self.clock,
            wall=self.clock,
        )
        pipelines = {"bill": Pipeline(Agent("bill", ("orders",), kind, handler, decode, max_batch=max_batch), worker)}
        self.stop = asyncio.Event()
        self.member = SimpleNamespace(
            settings=SimpleNamespace(group="billing", drain_timeout=5.0),
            worker=worker,
            pipelines=pipelines,
            leases=self.leases,
            later=later,
            routes=Routes(worker, pipelines, pipelines),
            stop=self.stop,
            record=self.sink.record,
            spawn=self._spawn,
        )
        self.sharing = Sharing(self.share, ["orders"], cast(Any, self.member))

    def clock(self) -> float:
        return self.now

    @property
    def counts(self) -> ShareCounts:
        return self.sharing._counts

    def poll(self, *offsets: int, count: int = 1, place: TopicPartition = ORDERS, age: float = 0.0) -> Poll:
        """What a broker hands out: these offsets, `age` seconds ago."""
        records = {place: [Record(offset, 1_700_000_000_000, b"k", b"v%d" % offset, ()) for offset in offsets]}
        return Poll(self.now - age, records if count == 1 else {}, records if count > 1 else {})

    async def take(self, poll: Poll) -> None:
        """One poll, from its records to the last acknowledgement."""
        await self.sharing._take(poll, cast(Any, self.client))

    async def deliver(self, *offsets: int, **how: Any) -> None:
        await self.take(self.poll(*offsets, **how))

    def accepted(self) -> list[int]:
        return sorted(offset for _, offset in self.client.accepted)

    def released(self) -> list[int]:
        return sorted(offset for _, offset in self.client.released)

    def copies(self) -> list[tuple[str, bytes | None, int, str]]:
        """Topic, value, attempt and reason of what was published."""
        found = [(copy, dict(copy.headers)) for copy in self.publisher.sent]
        return [
            (copy.topic, copy.value, int(headers["ackwise-attempt"] or 0), (headers["ackwise-reason"] or b"").decode())
            for copy, headers in found
        ]

    def stir(self) -> None:
        """What waits looks again."""
        for portion in self.sharing._portions:
            portion.stirred.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)
            self.stop.set()
