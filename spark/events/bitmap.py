"""Bitmaps of numbers, 64 to a word: offsets of a partition, sequence numbers of a writer.

A word is a row per key and 64 numbers, with a mask for each kind of evidence. So no offsets are ever sorted. The domain
is a kind as well, so words without any event are there, too: as one row for all neighbours of which the same is known.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType

from ackwise.spark.frames import Column, DataFrame, F, Window

__all__ = ["again", "bit_of", "count", "first_from", "fold_words", "from_on", "points", "spans", "stretches", "with_mask", "word_of"]

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


def spans(rows: DataFrame, *key: str) -> DataFrame:
    """Evidence for each number of [`start`, `end`), from rows of `key`, `kind`, `start`, `end`. Empty ranges are ignored.

    Of the words between the first and the last one there is a single row, with the word `until` before which they end: a range may be
    of any length.
    """
    names, start, end = key or ("key",), F.col("start"), F.col("end")
    first, last = F.shiftright(start, _SHIFT), F.shiftright(end - 1, _SHIFT)
    none = F.lit(None).cast("long")
    within = _from(start.bitwiseAND(_BITS - 1)), F.bitwise_not(_from((end - 1).bitwiseAND(_BITS - 1) + 1))
    one = _part(first, within[0].bitwiseAND(within[1]), none)
    edges = _part(first, within[0], none), _part(last, within[1], none)
    parts = F.when(first == last, F.array(one)).when(first + 1 == last, F.array(*edges))
    parts = parts.otherwise(F.array(*edges, _part(first + 1, F.lit(0).cast("long"), last)))
    return rows.where((start < end) & (start >= 0)).select(*names, "kind", F.inline(parts))


def again(words: DataFrame, key: Sequence[str], kind: str, mask: Column) -> DataFrame:
    """Evidence of `kind` from rows of `fold_words`: the numbers in a mask of theirs."""
    zero, none = F.lit(0).cast("long"), F.lit(None).cast("long")
    after = F.col("word") + F.col("words")
    stretch = F.array(_part(F.col("word"), zero, after), _part(after, zero, none))
    parts = F.when(F.col("words") == 1, F.array(_part(F.col("word"), mask, none))).otherwise(stretch)
    return words.where(mask != 0).select(*key, F.lit(kind).alias("kind"), F.inline(parts))


def _part(word: Column, mask: Column, until: Column) -> Column:
    return F.struct(word.alias("word"), mask.alias("mask"), until.alias("until"))


def fold_words(
    evidence: Sequence[DataFrame], kinds: Sequence[str], key: Sequence[str] = ("key",), also: Mapping[str, Column] = MappingProxyType({})
) -> DataFrame:
    """One row per `key` and `word` with a mask for each of `kinds`, and the aggregates `also`.

    Such a row is for as many `words`: more than one where nothing but long ranges tells of them, so that they have the same masks.
    """
    # By kind before they are put together: where a frame has but one, Spark knows without looking at its rows.
    each = [_by_kind(rows, kinds) for rows in evidence]
    rows = reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), each)
    masks = [F.coalesce(F.bit_or(kind), F.lit(0)).alias(kind) for kind in kinds]
    untils = [F.max(f"{kind}_until").alias(f"{kind}_until") for kind in kinds]
    found = rows.groupBy(*key, "word").agg(*masks, *untils, *(column.alias(name) for name, column in also.items()))
    earlier = Window.partitionBy(*key).orderBy("word").rowsBetween(Window.unboundedPreceding, -1)
    word, last = F.col("word"), F.col("last_word")
    found = found.withColumns(
        {"last_word": F.max("word").over(earlier), **{f"{kind}_so_far": F.max(f"{kind}_until").over(earlier) for kind in kinds}}
    )
    # A range ends before a word that has a row, so one that goes on here began before all words since the last one.
    goes_on = {kind: F.coalesce(F.col(f"{kind}_so_far") >= word, F.lit(False)) for kind in kinds}
    has_gap = F.coalesce(word - last > 1, F.lit(False)) & reduce(operator.or_, goes_on.values())
    both = F.when(has_gap, F.array(F.lit(True), F.lit(False))).otherwise(F.array(F.lit(False)))
    split = found.select("*", F.explode(both).alias("is_gap"))
    covers = {kind: (F.col(f"{kind}_so_far") > word) | F.col(f"{kind}_until").isNotNull() for kind in kinds}
    every, nothing, is_gap = F.lit(-1).cast("long"), F.lit(0).cast("long"), F.col("is_gap")
    return split.select(
        *key,
        F.when(is_gap, last + 1).otherwise(word).alias("word"),
        F.when(is_gap, word - last - 1).otherwise(F.lit(1)).alias("words"),
        *(
            F.when(is_gap, F.when(goes_on[kind], every).otherwise(nothing))
            .when(F.coalesce(covers[kind], F.lit(False)), every)
            .otherwise(F.col(kind))
            .alias(kind)
            for kind in kinds
        ),
        *(F.when(~is_gap, F.col(name)).alias(name) for name in also),
    )


def with_mask(rows: DataFrame, words: DataFrame) -> DataFrame:
    """Return rows of `mk` and `word` with the `mask` of their word, 0 without any, from rows of `fold_words` by `mk`."""
    thin, wide = words.where("words = 1").select("mk", "word", F.col("mask").alias("of_word")), words.where("words > 1")
    after = (F.col("word") + F.col("words")).alias("after")
    spread = F.broadcast(wide.select(F.col("mk").alias("of"), F.col("word").alias("first"), after, F.col("mask").alias("of_range")))
    inside = (F.col("mk") == F.col("of")) & (F.col("word") >= F.col("first")) & (F.col("word") < F.col("after"))
    found = rows.join(thin, ["mk", "word"], "left").join(spread, inside, "left")
    mask = F.coalesce("of_word", "of_range", F.lit(0).cast("long")).alias("mask")
    return found.select(*rows.columns, mask)


def _by_kind(rows: DataFrame, kinds: Sequence[str]) -> DataFrame:
    until = F.col("until") if "until" in rows.columns else F.lit(None).cast("long")
    is_of = {kind: F.col("kind") == kind for kind in kinds}
    masks = [F.when(is_kind, F.col("mask")).alias(kind) for kind, is_kind in is_of.items()]
    untils = [F.when(is_kind, until).alias(f"{kind}_until") for kind, is_kind in is_of.items()]
    return rows.select(*(name for name in rows.columns if name not in ("kind", "mask", "until")), *masks, *untils)


def count(words: DataFrame, classes: Mapping[str, Column], *also: Column) -> DataFrame:
    """Count the numbers of each key by class: one row per key, a column for each class, and the aggregates `also`."""
    return words.groupBy("key").agg(*[F.sum(F.bit_count(mask) * F.col("words")).alias(name) for name, mask in classes.items()], *also)


def stretches(words: DataFrame, classes: Mapping[str, Column]) -> DataFrame:
    """The numbers in each class as ranges: `key`, `class`, `start`, `end` (exclusive), neighbours put together."""
    masks = [F.struct(F.lit(name).alias("class"), mask.alias("mask")) for name, mask in classes.items()]
    each = words.select("key", "word", "words", F.inline(F.array(*masks))).where("mask != 0")
    mask, places = F.col("mask"), F.filter(F.sequence(F.lit(0), F.lit(_BITS - 1)), lambda place: F.getbit("mask", place) == 1)
    # The words of a row for several are all in the class: it is as one number.
    number, base = F.col("word") * _BITS + F.col("place"), ["key", "class", "word", "words"]
    some = each.where(mask != -1).select(*base, F.explode(places).alias("place")).select("key", "class", number.alias("start"))
    whole = each.where(mask == -1).select("key", "class", (F.col("word") * _BITS).alias("start"), (F.col("words") * _BITS).alias("size"))
    # Only what is in a class comes here, and that is little unless something is very wrong.
    numbers = some.withColumn("size", F.lit(1).cast("long")).unionByName(whole)
    before = Window.partitionBy("key", "class").orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    so_far = F.coalesce(F.sum("size").over(before), F.lit(0))
    return (
        numbers.withColumn("stretch", F.col("start") - so_far)
        .groupBy("key", "class", "stretch")
        .agg(F.min("start").alias("start"), F.max(F.col("start") + F.col("size")).alias("end"))
        .select("key", "class", "start", "end")
    )


def _from(place: Column) -> Column:
    """The bits from `place` on; none at 64, where a shift would wrap and return all."""
    return F.when(place < _BITS, F.call_function("shiftleft", F.lit(-1).cast("long"), place.cast("int"))).otherwise(F.lit(0))
