"""Ways in which events could be reduced to messages, and offsets be accounted for: ours, and what one would write first."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import fold_words, points, spans, stretches
from ackwise.spark.events.schema import is_about_a_message, project
from ackwise.spark.fold.messages import fold

_ID: Final = ("group_id", "topic", "partition", "offset")


def bare_count(events: DataFrame) -> DataFrame:
    """The yardstick: messages, and how many events each has."""
    return _messages(events).groupBy(*_ID).count()


def folded(events: DataFrame) -> DataFrame:
    """Ours."""
    return fold(project(events), {1, 2})


def drop_duplicates(events: DataFrame) -> DataFrame:
    """Each event once, then count them by type."""
    of_type = [F.count_if(F.col("event_type") == int(code)).alias(code.name) for code in _TYPES]
    return _messages(events).dropDuplicates(["writer_id", "seq"]).groupBy(*_ID).agg(*of_type)


def windows(events: DataFrame) -> DataFrame:
    """The last event of each message, with what the others say."""
    message = Window.partitionBy(*_ID)
    order = Window.partitionBy(*_ID).orderBy(F.desc("event_ts"), F.desc("seq"))
    success = F.col("event_type") == int(EventCode.SUCCEEDED)
    return (
        _messages(events)
        .select(
            *_ID,
            "event_type",
            F.row_number().over(order).alias("place"),
            F.count("*").over(message).alias("events"),
            F.max("attempt").over(message).alias("attempts"),
            F.min(F.when(success, F.col("exec_id"))).over(message).alias("first"),
            F.max(F.when(success, F.col("exec_id"))).over(message).alias("last"),
            F.max("event_ts").over(message).alias("last_ts"),
        )
        .where("place = 1")
    )


def gaps_by_words(events: DataFrame) -> DataFrame:
    """Offsets that no event is about, between the first and the last of each partition: ours."""
    keyed = project(events).where(is_about_a_message())
    ends = keyed.groupBy("pk").agg(F.min("offset").alias("start"), (F.max("offset") + 1).alias("end"))
    domain = spans(ends.select(F.col("pk").alias("key"), F.lit("expected").alias("kind"), "start", "end"))
    words = fold_words([points(keyed, "pk", "offset", "seen"), domain], ["expected", "seen"])
    return stretches(words, {"missing": F.col("expected").bitwiseAND(F.bitwise_not("seen"))})


def gaps_by_lag(events: DataFrame) -> DataFrame:
    """The same by the offset before."""
    offsets = project(events).where(is_about_a_message()).select("pk", "offset").distinct()
    before = F.lag("offset").over(Window.partitionBy("pk").orderBy("offset"))
    return offsets.withColumn("before", before).where("offset > before + 1")


def words_join(events: DataFrame, produced: DataFrame) -> DataFrame:
    """How many records were produced and not consumed, by partition: ours."""
    seen = points(_keyed(events), "place", "offset", "seen")
    told = points(_keyed(produced), "place", "offset", "produced")
    lost = F.col("produced").bitwiseAND(F.bitwise_not("seen"))
    return fold_words([seen, told], ["produced", "seen"]).groupBy("key").agg(F.sum(F.bit_count(lost)).alias("lost"))


def anti_join(events: DataFrame, produced: DataFrame) -> DataFrame:
    """The same by an anti join."""
    seen = _keyed(events).select("place", "offset")
    return _keyed(produced).join(seen, ["place", "offset"], "left_anti").groupBy("place").count()


_TYPES: Final = (EventCode.CLAIMED, EventCode.SUCCEEDED, EventCode.FAILED, EventCode.SENT_BACK, EventCode.DEAD_LETTERED)


def _messages(events: DataFrame) -> DataFrame:
    return events.where(F.col("event_type") < int(EventCode.COMMITTED))


def _keyed(rows: DataFrame) -> DataFrame:
    about = _messages(rows) if "event_type" in rows.columns else rows
    return about.where("offset IS NOT NULL").withColumn("place", F.xxhash64("topic", "partition"))
