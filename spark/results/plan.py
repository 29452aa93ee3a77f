"""The steps of the repair plan, as one frame of ranges that is read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ackwise.middleware.repairplan import RepairStep
from ackwise.spark.advice import PLANNED
from ackwise.spark.fold.messages import RANK_BASE
from ackwise.spark.frames import DataFrame, F, Row, Window
from ackwise.spark.results.tables import last_event, name_of, with_names
from ackwise.spark.vocabulary import ANOMALIES, Flag, LogicalVerdict, ProducedVerdict, Verdict

__all__ = ["of_keys", "of_messages", "of_offsets", "of_parked", "steps"]

_PARTITION: Final = ("cluster", "group_id", "topic", "topic_id", "partition")
_RUN: Final = ("pk", *_PARTITION, "handler", "dedup_epoch", "verdict", "attempt")
#: The columns that are null for an offset without events.
_UNKNOWN_COLUMNS: Final = (
    *("handler", "dedup_epoch", "flags", "dedup_hash", "last_event", "first_ts", "last_ts"),
    *("first_record_ts", "last_record_ts"),
)


def of_messages(settled: DataFrame, named: DataFrame, *, provisional: bool) -> DataFrame:
    """The steps for messages: a row per range of neighbours that are alike. Those that are PROVISIONAL only with `provisional`."""
    unknown = F.col("verdict") == Verdict.UNKNOWN_EXPORT_GAP
    final = F.col("flags").bitwiseAND(int(Flag.PROVISIONAL)) == 0
    wrong = F.col("verdict").isin(*map(int, ANOMALIES)) | (F.col("flags").bitwiseAND(int(Flag.COMMITTED_PAST)) != 0)
    found = settled.where((wrong | unknown) & (F.lit(provisional) | final))
    return _merged(with_names(found, named).withColumn("verdict", name_of("verdict", Verdict)))


def of_keys(settled: DataFrame, failed: DataFrame, named: DataFrame) -> DataFrame:
    """The steps for messages whose key was ran successfully more than once, from the dedup hashes in `failed`."""
    repeated = failed.where(F.col("logical_verdict") == LogicalVerdict.LOGICAL_DUPLICATE)
    found = settled.where("ran_under_claim").join(F.broadcast(repeated), ["scope", "dedup_hash"])
    return _merged(with_names(found, named).withColumn("verdict", F.lit(LogicalVerdict.LOGICAL_DUPLICATE.name)))


def of_offsets(missing: DataFrame) -> DataFrame:
    """The steps for offsets without events, from `missing_rows`; they have no handler, attempt 0 and no evidence."""
    wanted = missing.where(F.col("verdict").isin(*PLANNED))
    unknown_columns = (F.lit(None).alias(name) for name in _UNKNOWN_COLUMNS)
    no_outbox = F.lit(None).cast("string").alias("outbox")
    return wanted.select(*_PARTITION, F.lit(0).cast("long").alias("attempt"), "verdict", "start", "end", *unknown_columns, no_outbox)


def of_parked(produced: DataFrame) -> DataFrame:
    """The steps for parked rows of outboxes, from the table `produced`: ranges of row ids, where others have offsets."""
    parked = produced.where((F.col("verdict") == ProducedVerdict.PARKED.name) & F.col("row").isNotNull())
    named = parked.select(
        F.lit("").alias("cluster"),
        F.lit("").alias("group_id"),
        "topic",
        F.lit("").alias("topic_id"),
        F.lit(-1).cast("long").alias("partition"),
        F.coalesce("outbox", F.lit("")).alias("outbox"),
        "row",
        "verdict",
    )
    alike = [name for name in named.columns if name != "row"]
    place = F.row_number().over(Window.partitionBy(*alike).orderBy("row"))
    ranges = (
        named.withColumn("stretch", F.col("row") - place)
        .groupBy(*alike, "stretch")
        .agg(F.min("row").alias("start"), (F.max("row") + 1).alias("end"))
        .drop("stretch")
    )
    unknown_columns = (F.lit(None).alias(name) for name in _UNKNOWN_COLUMNS)
    return ranges.select("*", F.lit(0).cast("long").alias("attempt"), *unknown_columns)


def steps(frames: list[DataFrame]) -> Iterator[RepairStep]:
    """Yield all steps, by partition and offset. Raises what Spark raises."""
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    order = (*_PARTITION, "start", "handler", "dedup_epoch", "verdict")
    yield from map(_step, rows.orderBy(*order).toLocalIterator())


def _merged(messages: DataFrame) -> DataFrame:
    """Neighbours of one partition, handler, verdict and attempt as one row; a copy of each carries the attempt after it."""
    alike = messages.withColumn("attempt", F.coalesce(F.expr(f"state.last DIV {RANK_BASE}"), F.lit(0).cast("long")))
    # Only anomalies come here, and those are few unless something is very wrong.
    place = F.row_number().over(Window.partitionBy(*_RUN).orderBy("offset"))
    same_hash = F.min("dedup_hash") == F.max("dedup_hash")
    return (
        alike.withColumn("stretch", F.col("offset") - place)
        .groupBy(*_RUN, "stretch")
        .agg(
            F.min("offset").alias("start"),
            (F.max("offset") + 1).alias("end"),
            F.bit_or("flags").alias("flags"),
            F.when(same_hash, F.max("dedup_hash")).alias("dedup_hash"),
            F.min("state.first_ts").alias("first_ts"),
            F.max("state.last_ts").alias("last_ts"),
            F.min("record_ts").alias("first_record_ts"),
            F.max("record_ts").alias("last_record_ts"),
            F.struct(F.max("state.last").alias("last"), F.bit_or("state.bits").alias("bits")).alias("state"),
        )
        .withColumn("last_event", F.nullif(last_event(), F.lit("")))
        .withColumn("outbox", F.lit(None).cast("string"))
        .drop("pk", "stretch", "state")
    )


def _step(row: Row) -> RepairStep:
    written = None if row["first_record_ts"] is None else (row["first_record_ts"], row["last_record_ts"])
    return RepairStep(
        action=PLANNED[row["verdict"]],
        verdict=row["verdict"],
        cluster=row["cluster"],
        group=row["group_id"],
        handler=row["handler"],
        dedup_epoch=row["dedup_epoch"],
        topic=row["topic"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        start=row["start"],
        end=row["end"],
        attempt=row["attempt"],
        flags=tuple(str(flag.name) for flag in Flag(row["flags"] or 0)),
        dedup_hash=row["dedup_hash"],
        last_event=row["last_event"],
        first_ts=row["first_ts"],
        last_ts=row["last_ts"],
        record_ts=written,
        outbox=row["outbox"],
    )
