"""Assertions over the events of a worker, and the outcome of each message in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ackwise.middleware.events import Event, EventCode

Kind = Literal["done", "duplicate", "later", "dead", "dropped"]

_KINDS: Final[dict[EventCode, Kind]] = {
    EventCode.SUCCEEDED: "done",
    EventCode.DUP_SUPPRESSED: "duplicate",
    EventCode.STALE: "duplicate",
    EventCode.SENT_BACK: "later",
    EventCode.DEAD_LETTERED: "dead",
    EventCode.DROPPED: "dropped",
}


class Place(NamedTuple):
    """Where a producer wrote a message: the same for all its copies."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Fate:
    """The outcome of one message in one attempt."""

    kind: Kind
    """`done`: the handler succeeded. `duplicate`: not run, its key was done before. `later`: a copy comes back. `dead`: a dead letter.

    `dropped`: it failed, and in broadcasting nothing is sent back."""
    place: Place
    handler: str
    attempt: int
    """1 for the first delivery."""
    error: str | None = None
    """The class of what the handler raised, or why it is a dead letter, or dropped."""
    level: int | None = None
    """The delay level of a copy; 0 without a delay."""
    due: float | None = None
    """When a copy comes back, epoch seconds."""


def place_of(event: Event) -> Place | None:
    """The message that `event` is about; `None` if it is about none, or about many."""
    if event.topic is None or event.partition is None or event.offset is None:
        return None
    return Place(event.topic, event.partition, event.offset)


def fate_of(event: Event) -> Fate | None:
    """Return the outcome of the message in `event`; `None` if the event has none."""
    kind, place = _KINDS.get(event.code), place_of(event)
    if kind is None or place is None or event.handler is None or event.attempt is None:
        return None
    due = None if event.due_ms is None else event.due_ms / 1000
    return Fate(kind, place, event.handler, event.attempt, event.error, event.level, due)


_ENDS: Final = frozenset({EventCode.SUCCEEDED, EventCode.DUP_SUPPRESSED, EventCode.STALE, EventCode.DEAD_LETTERED, EventCode.DROPPED})

#: Messages that are named in a failure.
_NAMED: Final = 10


def assert_no_loss(sent: Iterable[tuple[str, int, int]], events: Iterable[Event], *, waiting: Iterable[tuple[str, int, int]] = ()) -> None:
    """Each message in `sent` (topic, partition, offset) was done, suppressed as a duplicate, dead-lettered or dropped, or is in `waiting`.

    Raises `AssertionError`, which names those that were not and how far they came.
    """
    seen: dict[Place, set[EventCode]] = {}
    for event in events:
        if (place := place_of(event)) is not None and event.range_end is None:
            seen.setdefault(place, set()).add(event.code)
    patient = {Place(*place) for place in waiting}
    lost = [place for place in map(Place._make, sent) if place not in patient and _ENDS.isdisjoint(seen.get(place, ()))]
    if lost:
        raise AssertionError(f"{len(lost)} messages have no end: {_listed(lost, seen)}")


def assert_run_once(events: Iterable[Event]) -> None:
    """The handler succeeded with no message twice. Raises `AssertionError`, which names those with which it did."""
    runs: dict[tuple[Place, str | None], set[int | None]] = {}
    for event in events:
        if event.code is EventCode.SUCCEEDED and (place := place_of(event)) is not None:
            runs.setdefault((place, event.handler), set()).add(event.exec_id)
    twice = [place for (place, _), executions in runs.items() if len(executions) > 1]
    if twice:
        raise AssertionError(f"{len(twice)} messages succeeded more than once: {_listed(twice, {})}")


def assert_order(events: Iterable[Event], *, key_of: Callable[[Place], Hashable] | None = None) -> None:
    """The successes of each partition, or of each key, came in the order of the offsets at which the messages were written.

    A message that came back later is out of the order of its partition. `key_of` gives the key of a message by its place; messages of
    one key are on one partition. A message that succeeded again, with
    the same offset, breaks no order. Raises `AssertionError`, which names the first pair of each key that is out of order.
    """
    last: dict[Hashable, Place] = {}
    broken: dict[Hashable, tuple[Place, Place]] = {}
    for event in events:
        if event.code is not EventCode.SUCCEEDED or (place := place_of(event)) is None:
            continue
        key = (place.topic, place.partition) if key_of is None else key_of(place)
        if key in last and place.offset < last[key].offset:
            broken.setdefault(key, (last[key], place))
        else:
            last[key] = place
    pairs = "; ".join(f"{_name(after)} after {_name(before)}" for before, after in [*broken.values()][:_NAMED])
    if broken:
        what = "partitions" if key_of is None else "keys"
        raise AssertionError(f"the order of {len(broken)} {what} is broken: {pairs}")


def _listed(places: Iterable[Place], seen: Mapping[Place, set[EventCode]]) -> str:
    places = sorted(places)
    shown = [_name(place) + (f" ({', '.join(sorted(code.name for code in seen[place]))})" if seen.get(place) else "") for place in places]
    return ", ".join(shown[:_NAMED]) + (f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else "")


def _name(place: Place) -> str:
    return f"{place.topic}/{place.partition}/{place.offset}"
