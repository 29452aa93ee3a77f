"""`WaitingRun`: records of one rung that were fetched together and have gone the same way since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ackwise.middleware.message import TopicPartition
from ackwise.middleware.run import Run, Taker

__all__ = ["WaitingRun"]


class WaitingRun(Run):
    """A run whose records are as the client gave them. Times are epoch milliseconds."""

    def __init__(self, place: TopicPartition, records: Sequence[Any], pipeline: Taker, *, seen: int) -> None:
        super().__init__(place, records, pipeline)
        self.seen = seen  #: when this relay saw it first
        self.is_looked_at = False  #: the wait of its rung is over
        self.failing_since: float | None = None  #: when it could not be moved for the first time, monotonic seconds
        self.overdue_since: int | None = None  #: when the first of its records was due, once one was
