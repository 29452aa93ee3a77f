"""Next hop of a copy at the head of a rung: to its target, aside in memory, or on to another rung. Pure; times are epoch milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ackwise.middleware.ladder import Ladder, Rung

__all__ = ["Aside", "Go", "Hop", "cut_due", "is_given_up", "look_at", "next_hop"]

#: So long after its first sight a copy hops at the earliest: where the clocks of brokers and relays differ by more than a rung, it would
#: hop hundreds of times a second.
_BETWEEN_HOPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Go:
    """It is due: to its target."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Wait for `until` in memory, then decide again. What is behind it goes on."""

    until: int


@dataclass(frozen=True, slots=True)
class Hop:
    """On to a partition of `rung`."""

    rung: Rung


def look_at(appended: int, seen: int, wait: float) -> int:
    """When a copy that was appended to a rung is looked at, due or not, and never later.

    A timestamp counts as far as it can be believed: not after the copy was `seen` first, and not below 0. A clock that is ahead, or a
    forged timestamp, would hold all that is behind the copy for as long as it says.
    """
    return (min(appended, seen) if appended >= 0 else seen) + round(wait * 1000)


def next_hop(now: int, due: int, *, seen: int, ladder: Ladder, sends: bool, has_room: bool) -> Go | Aside | Hop:
    """What becomes of a copy at the head of a rung whose wait is over. `seen`: when this relay saw it first.

    Nearly every copy is aside for its last half second: a writer adds `clock_skew` to what its rung waits. Without room for it in memory
    it takes the shortest rung.
    """
    if (left := due - now) <= 0:
        return Go()
    if left < ladder.least * 1000:
        return Aside(due) if has_room else Hop(ladder.rung(0.0, sends=sends))
    if now < seen + _BETWEEN_HOPS and has_room:
        return Aside(seen + _BETWEEN_HOPS)
    return Hop(ladder.rung(left / 1000, sends=sends))


def cut_due(due: int, timestamp: int, seen: int, *, max_delay: float, clock_skew: float, is_append_time: bool) -> int:
    """`due`, or the latest that is legal: nobody may ask for more than `max_delay` seconds.

    What was asked for by the rules is never cut: a sender adds `clock_skew`, and its clock may be ahead by as much. Where the timestamp is
    the producer's, the relay's first sight of the copy counts alone: an old one would make it early.
    """
    appended = timestamp if is_append_time and timestamp >= 0 else seen
    return min(due, appended + round((max_delay + 2 * clock_skew) * 1000))


def is_given_up(due: int, now: int, max_delay: float) -> bool:
    """Whether a copy whose target does not exist is dead: it is overdue by `max_delay` seconds."""
    return now >= due + round(max_delay * 1000)
