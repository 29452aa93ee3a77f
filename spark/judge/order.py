"""Messages that were overtaken: a later one of their key, or of their partition, began before they were done.

A message is done by its first run that did not fail and was not given back, or by its dead letter. What ran again after that overtakes
nobody, nor do copies, or runs that say that they are out of order. See `kernels.order`.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, word_of
from ackwise.spark.events.schema import is_about_a_message, is_any
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.folded import FoldedEvents
from ackwise.spark.fold.gaps import Blindness
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.kernels import order as kernels
from ackwise.spark.kernels.runs import BY_KEY_IN_TURN, IN_TURN
from ackwise.spark.session.rows import rows_of, through

__all__ = ["overtaken", "with_overtaken", "words_of"]

_NEVER: Final = 2**63 - 1


def overtaken(spark: SparkSession, folded: FoldedEvents, facts: Facts, blind: Blindness, grace: int) -> DataFrame | None:
    """Return the messages that were overtaken as `kernels.order.OVERTAKEN`, cached; None if no session says an order.

    `grace` is microseconds.
    """
    if not facts.orders:
        return None
    lanes = _Lanes(spark, facts)
    told = lanes.of(_told(folded.events))
    every = _of_runs(lanes.of(folded.pieces)).select(*kernels.PIECES).unionByName(_of_single(told))
    words = through(every.repartition("mk"), kernels.unproved, kernels.UNPROVED, whole=True)
    steps = _steps(lanes.of(_in(folded.messages, words))).unionByName(_in(told, words).select(*kernels.STEPS))
    blind_views = frozenset(view.mk for view in facts.views if view.group in blind.groups)
    compare = partial(kernels.overtaken, grace=grace, wrong=frozenset(facts.clocks.wrong), blind=blind_views)
    return through(steps.repartition("mk"), compare, kernels.OVERTAKEN, whole=True).persist()


def words_of(found: DataFrame) -> DataFrame:
    """Return the same messages as masks of words: `mk`, `word`, `words` (1), `mask`."""
    masks = found.groupBy("mk", word_of("offset").alias("word")).agg(F.bit_or(bit_of("offset")).alias("mask"))
    return masks.withColumn("words", F.lit(1))


def with_overtaken(states: DataFrame, found: DataFrame | None) -> DataFrame:
    """Return the rows of `fold` with the columns `overtaken_by` and `overtaken_surely`, which are null for other messages."""
    if found is None:
        return states.withColumns({"overtaken_by": F.lit(None).cast("long"), "overtaken_surely": F.lit(None).cast("boolean")})
    surely = (F.col("is_sure") == 1).alias("overtaken_surely")
    return states.join(found.select("mk", "offset", "overtaken_by", surely), ["mk", "offset"], "left")


class _Lanes(NamedTuple):
    """The views of partitions by handlers that have an order."""

    spark: SparkSession
    facts: Facts

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows of these views, with the order that their worker says as `kind`."""
        views = F.broadcast(rows_of(self.spark, sorted({(mk,) for _, mk, _ in self.facts.orders}), "mk long"))
        kinds = [(writer, mk, kernels.BY_KEY if by_key else kernels.BY_PARTITION) for writer, mk, by_key in self.facts.orders]
        said = F.broadcast(rows_of(self.spark, kinds, "writer_id long, mk long, kind long"))
        known = rows.join(views, "mk", "left_semi").join(said, ["writer_id", "mk"], "left")
        return known.withColumn("kind", F.coalesce("kind", F.lit(0)))


def _in(rows: DataFrame, words: DataFrame) -> DataFrame:
    return rows.withColumn("word", word_of("offset")).join(words, ["mk", "word"], "left_semi")


def _told(events: DataFrame) -> DataFrame:
    """Starts and ends of runs, and dead letters, of messages that were read at their origin; as `kernels.order.STEPS` without `kind`."""
    said = F.coalesce(F.get_json_object("attrs", "$.out_of_order") == "true", F.lit(False))
    there = is_about_a_message() & F.col("at_origin") & is_any(*kernels.STARTS, *kernels.ENDS, EventCode.DEAD_LETTERED)
    none = F.lit(None).cast("long")
    return events.where(there).select(
        *("mk", "offset", "writer_id", "exec_id", F.col("code").cast("long").alias("code"), "seq", "ts"),
        F.col("order_hash").cast("long").alias("key"),
        *(none.alias(name) for name in ("end_seq", "end_ts")),
        F.when(is_any(*kernels.ENDS) & said, F.lit(1)).otherwise(F.lit(0)).cast("long").alias("is_out"),
    )


def _steps(messages: DataFrame) -> DataFrame:
    """The same of messages of runs."""
    own = [F.col(of).alias(name) for name, of in (("key", "order_hash"), ("end_seq", "ok_seq"), ("end_ts", "ok_ts"))]
    return messages.select(
        *("mk", "offset", "writer_id", "exec_id", "kind", "code", "seq", "ts"), *own, F.lit(0).cast("long").alias("is_out")
    )


def _of_runs(pieces: DataFrame) -> DataFrame:
    """`kernels.order.PIECES` of run rows."""
    by_key, ends = F.col("kind") == kernels.BY_KEY, F.col("code") == int(EventCode.SUCCEEDED)
    never, bit = F.lit(_NEVER), F.when(by_key, F.lit(BY_KEY_IN_TURN)).otherwise(F.lit(IN_TURN))
    return pieces.withColumns(
        {
            "first": F.when(ends, never).otherwise(F.col("first")),
            "last": F.when(by_key, F.col("last")).when(ends, F.lit(-_NEVER)).otherwise(F.col("last_start")),
            "began": F.when(ends, never).otherwise(F.col("began")),
            "in_turn": F.when(F.col("in_turn").bitwiseAND(bit) == 0, F.lit(0)).otherwise(F.lit(1)).cast("long"),
        }
    )


def _of_single(told: DataFrame) -> DataFrame:
    """The same for each message that single events of a worker tell of."""
    is_start, has_ended = is_any(*kernels.STARTS), is_any(EventCode.SUCCEEDED)
    counts = is_start | is_any(EventCode.DEAD_LETTERED)
    never = F.lit(_NEVER)
    return told.groupBy("mk", "writer_id", "offset").agg(
        F.coalesce(F.min(F.when(is_start, F.col("seq"))), never).alias("first"),
        F.coalesce(F.max(F.when(counts | (has_ended & (F.col("kind") == kernels.BY_KEY)), F.col("seq"))), F.lit(-_NEVER)).alias("last"),
        F.coalesce(F.min(F.when(is_start, F.col("ts"))), never).alias("began"),
        F.coalesce(F.max(F.when(counts | has_ended, F.col("ts"))), F.lit(-_NEVER)).alias("ended"),
    ).select(
        "mk", "writer_id", F.col("offset").alias("low"), F.col("offset").alias("high"),
        *("first", "last", "began", "ended"), F.lit(1).cast("long").alias("in_turn"),
    )  # fmt: skip
