"""Bitmaps of numbers, 64 to a word: offsets of a partition, sequence numbers of a writer.

A word is a row per key and 64 numbers, with a mask for each kind of evidence. So no partition is ever sorted by offset,
and no task gets all of a large one. The domain is a kind as well, so words without any event are there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from ackwise.spark.frames import Column, DataFrame, F, Window

__all__ = ["bit_of", "count", "first_from", "fold_words", "from_on", "points", "spans", "stretches", "word_of"]

_BITS = 64
_SHIFT = 6  # the word of a number is number >> 6


def points(rows: DataFrame, key: str, number: str, kind: str | Column, *also: str | Column) -> DataFrame:
    """Evidence of `kind` for each `number` of a `key`, to be folded; with the columns `also`."""
    return rows.select(
        F.col(key).alias("key"), word_of(number).alias("word"), F.lit(kind).alias("kind"), bit_of(number).alias("mask"), *also
    )


def word_of(number: str) -> Column:
    """The word that the number is in."""
    return F.shiftright(number, _SHIFT)


def bit_of(number: str) -> Column:
    """The number's bit in its word."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), F.col(number).bitwiseAND(_BITS - 1).cast("int"))


def first_from(word: Column, mask: Column, number: Column) -> Column:
    """The first number of a word's mask from `number` on, or null."""
    left = mask.bitwiseAND(from_on(number, word))
    # The highest bit is the sign, and would overflow.
    low = left.bitwiseAND(2 ** (_BITS - 1) - 1)
    place = F.bit_count(low.bitwiseAND(F.bitwise_not(low) + 1) - 1)
    return F.when(low != 0, word * _BITS + place).when(left != 0, word * _BITS + _BITS - 1)


def from_on(number: Column, word: Column) -> Column:
    """The numbers of a word from `number` on, as a mask."""
    return _from(F.greatest(F.least(number - word * _BITS, F.lit(_BITS)), F.lit(0)))


def spans(rows: DataFrame) -> DataFrame:
    """Evidence for each number of [`start`, `end`), from rows of `key`, `kind`, `start`, `end`. Empty ranges are ignored."""
    start, end = F.col("start"), F.col("end")
    words = F.sequence(F.shiftright(start, _SHIFT), F.shiftright(end - 1, _SHIFT))
    each = rows.where((start < end) & (start >= 0)).select("key", "kind", "start", "end", F.explode(words).alias("word"))
    base = F.col("word") * _BITS
    first, after = F.greatest(start - base, F.lit(0)), F.least(end - base, F.lit(_BITS))
    return each.select("key", "word", "kind", _from(first).bitwiseAND(F.bitwise_not(_from(after))).alias("mask"))


def fold_words(evidence: Sequence[DataFrame], kinds: Sequence[str], *also: Column) -> DataFrame:
    """One row per `key` and `word` with a mask for each of `kinds`, and the aggregates `also`."""
    # By kind before they are put together: where a frame has but one, Spark knows without looking at its rows.
    each = [
        rows.withColumns({kind: F.when(F.col("kind") == kind, F.col("mask")) for kind in kinds}).drop("kind", "mask") for rows in evidence
    ]
    rows = reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), each)
    return rows.groupBy("key", "word").agg(*[F.coalesce(F.bit_or(kind), F.lit(0)).alias(kind) for kind in kinds], *also)


def count(words: DataFrame, classes: Mapping[str, Column], *also: Column) -> DataFrame:
    """Count the numbers of each key by class: one row per key, a column for each class, and the aggregates `also`."""
    return words.groupBy("key").agg(*[F.sum(F.bit_count(mask)).alias(name) for name, mask in classes.items()], *also)


def stretches(words: DataFrame, classes: Mapping[str, Column]) -> DataFrame:
    """The numbers in each class as ranges: `key`, `class`, `start`, `end` (exclusive), neighbours put together."""
    masks = [F.struct(F.lit(name).alias("class"), mask.alias("mask")) for name, mask in classes.items()]
    each = words.select("key", "word", F.inline(F.array(*masks))).where("mask != 0")
    places = F.filter(F.sequence(F.lit(0), F.lit(_BITS - 1)), lambda place: F.getbit("mask", place) == 1)
    numbers = each.select("key", "class", "word", F.explode(places).alias("place"))
    # Only what is in a class comes here, and that is little unless something is very wrong.
    number, order = F.col("word") * _BITS + F.col("place"), F.row_number().over(Window.partitionBy("key", "class").orderBy("number"))
    return (
        numbers.withColumn("number", number)
        .withColumn("stretch", F.col("number") - order)
        .groupBy("key", "class", "stretch")
        .agg(F.min("number").alias("start"), (F.max("number") + 1).alias("end"))
        .select("key", "class", "start", "end")
    )


def _from(place: Column) -> Column:
    """The bits from `place` on; none at 64, where a shift would wrap and return all."""
    return F.when(place < _BITS, F.call_function("shiftleft", F.lit(-1).cast("long"), place.cast("int"))).otherwise(F.lit(0))
