"""A lane with a real pipeline behind it: what its handler is given, in which order, and what becomes of it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

from tests.fakes import Clock, Publisher, Sink, Store
from tests.waiting import PATIENCE

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.message.wire import Copy, parse_copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.policies.retry import ConsumeLater, RetryInPlace
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run
from ackwise.plugin.consumer.backlog import ByKey
from ackwise.plugin.consumer.lane import Lane

SOON = RetryInPlace(3, delay=0.01)


class Shop:
    """One partition `orders`/0 with one handler. `seen` has the offsets of each call, in order."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        *,
        kind: Literal["batch", "message"] = "batch",
        order: Literal["key", "partition"] | None = "partition",
        in_place: RetryInPlace | None = SOON,
        dedup: bool | dict[str, Any] = False,
        store: Store | None = None,
        later: ConsumeLater | None = None,
        decode: Callable[[bytes | None], object] = lambda value: value,
        **agent: Any,
    ) -> None:
        self.seen: list[list[int]] = []
        self._handler = handler
        self._kind = kind
        self.publisher, self.sink, self.store = Publisher(), Sink(), store or Store(Clock())
        made = Agent("bill", ("orders",), kind, self._handle, decode, order=order, in_place=in_place if order is not None else None)
        self.agent = dataclasses.replace(made, **agent)
        self.leases = Leases(self.store, lease=30.0, retention=86400.0) if dedup is not False else None
        later = later or ConsumeLater(16)
        self.worker = Worker(
            "billing", later, self.publisher, "billing.retry", "billing.dlq",
            "billing.delay",
            dedup=None if dedup is False else Dedup(self.store, **({} if dedup is True else dedup)), leases=self.leases, sink=self.sink,
        )  # fmt: skip
        self.worker.flow.listen(self.worker.isolation.stir)
        self.pipeline = Pipeline(self.agent, self.worker)
        self._moved = asyncio.Event()
        self.lane = Lane(
            "orders", 0, "source", 100,
            make=lambda place, records: [Run(place, records, self.pipeline)],
            progressed=lambda lane: self._moved.set(),
            by_key=ByKey(self.pipeline.find_order) if order == "key" else None,
            in_order=order == "partition",
            flow=self.worker.flow,
        )  # fmt: skip
        self.lane.start()

    async def _handle(self, argument: Any) -> object:
        messages = [argument] if isinstance(argument, Message) else list(argument)
        self.seen.append([message.offset for message in messages])
        self._moved.set()
        return await self._handler(argument)

    def offer(self, count: int = 1, *, keys: Sequence[bytes | None] = (), start: int | None = None, values: Sequence[bytes] = ()) -> None:
        """Fetch `count` messages, or one for each of `keys`."""
        first, number = self.lane.position if start is None else start, len(keys) or len(values) or count
        self.lane.offer(
            [
                SimpleNamespace(
                    offset=first + at, timestamp=1000 + first + at, headers=(),
                    key=keys[at] if keys else b"k", value=values[at] if values else b"v",
                )
                for at in range(number)
            ]
        )  # fmt: skip

    async def until(self, condition: Callable[[], object]) -> None:
        """Work on until `condition` holds, which is looked at whenever a handler was called and whenever a batch ended."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def until_idle(self) -> None:
        """Until the calls that were abandoned have ended."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self.pipeline.execution.overtime.abandoned)
        await asyncio.sleep(0)

    def returned(self, copy: Copy) -> Run:
        """The copy as the relay brings it back."""
        place = Origin("billing.retry", copy.partition, 0, 0)
        raw = Delivery(*place[:3], 0, copy.key, copy.value, copy.headers, place)
        return Run.of(parse_copy(raw, "billing"), self.pipeline)

    def hurry(self) -> None:
        """Take up what is held at once, with one message more."""
        for run in self.lane.held:
            run.not_before = 0.0
        self.offer(1)

    async def settled(self, number: int) -> None:
        """Until the watermark is so far."""
        await self.until(lambda: self.lane.watermark.commit == 100 + number)

    async def stop(self) -> None:
        """Let what runs end, and end."""
        self.lane.stop()
        assert self.lane.task is not None
        await self.lane.task

    @property
    def sent(self) -> list[tuple[str, int]]:
        """Topic, with the rung of a copy that waits, and origin offset of each copy and dead letter."""
        sent = zip(self.publisher.topics, self.publisher.sent, strict=True)
        return [(topic, int(dict(copy.headers)["ackwise-origin-offset"] or b"")) for topic, copy in sent]


def failing(times: int, *offsets: int) -> Callable[[Any], Any]:
    """A handler that raises for the first `times` calls that have one of `offsets`."""
    left = dict.fromkeys(offsets, times)

    async def handle(argument: Any) -> None:
        for message in [argument] if isinstance(argument, Message) else argument:
            if left.get(message.offset, 0) > 0:
                left[message.offset] -= 1
                raise RuntimeError("not yet")

    return handle


def counting(handle: Any, counted: list[int]) -> Any:
    """The handler, which notes how often each of its messages was tried before."""

    async def count(argument: Any) -> object:
        counted.extend(message.reconsume_times for message in ([argument] if isinstance(argument, Message) else argument))
        return await handle(argument)

    return count


async def stubborn(end: asyncio.Event) -> None:
    """Go on until `end`, whatever cancels it."""
    while not end.is_set():
        try:
            await end.wait()
        except asyncio.CancelledError:
            continue


def now() -> float:
    """Seconds, of a clock that only goes on."""
    return time.monotonic()
