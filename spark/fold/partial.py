"""A partial fold, such as one day's events, and how partial folds combine.

What needs the whole stays out: who lives, what "now" is, which offsets there are to account for. So deltas may be made
in any order, and the same events may be in several.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from ackwise.spark.events.schema import EVENT_SCHEMA, project
from ackwise.spark.fold.facts import SurveyRow, Writer
from ackwise.spark.fold.folded import Horizon
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import claimed_successes_of, copies, fold_by_writer, merge, outcomes_of
from ackwise.spark.fold.outgoing import outgoing
from ackwise.spark.fold.survey import holes, steps, survey
from ackwise.spark.fold.tracks import SeqRun, around, holes_between, runs, seen, tracks
from ackwise.spark.frames import DataFrame, F, SparkSession

__all__ = ["FRAMES", "Delta", "FoldedDeltas", "delta_of", "empty_delta", "together"]

#: The frames of a delta, by name.
FRAMES: Final = ("survey", "runs", "steps", "tracks", "messages", "copies", "outgoing")

_KEY: Final = (
    "writer_id",
    "client",
    "cluster",
    "group_id",
    "topic",
    "topic_id",
    "partition",
    "handler",
    "dedup_epoch",
    "session",
    "pk",
    "mk",
)
_SMALLEST: Final = {"first_ts", "first_seq", "start", "least_lag", "oldest_record", "clock_low"}
_COUNTED: Final = {"strange", "message_events", "outgoing"}


@dataclass(frozen=True)
class Delta:
    """A partial fold: the fold of some events."""

    survey: DataFrame
    """Rows of `SurveyRow`."""
    runs: DataFrame
    """Rows of `SeqRun`."""
    steps: DataFrame
    """The events about partitions, as they are: their order matters only once all are known."""
    tracks: DataFrame
    """Rows of `tracks`."""
    messages: DataFrame
    """Rows of `fold_by_writer`."""
    copies: DataFrame
    """Rows of `messages.copies`."""
    outgoing: DataFrame
    """The events of the producer side, see `outgoing`."""


def delta_of(spark: SparkSession, events: DataFrame) -> Delta:
    """Fold projected events. Only the survey is computed now; the rest is computed on demand."""
    surveyed = survey(events)
    rows = [SurveyRow(*row) for row in surveyed.collect()]
    written = _written(rows)
    known = spark.createDataFrame([(writer, first, last + 1) for writer, first, last in written], "key long, start long, end long")
    there = runs(written, [Hole(*row) for row in holes(events, known).collect()])
    return _delta(spark, events, spark.createDataFrame(rows, surveyed.schema), there)


def empty_delta(spark: SparkSession) -> Delta:
    """Return the fold of no events."""
    events = project(spark.createDataFrame([], EVENT_SCHEMA))
    return _delta(spark, events, survey(events), [])


def _delta(spark: SparkSession, events: DataFrame, surveyed: DataFrame, there: Sequence[SeqRun]) -> Delta:
    return Delta(
        survey=surveyed,
        runs=spark.createDataFrame(list(there), "writer_id long, first long, last long"),
        steps=steps(events),
        tracks=tracks(spark, events, there),
        messages=fold_by_writer(events),
        copies=copies(events),
        outgoing=outgoing(events),
    )


def together(deltas: Sequence[Delta]) -> Delta:
    """Return several deltas, at least one, as one."""
    frames = {name: reduce(lambda rows, more: rows.unionByName(more), [getattr(delta, name) for delta in deltas]) for name in FRAMES}
    return Delta(**frames)


class FoldedDeltas:
    """Deltas, merged on demand: the same result as if their events were folded at once."""

    def __init__(self, spark: SparkSession, delta: Delta) -> None:
        self._spark = spark
        self._delta = delta

    @property
    def survey(self) -> DataFrame:
        merged = []
        for name in SurveyRow._fields:
            if name not in _KEY:
                how = F.bit_or if name == "roles" else F.sum if name in _COUNTED else F.min if name in _SMALLEST else F.max
                merged.append(how(name).alias(name))
        return self._delta.survey.groupBy(*_KEY).agg(*merged).select(*SurveyRow._fields)

    @property
    def steps(self) -> DataFrame:
        return self._delta.steps

    @property
    def seen(self) -> DataFrame:
        return seen(self._delta.tracks)

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        known = {writer.writer_id for writer in writers}
        return [hole for hole in holes_between(SeqRun(*row) for row in self._delta.runs.collect()) if hole.writer_id in known]

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        if not holes:
            return []
        found = around(self._delta.tracks, self._spark.createDataFrame(list(holes), "writer_id long, first long, after long"))
        return [Around(*row) for row in found.collect()]

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        return merge(self._delta.messages, live_writers, mute)

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        return outcomes_of(self._delta.messages, writers)

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        return claimed_successes_of(self._delta.messages, messages)

    @property
    def outgoing(self) -> DataFrame:
        return self._delta.outgoing

    @property
    def copies(self) -> DataFrame:
        """Places at which copies were read; one delta may have the beginning and another the outcome."""
        place = ("writer_id", "mk", "offset", "phys_pk", "phys_offset")
        return self._delta.copies.groupBy(*place).agg(F.max("told").alias("told"), F.max("begun").alias("begun"))


def _written(rows: Sequence[SurveyRow]) -> list[SeqRun]:
    """Return the first and the last number of each writer."""
    found: dict[int, SeqRun] = {}
    for row in rows:
        first, last = row.first_seq, row.last_seq
        if row.writer_id in found:
            first, last = min(first, found[row.writer_id].first), max(last, found[row.writer_id].last)
        found[row.writer_id] = SeqRun(row.writer_id, first, last)
    return list(found.values())
