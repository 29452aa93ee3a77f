"""The fakes that all tests share: a clock, a publisher, a sender, an event sink and a claim store that a test can break.

What a test needs beyond these it gets from the public kit (`ackwise.testing`): a Kafka in memory, an app in a test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.policies.delaytopic import Ladder
from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult
from ackwise.stores.memory import MemoryStore

#: What a sink raises whose disk is full.
FULL_DISK = EventLogUnavailable("the disk is full")


class Clock:
    """Seconds that pass when a test sets `now`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Publisher:
    """Keeps the copies that were published in `sent`; what `answer` returns for a copy is its error.

    `topics` are those of `sent`, with what the rung waits that a copy takes: `billing.delay.10s`. `waits` is what was
    left of each then, in seconds, `wall` the time.
    """

    def __init__(self) -> None:
        self.sent: list[Copy] = []
        self.topics: list[str] = []
        self.waits: list[float] = []
        self.wall: Callable[[], float] = time.time
        self.answer: Callable[[Copy], PublishUnavailable | PublishRefused | None] = lambda copy: None

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        answers = [self.answer(copy) for copy in copies]
        self.sent += (sent := [copy for copy, answer in zip(copies, answers, strict=True) if answer is None])
        self.topics += map(self._topic_of, sent)
        self.waits += [0.0 if copy.until is None else copy.until / 1000 - self.wall() for copy in sent]
        return answers

    def _topic_of(self, copy: Copy) -> str:
        if copy.until is None:
            return copy.topic
        return f"{copy.topic}.{format_duration(Ladder(27).rung(copy.until / 1000 - self.wall()).wait)}"


class Sender:
    """Keeps the messages that handlers published in `sent`; what `answer` returns for a message is its error."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.answer: Callable[[Outgoing], SendFailed | None] = lambda message: None

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        await asyncio.sleep(0)
        answers: list[SendAnswer] = []
        for message in messages:
            failed = self.answer(message)
            if failed is None:
                self.sent.append(message)
            answers.append(failed or Acked(message.topic, 0, len(self.sent) - 1, 0, message.message_id))
        return answers


class Sink:
    """Keeps recorded events in `events`, those that were flushed in `durable`, and how many were written by a `mark` or a flush.

    `error`, if set, is raised by each flush, `mark_error` by each mark.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.flushed = self.written = 0
        self.error: Exception | None = None
        self.mark_error: Exception | None = None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def record(self, event: Event) -> None:
        self.events.append(event)

    async def flush(self) -> None:
        if self.error is not None:
            raise self.error
        self.flushed = self.written = len(self.events)

    def mark(self) -> None:
        if self.mark_error is not None:
            raise self.mark_error
        self.written = len(self.events)

    @property
    def durable(self) -> list[Event]:
        return self.events[: self.flushed]

    @property
    def buffer(self) -> list[Event]:
        return self.events[self.flushed :]

    def codes(self, offset: int) -> list[EventCode]:
        """Return the codes of the events of one offset, in the order of their records; not of marks, which are about many."""
        return [event.code for event in self.events if event.offset == offset and event.code is not EventCode.MARKED]

    def marked(self) -> set[int]:
        """Return the offsets that the written start marks cover."""
        covered = set[int]()
        for event in self.events[: self.written]:
            if event.code in (EventCode.CLAIMED, EventCode.STARTED) and event.offset is not None:
                covered.add(event.offset)
            elif event.code is EventCode.MARKED:
                covered |= offsets_of(event)
        return covered


def offsets_of(marked: Event) -> set[int]:
    """Return the offsets that a MARKED event covers."""
    assert marked.offset is not None
    assert marked.range_end is not None
    if marked.attrs is None:
        return {*range(marked.offset, marked.range_end)}
    first = marked.offset >> 6 << 6
    masks = enumerate(json.loads(marked.attrs)["masks"])
    return {first + 64 * word + bit for word, mask in masks for bit in range(64) if mask >> bit & 1}


class Store:
    """A memory store that keeps its trips, and raises before (`fail`) or after (`swallow`) it did what was asked."""

    def __init__(self, clock: Clock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.trips: list[Exchange] = []
        self.claimed = asyncio.Event()
        self.fail: Callable[[Exchange], bool] = lambda exchange: False
        self.swallow: Callable[[Exchange], bool] = lambda exchange: False

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        self.trips.append(exchange)
        if self.fail(exchange):
            raise StoreUnavailable("the store is out of reach")
        result = await self.inner.exchange(exchange)
        if exchange.claims:
            self.claimed.set()
        if self.swallow(exchange):
            raise StoreUnavailable("the answer was lost")
        return result
