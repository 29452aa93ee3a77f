"""The events of the producer side: what was acknowledged, stored, parked, and what became of each message id."""

from __future__ import annotations

from typing import Final

from ackwise.middleware.events import OUTGOING, EventCode
from ackwise.spark.events.schema import is_any
from ackwise.spark.fold.messages import bit
from ackwise.spark.frames import Column, DataFrame, F

__all__ = ["ENDED", "ROLLED_BACK", "SENT", "STORED", "acknowledged", "fates", "is_outgoing", "outgoing"]

#: Beyond the bits of the codes: a check-back was answered by a roll-back.
ROLLED_BACK: Final = 50

#: The codes that show that the broker acknowledged a message, and that it is committed in an outbox, to be sent.
SENT: Final = (EventCode.PRODUCED, EventCode.OUTBOX_SENT)
#: Those after which nothing is to be sent any more: it was, or it expired, as its sender wanted.
ENDED: Final = (*SENT, EventCode.OUTBOX_EXPIRED)
STORED: Final = (EventCode.OUTBOX_STORED, EventCode.OUTBOX_REQUEUED)


def is_outgoing() -> Column:
    """Whether the event is of the producer side, after `project`."""
    return is_any(*sorted(OUTGOING))


def outgoing(events: DataFrame) -> DataFrame:
    """Projected events to those of the producer side, with the place that a record was sent to. Positions of relays are left out."""
    mine = events.where(is_outgoing() & ~is_any(EventCode.RELAY_POSITION))
    return mine.select(
        *("writer_id", "seq", "cluster", "code", "ts", "record_ts", "message_id"),
        F.coalesce("error", F.get_json_object("attrs", "$.cause")).alias("error"),
        F.col("sent_topic").alias("topic"),
        F.col("sent_topic_id").alias("topic_id"),
        F.col("sent_partition").alias("partition"),
        F.col("sent_offset").alias("offset"),
        F.get_json_object("attrs", "$.outbox").alias("outbox"),
        F.get_json_object("attrs", "$.row").try_cast("long").alias("row"),
        F.get_json_object("attrs", "$.answer").alias("answer"),
    )


def acknowledged(sent: DataFrame) -> DataFrame:
    """The records that the broker acknowledged, as a table of produced records has them, with their `cluster`."""
    known = sent.where(is_any(*SENT) & (F.col("topic") != "") & (F.col("partition") >= 0) & (F.col("offset") >= 0))
    return known.select(
        *("cluster", "topic", "topic_id", "partition", "offset"),
        F.timestamp_micros(F.coalesce("record_ts", "ts")).alias("timestamp"),
        F.lit(False).alias("aborted"),
        F.col("message_id").alias("key"),
    )


def fates(sent: DataFrame) -> DataFrame:
    """One row per cluster and message id, from rows of `outgoing`: `bits`, and microseconds at which it was stored, parked and requeued."""
    code = F.when(is_any(EventCode.OUTBOX_CHECKED), _answer()).otherwise(bit(F.col("code")))
    stored = is_any(EventCode.OUTBOX_STORED) | (is_any(EventCode.OUTBOX_CHECKED) & (F.col("answer") == "commit"))
    return (
        sent.where("message_id IS NOT NULL")
        .groupBy("cluster", "message_id")
        .agg(
            F.coalesce(F.bit_or(code), F.lit(0)).alias("bits"),
            F.min(F.when(stored, F.col("ts"))).alias("stored_ts"),
            F.max(F.when(is_any(EventCode.OUTBOX_PARKED), F.col("ts"))).alias("parked_ts"),
            F.max(F.when(is_any(EventCode.OUTBOX_REQUEUED), F.col("ts"))).alias("requeued_ts"),
        )
    )


def _answer() -> Column:
    """The bit of a check-back: a commit is as good as OUTBOX_STORED."""
    stored, rolled_back = F.lit(1 << EventCode.OUTBOX_STORED), F.lit(1 << ROLLED_BACK)
    return F.when(F.col("answer") == "commit", stored).when(F.col("answer") == "rollback", rolled_back)
