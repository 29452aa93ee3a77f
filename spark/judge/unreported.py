"""Messages that a dead writer received without reporting an outcome.

Each may have been run, and the next worker ran it again. What counts is where it was read: at its origin, or as a copy on a
retry topic. What the writer had committed, or reported an outcome of, is left out, and what another told of its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, from_on, spans, word_of
from ackwise.spark.events.schema import is_any
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.folded import Folded
from ackwise.spark.frames import Column, DataFrame, F, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["Left", "left", "unreported"]


class Left(NamedTuple):
    """Offsets that a writer received and did not commit, from `start` to before `end`; it died."""

    writer_id: int
    pk: int
    start: int
    end: int


def left(spark: SparkSession, moves: DataFrame, facts: Facts) -> DataFrame:
    """Rows of `Left`: the offsets that mute writers had received and not committed, few each: commits follow soon."""
    received = moves.where(is_any(EventCode.RECEIVED_RANGE) & F.col("range_end").isNotNull())
    known = received.join(F.broadcast(_passed(spark, facts)), ["writer_id", "pk"])
    start = F.greatest("offset", "passed")
    found = known.where(start < F.col("range_end")).select("writer_id", "pk", start.alias("start"), F.col("range_end").alias("end"))
    return found.distinct()


def unreported(spark: SparkSession, folded: Folded, facts: Facts, left: Sequence[Left]) -> DataFrame:
    """The messages as words: `mk`, `word` and `mask`."""
    if not facts.mute:
        return rows_of(spark, (), "mk long, word long, mask long")
    came = rows_of(spark, left, "writer_id long, pk long, start long, end long")
    told = folded.told(list(facts.mute))
    both = _origins(spark, folded, facts, came, told).unionByName(_copies(spark, folded, facts, came, told))
    return both.groupBy("mk", "word").agg(F.bit_or("mask").alias("mask"))


def _origins(spark: SparkSession, folded: Folded, facts: Facts, came: DataFrame, told: DataFrame) -> DataFrame:
    passed = F.broadcast(_passed(spark, facts))
    views = F.broadcast(rows_of(spark, [(view.pk, view.mk) for view in facts.views], "pk long, mk long"))
    keyed = came.select(F.struct("writer_id", "pk").alias("key"), F.lit("came").alias("kind"), "start", "end")
    words = spans(keyed).select("key.writer_id", "key.pk", "word", F.col("mask").alias("came")).join(views, "pk").drop("pk")
    told_words = told.select("writer_id", "mk", word_of("offset").alias("word"), bit_of("offset").alias("reported"))
    reported = folded.outcomes(list(facts.mute)).unionByName(told_words, allowMissingColumns=True)
    rows = words.unionByName(reported, allowMissingColumns=True)
    masks = [F.coalesce(F.bit_or(name), F.lit(0)).alias(name) for name in ("came", "reported", "begun")]
    each = rows.groupBy("writer_id", "mk", "word").agg(*masks).join(views, "mk").join(passed, ["writer_id", "pk"], "left")
    begun = F.col("begun").bitwiseAND(from_on(F.coalesce("passed", F.lit(0)), F.col("word")))
    mask = F.col("came").bitwiseOR(begun).bitwiseAND(F.bitwise_not("reported"))
    return each.select("mk", "word", mask.alias("mask")).where("mask != 0")


def _copies(spark: SparkSession, folded: Folded, facts: Facts, came: DataFrame, told: DataFrame) -> DataFrame:
    passed = F.broadcast(_passed(spark, facts).toDF("worker", "phys_pk", "passed"))
    begun = F.col("begun") & (F.col("phys_offset") >= F.coalesce("passed", F.lit(0)))
    rows = _had(folded.copies, came).join(F.broadcast(_writers(spark, facts)), "worker").join(passed, ["worker", "phys_pk"], "left")
    on = ["worker", "mk", "offset"]
    each = rows.groupBy(*on, "phys_pk", "phys_offset").agg(F.max(F.col("received") | begun).alias("had"), F.max("told").alias("told"))
    open_still = each.where("had AND NOT told").join(told.toDF("worker", "mk", "offset"), on, "left_anti")
    return open_still.groupBy("mk", word_of("offset").alias("word")).agg(F.bit_or(bit_of("offset")).alias("mask"))


def _had(copies: DataFrame, came: DataFrame) -> DataFrame:
    """The copies beside each `worker` that reported something of them, or that `received` their place."""
    places = F.broadcast(came.toDF("by", "phys_pk", "start", "end"))
    inside = (F.col("phys_offset") >= F.col("start")) & (F.col("phys_offset") < F.col("end"))
    never = F.lit(False)
    reported = _beside("writer_id", never, F.col("begun"), F.col("told"))
    received = _beside("by", F.coalesce(inside, never), never, never)
    each = copies.join(places, "phys_pk", "left")
    return each.select("mk", "offset", "phys_pk", "phys_offset", F.inline(F.array(reported, received))).where("received OR begun OR told")


def _beside(worker: str, received: Column, begun: Column, told: Column) -> Column:
    return F.struct(F.col(worker).alias("worker"), received.alias("received"), begun.alias("begun"), told.alias("told"))


def _passed(spark: SparkSession, facts: Facts) -> DataFrame:
    rows = [(writer, pk, offset) for writer, by_pk in facts.mute.items() for pk, offset in by_pk.items()]
    return rows_of(spark, rows, "writer_id long, pk long, passed long")


def _writers(spark: SparkSession, facts: Facts) -> DataFrame:
    return rows_of(spark, [(writer,) for writer in facts.mute], "worker long")
