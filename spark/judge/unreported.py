"""Messages that a dead writer may have run without reporting an outcome; the next worker ran them again.

Where its log has marks and was not lost with the machine, these are the messages that it had started; otherwise all that it had
received. What counts is where it was read: at its origin, or as a copy on a retry topic. What the writer had committed, or reported
an outcome of, is left out, and what another told of its run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.attributes import attributes
from ackwise.spark.events.bitmap import again, bit_of, fold_words, from_on, points, spans, word_of
from ackwise.spark.events.schema import is_any
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.folded import FoldedEvents
from ackwise.spark.fold.messages import SAID
from ackwise.spark.frames import Column, DataFrame, F, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["Left", "Mark", "left", "unreported", "without_holes"]

_SHIFT: Final = 6  # a mask is of 64 offsets
_BY_WRITER: Final = ("writer_id", "mk")
_WORD: Final = 2**64 - 1  # masks are signed


class Left(NamedTuple):
    """Offsets that a writer may have started and did not commit, from `start` to before `end`; it died."""

    writer_id: int
    pk: int
    handler: str
    """Empty: each of the partition."""
    start: int
    end: int


class Mark(NamedTuple):
    """An event of a dead writer that offsets beyond its commits came, or were about to start: `Left` before holes are taken out."""

    writer_id: int
    pk: int
    handler: str
    start: int
    end: int
    first: int
    """The first offset of the event, which may lie before `start`."""
    masks: str | None
    """A list of masks as JSON, one for each word of 64 offsets from that of `first`; None: all offsets."""


def left(spark: SparkSession, moves: DataFrame, facts: Facts, marked: Collection[int]) -> DataFrame:
    """Rows of `Mark`, few for each mute writer: commits follow soon. Of `marked` ones what was received shows nothing."""
    had = is_any(EventCode.MARKED) | (is_any(EventCode.RECEIVED_RANGE) & ~_is_one_of("writer_id", marked))
    known = moves.where(had & F.col("range_end").isNotNull()).join(F.broadcast(_passed(spark, facts)), ["writer_id", "pk"])
    start = F.greatest("offset", "passed")
    masks = F.when(is_any(EventCode.MARKED), F.get_json_object("attrs", "$.masks")).alias("masks")
    found = known.where(start < F.col("range_end"))
    ends = start.alias("start"), F.col("range_end").alias("end")
    return found.select("writer_id", "pk", "handler", *ends, F.col("offset").alias("first"), masks).distinct()


def without_holes(marks: Iterable[Mark]) -> list[Left]:
    """Return the offsets that `marks` have, in order."""
    return sorted({Left(*mark[:3], *span) for mark in marks for span in _spans(mark)})


def _spans(mark: Mark) -> Iterator[tuple[int, int]]:
    masks = _masks(mark.masks)
    if masks is None:
        yield mark.start, mark.end
        return
    base = mark.first >> _SHIFT << _SHIFT
    bits = "".join(f"{mask & _WORD:064b}"[::-1] for mask in masks)
    for found in re.finditer("1+", bits):
        start, end = max(mark.start, base + found.start()), min(mark.end, base + found.end())
        if start < end:
            yield start, end


def _masks(text: str | None) -> list[int] | None:
    """Return the masks; None, so that all offsets count, for a text that has none."""
    found = None if text is None else attributes(f'{{"masks": {text}}}').get("masks")
    return found if isinstance(found, list) and all(isinstance(mask, int) for mask in found) else None


def unreported(spark: SparkSession, folded: FoldedEvents, facts: Facts, left: Sequence[Left], marked: Collection[int]) -> DataFrame:
    """The messages as words: `mk`, `word`, `words` and `mask`, see `fold_words`."""
    if not facts.mute:
        return rows_of(spark, (), "mk long, word long, words long, mask long")
    came = rows_of(spark, left, "writer_id long, pk long, handler string, start long, end long")
    told = _in_all_epochs(spark, facts, folded.told(list(facts.mute)))
    evidence = [which(spark, folded, facts, came, told, marked) for which in (_origins, _copies)]
    return fold_words(evidence, ["mask"], ["mk"])


def _origins(
    spark: SparkSession, folded: FoldedEvents, facts: Facts, came: DataFrame, told: DataFrame, marked: Collection[int]
) -> DataFrame:
    passed = F.broadcast(_passed(spark, facts))
    views = F.broadcast(rows_of(spark, [(view.pk, view.mk, view.handler) for view in facts.views], "pk long, mk long, of string"))
    ranges = came.join(views, "pk").where("handler = '' OR handler = of").select(*_BY_WRITER, F.lit("came").alias("kind"), "start", "end")
    told_words = told.select("writer_id", "mk", word_of("offset").alias("word"), bit_of("offset").alias("reported"))
    outcomes = _in_all_epochs(spark, facts, folded.outcomes(list(facts.mute)), "started", "received")
    said = outcomes.unionByName(told_words, allowMissingColumns=True)
    evidence = [said.select(*_BY_WRITER, "word", F.lit(name).alias("kind"), F.col(name).alias("mask")) for name in SAID]
    words = fold_words([spans(ranges, *_BY_WRITER), *evidence], ["came", *SAID], _BY_WRITER)
    each = words.join(views.drop("of"), "mk").join(passed, ["writer_id", "pk"], "left")
    received = F.when(_is_one_of("writer_id", marked), F.lit(0)).otherwise(F.col("received"))
    begun = F.col("started").bitwiseOR(received).bitwiseAND(from_on(F.coalesce("passed", F.lit(0)), F.col("word")))
    mask = F.col("came").bitwiseOR(begun).bitwiseAND(F.bitwise_not("reported"))
    return again(each, ["mk"], "mask", mask)


def _copies(
    spark: SparkSession, folded: FoldedEvents, facts: Facts, came: DataFrame, told: DataFrame, marked: Collection[int]
) -> DataFrame:
    passed = F.broadcast(_passed(spark, facts).toDF("worker", "phys_pk", "passed"))
    begun = (F.col("started") | F.col("received")) & (F.col("phys_offset") >= F.coalesce("passed", F.lit(0)))
    rows = _had(folded.copies, came, marked).join(F.broadcast(_writers(spark, facts)), "worker")
    on = ["worker", "mk", "offset"]
    rows = _in_all_epochs(spark, facts, rows.join(passed, ["worker", "phys_pk"], "left"), "came", "started", "received")
    each = rows.groupBy(*on, "phys_pk", "phys_offset").agg(F.max(F.col("came") | begun).alias("had"), F.max("reported").alias("reported"))
    open_still = each.where("had AND NOT reported").join(told.toDF("worker", "mk", "offset"), on, "left_anti")
    return points(open_still, "mk", "offset", "mask").withColumnRenamed("key", "mk")


def _in_all_epochs(spark: SparkSession, facts: Facts, rows: DataFrame, *but: str) -> DataFrame:
    """Return the rows and, for each other dedup epoch of their handler, the same without the columns `but`: the record has its outcome."""
    if not facts.other_epochs:
        return rows
    others = rows.join(F.broadcast(rows_of(spark, facts.other_epochs, "mk long, other long")), "mk")
    return rows.unionByName(others.drop("mk", *but).withColumnRenamed("other", "mk"), allowMissingColumns=True)


def _had(copies: DataFrame, came: DataFrame, marked: Collection[int]) -> DataFrame:
    """The copies beside each `worker` that said something of them, or to whom their place `came`."""
    places = F.broadcast(came.toDF("by", "phys_pk", "handler", "start", "end"))
    inside = (F.col("phys_offset") >= F.col("start")) & (F.col("phys_offset") < F.col("end"))
    never = F.lit(False)
    received = F.col("received") & ~_is_one_of("writer_id", marked)
    said = _beside("writer_id", never, F.col("reported"), F.col("started"), received)
    had = _beside("by", F.coalesce(inside, never), never, never, never)
    each = copies.join(places, "phys_pk", "left").select("mk", "offset", "phys_pk", "phys_offset", F.inline(F.array(said, had)))
    return each.where("came OR reported OR started OR received")


def _beside(worker: str, came: Column, *said: Column) -> Column:
    named = [each.alias(name) for name, each in zip(SAID, said, strict=True)]
    return F.struct(F.col(worker).alias("worker"), came.alias("came"), *named)


def _is_one_of(column: str, writers: Collection[int]) -> Column:
    return F.col(column).isin(list(writers)) if writers else F.lit(False)


def _passed(spark: SparkSession, facts: Facts) -> DataFrame:
    rows = [(writer, pk, offset) for writer, by_pk in facts.mute.items() for pk, offset in by_pk.items()]
    return rows_of(spark, rows, "writer_id long, pk long, passed long")


def _writers(spark: SparkSession, facts: Facts) -> DataFrame:
    return rows_of(spark, [(writer,) for writer in facts.mute], "worker long")
