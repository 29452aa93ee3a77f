"""`Candidate`: one message for one handler that may be sent again, its fate, and the outcome of all of them. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from ackwise.middleware.run import Run
from ackwise.middleware.unrecorded import Unrecorded

__all__ = ["AGAIN", "Candidate", "Fate", "Resent", "Piece", "open_ones"]

T = TypeVar("T")

#: Places of each fate that are named.
_SHOWN: Final = 20


class Fate(enum.StrEnum):
    """What became of a message, in the words that are printed."""

    SENT = "sent"
    READY = "would be sent"
    REFUSED = "refused by the broker for good"
    HANDLERLESS = "its handler is no longer in the app"

    # Of a dead letter alone.
    FOREIGN = "not written by this group, or not readable"
    ORIGINLESS = "no message of a handler: it was found in a topic of the group itself"
    RENAMED = "a header's name is no UTF-8, which a copy can't carry"
    SHORTENED = "it was shortened, and its origin is no longer there"

    # Of a step of a plan alone.
    DONE = "done already"
    FOLLOWED = "a later attempt is on its way"
    EMPTY = "the broker has no record there"
    HELD = "held by a worker, which may be running it"
    DELETED = "no longer in the log"
    REPLACED = "another record is there now"
    OTHER_EPOCH = "of another dedup epoch than the app's"
    OTHER_KEY = "its key is not the one in the events"
    UNGUARDED = "nothing would suppress a second run, needs --with-review"
    REVIEWABLE = "for review, needs --with-review"
    MANUAL = "for people to mend"


#: What is still to be done by somebody of this group: it makes the exit code 1. Several groups may share a dead-letter topic.
_OPEN: Final = frozenset(Fate) - {Fate.SENT, Fate.READY, Fate.FOREIGN, Fate.DONE, Fate.FOLLOWED, Fate.EMPTY}

#: What another run of a plan may do, once something has changed or with another option.
AGAIN: Final = frozenset({Fate.HELD, Fate.HANDLERLESS, Fate.OTHER_EPOCH, Fate.OTHER_KEY, Fate.UNGUARDED, Fate.REVIEWABLE})


@dataclass(eq=False, slots=True)
class Candidate:
    """A message for one handler. `run` has what is sent; `fate` is `None` until it is known."""

    handler: str
    run: Run
    reason: str
    """The reason that its copy gives."""
    attrs: Mapping[str, Any]
    """What its event says."""
    fate: Fate | None = None
    lost_its_copy: bool = False
    """The store waits for a copy that is lost."""
    ran: Unrecorded | None = None
    """The run that had its key, if no event tells of that yet."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """Messages that are counted and named together; `of` is what they are of."""

    of: T
    kind: tuple[str, ...]
    place: str
    candidates: Sequence[Candidate]
    others: Mapping[Fate, int] = field(default_factory=dict)
    """How many have another fate without being candidates."""

    @property
    def fates(self) -> Counter[Fate]:
        """How many had which fate, as far as it is known; what has none may be sent."""
        return Counter(self.others) + Counter(each.fate or Fate.READY for each in self.candidates)


@dataclass
class Resent:
    """What became of messages."""

    counts: dict[tuple[str, ...], Counter[Fate]] = field(default_factory=dict)
    """By the kind of their piece."""
    places: dict[Fate, list[str]] = field(default_factory=dict)
    """Of each fate that leaves something to do, the first places."""
    recorded: bool = True
    """Whether events say what was sent."""
    earlier: int = 0
    """How many an earlier call was done with."""
    stopped: bool = False
    """It was asked to stop before the end."""

    def add(self, kind: tuple[str, ...], fates: Mapping[Fate, int], place: str) -> None:
        """Count messages of one place."""
        self.counts.setdefault(kind, Counter()).update(fates)
        for fate in _OPEN.intersection(fates):
            if len(shown := self.places.setdefault(fate, [])) < _SHOWN:
                shown.append(place)

    @property
    def fates(self) -> Counter[Fate]:
        """How many had which fate."""
        return sum(self.counts.values(), Counter[Fate]())

    @property
    def is_done(self) -> bool:
        """Whether nobody has to do anything more."""
        return not self.places and not self.stopped


def open_ones(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those whose fate is not known yet."""
    return [each for each in candidates if each.fate is None]
