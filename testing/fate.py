"""What became of a message, as its worker's events tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ackwise.middleware.events import Event, EventCode

__all__ = ["Fate", "Place", "fate_of", "place_of"]

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
    """What became of one message in one attempt."""

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
    """What `event` says became of its message; `None` if it says something else."""
    kind, place = _KINDS.get(event.code), place_of(event)
    if kind is None or place is None or event.handler is None or event.attempt is None:
        return None
    due = None if event.due_ms is None else event.due_ms / 1000
    return Fate(kind, place, event.handler, event.attempt, event.error, event.level, due)
