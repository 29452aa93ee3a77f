"""What was to be sent and was not, by the events of the producer side: a verdict on each such message id.

First that applies:
    acknowledged                                  → none
    parked, and not requeued since                → PARKED
    stored or requeued, within the grace          → none: it is under way
    …, and events of a group that sends missing   → PUBLISH_UNKNOWN
    …                                             → NOT_PUBLISHED
    failed for good, and whoever sent it was told → PRODUCE_FAILED
"""

from __future__ import annotations

from collections.abc import Collection

from ackwise.middleware.events import EventCode
from ackwise.spark.fold.outgoing import ENDED, STORED, fates
from ackwise.spark.frames import Column, DataFrame, F
from ackwise.spark.vocabulary import ProducedVerdict

__all__ = ["unsent"]


def unsent(sent: DataFrame, as_of: int, grace: int, blind: Collection[str]) -> DataFrame:
    """One row per message id that was to be sent and is not, from rows of `fold.outgoing`; `verdict` is null while it is under way.

    Times are microseconds. `blind` are the clusters in which events of a group that sends are missing.
    """
    open_still = F.col("verdict").isNotNull() | F.col("is_under_way")
    judged = _judged(fates(sent), as_of, grace, blind).where(open_still)
    mine = sent.where("message_id IS NOT NULL").join(judged, ["cluster", "message_id"])
    # Few are left, so that texts may be aggregated.
    return mine.groupBy("cluster", "message_id", "verdict").agg(
        F.max("topic").alias("topic"),
        F.max("topic_id").alias("topic_id"),
        F.timestamp_micros(F.max(F.coalesce("requeued_ts", "stored_ts", "parked_ts", "ts"))).alias("timestamp"),
        F.max("error").alias("error"),
        F.max("outbox").alias("outbox"),
        F.max("row").alias("row"),
    )


def _judged(known: DataFrame, as_of: int, grace: int, blind: Collection[str]) -> DataFrame:
    is_blind = F.col("cluster").isin(list(blind)) if blind else F.lit(False)
    is_parked = F.col("parked_ts") >= F.coalesce("requeued_ts", F.col("parked_ts"))
    waits = _has(*STORED)
    due = F.greatest("stored_ts", "requeued_ts")
    late = F.when(is_blind, _lit(ProducedVerdict.PUBLISH_UNKNOWN)).otherwise(_lit(ProducedVerdict.NOT_PUBLISHED))
    verdict = (
        F.when(_has(*ENDED), None)
        .when(F.coalesce(is_parked, F.lit(False)), _lit(ProducedVerdict.PARKED))
        .when(waits & (due < as_of - grace), late)
        .when(~waits & _has(EventCode.PRODUCE_FAILED), _lit(ProducedVerdict.PRODUCE_FAILED))
    )
    judged = known.withColumn("verdict", verdict)
    return judged.withColumn("is_under_way", ~_has(*ENDED) & waits & F.col("verdict").isNull())


def _has(*codes: EventCode) -> Column:
    return F.col("bits").bitwiseAND(sum(1 << code for code in codes)) != 0


def _lit(verdict: ProducedVerdict) -> Column:
    return F.lit(verdict.name)
