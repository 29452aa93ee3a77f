"""The data of the drawings on the page: bars, curves, strips and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ackwise.spark.report.page.tone import Tone

__all__ = [
    "Curve",
    "DelayRow",
    "DelaysData",
    "ExportLane",
    "ExportsData",
    "Lane",
    "LateClass",
    "LatencyData",
    "LatencyRow",
    "Mark",
    "StripRow",
    "StripsData",
    "Tick",
    "TimelineData",
]


@dataclass(frozen=True, slots=True)
class LateClass:
    """The number of retries in one class of lateness; `share` of the fullest class, 0 to 1."""

    label: str
    number: int
    share: float
    tone: Tone


@dataclass(frozen=True, slots=True)
class DelayRow:
    """The lateness of one handler's retries: half of them by `p50` or less, and so on."""

    group: str
    handler: str
    messages: int
    early: int
    p50: str
    p90: str
    p99: str
    most: str


@dataclass(frozen=True, slots=True)
class DelaysData:
    """The lateness of retries."""

    sentence: str
    classes: Sequence[LateClass]
    rows: Sequence[DelayRow]


@dataclass(frozen=True, slots=True)
class Lane:
    """One verdict over time: a number for each bucket, and the height of its bar from 0 to 100."""

    name: str
    tone: Tone
    total: int
    most: int
    description: str
    numbers: Sequence[int]
    heights: Sequence[int]


@dataclass(frozen=True, slots=True)
class TimelineData:
    """The verdicts over time; `times` are the beginnings of the buckets."""

    sentence: str
    begin: str
    middle: str
    end: str
    times: Sequence[str]
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True)
class Curve:
    """The share of one topic's messages that took longer, in a drawing of 400 by 230: `path` is its line."""

    name: str
    path: str
    description: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the grid, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """The latency of one topic's messages: half of them `p50` or less, and so on."""

    group: str
    topic: str
    curve: int
    """Number of the curve, or -1 if it is not drawn."""
    messages: int
    negative: int
    negative_share: float
    p50: str
    p95: str
    p99: str


@dataclass(frozen=True, slots=True)
class LatencyData:
    """The latencies, from the record's timestamp until its success was reported."""

    sentence: str
    curves: Sequence[Curve]
    across: Sequence[Tick]
    up: Sequence[Tick]
    rows: Sequence[LatencyRow]
    hidden: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Bins of a strip that lie side by side and are of one tone: the first, and how many."""

    at: int
    number: int
    tone: Tone


@dataclass(frozen=True, slots=True)
class StripRow:
    """One partition from its first booked offset to the last."""

    group: str
    partition: str
    first: int
    end: int
    bins: int
    marks: Sequence[Mark]
    assigned: Sequence[int]
    revoked: Sequence[int]
    summary: str
    description: str


@dataclass(frozen=True, slots=True)
class StripsData:
    """The strips of the partitions."""

    sentence: str
    rows: Sequence[StripRow]
    hidden: int


@dataclass(frozen=True, slots=True)
class ExportLane:
    """The exported events of one writer: the height of each bar from 0 to 100, and the buckets with missing events."""

    writer: str
    client: str
    tone: Tone
    summary: str
    description: str
    heights: Sequence[int]
    missing: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExportsData:
    """Export completeness over time."""

    sentence: str
    begin: str
    middle: str
    end: str
    lanes: Sequence[ExportLane]
    hidden: int
