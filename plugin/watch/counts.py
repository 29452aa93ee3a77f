"""Counts of one worker since its start, taken from its events as they pass and from the calls of its store.

Events about messages that went the same way are counted as one. Without somebody who watches there are no counts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from prometheus_client import Histogram

from ackwise.middleware.columns import ColumnExchange, ColumnResult, in_columns
from ackwise.middleware.disposition import OUR_REASONS
from ackwise.middleware.events import Durable, Event, EventCode, EventSink, RunEvents, RunSink, durable_of, explode
from ackwise.middleware.store import ClaimStore, Exchange, ExchangeResult

__all__ = ["CountedEvents", "Counts", "TimedStore"]

T = TypeVar("T")

_OUTCOMES: Final = {
    EventCode.SUCCEEDED: "done",
    EventCode.DUP_SUPPRESSED: "duplicate",
    EventCode.STALE: "duplicate",
    EventCode.SENT_BACK: "sent_back",
    EventCode.DEAD_LETTERED: "dead",
    EventCode.DROPPED: "dropped",
    EventCode.CANCELLED: "cancelled",
}

#: What stands for a reason that a handler gave in words of its own: those may be about the payload, and never end.
_BY_HANDLER: Final = "by its handler"

#: Upper bounds of the buckets in seconds: those that the OpenTelemetry conventions advise for durations of messaging, and two above.
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 60.0, 900.0)


def _durations() -> Histogram:
    """Seconds; `families` names them."""
    return Histogram("durations", "", registry=None, buckets=_BOUNDS)


class Counts:
    """What was counted, by the labels of each metric."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()  #: by agent and outcome
        self.attempts: Counter[str] = Counter()  #: by agent, as all of these
        self.failed: Counter[str] = Counter()
        self.claims_lost: Counter[str] = Counter()
        self.retries: Counter[tuple[str, str]] = Counter()  #: by agent and delay level
        self.dead: Counter[tuple[str, str]] = Counter()  #: by agent and reason
        self.commits = 0
        self.processing: defaultdict[str, Histogram] = defaultdict(_durations)  #: by agent
        self.exchanges: defaultdict[str, Histogram] = defaultdict(_durations)  #: by result, as the next
        self.flushes: defaultdict[str, Histogram] = defaultdict(_durations)

    def count(self, event: Event | RunEvents, number: int, level: int | None = None) -> None:
        """Take `number` events of one kind into account."""
        code, agent = event.code, event.handler or "-"
        if (outcome := _OUTCOMES.get(code)) is not None:
            self.messages[agent, outcome] += number
        match code:
            case EventCode.SUCCEEDED | EventCode.FAILED:
                self.attempts[agent] += number
                self.failed[agent] += number if code is EventCode.FAILED else 0
                if event.duration_us is not None:
                    self.processing[agent].observe(event.duration_us / 1e6)
            case EventCode.SENT_BACK:
                self.retries[agent, "-" if level is None else str(level)] += number
            case EventCode.DEAD_LETTERED:
                self.dead[agent, _reason(event.error)] += number
            case EventCode.CLAIM_LOST:
                self.claims_lost[agent] += number
            case EventCode.COMMITTED:
                self.commits += number
            case _:
                pass


def _reason(said: str | None) -> str:
    return said if said is not None and said in OUR_REASONS else _BY_HANDLER


class CountedEvents:
    """An event sink that counts what it hands to `sink`, if there is one. A run of events is counted, and handed on, as one."""

    def __init__(self, counts: Counts, sink: EventSink | None) -> None:
        self._counts = counts
        self._sink = sink

    @property
    def durable(self) -> Durable | None:
        """As the sink says."""
        return durable_of(self._sink)

    def record(self, event: Event) -> None:
        """Give `event` to the sink, then count it."""
        if self._sink is not None:
            self._sink.record(event)
        self._counts.count(event, 1, event.level)

    def record_run(self, events: RunEvents) -> None:
        """Give the events of a run to the sink, then count them."""
        if isinstance(self._sink, RunSink):
            self._sink.record_run(events)
        elif self._sink is not None:
            for event in explode(events):
                self._sink.record(event)
        self._counts.count(events, len(events))

    async def flush(self) -> None:
        """As the sink does, and timed; without a sink there is nothing to flush."""
        if self._sink is not None:
            await _timed(self._sink.flush, self._counts.flushes, "done")

    async def open(self) -> None:
        """As the sink does."""
        if self._sink is not None:
            await self._sink.open()

    async def close(self) -> None:
        """As the sink does."""
        if self._sink is not None:
            await self._sink.close()


class TimedStore:
    """A claim store whose exchanges are timed, answered or not."""

    def __init__(self, counts: Counts, store: ClaimStore) -> None:
        self._store, self._columns = store, in_columns(store)
        self._exchanges = counts.exchanges
        self.open, self.close = store.open, store.close

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """As the store does."""
        return await _timed(lambda: self._store.exchange(exchange), self._exchanges, "answered")

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """As the store does."""
        return await _timed(lambda: self._columns.exchange_columns(exchange), self._exchanges, "answered")


async def _timed(call: Callable[[], Awaitable[T]], durations: defaultdict[str, Histogram], result: str) -> T:
    begun = time.perf_counter()
    try:
        answered = await call()
    except BaseException:
        durations["failed"].observe(time.perf_counter() - begun)
        raise
    durations[result].observe(time.perf_counter() - begun)
    return answered
