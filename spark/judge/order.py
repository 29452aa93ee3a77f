"""Messages that were overtaken: a later one of their key, or of their partition, began before they were done.

A message counts by its first run that did not fail, or by its dead letter. Runs of copies, and runs that say that they are out of order,
do not count. So what ran again after a crash overtakes nobody.

One worker's events are compared by their numbers. By key it begins the next message once the success of the one before is told. What it
ran of a partition it tells in portions, so there only the start of a run is sure to be before its end. The events of two workers are
compared by their clocks, and prove something only where these can't differ by so much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import bit_of, word_of
from ackwise.spark.events.schema import is_about_a_message, is_any
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.gaps import Blindness
from ackwise.spark.frames import Column, DataFrame, F, SparkSession, Window
from ackwise.spark.session.rows import rows_of

__all__ = ["Overtaken", "overtaken", "with_overtaken"]

_STARTS: Final = (EventCode.CLAIMED, EventCode.STARTED)
#: Messages that may overtake each other, of one worker and of two.
_LANE: Final = ("mk", "by_key", "key")
_OF_ONE: Final = (*_LANE, "writer_id")
_OF_TWO: Final = (*_LANE, "pair")


class Overtaken(NamedTuple):
    """The result of `overtaken`. Both frames are cached."""

    rows: DataFrame
    """`mk`, `offset`, `overtaken_by` which offset, and `overtaken_surely`: no missing event and no clock can explain it."""
    runs: DataFrame
    """The runs that were compared."""

    @property
    def words(self) -> DataFrame:
        """The same messages as masks of words: `mk`, `word`, `mask`."""
        return self.rows.groupBy("mk", word_of("offset").alias("word")).agg(F.bit_or(bit_of("offset")).alias("mask"))


class _Pair(NamedTuple):
    """Two workers that had messages of a lane at once: those of `writer_id` may have been overtaken by those of `other`."""

    mk: int
    by_key: bool
    writer_id: int
    other: int


def overtaken(spark: SparkSession, events: DataFrame, messages: DataFrame, facts: Facts, blind: Blindness, grace: int) -> Overtaken | None:
    """Return the messages that were overtaken; None if no session says an order.

    Of several messages that overtook one, that which proves it is named, and of those the one that began first. Takes projected events,
    and messages of runs; `grace` is microseconds.
    """
    if not facts.orders:
        return None
    chosen = _in_lanes(_first_runs(events, messages, facts, spark), spark, facts).persist()
    of_one = _behind(chosen, _OF_ONE, F.struct("seq", "offset", "ts"), ~F.col("is_dead"))
    until = F.when(F.col("by_key"), F.col("done_seq")).otherwise(F.col("seq"))
    found = of_one.where(F.col("first.seq") < until).withColumn("is_sure", F.lit(True))
    columns = ("mk", "offset", "is_sure", F.col("first.ts").alias("began"), F.col("first.offset").alias("by"))
    rows = found.select(*columns)
    if pairs := _pairs(chosen):
        rows = rows.unionByName(_of_two(spark, chosen, pairs, facts, grace).select(*columns))
    views = [(view.mk, view.group in blind.groups) for view in facts.views]
    known = rows.join(F.broadcast(rows_of(spark, views, "mk long, blind boolean")), "mk")
    unsure = F.when(F.col("is_sure") & ~F.col("blind"), F.lit(0)).otherwise(F.lit(1)).alias("unsure")
    least = known.groupBy("mk", "offset").agg(F.min(F.struct(unsure, "began", "by")).alias("least"))
    late = least.select("mk", "offset", F.col("least.by").alias("overtaken_by"), (F.col("least.unsure") == 0).alias("overtaken_surely"))
    return Overtaken(late.persist(), chosen)


def with_overtaken(states: DataFrame, found: Overtaken | None) -> DataFrame:
    """Return the rows of `fold` with the columns of `Overtaken.rows`, which are null for other messages."""
    if found is None:
        return states.withColumns({"overtaken_by": F.lit(None).cast("long"), "overtaken_surely": F.lit(None).cast("boolean")})
    return states.join(found.rows, ["mk", "offset"], "left")


def _first_runs(events: DataFrame, messages: DataFrame, facts: Facts, spark: SparkSession) -> DataFrame:
    """One row per message of a view with an order: its first run that counts, or its dead letter. `done_ts` is that of any run of it."""
    views = F.broadcast(rows_of(spark, sorted({(mk,) for _, mk, _ in facts.orders}), "mk long"))
    runs = _runs(events, messages, views).groupBy("mk", "offset", "writer_id", "exec_id").agg(
        F.min(F.when(F.col("is_start"), F.struct("seq", "ts", "key"))).alias("start"),
        F.min(F.when(F.col("is_end"), F.struct("seq", "ts"))).alias("end"),
        F.max("is_void").alias("is_void"),
        F.min(F.when(F.col("is_dead"), F.struct("ts", "seq"))).alias("dead"),
    )  # fmt: skip
    start, end = F.col("start.seq"), F.coalesce("end.seq", "start.seq")
    begun = F.struct(F.col("start.ts").alias("ts"), "writer_id", start.alias("seq"), F.col("start.key").alias("key"))
    run = F.struct(F.col("start.ts").alias("ts"), "writer_id", start.alias("seq"), F.col("start.key").alias("key"), end.alias("done_seq"))
    counts = start.isNotNull() & ~F.col("is_void")
    letter = F.struct(F.col("dead.ts").alias("ts"), "writer_id", F.col("dead.seq").alias("seq"))
    each = runs.groupBy("mk", "offset").agg(
        F.min(F.when(start.isNotNull(), begun)).alias("begun"),
        F.min(F.when(counts, run)).alias("run"),
        F.min(F.when(counts, F.coalesce("end.ts", "start.ts"))).alias("run_ts"),
        F.min(F.when(F.col("dead").isNotNull(), letter)).alias("letter"),
    )  # fmt: skip
    is_dead = F.coalesce(F.col("letter.ts") < F.col("run.ts"), F.col("run").isNull())

    def of(letter: Column, run: Column) -> Column:
        return F.when(F.col("is_dead"), letter).otherwise(run)

    return (
        each.where("begun IS NOT NULL AND (run IS NOT NULL OR letter IS NOT NULL)")
        .withColumn("is_dead", is_dead)
        .select(
            *("mk", "offset", "is_dead"),
            *(of(F.col(f"letter.{name}"), F.col(f"run.{name}")).alias(name) for name in ("ts", "writer_id", "seq")),
            of(F.col("begun.key"), F.col("run.key")).alias("key"),
            of(F.col("letter.seq"), F.col("run.done_seq")).alias("done_seq"),
            F.least(F.coalesce("run_ts", "letter.ts"), F.coalesce("letter.ts", "run_ts")).alias("done_ts"),
        )
    )


def _runs(events: DataFrame, messages: DataFrame, views: DataFrame) -> DataFrame:
    """Starts, successes and failures of runs, and dead letters, where the message was read at its origin."""
    is_end, is_dead = is_any(EventCode.SUCCEEDED, EventCode.FAILED), is_any(EventCode.DEAD_LETTERED)
    said = F.coalesce(F.get_json_object("attrs", "$.out_of_order") == "true", F.lit(False))
    there = events.where(is_about_a_message() & F.col("at_origin") & (is_any(*_STARTS) | is_end | is_dead))
    columns = ("mk", "offset", "writer_id", "exec_id", "ts", "seq", F.col("order_hash").cast("long").alias("key"))
    found = there.join(views, "mk", "left_semi").select(
        *columns,
        is_any(*_STARTS).alias("is_start"),
        is_end.alias("is_end"),
        (is_any(EventCode.FAILED) | (is_end & said)).alias("is_void"),
        is_dead.alias("is_dead"),
    )
    mine, no = messages.join(views, "mk", "left_semi"), F.lit(False)
    same = ("mk", "offset", "writer_id", "exec_id")
    never = [no.alias("is_void"), no.alias("is_dead")]
    starts = mine.select(*same, "ts", "seq", F.col("order_hash").alias("key"), F.lit(True).alias("is_start"), no.alias("is_end"), *never)
    ends = mine.where("ok_ts IS NOT NULL").select(
        *same, F.col("ok_ts").alias("ts"), F.col("ok_seq").alias("seq"), F.lit(None).cast("long").alias("key"), no.alias("is_start"),
        F.lit(True).alias("is_end"), *never,
    )  # fmt: skip
    return found.unionByName(starts).unionByName(ends)


def _in_lanes(runs: DataFrame, spark: SparkSession, facts: Facts) -> DataFrame:
    """The runs whose worker says an order, with `by_key`; what has no key has no order by key. `behind` sorts the last offset first."""
    orders = F.broadcast(rows_of(spark, facts.orders, "writer_id long, mk long, by_key boolean"))
    known = runs.join(orders, ["writer_id", "mk"]).where(~F.col("by_key") | F.col("key").isNotNull())
    key = F.when(F.col("by_key"), F.col("key")).otherwise(F.lit(0).cast("long"))
    return known.withColumn("key", key).withColumn("behind", 0 - F.col("offset"))


def _behind(rows: DataFrame, lane: Sequence[str], value: Column, counts: Column) -> DataFrame:
    """Return the same rows, with the least value of those that count behind each in its lane as `first`."""
    later = Window.partitionBy(*lane).orderBy("behind").rowsBetween(Window.unboundedPreceding, -1)
    return rows.withColumn("first", F.min(F.when(counts, value)).over(later))


def _pairs(chosen: DataFrame) -> list[_Pair]:
    """The workers of a lane whose offsets and times are not one after the other; few, since a lane has a new worker now and then."""
    spans: dict[tuple[int, bool], list[tuple[int, int, int, int, int]]] = {}
    for row in chosen.groupBy("mk", "by_key", "writer_id").agg(
        F.min("offset").alias("low"), F.max("offset").alias("high"), F.min("ts").alias("began"), F.max("done_ts").alias("until")
    ).collect():  # fmt: skip
        spans.setdefault((row["mk"], row["by_key"]), []).append((row["writer_id"], row["low"], row["high"], row["began"], row["until"]))
    return [
        _Pair(mk, by_key, writer, other)
        for (mk, by_key), of in spans.items()
        for writer, low, _, _, until in of
        for other, _, high, began, _ in of
        if writer != other and low < high and began < until
    ]


def _of_two(spark: SparkSession, chosen: DataFrame, pairs: Sequence[_Pair], facts: Facts, grace: int) -> DataFrame:
    """The runs that those of another worker overtook, by the clocks of both."""
    wrong = facts.clocks.wrong
    rows = [(*pair, number, pair.writer_id not in wrong and pair.other not in wrong) for number, pair in enumerate(pairs)]
    known = rows_of(spark, rows, "mk long, by_key boolean, writer_id long, other long, pair long, is_right boolean")
    mine = chosen.join(F.broadcast(known.drop("other")), ["mk", "by_key", "writer_id"]).withColumn("is_later", F.lit(False))
    theirs = known.drop("writer_id").withColumnRenamed("other", "writer_id")
    both = mine.unionByName(chosen.join(F.broadcast(theirs), ["mk", "by_key", "writer_id"]).withColumn("is_later", F.lit(True)))
    found = _behind(both, _OF_TWO, F.struct("ts", "offset"), F.col("is_later") & ~F.col("is_dead")).where(~F.col("is_later"))
    late = F.col("done_ts") - F.col("first.ts")
    return found.where(late > 0).withColumn("is_sure", (late > grace) & F.col("is_right"))
