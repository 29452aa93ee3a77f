"""Observers see every event, and nothing that they do changes anything."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
from tests.fakes import Clock
from tests.hostileobjects import contained
from tests.tables import each

from ackwise import App, Event, EventCode
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import Durable, EventSink, durable_of
from ackwise.plugin.handlers.observers import Observed

EVENT = Event(EventCode.CLAIMED, "orders", 0, 7)


class Sink:
    def __init__(self) -> None:
        self.told: list[object] = []

    def record(self, event: Event) -> None:
        self.told.append(event)

    async def flush(self) -> None:
        self.told.append("flush")

    async def open(self) -> None:
        self.told.append("open")

    async def close(self) -> None:
        self.told.append("close")


async def test_an_observer_sees_what_the_sink_takes_and_the_sink_is_served_as_without_it() -> None:
    sink, seen = Sink(), list[Event]()
    observed: EventSink = Observed([seen.append], sink)
    await observed.open()
    observed.record(EVENT)
    await observed.flush()
    await observed.close()
    assert seen == [EVENT]
    assert sink.told == ["open", EVENT, "flush", "close"]


async def test_an_observer_needs_no_sink() -> None:
    seen = list[Event]()
    observed = Observed([seen.append], None)
    await observed.open()
    observed.record(EVENT)
    await observed.flush()
    await observed.close()
    assert seen == [EVENT]


def test_an_observer_that_raises_is_counted_and_logged_once_a_minute_and_hinders_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ValueError("card 4111 1111")

    sink, seen, clock = Sink(), list[Event](), Clock()
    observed = Observed([broken, seen.append], sink, clock=clock)
    for _ in range(3):
        observed.record(EVENT)
    assert (len(sink.told), len(seen), observed.failures) == (3, 3, {"broken": 3})
    assert len(caplog.records) == 1
    clock.now += 61
    observed.record(EVENT)
    assert len(caplog.records) == 2
    assert "observer=broken times=4 error=ValueError" in caplog.records[1].getMessage()
    assert "4111" not in caplog.text


@contained
def test_an_observer_stops_no_program_and_may_be_of_a_class_that_has_no_hash() -> None:
    @dataclasses.dataclass
    class Stops:
        error: type[BaseException]

        def __call__(self, event: Event) -> None:
            raise self.error

    observed = Observed([Stops(KeyboardInterrupt), Stops(SystemExit)], None)
    observed.record(EVENT)
    assert observed.failures == {"Stops": 1}


def test_a_function_of_one_argument_is_taken_for_an_observer() -> None:
    app = App("billing")
    seen = list[Event]()

    class Counts:
        def __call__(self, event: Event) -> None: ...

    def with_place(place: str, event: Event) -> None: ...

    app.use(seen.append, Counts(), functools.partial(with_place, "here"))
    assert len(app._slots.observers) == 3


async def waits(event: Event) -> None: ...


def sync_middleware(message: Any, call_next: Any) -> None: ...


@each(
    ("thing", "sentence"),
    [
        (waits, r"observer 'waits' is an `async def`, and an observer is not awaited; write `def waits\(event\)`"),
        (sync_middleware, "middleware 'sync_middleware' is not an `async def`"),
        (lambda: None, "is not an `async def`"),
        (17, r"17 can't be used; use takes a policy .*, a middleware .* or an observer"),
    ],
)
def test_what_is_neither_is_refused_with_a_sentence(thing: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        App("billing").use(thing)


def test_beside_an_observer_a_sink_says_how_far_its_events_are_durable_if_it_can() -> None:
    class Numbered(Sink):
        durable = Durable(5, 77)

    assert durable_of(Observed([print], Numbered())) == Durable(5, 77)
    assert durable_of(Observed([print], Sink())) is durable_of(Observed([print], None)) is None
