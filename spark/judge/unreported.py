"""Messages that a dead writer received without reporting an outcome.

Each may have been run, and the next worker ran it again. What counts is where it was read: at its origin, or as a copy on a
retry topic. What the writer had committed, or reported an outcome of, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, from_on, spans, word_of
from ackwise.spark.events.schema import is_any
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.folded import Folded
from ackwise.spark.frames import DataFrame, F, SparkSession

__all__ = ["Left", "left", "unreported"]

_PLACE: Final = ("writer_id", "mk", "offset", "phys_pk", "phys_offset")


class Left(NamedTuple):
    """Offsets that a writer received and did not commit, from `start` to before `end`; it died."""

    writer_id: int
    pk: int
    start: int
    end: int


def left(spark: SparkSession, moves: DataFrame, facts: Facts) -> list[Left]:
    """Return the offsets that mute writers had received and not committed, few each: commits follow soon."""
    if not facts.mute:
        return []
    received = moves.where(is_any(EventCode.RECEIVED_RANGE) & F.col("range_end").isNotNull())
    known = received.join(F.broadcast(_passed(spark, facts)), ["writer_id", "pk"])
    start = F.greatest("offset", "passed")
    found = known.where(start < F.col("range_end")).select("writer_id", "pk", start.alias("start"), F.col("range_end").alias("end"))
    return [Left(*row) for row in found.distinct().collect()]


def unreported(spark: SparkSession, folded: Folded, facts: Facts, left: Sequence[Left]) -> DataFrame:
    """The messages as words: `mk`, `word` and `mask`."""
    if not facts.mute:
        return spark.createDataFrame([], "mk long, word long, mask long")
    came = spark.createDataFrame(list(left), "writer_id long, pk long, start long, end long")
    both = _origins(spark, folded, facts, came).unionByName(_copies(spark, folded, facts, came))
    return both.groupBy("mk", "word").agg(F.bit_or("mask").alias("mask"))


def _origins(spark: SparkSession, folded: Folded, facts: Facts, came: DataFrame) -> DataFrame:
    passed = F.broadcast(_passed(spark, facts))
    views = F.broadcast(spark.createDataFrame([(view.pk, view.mk) for view in facts.views], "pk long, mk long"))
    keyed = came.select(F.struct("writer_id", "pk").alias("key"), F.lit("came").alias("kind"), "start", "end")
    words = spans(keyed).select("key.writer_id", "key.pk", "word", F.col("mask").alias("came")).join(views, "pk").drop("pk")
    rows = words.unionByName(folded.outcomes(list(facts.mute)), allowMissingColumns=True)
    masks = [F.coalesce(F.bit_or(name), F.lit(0)).alias(name) for name in ("came", "reported", "begun")]
    each = rows.groupBy("writer_id", "mk", "word").agg(*masks).join(views, "mk").join(passed, ["writer_id", "pk"], "left")
    begun = F.col("begun").bitwiseAND(from_on(F.coalesce("passed", F.lit(0)), F.col("word")))
    mask = F.col("came").bitwiseOR(begun).bitwiseAND(F.bitwise_not("reported"))
    return each.select("mk", "word", mask.alias("mask")).where("mask != 0")


def _copies(spark: SparkSession, folded: Folded, facts: Facts, came: DataFrame) -> DataFrame:
    copies = folded.copies
    spot = came.toDF("by", "at", "start", "end")
    inside = (F.col("phys_pk") == F.col("at")) & (F.col("phys_offset") >= F.col("start")) & (F.col("phys_offset") < F.col("end"))
    received = copies.drop("writer_id").join(F.broadcast(spot), inside).withColumnRenamed("by", "writer_id").select(*_PLACE)
    passed = _passed(spark, facts).withColumnRenamed("pk", "phys_pk")
    own = copies.where("begun AND NOT told").join(F.broadcast(_writers(spark, facts)), "writer_id")
    begun = own.join(F.broadcast(passed), ["writer_id", "phys_pk"], "left").where("phys_offset >= coalesce(passed, 0)").select(*_PLACE)
    still = received.unionByName(begun).distinct().join(copies.where("told").select(*_PLACE), list(_PLACE), "left_anti")
    return still.groupBy("mk", word_of("offset").alias("word")).agg(F.bit_or(bit_of("offset")).alias("mask"))


def _passed(spark: SparkSession, facts: Facts) -> DataFrame:
    rows = [(writer, pk, offset) for writer, by_pk in facts.mute.items() for pk, offset in by_pk.items()]
    return spark.createDataFrame(rows, "writer_id long, pk long, passed long")


def _writers(spark: SparkSession, facts: Facts) -> DataFrame:
    return spark.createDataFrame([(writer,) for writer in facts.mute], "writer_id long")
