"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time

from ackwise.middleware.duration import parse_duration

__all__ = ["VirtualClock"]


class VirtualClock:
    """Seconds since the epoch, which pass when `advance` says so. It is called for the time, as `time.time` is.

    It stands for the wall clock: what a message waits for, how old a record is. Time-outs of clients and sessions of a group stay
    those of the event loop.
    """

    def __init__(self, start: float | None = None) -> None:
        """It begins at `start`, or now."""
        self._now = time.time() if start is None else start

    def __call__(self) -> float:
        return self._now

    def advance(self, by: float | str) -> float:
        """Let `by` pass, seconds or a text such as `"10m"`; returns the time. Raises `ConfigurationError` for less than nothing."""
        self._now += parse_duration(by, what="advance")
        return self._now

    def advance_to(self, time: float) -> float:
        """Let it be `time`, epoch seconds, unless it is later already; returns the time."""
        self._now = max(self._now, time)
        return self._now
