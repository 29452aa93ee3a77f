"""Ackwise's metrics on the page that `setup_prometheus_sensors` gives an app, beside Faust's own; they are those of every worker.

Without the page there is no listener, no event is made for it, and counting costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import faust
from faust.sensors.prometheus import PrometheusMonitor
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ackwise.middleware.events import EventSink
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.faust.faustinternals import registry_of
from ackwise.plugin.web.workermeasures import CountedEvents, Counts, Sample, Seen, TimedStore, families, keep_looking, measures


def numbers_of(app: faust.App) -> Numbers | None:
    """Return the counters for the page of `app`; `None` if it has none."""
    if not isinstance(app.monitor, PrometheusMonitor):
        return None
    return Numbers(cast(CollectorRegistry, registry_of(app)))


class Numbers:
    """The metrics of one worker, in `registry` once it is `shown`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counts = Counts()
        self._seen = Seen()
        self._member: Member | None = None

    def counted(self, sink: EventSink | None) -> EventSink:
        """Return a sink that counts events and passes them on to `sink`, if any."""
        return CountedEvents(self._counts, sink)

    def timed(self, store: ClaimStore | None) -> ClaimStore | None:
        """`store`, if there is one, with each exchange timed, answered or not."""
        return None if store is None else TimedStore(self._counts, store)

    @contextmanager
    def shown(self, member: Member) -> Iterator[None]:
        """With the metrics of `member` on the page."""
        self._member = member
        page = _PAGES.get(self._registry) or _PAGES.setdefault(self._registry, _Page(self._registry))
        page.add(self)
        try:
            yield
        finally:
            page.remove(self)

    async def keep_looking(self) -> None:
        """Ask broker and database, until it is cancelled, for what is shown of them."""
        assert self._member is not None
        await keep_looking(self._member, self._seen)

    def samples(self) -> tuple[str, Iterator[Sample]]:
        """The group of the worker, and its samples as they are now; in whatever thread Prometheus asks."""
        assert self._member is not None
        return self._member.settings.group, measures(self._member, self._counts, self._seen, time.monotonic())


class _Page(Collector):
    """The workers of one registry, which has each metric once: several apps may share the page of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._shown: list[Numbers] = []

    def add(self, numbers: Numbers) -> None:
        self._shown.append(numbers)
        if len(self._shown) == 1:
            self._registry.register(self)

    def remove(self, numbers: Numbers) -> None:
        self._shown.remove(numbers)
        if not self._shown:
            self._registry.unregister(self)
            del _PAGES[self._registry]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        return families([numbers.samples() for numbers in self._shown.copy()])


#: Of those registries that show a worker now.
_PAGES: Final[dict[CollectorRegistry, _Page]] = {}
