"""Counts of the relays of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ackwise.middleware.outbox import OutboxStore
from ackwise.plugin.checkback.counts import CheckCounts
from ackwise.plugin.group.outboxcounts import OutboxCounts

__all__ = ["DelayCounts", "DelayStanding", "RelayCounts"]


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
    is_halted: bool = False  #: cancellations can't be read, and no copy moves until they can
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


@dataclass(slots=True)
class RelayCounts:
    """What is relayed in a process without handlers, as far as it is: `ackwise relay`."""

    delay_counts: DelayCounts | None = None
    outbox: OutboxStore | None = None
    outbox_counts: OutboxCounts = field(default_factory=OutboxCounts)
    check_counts: CheckCounts = field(default_factory=CheckCounts)
