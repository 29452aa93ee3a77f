"""The offsets of each partition by evidence: seen, received, deleted, jumped over, or without any event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import again, fold_words, points, spans
from ackwise.spark.events.schema import is_about_a_message, is_any, is_retention
from ackwise.spark.fold.gaps import Blindness, Span
from ackwise.spark.frames import Column, DataFrame, F, SparkSession, Window
from ackwise.spark.judge.accounts import GAP
from ackwise.spark.judge.produced import PRODUCED_KINDS
from ackwise.spark.judge.production import ALL_PRODUCED
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import Account, Verdict

__all__ = ["absent", "accounts", "offset_words", "seen_by", "seen_in", "unproved_gaps"]

_KINDS: Final = ("expected", "seen", "received", "gap", "deleted", "seek", "unread", "unsettled", *PRODUCED_KINDS)
_BY_WRITER: Final = ("pk", "writer_id")
_RANGES: Final = {EventCode.RECEIVED_RANGE: "received", EventCode.GAP: "gap", EventCode.SEEK: "seek"}


def seen_in(masks: DataFrame, named: DataFrame) -> DataFrame:
    """Return the messages that events are about as evidence, from words of `fold.runs.words`."""
    none = F.lit(None).cast("long")
    of = [F.col("pk").alias("key"), F.col("word"), F.lit("seen").alias("kind"), F.col("seen").alias("mask")]
    return masks.join(F.broadcast(named.select("mk", "pk")), "mk").select(*of, none.alias("oldest"), none.alias("newest"))


def seen_by(events: DataFrame) -> DataFrame:
    """Return the same from projected events, with the times of their records, `oldest` and `newest`."""
    record = [F.col("record_ts").alias(name) for name in ("oldest", "newest")]
    return points(events.where(is_about_a_message()), "pk", "offset", "seen", *record)


def offset_words(
    seen: Sequence[DataFrame],
    steps: DataFrame,
    spark: SparkSession,
    expected: Mapping[int, Span],
    blind: Blindness,
    grace: int,
    produced: Sequence[DataFrame] = (),
    *,
    is_any_unproved: bool = True,
) -> DataFrame:
    """The words of all partitions; `key` is the `pk`.

    They come from the offsets that were `seen`, the events about partitions (`steps`), what the driver knows, and what was produced.
    `is_any_unproved`: `unproved_gaps` has a row.
    `falls`: all records of the word are older than all of an earlier word, by more than `grace` microseconds.
    """
    kind = F.lit("")
    for code, name in _RANGES.items():
        kind = F.when(is_any(code), F.lit(name)).otherwise(kind)
    kind = F.when(is_retention(), F.lit("deleted")).otherwise(kind)
    loose = _is_loose()
    kind = F.when(loose, F.lit("none")).otherwise(kind)
    ranges = steps.where(is_any(*_RANGES) & F.col("range_end").isNotNull()).select(
        F.col("pk").alias("key"), kind.alias("kind"), F.col("offset").alias("start"), F.col("range_end").alias("end")
    )
    known = rows_of(spark, _known(expected, blind), "key long, kind string, start long, end long")
    times = {"oldest": F.min("oldest"), "newest": F.max("newest")}
    inside = [_proved_inside(steps.where(F.col("range_end").isNotNull()), loose)] if is_any_unproved else []
    words = fold_words([*seen, spans(ranges.unionByName(known)), *inside, *produced], _KINDS, also=times)
    before = F.max("oldest").over(Window.partitionBy("key").orderBy("word").rowsBetween(Window.unboundedPreceding, -1))
    return words.withColumn("falls", F.col("newest") + grace < before)


def unproved_gaps(steps: DataFrame) -> DataFrame:
    """The partitions that have a gap without a proof."""
    return steps.where(_is_loose()).select("pk").distinct()


def _is_loose() -> Column:
    return is_any(EventCode.GAP) & ~F.coalesce("proved", F.lit(False))


def _proved_inside(steps: DataFrame, loose: Column) -> DataFrame:
    """Return the offsets that one writer both received and found empty: one fetch returned both sides."""
    loosely = steps.where(loose)
    received = steps.where(is_any(EventCode.RECEIVED_RANGE)).join(
        F.broadcast(loosely.select(*_BY_WRITER).distinct()), [*_BY_WRITER], "left_semi"
    )
    each = [
        rows.select(*_BY_WRITER, F.lit(kind).alias("kind"), F.col("offset").alias("start"), F.col("range_end").alias("end"))
        for kind, rows in (("loose", loosely), ("came", received))
    ]
    words = fold_words([spans(rows, *_BY_WRITER) for rows in each], ["loose", "came"], _BY_WRITER)
    return again(words.withColumn("key", F.col("pk")), ["key"], "gap", F.col("loose").bitwiseAND(F.col("came")))


def absent() -> dict[str, Column]:
    """The classes of offsets that no event is about, by name: masks of a word."""
    nothing, gap = F.col("expected").bitwiseAND(F.bitwise_not("seen")), F.col("gap")
    in_log = nothing.bitwiseAND(F.bitwise_not(gap))
    left = in_log.bitwiseAND(F.bitwise_not("deleted"))
    due = left.bitwiseAND(F.bitwise_not("seek"))
    received, never = due.bitwiseAND(F.col("received")), due.bitwiseAND(F.bitwise_not("received"))
    produced, known = F.col("produced"), F.bitwise_not("unread")
    hidden = received.bitwiseAND(F.col("unsettled")).bitwiseOR(never.bitwiseAND(F.col("unread")))
    return {
        GAP: nothing.bitwiseAND(gap).bitwiseAND(F.bitwise_not(produced)),
        Verdict.RETENTION_LOSS.name: in_log.bitwiseAND(F.col("deleted")),
        Verdict.SKIPPED_BY_SEEK.name: left.bitwiseAND(F.col("seek")),
        Verdict.LOST.name: received.bitwiseAND(F.bitwise_not("unsettled")),
        Verdict.LOST_PRODUCED.name: nothing.bitwiseAND(gap).bitwiseOR(never.bitwiseAND(known)).bitwiseAND(produced),
        Verdict.NEVER_SEEN.name: never.bitwiseAND(known).bitwiseAND(F.bitwise_not(produced)),
        Verdict.UNKNOWN_EXPORT_GAP.name: hidden,
    }


def accounts() -> dict[str, Column]:
    """The classes of produced offsets, and of consumed ones that were not produced: masks of a word."""
    all_produced = F.col("produced").bitwiseOR(F.col("claimed")).bitwiseOR(F.col("earlier"))
    unseen, lost = F.bitwise_not("seen"), absent()[Verdict.LOST_PRODUCED.name]
    due = F.col("produced").bitwiseAND(unseen).bitwiseAND(F.col("expected"))
    jumped = F.col("seek").bitwiseOR(F.col("deleted"))
    before = F.col("claimed").bitwiseAND(unseen).bitwiseAND(F.bitwise_not(jumped))
    return {
        ALL_PRODUCED: all_produced,
        Account.HANDLED: all_produced.bitwiseAND(F.col("seen")),
        Account.LOST_PRODUCED: lost,
        Account.LOST_BEFORE_START: before,
        Account.EXPLAINED: due.bitwiseAND(F.bitwise_not(lost)),
        Account.WAITING: F.col("produced").bitwiseAND(unseen).bitwiseAND(F.bitwise_not("expected")),
        Account.EARLIER: F.col("claimed").bitwiseOR(F.col("earlier")).bitwiseAND(unseen).bitwiseAND(F.bitwise_not(before)),
        Account.ORPHAN: F.col("seen").bitwiseAND(F.col("audited")).bitwiseAND(F.bitwise_not(all_produced)),
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
