"""The details of a report beyond accounts and verdicts: latencies, failures, stories. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ackwise.spark.report.attempts import Attempts
from ackwise.spark.report.earlier import EarlierRun
from ackwise.spark.report.exports import Exports
from ackwise.spark.report.latency import Latency
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.timeline import Buckets, Timeline
from ackwise.spark.why.story import Story

__all__ = ["AGES", "NO_DETAILS", "Details", "Failures", "StuckClaims"]

#: Lower ends of the classes of age of claims, in seconds; the first class begins at 0.
AGES: Final = (60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400)


@dataclass(frozen=True, slots=True)
class Failures:
    """The number of failed runs of one handler and topic with one class of error."""

    group: str
    handler: str
    topic: str
    error: str
    runs: int


@dataclass(frozen=True, slots=True)
class StuckClaims:
    """The number of stuck claims of one writer by class of age, youngest first."""

    writer_id: int
    client: str
    ages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Details:
    """The details of a report; an empty one is left out of the page."""

    latencies: Sequence[Latency] = ()
    attempts: Sequence[Attempts] = ()
    strips: Sequence[Strip] = ()
    stuck: Sequence[StuckClaims] = ()
    failures: Sequence[Failures] = ()
    exports: Sequence[Exports] = ()
    time: Buckets = field(default=Buckets(0, 1, 0))
    """Of `exports`."""
    hours: Timeline | None = None
    """Anomalies and unknown messages, by the time at which their records were written."""
    stories: Sequence[Story] = ()
    earlier: Sequence[EarlierRun] = ()


NO_DETAILS: Final = Details()
