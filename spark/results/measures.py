"""The queries behind the details: latencies, failures, exported events, and the events of single messages."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.spark.events.schema import is_about_a_message, is_any
from ackwise.spark.fold.facts import Facts, View
from ackwise.spark.frames import Column, DataFrame, F, SparkSession, Window
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.details import AGES
from ackwise.spark.report.latency import GROWTH, NEGATIVE
from ackwise.spark.report.strips import width_of
from ackwise.spark.report.timeline import Buckets
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import DONE, Verdict

__all__ = ["STREAM", "absent_bins", "bins", "latencies", "stream_names", "streams", "stuck_claims", "trails", "writing"]

#: Group and topic, numbered: latencies are counted by it.
STREAM: Final = "stream"
#: Events of a message that its story shows, from the first on.
_MOST_EVENTS: Final = 40
#: The columns of a step of a story.
_STEP_COLUMNS: Final = (
    *("ts", "writer_id", "seq", "code", "cluster", "group_id", "handler", "dedup_epoch", "topic", "topic_id", "partition", "offset"),
    *("range_end", "attempt", "level", "due", "exec_id", "dedup_hash", "lost", "took", "error", "attrs", "duration_us"),
    *("phys_topic", "phys_partition", "phys_offset"),
)
_COVERING: Final = (EventCode.RECEIVED_RANGE, EventCode.GAP, EventCode.SEEK, EventCode.TX_SETTLED)


def streams(spark: SparkSession, facts: Facts) -> DataFrame:
    """`mk` and `stream` of each view; a stream is a place in `stream_names`."""
    numbers = {name: number for number, name in enumerate(stream_names(facts))}
    return rows_of(spark, [(view.mk, numbers[_stream(facts, view)]) for view in facts.views], f"mk long, {STREAM} int")


def stream_names(facts: Facts) -> list[tuple[str, str]]:
    """Return the group and topic that each stream is."""
    return sorted({_stream(facts, view) for view in facts.views})


def _stream(facts: Facts, view: View) -> tuple[str, str]:
    return view.group[1], facts.partitions[view.pk].topic


def latencies(judged: DataFrame, of_view: DataFrame) -> DataFrame:
    """`stream`, `class`, `count` of the messages that were run with success, from the record's timestamp until the success was reported."""
    took = F.col("reported_ts") - F.col("record_ts")
    number = F.floor(F.log(F.greatest(took, F.lit(1)) / 1000) / F.log(F.lit(GROWTH))) + 1
    done = judged.where(F.col("verdict").isin(*map(int, sorted(DONE))) & F.col("record_ts").isNotNull())
    each = done.join(F.broadcast(of_view), "mk")
    place = F.when(took < 0, F.lit(NEGATIVE)).when(took < 1000, F.lit(0)).otherwise(number).cast("int")
    return each.groupBy(STREAM, place.alias("class")).count()


def bins(spark: SparkSession, accounts: Iterable[PartitionAccount]) -> DataFrame:
    """`pk`, `start` and `width` of the bins of each account."""
    rows = [(account.partition.pk, account.start, width_of(account.start, account.committed)) for account in accounts]
    return rows_of(spark, rows, "pk long, bins_start long, width long")


def absent_bins(missing: DataFrame, keyed: DataFrame) -> DataFrame:
    """`pk`, `bin`, `verdict` (its name) and how many offsets of a bin have no event, from the table `missing`.

    `keyed` has `pk`, `bins_start` and `width` by the coordinates of the partition.
    """
    here = missing.join(F.broadcast(keyed), [name for name in keyed.columns if name not in ("pk", "bins_start", "width")])
    first, last = (F.floor((F.col(at) - F.col("bins_start")) / F.col("width")) for at in ("start", "last"))
    each = here.withColumn("last", F.col("end") - 1).withColumn("bin", F.explode(F.sequence(first, last)))
    begin = F.col("bins_start") + F.col("bin") * F.col("width")
    inside = F.least(F.col("end"), begin + F.col("width")) - F.greatest(F.col("start"), begin)
    return each.groupBy("pk", "bin", "verdict").agg(F.sum(inside).alias("count"))


