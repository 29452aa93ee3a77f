"""A worker's part in a share group on a desk: real pipelines, and a broker's share of the work that a test plays itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, Literal, cast

from tests.fakes import Clock, Publisher, Sink, Store
from tests.waiting import PATIENCE, turns

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.message.message import Message, TopicPartition
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup, Share
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.consumer.routes import Routes
from ackwise.plugin.consumer.workerstate import ShareCounts
from ackwise.plugin.modes.shareclient import Poll, Record
from ackwise.plugin.modes.sharegroup import Sharing

ORDERS = TopicPartition("orders", 0)


def refuse(value: bytes | None) -> object:
    """A message that can't be decoded."""
    raise ValueError(value)


class Client:
    """Keeps what was acknowledged."""

    def __init__(self) -> None:
        self.accepted: list[tuple[TopicPartition, int]] = []
        self.released: list[tuple[TopicPartition, int]] = []

    def accept(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        self.accepted += [(place, offset) for offset in offsets]

    def release(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        self.released += [(place, offset) for offset in offsets]


class Handler:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.sizes: list[int] = []

    async def __call__(self, argument: Any) -> None:
        messages = [argument] if isinstance(argument, Message) else [*argument]
        self.seen += [message.value for message in messages]
        self.sizes.append(len(messages))


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
        clock: Clock | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.publisher, self.sink, self.client = Publisher(), Sink(), Client()
        self.publisher.wall = self.clock
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
            "billing.delay",
            dedup=Dedup(self.store) if dedup else None,
            leases=self.leases,
            sink=self.sink,
            flow=FlowControl(breaker=breaker, clock=self.clock),
            monotonic=self.clock,
            wall=self.clock,
        )
        worker.flow.listen(worker.isolation.stir)
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

    @property
    def counts(self) -> ShareCounts:
        return self.sharing._counts

    def poll(self, *offsets: int, count: int = 1, place: TopicPartition = ORDERS, age: float = 0.0) -> Poll:
        """What a broker hands out: these offsets, `age` seconds ago."""
        records = {place: [Record(offset, 1_700_000_000_000, b"k", b"v%d" % offset, ()) for offset in offsets]}
        return Poll(self.clock.now - age, records if count == 1 else {}, records if count > 1 else {})

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
        found = [(topic, copy, dict(copy.headers)) for topic, copy in zip(self.publisher.topics, self.publisher.sent, strict=True)]
        return [
            (topic, copy.value, int(headers["ackwise-attempt"] or 0), (headers["ackwise-reason"] or b"").decode())
            for topic, copy, headers in found
        ]

    async def pass_time(self, *, times: int = 1, step: float = 5.0) -> None:
        """So many steps of some seconds, after each of which what waits looks again."""
        for _ in range(times):
            self.clock.now += step
            for portion in self.sharing._portions:
                portion.stirred.set()
            await turns(5)

    async def end(self, taking: asyncio.Task[None], *, step: float = 5.0) -> None:
        """Let time pass until a poll is taken to its end."""
        async with asyncio.timeout(PATIENCE):
            while not taking.done():
                await self.pass_time(step=step)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)
            self.stop.set()
