"""The user's observers: they see every event and can change nothing."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import Durable, Event, EventSink, RunEvents, durable_of, explode, mark_sink, run_sink
from ackwise.middleware.log import Log
from ackwise.middleware.usercode import class_name, failures_of, where_raised
from ackwise.plugin.handlers.decoder import is_async, name_of

log = Log()

Observer = Callable[[Event], None]

#: Seconds between two warnings about one observer; it may raise for every message.
_WARN_EVERY: Final = 60.0


def is_observer(thing: Callable[..., Any]) -> bool:
    """Whether `thing` is called with one argument, an event; a middleware takes two."""
    return _fits(thing, 1) and not _fits(thing, 2)


def check_observer(observer: Callable[..., Any]) -> Observer:
    """Refuse an observer that would have to be waited for. Raises `ConfigurationError`."""
    name = name_of(observer)
    if is_async(observer):
        raise ConfigurationError(
            f"observer {name!r} is an `async def`, and an observer is not awaited; write `def {name}(event)`, and put what takes time "
            "into a queue. A middleware takes two arguments: (message, call_next)"
        )
    return observer


class Observed:
    """An event sink that shows each event to `observers` after `sink`, if there is one, has taken it.

    What an observer raises is counted and logged, at most once a minute each, and goes no further.
    """

    def __init__(self, observers: Sequence[Observer], sink: EventSink | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._observers = tuple(observers)
        self._sink = sink
        self._clock = clock
        self._names = [name_of(observer) for observer in self._observers]
        self._failures: dict[int, int] = {}  #: by place
        self._warn_at: dict[int, float] = {}

    @property
    def failures(self) -> dict[str, int]:
        """How often each observer raised, by its name; those that never did are not in it."""
        return {self._names[place]: times for place, times in self._failures.items()}

    @property
    def durable(self) -> Durable | None:
        """Return the sink's."""
        return durable_of(self._sink)

    def record(self, event: Event) -> None:
        """Give `event` to the sink, then to each observer."""
        if self._sink is not None:
            self._sink.record(event)
        self._show([event])

    def record_run(self, events: RunEvents) -> None:
        """Give the events of a run to the sink, then each of them to each observer."""
        each = explode(events)
        if (sink := run_sink(self._sink)) is not None:
            sink.record_run(events)
        elif self._sink is not None:
            for event in each:
                self._sink.record(event)
        self._show(each)

    def _show(self, events: Sequence[Event]) -> None:
        for place, observer in enumerate(self._observers):
            for failure in failures_of(observer, events):  # it may look, never decide
                self._failed(place, failure.error)

    async def flush(self) -> None:
        """As the sink does."""
        if self._sink is not None:
            await self._sink.flush()

    def mark(self) -> None:
        """As the sink does."""
        if (sink := mark_sink(self._sink)) is not None:
            sink.mark()

    async def open(self) -> None:
        """As the sink does."""
        if self._sink is not None:
            await self._sink.open()

    async def close(self) -> None:
        """As the sink does."""
        if self._sink is not None:
            await self._sink.close()

    def _failed(self, place: int, error: BaseException) -> None:
        times = self._failures[place] = self._failures.get(place, 0) + 1
        now = self._clock()
        if now >= self._warn_at.get(place, now):
            self._warn_at[place] = now + _WARN_EVERY
            log.warning(
                "observer raised",
                observer=self._names[place],
                times=times,
                error=class_name(error),
                at=where_raised(error),
            )


def _fits(thing: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(thing).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True