def writing(events: DataFrame, messages: DataFrame, time: Buckets, of_account: DataFrame) -> DataFrame:
    """Count what writers wrote, by projected events and by the messages of runs, which may stand for some of the same events.

    Rows with `writer_id`, one or more: the least and the largest sequence number, `first` and `last`, that it wrote in a `bucket` of
    `time`. Rows without: how often (`count`) runs of `mk` failed with `error`; or how often a partition `pk` came or went
    (`code`) in a `bin` of `of_account`, which has rows of `bins`. An event that was exported twice counts once.
    """
    failed, moved = is_any(EventCode.FAILED), is_any(EventCode.ASSIGNED, EventCode.REVOKED) & F.col("offset").isNotNull()
    is_counted = failed | moved

    def bucket(at: str) -> Column:
        return F.greatest(F.least(F.floor((F.col(at) - time.begin) / time.width), F.lit(time.number - 1)), F.lit(0)).cast("int")

    each = events.select(
        *("writer_id", "seq"),
        bucket("ts").alias("bucket"),
        F.when(is_counted, F.col("seq")).alias("event"),
        F.when(is_counted, F.col("code")).alias("code"),
        F.when(failed, F.col("mk")).alias("mk"),
        F.when(failed, F.coalesce("error", F.lit(""))).alias("error"),
        F.when(moved, F.col("pk")).alias("pk"),
        F.when(moved, F.col("offset")).alias("offset"),
    )
    for at, number in (("ts", "seq"), ("ok_ts", "ok_seq")):
        of_runs = messages.where(F.col(at).isNotNull()).select("writer_id", "mk", F.col(number).alias("seq"), bucket(at).alias("bucket"))
        ends = of_runs.groupBy("writer_id", "mk", "bucket").agg(F.array(F.min("seq"), F.max("seq")).alias("ends"))
        each = each.unionByName(ends.select("writer_id", "mk", "bucket", F.explode("ends").alias("seq")), allowMissingColumns=True)
    once = each.groupBy("writer_id", "bucket", "event", "code", "mk", "error", "pk", "offset").agg(
        F.min("seq").alias("first"), F.max("seq").alias("last")
    )
    place = F.floor((F.col("offset") - F.col("bins_start")) / F.col("width")).alias("bin")
    # An event that is counted for itself is also counted for its writer.
    twice = once.withColumn("is_writers", F.explode(F.array(F.lit(True), F.lit(False)))).where("is_writers OR event IS NOT NULL")
    of_writer = [F.when(F.col("is_writers"), F.col(name)).alias(name) for name in ("writer_id", "bucket")]
    of_event = [F.when(~F.col("is_writers"), F.col(name)).alias(name) for name in ("code", "mk", "error", "pk", "offset")]
    return (
        twice.select(*of_writer, *of_event, "first", "last")
        .join(F.broadcast(of_account), "pk", "left")
        .groupBy("writer_id", "bucket", "code", "mk", "error", "pk", place)
        .agg(F.min("first").alias("first"), F.max("last").alias("last"), F.count(F.lit(1)).alias("count"))
    )


def stuck_claims(events: DataFrame, settled: DataFrame, as_of: int) -> DataFrame:
    """`writer_id`, `age` (how many of `AGES` it has reached) and `count` of the claims that are stuck. Microseconds."""
    stuck = settled.where(F.col("verdict") == Verdict.STUCK).select("mk", "offset", F.col("state.claim_ts").alias("ts"))
    claims = events.where(is_any(EventCode.CLAIMED)).select("mk", "offset", "ts", "writer_id").join(stuck, ["mk", "offset", "ts"])
    each = claims.groupBy("mk", "offset", "ts").agg(F.min("writer_id").alias("writer_id"))
    reached = [(F.lit(as_of) - F.col("ts") >= seconds * 1_000_000).cast("int") for seconds in AGES]
    return each.groupBy("writer_id", reduce(operator.add, reached).alias("age")).count()


def trails(events: DataFrame, flagged: DataFrame) -> DataFrame:
    """The projected events behind single messages and offsets, beside the `number` of each.

    `flagged` has `number`, `pk`, `flagged_mk` (null: no event is about it) and `at`, the offset. Of each there are its own
    events and those that fetched or jumped over the offset, at most 40. A row without `code` has, in `ts` and `range_end`,
    when the group had first committed past it, and to where.
    """
    offset, at = F.col("offset"), F.col("at")
    mine = is_about_a_message() & (F.col("mk") == F.col("flagged_mk")) & (offset == at)
    covers = is_any(*_COVERING) & (offset <= at) & (F.col("range_end") > at)
    passed = is_any(EventCode.COMMITTED) & (F.col("range_end") > at)
    here = events.join(F.broadcast(flagged), "pk").where(F.coalesce(mine, F.lit(False)) | covers | passed)
    own = [F.when(~passed, F.col(name)).alias(name) for name in _STEP_COLUMNS]
    # Commits are many, and the first of them is all that matters; what was exported twice becomes one here.
    once = here.select(
        "number", "pk", *own, F.when(passed, F.col("ts")).alias("passed_ts"), F.when(passed, F.col("range_end")).alias("passed_to")
    )
    each = once.groupBy("number", "pk", *_STEP_COLUMNS).agg(F.min("passed_ts").alias("passed_ts"), F.min("passed_to").alias("passed_to"))
    order = Window.partitionBy("pk", "number").orderBy("ts", "writer_id", "seq")
    kept = each.withColumn("place", F.row_number().over(order)).where(F.col("place") <= _MOST_EVENTS)
    columns = [F.col(name) for name in _STEP_COLUMNS if name not in ("ts", "range_end")]
    return kept.select(
        "number", *columns, F.coalesce("ts", "passed_ts").alias("ts"), F.coalesce("range_end", "passed_to").alias("range_end")
    )
