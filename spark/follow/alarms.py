"""Alarms: which red findings of the last audit are new, and which are gone. Plain values, without a clock of their own."""

from __future__ import annotations

from typing import NamedTuple

from ackwise.spark.follow.ranges import NONE, Findings, both, minus, place_of, union

__all__ = ["Change", "Patience", "Red", "Told"]


class Red(NamedTuple):
    """What makes the exit code of an audit 1."""

    settled: Findings = NONE
    """What no late event can mend."""
    young: Findings = NONE
    """Messages that are PROVISIONAL, and what has no time of its own, such as offsets without events."""
    unknown: Findings = NONE
    """Messages and offsets about which events are missing. By `place_of`."""

    @property
    def present(self) -> Findings:
        """All that is red."""
        return union(self.settled, self.young)


class Change(NamedTuple):
    """The difference between two audits."""

    new: Findings
    gone: Findings

    def __bool__(self) -> bool:
        return bool(self.new or self.gone)


class Patience:
    """Decides which red findings are due: all but the young ones that the audits have found for less than `lateness`.

    The clock is that of whoever follows, not that of the events: those stand still once all workers are dead, and the alarm must come.
    """

    def __init__(self, lateness: float) -> None:
        self._lateness = lateness
        self._born: list[tuple[float, Findings]] = []

    def due(self, red: Red, now: float) -> Findings:
        """Return what may be told at `now`, in seconds. Call it once for each audit, in their order."""
        present = red.present
        kept = [(born, both(found, present)) for born, found in self._born]
        fresh = minus(present, *(found for _, found in kept))
        limit = now - self._lateness
        old = union(*(found for born, found in [*kept, (now, fresh)] if born <= limit))
        young = [(born, found) for born, found in [*kept, (now, fresh)] if born > limit and found]
        self._born = [(limit, old), *young] if old else young
        return union(red.settled, old)


class Told:
    """What somebody was told. Each finding is told once, and once more that it is gone."""

    def __init__(self, findings: Findings = NONE) -> None:
        self.findings = findings

    def change(self, red: Red, due: Findings) -> Change:
        """Return what is to be told. What is unknown now is not gone: nobody knows that it was mended."""
        missing = minus(self.findings, red.present)
        return Change(minus(due, self.findings), minus(missing, _unknown(missing, red.unknown)))

    def take(self, change: Change) -> None:
        """Note that `change` was told."""
        self.findings = union(minus(self.findings, change.gone), change.new)


def _unknown(findings: Findings, unknown: Findings) -> Findings:
    """Return what is unknown at the places of `findings`, as of their kinds: whatever the verdict and the handler were."""
    there = {kind: unknown.get(place_of(kind), ()) for kind in findings if kind.has_offsets}
    return {kind: ranges for kind, ranges in there.items() if ranges}
