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
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.folded import Horizon
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import SAID, claimed_successes_of, copies, fold_by_writer, merge, outcomes_of, told_of
from ackwise.spark.fold.outgoing import outgoing
from ackwise.spark.fold.survey import merged, steps, survey
from ackwise.spark.fold.tracks import SeqRun, around, holes_between, seen, tracks
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["FRAMES", "Delta", "FoldedDeltas", "delta_of", "empty_delta", "together"]

#: The frames of a delta, by name.
FRAMES: Final = ("survey", "runs", "steps", "tracks", "messages", "copies", "outgoing")


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


def delta_of(spark: SparkSession, events: DataFrame, runs: Sequence[SeqRun]) -> Delta:
    """Fold projected events on demand. `runs` are the numbers of each writer, without a hole within and apart."""
    return _delta(spark, events, survey(events), runs)


def empty_delta(spark: SparkSession) -> Delta:
    """Return the fold of no events."""
    events = project(rows_of(spark, (), EVENT_SCHEMA))
    return _delta(spark, events, survey(events), [])


def _delta(spark: SparkSession, events: DataFrame, surveyed: DataFrame, there: Sequence[SeqRun]) -> Delta:
    return Delta(
        survey=surveyed,
        runs=rows_of(spark, there, "writer_id long, first long, last long"),
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
        return merged(self._delta.survey)

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
        found = around(self._delta.tracks, rows_of(self._spark, holes, "writer_id long, first long, after long"))
        return [Around(*row) for row in found.collect()]

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        return merge(self._delta.messages, live_writers, mute)

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        return outcomes_of(self._delta.messages, writers)

    def told(self, writers: Collection[int]) -> DataFrame:
        return told_of(self._delta.messages, writers)

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        return claimed_successes_of(self._delta.messages, messages)

    @property
    def cached(self) -> Sequence[DataFrame]:
        return ()

    @property
    def outgoing(self) -> DataFrame:
        return self._delta.outgoing

    @property
    def copies(self) -> DataFrame:
        """Places at which copies were read; one delta may have the beginning and another the outcome."""
        place = ("writer_id", "mk", "offset", "phys_pk", "phys_offset")
        return self._delta.copies.groupBy(*place).agg(*[F.max(name).alias(name) for name in SAID])
