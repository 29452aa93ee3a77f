"""The tracks of each writer through each partition, 64 offsets to a row: they bound what a hole in its events hides.

A writer's events are cut into runs, which have no hole within: each hole lies wholly before or wholly after each run.
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
from ackwise.spark.frames import DataFrame, F, GroupedData, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["SeqRun", "around", "holes_between", "runs", "tracks"]


class SeqRun(NamedTuple):
    """Sequence numbers of a writer that are all there: from `first` to `last`."""

    writer_id: int
    first: int
    last: int


def runs(written: Iterable[SeqRun], holes: Iterable[Hole]) -> list[SeqRun]:
    """Return the numbers that each writer has `written`, without the holes."""
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


def tracks(spark: SparkSession, events: DataFrame, messages: DataFrame, between: Sequence[SeqRun]) -> DataFrame:
    """One row per run of numbers (`writer_id`, `first`, `last`), partition and word of offsets, from projected events and messages of runs.

    `positions` has the offsets at which the partition was read, `reached` and `settled_to` up to where it had been read and was committed.
    """
    known = F.broadcast(rows_of(spark, between, "writer_id long, first long, last long"))
    offset, named = F.col("offset"), F.col("topic") != ""
    relevant = events.where(is_about_a_message() | is_any(EventCode.ASSIGNED, EventCode.RECEIVED_RANGE, EventCode.COMMITTED))
    found = _placed(relevant, known).agg(
        F.coalesce(F.bit_or(F.when(named & (received_from() == offset), bit_of("offset"))), F.lit(0).cast("long")).alias("positions"),
        F.max(F.when(named, reached())).alias("reached"),
        F.max(F.when(named, committed_position())).alias("settled_to"),
    )
    of_runs = _placed(messages.where(named), known).agg(
        F.lit(0).cast("long").alias("positions"),
        F.max(F.col("offset") + 1).alias("reached"),
        F.max(F.lit(None).cast("long")).alias("settled_to"),
    )
    return found.unionByName(of_runs)


def _placed(rows: DataFrame, known: DataFrame) -> GroupedData:
    inside = rows.join(known, "writer_id").where((F.col("seq") >= F.col("first")) & (F.col("seq") <= F.col("last")))
    return inside.groupBy("writer_id", "first", "last", "pk", word_of("offset").alias("word"))


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
