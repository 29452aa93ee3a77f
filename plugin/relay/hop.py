"""Next hop of a copy on a delay topic: it waits, or moves on. Pure; times are epoch milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from ackwise.middleware.retry import DelayLevels

__all__ = ["Move", "Wait", "comes_back_from_here", "latest_due", "next_hop", "written_at"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Not before `until`."""

    until: int


@dataclass(frozen=True, slots=True)
class Move:
    """To the delay topic of `level`, or to the retry topic if it is 0."""

    level: int


def next_hop(now_ms: int, due: int, written_ms: int, level: int, levels: DelayLevels) -> Wait | Move:
    """What becomes of a record of the topic of `level`, written at `written_ms` and due at `due`.

    It waits there for the level's delay, or until it is due if that is sooner; what is left then is waited for on the
    largest level that fits, and less than the smallest level where it is.
    """
    hop_ends = min(due, written_ms + round(levels.delay(level) * 1000))
    if now_ms < hop_ends:
        return Wait(hop_ends)
    if now_ms >= due:
        return Move(0)
    fitting = levels.fitting((due - now_ms) / 1000)
    return Wait(due) if fitting is None else Move(fitting)


def comes_back_from_here(due: int, written_ms: int, level: int, levels: DelayLevels) -> bool:
    """Whether `next_hop` moves such a record to the retry topic when it is due, and to no other level before."""
    left = due - written_ms - round(levels.delay(level) * 1000)
    return left <= 0 or levels.fitting(left / 1000) is None


def written_at(timestamp_ms: int, seen_ms: int) -> int:
    """When a record was written, as far as that can be believed: not after it was seen. A timestamp below 0 is none.

    A clock that is ahead, or whoever forges a timestamp, would hold all that is behind the record for as long as it says.
    """
    return min(timestamp_ms, seen_ms) if timestamp_ms >= 0 else seen_ms


def latest_due(timestamp_ms: int, seen_ms: int, max_delay: float, clock_skew: float, *, is_append_time: bool) -> int:
    """When the copy is due at the latest, if nobody may ask for more than `max_delay` seconds.

    What was asked for by the rules is never above it: a sender adds `clock_skew` to the due time, and its clock may be ahead by as much.
    """
    appended = timestamp_ms if is_append_time and timestamp_ms >= 0 else written_at(timestamp_ms, seen_ms)
    return appended + round((max_delay + 2 * clock_skew) * 1000)
