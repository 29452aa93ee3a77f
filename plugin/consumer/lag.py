"""`Lag`: for how many seconds the oldest unfinished record of a lane has been in its log.

Records that were fetched say it themselves. What was not fetched is newer than the last record that was, and than the last look that found
nothing else in the log: the smaller of both ages is an upper bound, which is exact while a worker catches up.
"""

from __future__ import annotations

from collections.abc import Callable


class Lag:
    """What one lane has read, and when the log had no more. `clock`: monotonic seconds; `wall`: epoch seconds."""

    def __init__(self, position: int, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock, self._wall = clock, wall
        self._read_to = position  #: the log has nothing before this that was not fetched
        self._last_ms: int | None = None  #: timestamp of the last fetched record, epoch milliseconds
        self._begun = clock()
        self._at_end: float | None = None  #: when the log was asked last that had no more, monotonic seconds

    def fetched(self, end: int, last_ms: int) -> None:
        """Everything before `end` was fetched; the last record has the timestamp `last_ms`, in epoch milliseconds, -1 without one."""
        self._read_to = max(self._read_to, end)
        self._last_ms = last_ms if last_ms >= 0 else None

    def passed(self, end: int) -> None:
        """The log has nothing to read before `end` that was not fetched."""
        self._read_to = max(self._read_to, end)

    def see_end(self, end: int, asked_at: float) -> None:
        """The log ends at `end`, as it said when it was asked at this time of `clock`."""
        if self._read_to >= end:
            self._at_end = asked_at

    def seconds(self, oldest_ms: int | None, end: int | None) -> float | None:
        """Return the lag; 0 if all is finished, `None` if nothing is in flight and the end of the log is unknown.

        `oldest_ms` is the timestamp of the oldest record in flight, -1 if it has none, and `None` if nothing is in flight.
        """
        wall = self._wall()
        if oldest_ms is not None and oldest_ms >= 0:
            return max(0.0, wall - oldest_ms / 1000)
        if oldest_ms is None and end is None:
            return None
        if oldest_ms is None and end is not None and self._read_to >= end:
            return 0.0
        ages = [wall - last_ms / 1000 for last_ms in (self._last_ms,) if last_ms is not None]
        ages += [self._clock() - at for at in (self._at_end,) if at is not None]
        return max(0.0, min(ages, default=self._clock() - self._begun))
