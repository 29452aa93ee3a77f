"""Burials: messages that an operator wants dead. Each is a dead letter before its handler is called again, in whatever worker has it.

Only one that has failed and waits in place is told of, with the timestamp of its record: after a topic was made anew the
message at its offset is another one.
"""

from __future__ import annotations

from ackwise.middleware.disposition import Dead, Reason
from ackwise.middleware.run import Run, pick
from ackwise.middleware.waiting import MessageAt

__all__ = ["Burials"]


class Burials:
    """What one worker knows of them. Nothing is told by most workers, and costs one question for each batch."""

    def __init__(self) -> None:
        self._timestamps: dict[MessageAt, int] = {}

    def __bool__(self) -> bool:
        return bool(self._timestamps)

    def add(self, at: MessageAt, timestamp_ms: int) -> None:
        """From now on the message at `at` is to be dead, if its record has this timestamp."""
        self._timestamps[at] = timestamp_ms

    def has(self, at: MessageAt, timestamp_ms: int) -> bool:
        """Whether that is known already."""
        return self._timestamps.get(at) == timestamp_ms

    def discard(self, at: MessageAt) -> None:
        """It was taken back."""
        self._timestamps.pop(at, None)

    def places(self, run: Run) -> list[int]:
        """The places of the messages of `run` that are to be dead."""
        times = run.times()
        return [
            place
            for place, offset in enumerate(run.offsets)
            if self.has(MessageAt(run.place.topic, run.place.partition, offset), times[place])
        ]

    def bury(self, runs: list[Run], run: Run) -> bool:
        """Rule that those of `run` are dead letters, which fall out of it; returns whether something is left of it."""
        places = self.places(run)
        is_whole = len(places) == len(run)
        for single in pick(runs, run, places):
            single.exec_ids = None  # those of the last attempt, which was told: no other one begins
            single.rule(Dead(Reason.BURIED, single.failure))
        return not is_whole
