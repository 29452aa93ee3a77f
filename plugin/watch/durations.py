"""Durations that were measured, counted by how long they were."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["BOUNDS", "Durations"]

#: Upper bounds of the buckets in seconds: those that the OpenTelemetry conventions advise for durations of messaging, and two above.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 60.0, 900.0)


class Durations:
    """How many durations fell into each bucket, and their sum in seconds."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Each upper bound, and how many are at most that long; the last one is all of them."""
        counted, total = list[tuple[str, float]](), 0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], self._counts.copy(), strict=True):
            total += count
            counted.append((bound, float(total)))
        return counted
