"""The tracks of each writer through each partition, 64 offsets to a row: they bound what a hole in its events hides.

A writer's events of one delta are cut into runs, which have no hole within. So a hole that shows when deltas are put
together lies wholly before or wholly after each run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, first_from, word_of
from ackwise.spark.events.schema import is_about_a_message, is_any
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.survey import committed_position, reached, received_from
from ackwise.spark.frames import Column, DataFrame, F, SparkSession

__all__ = ["SeqRun", "around", "holes_between", "runs", "seen", "tracks"]


class SeqRun(NamedTuple):
    """Sequence numbers of a writer that are all there: from `first` to `last`."""

    writer_id: int
    first: int
    last: int


def runs(written: Iterable[SeqRun], holes: Iterable[Hole]) -> list[SeqRun]:
    """Return the numbers that each writer has `written` in one delta, without the holes."""
    found = []
    missing: dict[int, list[Hole]] = defaultdict(list)
    for hole in holes:
        missing[hole.writer_id].append(hole)
    for writer_id, first, last in written:
        begin = first
        for hole in sorted(missing[writer_id]):
            found.append(SeqRun(writer_id, begin, hole.first - 1))
            begin = hole.after
        found.append(SeqRun(writer_id, begin, last))
    return found


def holes_between(runs: Iterable[SeqRun]) -> list[Hole]:
    """Return the missing numbers from 0 to the last of each writer."""
    found = []
    next_of: dict[int, int] = defaultdict(int)
    for writer_id, first, last in sorted(runs):
        if first > next_of[writer_id]:
            found.append(Hole(writer_id, next_of[writer_id], first))
        next_of[writer_id] = max(next_of[writer_id], last + 1)
    return found


def tracks(spark: SparkSession, events: DataFrame, runs: Sequence[SeqRun]) -> DataFrame:
    """One row per run (`writer_id`, `first`, `last`), partition and word of offsets, from projected events.

    `seen` has the offsets that message events are about, and `oldest` and `newest` the times of their records. `positions` has
    the offsets at which the partition was read, `reached` and `settled_to` up to where it had been read and was committed.
    """
    known = F.broadcast(spark.createDataFrame(list(runs), "writer_id long, first long, last long"))
    offset, is_message = F.col("offset"), is_about_a_message()
    named = F.col("topic") != ""
    relevant = events.where(is_message | is_any(EventCode.ASSIGNED, EventCode.RECEIVED_RANGE, EventCode.COMMITTED))
    placed = relevant.join(known, "writer_id").where((F.col("seq") >= F.col("first")) & (F.col("seq") <= F.col("last")))
    return placed.groupBy("writer_id", "first", "last", "pk", word_of("offset").alias("word")).agg(
        _mask(is_message).alias("seen"),
        F.min(F.when(is_message, F.col("record_ts"))).alias("oldest"),
        F.max(F.when(is_message, F.col("record_ts"))).alias("newest"),
        _mask(named & (received_from() == offset)).alias("positions"),
        F.max(F.when(named, reached())).alias("reached"),
        F.max(F.when(named, committed_position())).alias("settled_to"),
    )


def seen(tracks: DataFrame) -> DataFrame:
    """Return the offsets with a message event, as `Folded.seen`."""
    return tracks.where("seen != 0").select(
        F.col("pk").alias("key"), "word", F.lit("seen").alias("kind"), F.col("seen").alias("mask"), "oldest", "newest"
    )


def around(tracks: DataFrame, holes: DataFrame) -> DataFrame:
    """Rows of `Around`, for each hole and each partition that its writer names, from tracks of runs between the holes.

    One that it names only afterwards is among them: it may have had it in the hole as well.
    """
    hole = ["writer_id", "hole_first", "hole_after", "pk"]
    known = F.broadcast(holes.toDF("writer_id", "hole_first", "hole_after"))
    each = tracks.where("reached IS NOT NULL OR settled_to IS NOT NULL").join(known, "writer_id")
    earlier = F.col("last") < F.col("hole_first")
    before = each.where(earlier).groupBy(*hole).agg(F.max("reached").alias("reached"), F.max("settled_to").alias("settled_to"))
    resumed = first_from(F.col("word"), F.col("positions"), F.coalesce(F.col("so_far"), F.lit(0)))
    after = (
        each.where(~earlier)
        .select(*hole, "word", "positions")
        .join(before.select(*hole, F.col("reached").alias("so_far")), hole, "left")
        .groupBy(*hole)
        .agg(F.min(resumed).alias("resumed"))
    )
    return before.join(after, hole, "full").select(*Around._fields)


def _mask(condition: Column) -> Column:
    return F.coalesce(F.bit_or(F.when(condition, bit_of("offset"))), F.lit(0))
