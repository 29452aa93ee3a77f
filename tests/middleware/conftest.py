"""A spine on a desk: a pipeline with a publisher, a sink, a store and clocks that a test can break and move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from tests.fakes import Clock, Publisher, Sender, Sink, Store

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Origin, TopicPartition
from ackwise.middleware.message.wire import Copy, parse_copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.watermark import Watermark
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage


class Partition:
    """The lane that a batch came from, reduced to what the pipeline asks of it."""

    def __init__(self, watermark: Watermark) -> None:
        self.cut_off = self.is_stopping = False
        self._watermark = watermark

    def pass_settled(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.stage is Stage.SETTLED:
                for first, end in run.ranges():
                    self._watermark.finish(first, end)


class Spine:
    """One worker with one handler."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        *,
        kind: Literal["batch", "message"] = "batch",
        later: ConsumeLater | None = None,
        dedup: bool | dict[str, Any] = False,
        store: Store | None = None,
        clock: Clock | None = None,
        keep_ack_index_on_error: bool = False,
        decode: Callable[[bytes | None], object] = lambda value: value,
        name: str = "bill",
    ) -> None:
        self.clock = clock or Clock()
        self.paused = 0.0  #: seconds that the wall clock went on while the monotonic one was stalled
        self.publisher = Publisher()
        self.sender = Sender()
        self.sink = Sink()
        self.store = store or Store(self.clock)
        self.watermark = Watermark(100)
        self.partition = Partition(self.watermark)
        self.agent = Agent(name, ("orders",), kind, handler, decode, keep_ack_index_on_error=keep_ack_index_on_error)
        options = {} if dedup is True or dedup is False else dedup
        policy = Dedup(self.store, **options) if dedup is not False else None
        later = later or ConsumeLater(16)
        self.leases = Leases(self.store, lease=30.0, retention=86400.0, clock=self.clock, wall=self.wall) if policy else None
        self.worker = Worker(
            "billing",
            later,
            self.publisher,
            "billing.retry",
            "billing.dlq",
            "billing.delay",
            dedup=policy,
            leases=self.leases,
            sink=self.sink,
            sender=self.sender,
            monotonic=self.clock,
            wall=self.wall,
        )
        self.pipeline = Pipeline(self.agent, self.worker)
        self.worker.flow.listen(self.worker.isolation.stir)
        self.publisher.wall = self.wall

    def wall(self) -> float:
        return self.clock.now + self.paused

    def entries(self, count: int, *, start: int = 100, **fields: Any) -> list[Run]:
        """`count` new deliveries from `start`, held by the watermark."""
        return [self.entry(start + index, **fields) for index in range(count)]

    def together(self, count: int, *, start: int = 100, **fields: Any) -> Run:
        """The same as one run of raw records."""
        places = range(start, start + count)
        about = {"timestamp": 1_700_000_000_000, "key": b"k", "headers": (), **fields}
        for offset in places:
            self.watermark.track(offset)
        return Run(TopicPartition("orders", 3), [SimpleNamespace(offset=offset, value=b"v%d" % offset, **about) for offset in places])

    def entry(self, offset: int, **fields: Any) -> Run:
        fields = {"key": b"k", "value": b"v%d" % offset, "headers": (), "topic": "orders", "partition": 3, **fields}
        origin = fields.pop("origin", Origin(fields["topic"], fields["partition"], offset, 1_700_000_000_000))
        self.watermark.track(offset)
        return Run.of(Delivery(offset=offset, timestamp_ms=1_700_000_000_000, origin=origin, **fields))

    def returned(self, copy: Copy, offset: int = 0) -> Run:
        """The entry that `copy` becomes when the relay has brought it back."""
        raw = Delivery(
            "billing.retry",
            copy.partition,
            offset,
            0,
            copy.key,
            copy.value,
            copy.headers,
            Origin("billing.retry", copy.partition, offset, 0),
        )
        return Run.of(parse_copy(raw, "billing"))

    async def run(self, entries: list[Run]) -> list[Stage]:
        """One pass; settled entries finish at the watermark."""
        try:
            await self.pipeline(entries, self.partition)
        finally:
            for entry in entries:
                if entry.stage is Stage.SETTLED:
                    for first, end in entry.ranges():
                        self.watermark.finish(first, end)
        return [entry.stage for entry in entries]

    def sent(self) -> list[tuple[str, bytes | None]]:
        """Topic, with the rung of a copy that waits, and value of each acknowledged copy."""
        return [(topic, copy.value) for topic, copy in zip(self.publisher.topics, self.publisher.sent, strict=True)]


@pytest.fixture
def make_spine() -> type[Spine]:
    return Spine


@pytest.fixture
def make_store() -> type[Store]:
    return Store


@pytest.fixture
def make_clock() -> type[Clock]:
    return Clock


async def _nothing(batch: Batch[Any]) -> None:
    return None


@pytest.fixture
def succeed() -> Callable[[Batch[Any]], Awaitable[None]]:
    return _nothing
