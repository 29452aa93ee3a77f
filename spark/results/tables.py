"""The tables and counts of a run, with names in place of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, word_of
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.messages import HIGHEST_BIT, OTHER_REASON, RANK_BASE, RANKS
from ackwise.spark.frames import Column, DataFrame, F, Row, SparkSession, Window
from ackwise.spark.report.strips import BINS
from ackwise.spark.report.timeline import Buckets
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import (
    ANOMALIES,
    DOUBTFUL,
    INCONCLUSIVE,
    RED,
    Account,
    CopyFate,
    Flag,
    LogicalVerdict,
    ProducedVerdict,
    Verdict,
)

__all__ = [
    "HOUR",
    "MISSING",
    "MISSING_COLUMNS",
    "copy_tallies",
    "doubtful",
    "findings",
    "in_order",
    "is_in_ranges",
    "is_anomaly",
    "last_event",
    "late_rows",
    "logical_rows",
    "logical_tallies",
    "missing_rows",
    "name_of",
    "names",
    "offsets",
    "orphan_rows",
    "range_rows",
    "tallies",
    "unsent_rows",
    "verdict_rows",
    "with_names",
]

#: The columns of the table of missing offsets.
MISSING_COLUMNS: Final = (
    "cluster string, group_id string, topic string, topic_id string, partition int, start long, end long, verdict string"
)
#: The classes of words that the table of missing offsets has.
MISSING: Final = frozenset({*Verdict.__members__, Account.LOST_BEFORE_START})

#: A range has 65,536 offsets at most, which are so many words.
_WORDS_SHIFT: Final = 10
#: Microseconds.
HOUR: Final = 3_600_000_000
#: Whoever looks for a cause wants to know when their records were written.
_WRONG: Final = sorted(map(int, ANOMALIES | INCONCLUSIVE))

_MESSAGE: Final = ("cluster", "group_id", "handler", "dedup_epoch", "topic", "topic_id", "partition", "offset")
_OFFSETS: Final = ("cluster", "group_id", "topic", "topic_id", "partition")


def names(spark: SparkSession, facts: Facts) -> DataFrame:
    """Return the names of `mk` and `pk`: one row per view, and one per partition without messages (`mk` is null)."""
    rows: list[tuple[object, ...]] = []
    for view in facts.views:
        partition = facts.partitions[view.pk]
        rows.append(
            (view.mk, view.pk, *view.group, view.handler, view.dedup_epoch, partition.topic, partition.topic_id, partition.partition)
        )
    known = {view.pk for view in facts.views}
    rows += [(None, pk, *p.group, None, None, p.topic, p.topic_id, p.partition) for pk, p in facts.partitions.items() if pk not in known]
    return rows_of(
        spark,
        rows,
        "mk long, pk long, cluster string, group_id string, handler string, dedup_epoch int, topic string, topic_id string, partition int",
    )


def verdict_rows(settled: DataFrame, named: DataFrame) -> DataFrame:
    """One row per message. `state` has what it was judged by; it is null for plain verdicts."""
    return with_names(settled, named).select(
        *_MESSAGE,
        name_of("verdict", Verdict).alias("verdict"),
        _flag_names("flags").alias("flags"),
        "exec_id",
        "dedup_hash",
        F.timestamp_micros("record_ts").alias("record_ts"),
        "state",
    )


def is_in_ranges() -> Column:
    """Whether a message is in the table of ranges: it ran once, with or without a claim, and there is no more to say."""
    return (F.col("verdict") == Verdict.EXACTLY_ONCE) & F.col("flags").isin(0, int(Flag.UNCLAIMED))


def range_rows(messages: DataFrame, named: DataFrame) -> DataFrame:
    """One row per range of offsets with such messages of one partition and handler: `start` to before `end`.

    `masks` has a bit for each offset, 64 to a number, from `start >> 6` on; null: all offsets of the range. `n` is how many there are.
    """
    bits = messages.groupBy("mk", "verdict", "flags", word_of("offset").alias("word")).agg(
        F.bit_or(bit_of("offset")).alias("mask"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    lane = ("mk", "verdict", "flags", "block")
    each = bits.withColumn("block", F.shiftright("word", _WORDS_SHIFT))
    place = F.row_number().over(Window.partitionBy(*lane).orderBy("word"))
    ranges = (
        each.withColumn("stretch", F.col("word") - place)
        .groupBy(*lane, "stretch")
        .agg(
            F.min("first").alias("start"),
            (F.max("last") + 1).alias("end"),
            F.sum(F.bit_count("mask")).alias("n"),
            F.sort_array(F.collect_list(F.struct("word", "mask"))).alias("words"),
        )
    )
    masks = F.when(F.col("n") < F.col("end") - F.col("start"), F.transform("words", lambda each: each.getField("mask")))
    return with_names(ranges, named).select(
        *(name for name in _MESSAGE if name != "offset"),
        *("start", "end", masks.alias("masks"), "n"),
        name_of("verdict", Verdict).alias("verdict"),
        _flag_names("flags").alias("flags"),
    )


def logical_rows(settled: DataFrame, failed: DataFrame, named: DataFrame) -> DataFrame:
    """One row per message whose dedup hash has a logical verdict."""
    return with_names(settled.join(F.broadcast(failed), ["scope", "dedup_hash"]), named).select(
        *_MESSAGE,
        "dedup_hash",
        name_of("logical_verdict", LogicalVerdict).alias("logical_verdict"),
        _flag_names("logical_flags").alias("logical_flags"),
        name_of("verdict", Verdict).alias("verdict"),
    )


def missing_rows(stretches: DataFrame, named: DataFrame) -> DataFrame:
    """One row per range of offsets that no event is about and that the broker may have: `start` to before `end`."""
    partitions = named.select("pk", *_OFFSETS).distinct()
    known = stretches.join(F.broadcast(partitions), stretches["key"] == partitions["pk"])
    is_before = F.col("class") == Account.LOST_BEFORE_START
    verdict = F.when(is_before, F.lit(Verdict.LOST_PRODUCED.name)).otherwise(F.col("class"))
    return known.select(*_OFFSETS, "start", "end", verdict.alias("verdict"))


def orphan_rows(stretches: DataFrame, named: DataFrame) -> DataFrame:
    """One row per range of offsets that were consumed and not produced: `start` to before `end`."""
    partitions = named.select("pk", *_OFFSETS).distinct()
    known = stretches.join(F.broadcast(partitions), stretches["key"] == partitions["pk"])
    return known.select(*_OFFSETS, "start", "end", F.lit(ProducedVerdict.ORPHAN_CONSUMED.name).alias("verdict"))


def late_rows(unpublished: DataFrame) -> DataFrame:
    """One row per record that should have coordinates by now, from `unpublished_rows`."""
    late = unpublished.where("is_late")
    return late.select("topic", "topic_id", "key", "timestamp", F.lit(ProducedVerdict.NOT_PUBLISHED.name).alias("verdict"))


def unsent_rows(not_sent: DataFrame) -> DataFrame:
    """One row per message of the producer side that is not sent, from `judge.unsent`; `key` is its id. Those under way are left out."""
    columns = ("topic", "topic_id", F.col("message_id").alias("key"), "timestamp", "outbox", "row", "error", "verdict")
    return not_sent.where("verdict IS NOT NULL").select(*columns)


def tallies(settled: DataFrame, time: Buckets) -> DataFrame:
    """Count the messages of each kind, as `count`, for the driver to add up.

    A kind is `mk`, `scope`, `verdict`, `flags`, `is_accounted` (the accounts must have it), the `bucket` of `time`, the last `attempt`,
    and how often it failed and stayed `in_place`. Further `reason`, that of a dead letter, as `fold` numbers them, and `late`, the
    milliseconds that a retry was late. And `bin`, that of the account, for all but what was done once: offsets grow with time, so bins
    add few kinds. And `hour`, of the record's timestamp since 1970, for what is anomalous or unknown.
    """
    bucket = F.floor((F.col("reported_ts") - time.begin) / time.width).cast("int")
    kinds = settled.select(
        *("mk", "scope", "verdict", "flags"),
        _is_accounted().alias("is_accounted"),
        F.greatest(F.least(bucket, F.lit(time.number - 1)), F.lit(0)).alias("bucket"),
        F.when(F.col("verdict") == Verdict.DEAD_LETTERED, F.coalesce("state.reason", F.lit(OTHER_REASON))).alias("reason"),
        _lateness().alias("late"),
        F.coalesce(F.expr(f"state.last DIV {RANK_BASE}"), F.lit(1)).alias("attempt"),
        F.least(F.coalesce("state.in_place", F.lit(0)), F.lit(HIGHEST_BIT)).alias("in_place"),
        F.when(_is_accounted() & (F.col("verdict") != Verdict.EXACTLY_ONCE), _bin()).alias("bin"),
        F.when(F.col("verdict").isin(*_WRONG), F.floor(F.col("record_ts") / HOUR)).alias("hour"),
    )
    return kinds.groupBy(*kinds.columns).count()


def copy_tallies(settled: DataFrame) -> DataFrame:
    """`mk`, `attempt`, `fate`, `count`: what became of the copies that were sent back at each attempt."""
    places = F.filter(F.sequence(F.lit(0), F.lit(HIGHEST_BIT)), lambda place: F.getbit("state.sent", place) == 1)
    sent = settled.where(F.col("flags").bitwiseAND(int(Flag.RETRIED)) != 0).withColumn("attempt", F.explode(places))
    later = F.call_function("shiftright", F.col("state.attempts"), (F.col("attempt") + 1).cast("int"))
    fate = F.when(later != 0, F.lit(CopyFate.CAME.value)).otherwise(F.lit(CopyFate.OVERTAKEN.value))
    for verdict, name in (
        (Verdict.RETRYING, CopyFate.WAITING),
        (Verdict.RETRY_LOST, CopyFate.LOST),
        (Verdict.UNKNOWN_EXPORT_GAP, CopyFate.UNKNOWN),
    ):
        fate = F.when((later == 0) & (F.col("verdict") == verdict), F.lit(name.value)).otherwise(fate)
    return sent.groupBy("mk", "attempt", fate.alias("fate")).count()


def logical_tallies(failed: DataFrame) -> DataFrame:
    """`scope`, `logical_verdict`, `logical_flags`, `count`: how many dedup hashes of each kind."""
    return failed.groupBy("scope", "logical_verdict", "logical_flags").count()


def offsets(settled: DataFrame) -> DataFrame:
    """`pk`, `verdict`, `count`: how many offsets there are of each verdict; one that several handlers read has its worst."""
    each = settled.where(_is_accounted()).groupBy("pk", "offset").agg(F.min("verdict").alias("verdict"))
    return each.groupBy("pk", "verdict").count()


def findings(settled: DataFrame, named: DataFrame, limit: int) -> DataFrame:
    """The messages that need a look, at most `limit` of them and some of each verdict, as the fields of `Finding`."""
    return _listed(settled.where(is_anomaly()), named, limit)


def doubtful(settled: DataFrame, named: DataFrame, limit: int) -> DataFrame:
    """The first of the messages that were run again or overtaken, or may have been, and are no anomaly, as the fields of `Finding`."""
    return _listed(settled.where((F.col("flags").bitwiseAND(int(DOUBTFUL)) != 0) & ~is_anomaly()), named, limit)


def in_order(listed: Iterable[Row]) -> list[Row]:
    """Return rows of `findings` or `doubtful`, worst verdict first."""
    return sorted(listed, key=lambda row: (row["verdict"], row["rank"]))


def is_anomaly() -> Column:
    """Whether the message needs a look."""
    return F.col("verdict").isin(*map(int, ANOMALIES)) | (F.col("flags").bitwiseAND(int(RED)) != 0)


def _listed(found: DataFrame, named: DataFrame, limit: int) -> DataFrame:
    order = ["group_id", "topic", "partition", "offset", "handler", "dedup_epoch", "cluster", "topic_id"]  # no two rows are equal in all
    # Some of each verdict, even if another has very many; of each partition no more than could be listed go to where all are compared.
    few = _ranked(with_names(found, named), limit, "pk", "verdict", order=order).drop("rank").coalesce(1)
    return _ranked(few, limit, "verdict", order=order).orderBy("rank", "verdict").limit(limit).select(
        "group_id", "handler", "topic", "partition", "offset", "verdict", "flags", "pk", "mk",
        F.expr(f"state.last DIV {RANK_BASE}").alias("attempt"), last_event().alias("last_event"), "state.last_ts",
        "state.overtaken_by", "rank",
    )  # fmt: skip


def _ranked(rows: DataFrame, limit: int, *keys: str, order: Sequence[str]) -> DataFrame:
    """The first rows of each of `keys`, with their `rank`."""
    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(*order)).alias("rank")
    return rows.select("*", rank).where(F.col("rank") <= limit)


def with_names(rows: DataFrame, named: DataFrame) -> DataFrame:
    """The rows of messages with the names of `names` instead of `mk`."""
    return rows.join(F.broadcast(named.where("mk IS NOT NULL").drop("pk")), "mk")


def _lateness() -> Column:
    """Milliseconds from the time that the last retry was due to the claim of its run; without a claim, to the end of it.

    Rounded to two digits, so that there are few values. Null for a message that has not come again after it was sent back.
    """
    attempt, rank = F.expr(f"state.last DIV {RANK_BASE}"), F.col("state.last") % RANK_BASE
    came = (attempt > 1) & (rank != RANKS[EventCode.SENT_BACK])
    claimed = F.col("state.last_claimed") == attempt
    # A late success is no run of the copy, and may come before it is due.
    run = F.when(claimed, F.col("state.claim_ts")).when(F.col("state.late") == 0, F.col("reported_ts"))
    late = F.when(came, F.floor((run - F.col("state.due")) / 1000))
    unit = F.pow(F.lit(10), F.greatest(F.floor(F.log10(F.greatest(F.abs(late), F.lit(1)))) - 1, F.lit(0)))
    return (F.floor(late / unit) * unit).cast("long")


def _bin() -> Column:
    width = F.greatest(F.ceil((F.col("committed") - F.col("start")) / BINS), F.lit(1))
    return F.floor((F.col("offset") - F.col("start")) / width)


def _is_accounted() -> Column:
    return F.coalesce((F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("committed")), F.lit(False))


def last_event() -> Column:
    """The name of what happened last, or of what counts most, by `state`."""
    found = F.lit("")
    for code, rank in RANKS.items():
        is_last = (F.col("state.last") % RANK_BASE == rank) & (F.col("state.bits").bitwiseAND(1 << code) != 0)
        found = F.when(is_last, F.lit(code.name)).otherwise(found)
    for code in (EventCode.STALE, EventCode.DUP_SUPPRESSED, EventCode.LATE_SUCCESS, EventCode.SUCCEEDED):
        found = F.when(F.col("state.bits").bitwiseAND(1 << code) != 0, F.lit(code.name)).otherwise(found)
    return found


def name_of(column: str, kind: Iterable[IntEnum]) -> Column:
    """The name of the member of `kind` whose number is in `column`, or null."""
    found = F.lit(None).cast("string")
    for value in kind:
        found = F.when(F.col(column) == int(value), F.lit(value.name)).otherwise(found)
    return found


def _flag_names(column: str) -> Column:
    set_ones = [F.when(F.col(column).bitwiseAND(int(flag)) != 0, F.lit(flag.name)) for flag in Flag]
    return F.array_compact(F.array(*set_ones))
