"""Ackwise's numbers on the page that `setup_prometheus_sensors` gives an app, beside Faust's own.

Messages are counted by their events: each outcome passes there once, whichever pipeline it came through, and when no
more than the store is left to be told. Without the page nobody listens, no event is made for it, and counting costs nothing.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import faust
from faust.sensors.prometheus import PrometheusMonitor, setup_prometheus_sensors
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ackwise.middleware.columns import ColumnExchange, ColumnResult, in_columns
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.store import ClaimStore, Exchange, ExchangeResult
from ackwise.plugin.checkback.counts import CheckCounts
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.inspect.state import by_agent
from ackwise.plugin.observers import Observed

__all__ = ["Numbers", "numbers_of"]

_OUTCOMES: Final = {
    EventCode.SUCCEEDED: "done",
    EventCode.DUP_SUPPRESSED: "duplicate",
    EventCode.STALE: "duplicate",
    EventCode.SENT_BACK: "sent_back",
    EventCode.DEAD_LETTERED: "dead",
}


def numbers_of(app: faust.App) -> Numbers | None:
    """What counts for the page of `app`; `None` if none was set up."""
    monitor = app.monitor
    if not isinstance(monitor, PrometheusMonitor):
        return None
    name = next(iter(monitor._metrics.messages_received.collect())).name
    return Numbers(name.removesuffix("messages_received") + "ackwise", _registry(app))


def _registry(app: faust.App) -> CollectorRegistry:
    """The registry that the page shows. Faust keeps it nowhere but in the function of the page."""
    pages = [type(view) for view in app.web.views.values() if type(view).__module__ == setup_prometheus_sensors.__module__]
    return cast(CollectorRegistry, inspect.getclosurevars(cast(Any, pages[-1]).get).nonlocals["registry"])


class Numbers(Collector):
    """The numbers of one worker, with names that begin with `prefix`, in `registry`."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._prefix = prefix
        self._registry = registry
        self._member: Member | None = None
        self._messages: Counter[tuple[str, str]] = Counter()  #: by agent and outcome
        self._commits = 0
        self._exchanges = Histogram(f"{prefix}_store_exchange_seconds", "Seconds of an exchange with the claim store", registry=None)

    def counted(self, sink: EventSink | None) -> EventSink:
        """`sink`, if there is one, with each event counted."""
        return Observed([self._see], sink)

    def timed(self, store: ClaimStore | None) -> ClaimStore | None:
        """`store`, if there is one, with each exchange timed, answered or not."""
        return None if store is None else _Timed(store, self._exchanges)

    @contextmanager
    def shown(self, member: Member) -> Iterator[None]:
        """With the numbers of `member` on the page."""
        self._member = member
        self._registry.register(self)
        try:
            yield
        finally:
            self._registry.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """As Prometheus asks, in whatever thread: what was counted, and what `shown` shows as it is now."""
        messages = CounterMetricFamily(f"{self._prefix}_messages", "Messages by what became of them", labels=["agent", "outcome"])
        for labels, count in self._messages.copy().items():
            messages.add_metric(labels, count)
        yield messages
        yield CounterMetricFamily(f"{self._prefix}_commits", "Offsets committed, one for each partition of a commit", value=self._commits)
        yield from self._exchanges.collect()
        if (member := self._member) is None:
            return
        in_hand, held = by_agent(member)
        for name, about, by in (
            ("in_hand", "Messages fetched and not settled", in_hand),
            ("held", "Messages that wait for what is in their way", held),
        ):
            gauge = GaugeMetricFamily(f"{self._prefix}_{name}", about, labels=["agent"])
            for agent, count in by.items():
                gauge.add_metric([agent], count)
            yield gauge
        if member.leases is not None:
            yield GaugeMetricFamily(f"{self._prefix}_claims", "Claims held in the store", value=len(member.leases))
        if member.outbox is not None:
            yield from self._of_outbox(member.outbox_counts, member.check_counts)

    def _of_outbox(self, counts: OutboxCounts, checks: CheckCounts) -> Iterator[Metric]:
        answers = CounterMetricFamily(f"{self._prefix}_outbox_checks", "Check-backs of half messages, by their answer", labels=["answer"])
        for answer in ("committed", "rolled_back", "unknown", "unanswered", "parked"):
            answers.add_metric([answer], getattr(checks, answer))
        yield answers
        for name, about, value in (
            ("sent", "Rows of the outbox that were acknowledged and deleted here", counts.sent),
            ("failed", "Failures of rows of the outbox that are tried again", counts.failed),
            ("parked", "Rows of the outbox that were parked here", counts.parked),
        ):
            yield CounterMetricFamily(f"{self._prefix}_outbox_{name}", about, value=value)
        for name, about, number in (
            ("shards", "Shards of the outbox that this worker owns", float(counts.shards)),
            ("lag_seconds", "Age of the oldest row of the outbox when it was last read", counts.lag),
            ("brokers_away", "1 while no broker takes the rows of the outbox", float(counts.brokers_away)),
        ):
            yield GaugeMetricFamily(f"{self._prefix}_outbox_{name}", about, value=number)

    def _see(self, event: Event) -> None:
        if (outcome := _OUTCOMES.get(event.code)) is not None:
            self._messages[event.handler or "-", outcome] += 1
        elif event.code is EventCode.COMMITTED:
            self._commits += 1


class _Timed:
    def __init__(self, store: ClaimStore, seconds: Histogram) -> None:
        self._store, self._columns = store, in_columns(store)
        self._seconds = seconds
        self.open, self.close = store.open, store.close

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        with self._seconds.time():
            return await self._store.exchange(exchange)

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        with self._seconds.time():
            return await self._columns.exchange_columns(exchange)
