"""The offsets of each partition by what is known of them: which have no event at all, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ackwise.middleware.events import EventCode
from ackwise.spark.books import GAP
from ackwise.spark.completeness import Blindness, Span
from ackwise.spark.coverage import fold_words, points, spans
from ackwise.spark.schema import is_about_a_message, is_any, is_retention
from ackwise.spark.vocabulary import Verdict

__all__ = ["absent", "offset_words"]

_KINDS: Final = ("expected", "seen", "received", "gap", "deleted", "seek", "unread", "unsettled")
_RANGES: Final = {EventCode.RECEIVED_RANGE: "received", EventCode.GAP: "gap", EventCode.SEEK: "seek"}


def offset_words(events: DataFrame, spark: SparkSession, expected: Mapping[int, Span], blind: Blindness, grace: int) -> DataFrame:
    """The words of all partitions (`key` is the `pk`), from projected events and what is known on the driver.

    `falls` says that all records of the word are older than all of an earlier word, by more than `grace` microseconds.
    """
    kind = F.lit("")
    for code, name in _RANGES.items():
        kind = F.when(is_any(code), F.lit(name)).otherwise(kind)
    kind = F.when(is_retention(), F.lit("deleted")).otherwise(kind)
    told = events.where(is_any(*_RANGES) & F.col("range_end").isNotNull()).select(
        F.col("pk").alias("key"), kind.alias("kind"), F.col("offset").alias("start"), F.col("range_end").alias("end")
    )
    known = spark.createDataFrame(list(_known(expected, blind)), "key long, kind string, start long, end long")
    seen = points(events.where(is_about_a_message()), "pk", "offset", "seen", "record_ts")
    oldest, newest = F.min("record_ts").alias("oldest"), F.max("record_ts").alias("newest")
    words = fold_words([seen, spans(told.unionByName(known))], _KINDS, oldest, newest)
    before = F.max("oldest").over(Window.partitionBy("key").orderBy("word").rowsBetween(Window.unboundedPreceding, -1))
    return words.withColumn("falls", F.col("newest") + grace < before)


def absent() -> dict[str, Column]:
    """The classes of offsets that no event is about, by name: masks of a word."""
    nothing = F.col("expected").bitwiseAND(F.bitwise_not("seen"))
    in_log = nothing.bitwiseAND(F.bitwise_not("gap"))
    left = in_log.bitwiseAND(F.bitwise_not("deleted"))
    due = left.bitwiseAND(F.bitwise_not("seek"))
    received, never = due.bitwiseAND(F.col("received")), due.bitwiseAND(F.bitwise_not("received"))
    hidden = received.bitwiseAND(F.col("unsettled")).bitwiseOR(never.bitwiseAND(F.col("unread")))
    return {
        GAP: nothing.bitwiseAND(F.col("gap")),
        Verdict.RETENTION_LOSS.name: in_log.bitwiseAND(F.col("deleted")),
        Verdict.SKIPPED_BY_SEEK.name: left.bitwiseAND(F.col("seek")),
        Verdict.LOST.name: received.bitwiseAND(F.bitwise_not("unsettled")),
        Verdict.NEVER_SEEN.name: never.bitwiseAND(F.bitwise_not("unread")),
        Verdict.UNKNOWN_EXPORT_GAP.name: hidden,
    }


def _known(expected: Mapping[int, Span], blind: Blindness) -> Iterable[tuple[int, str, int, int]]:
    for pk, (start, end) in expected.items():
        yield pk, "expected", start, end
        for kind, unknown in (("unread", blind.unread), ("unsettled", blind.unsettled)):
            yield from ((pk, kind, *_clipped(span, start, end)) for span in _of(unknown, pk))


def _of(spans: Mapping[int, Sequence[Span]], pk: int) -> Sequence[Span]:
    return spans.get(pk, ())


def _clipped(span: Span, start: int, end: int) -> Span:
    return max(span[0], start), min(span[1], end)
