"""The claims of a store beside the verdicts, joined by dedup hash: a store knows neither groups nor topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ackwise.spark.frames import Column, DataFrame, F
from ackwise.spark.storeclaims.findings import ClaimVerdict
from ackwise.spark.vocabulary import SUPPRESSED, Flag, Verdict

__all__ = ["Claims", "by_key", "claim_rows", "compared", "remembered"]

#: Verdicts by which a message is known not to be done.
_NOT_DONE: Final = (Verdict.LOST, Verdict.RETRY_LOST, Verdict.STUCK, Verdict.RETRYING, Verdict.PENDING)
#: A run without a claim leaves no record, and a replay leaves one by another key.
_ONCE: Final = (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE)
_NO_RECORD: Final = Flag.UNCLAIMED | Flag.REPEATED | Flag.RESCUED_FROM_DLQ | Flag.RECREATED


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a store."""

    store: str
    """Where it is, without user and password."""
    rows: DataFrame
    """One row per claim that is remembered, with the columns of `Remembered`: `dedup_hash`, `key`, `outcome` (0 while it is open),
    `is_claimed`, `unrecorded`, and `leased_until`, `kept_until` and `now` of the store's clock, microseconds."""


def remembered(claims: DataFrame) -> DataFrame:
    """One row per dedup hash in rows of `Claims`: `marked` (it is done), `unrecorded` and `is_claimed` (a worker has it).

    A key that is bound to a day may have several records.
    """
    return claims.groupBy("dedup_hash").agg(
        F.max(F.col("outcome") > 0).alias("marked"),
        F.max("unrecorded").alias("unrecorded"),
        F.max("is_claimed").alias("is_claimed"),
        F.max("leased_until").alias("leased_until"),
        F.max("kept_until").alias("kept_until"),
    )


def by_key(judged: DataFrame, kept: Mapping[int, int]) -> DataFrame:
    """One row per dedup hash, with the verdicts of its messages together. Takes rows of `judge`.

    `kept` has the wanted scopes, each with the shortest time, in microseconds, that its store keeps an outcome.
    """
    succeeded = F.col("verdict").isin(*map(int, _ONCE)) & (F.col("flags").bitwiseAND(int(_NO_RECORD)) == 0) & F.col("ran_under_claim")
    in_scope = F.col("scope").isin(list(kept)) if kept else F.lit(False)
    shortest = F.lit(None).cast("long")
    for scope, time in kept.items():
        shortest = F.when(F.col("scope") == scope, F.lit(time)).otherwise(shortest)
    return (
        judged.where(in_scope & F.col("dedup_hash").isNotNull())
        .groupBy("scope", "dedup_hash")
        .agg(
            F.max("is_done").alias("done"),
            F.max(F.when(succeeded, F.col("reported_ts"))).alias("succeeded_ts"),
            F.max((F.col("verdict")).isin(*map(int, _NOT_DONE))).alias("open"),
            F.max(F.col("verdict").isin(*map(int, (*SUPPRESSED, Verdict.UNKNOWN_EXPORT_GAP)))).alias("unclear"),
            F.max("concerned").alias("concerned"),
            F.max("blind").alias("blind"),
            F.max("since").alias("since"),
            F.max("retention").alias("longest"),
        )
        .withColumn("shortest", shortest)
    )


def compared(keys: DataFrame, store: DataFrame, as_of: int, now: int, grace: int) -> DataFrame:
    """`scope`, `dedup_hash`, `is_known`, `should_be` and `finding` of all keys of `by_key` and `remembered`.

    `scope` is null for a record without events. `should_be`: the store must have one. `finding` is a `ClaimVerdict` or null.
    `as_of` is a time of the events, `now` of the store; microseconds.
    """
    both = keys.join(store, "dedup_hash", "full")
    is_known = F.col("marked").isNotNull() & F.col("scope").isNotNull()
    # A success is reported before it is marked, so the store keeps it for longer than this.
    should_be = F.coalesce(F.col("succeeded_ts") + F.col("shortest") > now + grace, F.lit(False)) & (F.col("succeeded_ts") < as_of - grace)
    return both.select(
        "scope",
        "dedup_hash",
        is_known.alias("is_known"),
        F.coalesce(should_be, F.lit(False)).alias("should_be"),
        F.when(F.col("concerned"), _finding(should_be, as_of, now, grace)).alias("finding"),
    )


def claim_rows(found: DataFrame, settled: DataFrame, named: DataFrame, claims: DataFrame) -> DataFrame:
    """One row per message of a key with a finding, and record of the store if there is one: coordinates, `finding`, `verdict`, `key`."""
    messages = settled.join(found.where("finding IS NOT NULL AND scope IS NOT NULL"), ["scope", "dedup_hash"])
    records = claims.select("dedup_hash", "key", F.timestamp_micros("leased_until").alias("leased_until"), _time("kept_until"))
    listed = messages.join(records, "dedup_hash", "left").join(F.broadcast(named.where("mk IS NOT NULL").drop("pk")), "mk")
    return listed.select(
        *("cluster", "group_id", "handler", "topic", "topic_id", "partition", "offset", "dedup_hash"),
        _name("finding", ClaimVerdict).alias("finding"),
        _name("verdict", Verdict).alias("verdict"),
        *("key", "leased_until", "kept_until"),
    )


def _finding(should_be: Column, as_of: int, now: int, grace: int) -> Column:
    # When it was marked, at the earliest and at the latest. Before the first event others may have done it; after the last one
    # that is whole, events are still to come.
    earliest, latest = F.col("kept_until") - F.col("longest"), F.col("kept_until") - F.col("shortest")
    is_covered = (earliest > F.col("since") + grace) & (latest < as_of - grace)
    is_open = F.col("open") & ~F.col("done")
    unrecorded = F.col("unrecorded") & ~F.col("done")
    unseen = F.col("marked") & ~F.col("unrecorded") & is_open & ~F.col("unclear") & ~F.col("blind") & is_covered
    forgotten = should_be & F.col("marked").isNull()
    unmarked = should_be & ~F.col("marked")
    left_open = F.col("is_claimed") & ~F.col("marked") & ~F.col("done") & (F.col("leased_until") < now - grace)
    found = F.lit(None).cast("int")
    for kind, condition in (
        (ClaimVerdict.UNRECORDED, unrecorded),
        (ClaimVerdict.LEFT_OPEN, left_open),
        (ClaimVerdict.UNMARKED, unmarked),
        (ClaimVerdict.FORGOTTEN, forgotten),
        (ClaimVerdict.DONE_UNSEEN, unseen),
    ):
        found = F.when(F.coalesce(condition, F.lit(False)), F.lit(int(kind))).otherwise(found)
    return found


def _time(column: str) -> Column:
    return F.timestamp_micros(column).alias(column)


def _name(column: str, kind: type[ClaimVerdict] | type[Verdict]) -> Column:
    found = F.lit(None).cast("string")
    for value in kind:
        found = F.when(F.col(column) == int(value), F.lit(value.name)).otherwise(found)
    return found
