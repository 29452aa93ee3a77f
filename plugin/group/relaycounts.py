"""Counts of the relay of one worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DelayCounts", "DelayStanding"]


class DelayStanding(NamedTuple):
    """How one partition of a delay topic stands."""

    topic: str
    waiting: int
    """Copies that are not moved, as far as the log was fetched from."""
    late: float
    """Seconds for which the oldest copy that is due has waited to be moved; 0 if none is due."""


@dataclass(slots=True)
class DelayCounts:
    """Copies since the start of the worker, and how the partitions stand that its relay has now."""

    cut: int = 0  #: those that were due later than `max_delay` allows
    cancelled: int = 0  #: those that were dropped since their message was cancelled
    standing: Callable[[], Sequence[DelayStanding]] = tuple

    def waiting(self) -> dict[str, int]:
        """Copies that are not moved, by delay topic."""
        waiting: Counter[str] = Counter()
        for each in self.standing():
            waiting[each.topic] += each.waiting
        return dict(waiting)

    def late(self) -> float:
        """Seconds for which the oldest copy that is due has waited to be moved; 0 if none is due."""
        return max((each.late for each in self.standing()), default=0.0)
