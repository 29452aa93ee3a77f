"""Messages of run rows: which of them ran once and need no other look, and which are to be judged by all their events.

A run row says of many messages at once that they started, and which of them succeeded. A message is *clean* if one such pair is all
that any event says of it, and nothing else speaks against it. Its verdict is EXACTLY_ONCE then, without looking at it: this is decided
for 64 offsets at a time, by masks. With `once` the bits of successes, `odd` those that came an odd number of times and `number` how
many came in all: a bit of `once` that is not in `odd` came at least twice, so `number` is at least the bits of `once` and those again;
if it is exactly that, each bit of `odd` came once. Otherwise all messages of the word are judged one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from ackwise.middleware.events import RUN_COLUMNS, EventCode, Kind
from ackwise.spark.events.bitmap import bit_of, with_mask, word_of
from ackwise.spark.events.schema import instant, is_about_a_message, project
from ackwise.spark.fold.clocks import FAR_AHEAD
from ackwise.spark.fold.facts import SurveyRow, View
from ackwise.spark.fold.survey import SURVEY_KEY
from ackwise.spark.frames import Column, DataFrame, F, SparkSession
from ackwise.spark.kernels import runs as kernels
from ackwise.spark.session.rows import rows_of, through

__all__ = [
    "NAMES",
    "events_of",
    "is_in",
    "may_be_clean",
    "messages",
    "outcomes",
    "over_epochs",
    "paired",
    "pieces",
    "projected_runs",
    "survey_of",
    "without_start",
    "words",
]

#: What names a writer and a handler's view of a partition.
NAMES: Final = tuple(name for name in SURVEY_KEY if name != "session")
_STARTS: Final = (EventCode.CLAIMED, EventCode.STARTED)
#: What a success and its start have in common; `same` is what is equal in both, or null.
_PAIR: Final = ("writer_id", "mk", "offset", "same")
_SAME: Final = ("exec_id", "record_ts", "dedup_hash")
#: The columns of a success that has its own row, by their names in the row of a start.
_OF_SUCCESS: Final = {"ok_seq": "seq", "ok_ts": "ts", "took": "took", "ok_clock": "clock"}
#: How far the starts of a run may be apart, microseconds.
_SPREAD: Final = 2**30
#: What a clean message has no value of.
_NOTHING: Final = ("phys_topic", "range_end", "attrs", "error", "level", "due_ts")


def may_be_clean(disputed: Sequence[int] = ()) -> Column:
    """Whether a row as it was written says of messages only what is said of clean ones; `disputed` are writers of disputed events."""
    known = F.col("n").isNotNull() & (F.col("partition") >= 0) & F.col("event_type").isin(*map(int, (*_STARTS, EventCode.SUCCEEDED)))
    for name in _NOTHING:
        known = known & F.col(name).isNull()
    first = (F.coalesce("attempt", F.lit(1)) == 1) & (F.coalesce("lost", F.lit(0)) == 0) & ~F.coalesce("took_unreleased", F.lit(False))
    has_run = F.col("exec_id").isNotNull() | (F.col("event_type") != int(EventCode.CLAIMED))
    # Of records that lie far ahead the survey keeps apart what clocks they tell of.
    is_near = F.coalesce(instant("record_ts_max") <= instant("event_ts") + (FAR_AHEAD - _SPREAD), F.lit(True))
    found = known & first & has_run & is_near
    return F.coalesce(found & ~F.col("writer_id").isin(list(disputed)) if disputed else found, F.lit(False))


def projected_runs(rows: DataFrame) -> DataFrame:
    """Run rows with the columns of `project`, and those of runs; times in microseconds."""
    times = {column.name: F.unix_micros(column.name) for column in RUN_COLUMNS if column.kind is Kind.TIMESTAMP}
    return project(rows, *(column.name for column in RUN_COLUMNS)).withColumns(times)


def messages(runs: DataFrame) -> DataFrame:
    """Return the messages of projected run rows, as `kernels.runs.MESSAGES` has them."""
    return through(runs, kernels.messages, kernels.MESSAGES)


def paired(found: DataFrame) -> DataFrame:
    """Return the starts among the rows of `messages`, each with its success, also where that was in another file."""
    successes = _others(found, _is_success()).select(*_PAIR, *(F.col(of).alias(name) for name, of in _OF_SUCCESS.items()))
    begun = _others(found, ~_is_success()).drop(*_OF_SUCCESS).join(successes, [*_PAIR], "left").select(*found.columns)
    return found.where("ok_ts IS NOT NULL").unionByName(begun.persist())


def without_start(found: DataFrame) -> DataFrame:
    """Return the successes among the rows of `messages` whose start is in no file, as events."""
    alone = _others(found, _is_success()).join(_others(found, ~_is_success()), [*_PAIR], "left_anti")
    columns = ("writer_id", "mk", "code", "seq", "ts", "offset", "exec_id", "record_ts", "dedup_hash")
    mono_ns = ((F.col("ts") - F.col("clock")) * 1000).alias("mono_ns")
    return alone.select(*columns, F.col("took").alias("duration_us"), mono_ns, *_of_the_first_attempt())


def _is_success() -> Column:
    return F.col("code") == int(EventCode.SUCCEEDED)


def _others(found: DataFrame, which: Column) -> DataFrame:
    """Starts or successes that stand alone."""
    return found.where(which & F.col("offset").isNotNull() & F.col("ok_ts").isNull()).withColumn("same", F.struct(*_SAME))


def pieces(found: DataFrame) -> DataFrame:
    """Return what the rows of `messages` say of whole run rows, with the names of `kernels.runs.PIECE`."""
    names = [F.col(name).alias(of) for of, name in kernels.PIECE.items()]
    return found.where("code < 0").select("mk", "writer_id", (0 - F.col("code")).alias("code"), *names)


def survey_of(found: DataFrame, named: DataFrame) -> DataFrame:
    """Return the survey of the events of messages of runs, as rows of `SurveyRow`; `named` has the names of `writer_id` and `mk`."""
    first, last = F.least("ts", "ok_ts"), F.greatest("ts", "ok_ts")
    counted = {
        "first_ts": F.min(first),
        "last_ts": F.max(last),
        "first_seq": F.min(F.least("seq", "ok_seq")),
        "last_seq": F.max(F.greatest("seq", "ok_seq")),
        "message_events": F.count(F.lit(1)) + F.count("ok_ts"),
        "start": F.min("offset"),
        "reached": F.max("offset") + 1,
        "least_lag": F.min(first - F.col("record_ts")),
        "oldest_record": F.min("record_ts"),
        "newest_record": F.max("record_ts"),
        "clock_low": F.min(F.least("clock", "ok_clock")),
        "clock_high": F.max(F.greatest("clock", "ok_clock")),
        "timed": F.count("record_ts") + F.count(F.when(F.col("ok_ts").isNotNull(), F.col("record_ts"))),
    }
    none = {name: F.lit(None).cast("long") for name in SurveyRow._fields if name not in {*SURVEY_KEY, *counted}}
    none |= dict.fromkeys(("ended", "strange", "roles", "outgoing", "far"), F.lit(0)) | {"session": F.lit(None).cast("string")}
    rows = found.groupBy("writer_id", "mk").agg(*(column.alias(name) for name, column in counted.items()))
    return rows.join(F.broadcast(named), ["writer_id", "mk"]).select(
        *(none[name].alias(name) if name in none else name for name in SurveyRow._fields)
    )


def words(found: DataFrame, events: DataFrame, excluded: DataFrame) -> DataFrame:
    """One row per `mk` and `word`, with masks of its messages: all that are `seen`, and those that are `clean`.

    `found` has the messages of runs, `events` all projected events that are not of them, and `excluded` (`mk`, `word`, `words`, `mask`)
    the messages that something else speaks against.
    """
    bit, nothing = bit_of("offset"), F.lit(0).cast("long")
    is_ok = F.coalesce(F.col("ok_ts") >= F.col("ts"), F.lit(False)) & (F.col("misstated") == 0)
    pairs = found.groupBy("mk", word_of("offset").alias("word")).agg(
        F.coalesce(F.bit_or(F.when(is_ok, bit)), nothing).alias("once"),
        F.coalesce(F.bit_xor(F.when(is_ok, bit)), nothing).alias("odd"),
        F.count_if(is_ok).alias("number"),
        F.coalesce(F.bit_or(F.when(~is_ok, bit)), nothing).alias("other"),
    )
    about = events.where(is_about_a_message()).groupBy("mk", word_of("offset").alias("word")).agg(F.bit_or(bit).alias("other"))
    known = (
        pairs.unionByName(about, allowMissingColumns=True)
        .groupBy("mk", "word")
        .agg(*(F.coalesce(F.max(name), nothing).alias(name) for name in ("once", "odd", "number")), *_or("other"))
    )
    together = with_mask(known, excluded).withColumnRenamed("mask", "excluded")
    once, odd, other = F.col("once"), F.col("odd"), F.col("other")
    is_plain = F.col("number") == F.bit_count(once) + F.bit_count(once.bitwiseAND(F.bitwise_not(odd)))
    one = once.bitwiseAND(odd).bitwiseAND(F.bitwise_not(other.bitwiseOR(F.col("excluded"))))
    return together.select("mk", "word", once.bitwiseOR(other).alias("seen"), F.when(is_plain, one).otherwise(nothing).alias("clean"))


def _or(name: str) -> list[Column]:
    return [F.coalesce(F.bit_or(name), F.lit(0).cast("long")).alias(name)]


def outcomes(found: DataFrame, writers: Collection[int]) -> DataFrame:
    """Return the messages that each of `writers` reported, as `messages.outcomes` does."""
    mine = found.where(F.col("writer_id").isin(list(writers)) if writers else F.lit(False))
    ok = F.when(F.col("ok_ts").isNotNull(), bit_of("offset"))
    return mine.groupBy("writer_id", "mk", word_of("offset").alias("word")).agg(
        F.coalesce(F.bit_or(ok), F.lit(0).cast("long")).alias("reported"),
        F.bit_or(bit_of("offset")).alias("started"),
        F.lit(0).cast("long").alias("received"),
    )


def over_epochs(found: DataFrame, spark: SparkSession, views: Sequence[View]) -> DataFrame:
    """Return the same words: what is clean in one dedup epoch of a handler is so only if it is clean or unseen in all others."""
    families: dict[tuple[int, str], list[int]] = defaultdict(list)
    for view in views:
        families[view.pk, view.handler].append(view.mk)
    rows = [(mk, number) for number, mks in enumerate(families.values()) if len(mks) > 1 for mk in mks]
    if not rows:
        return found
    known = found.join(F.broadcast(rows_of(spark, rows, "mk long, family long")), "mk", "left")
    open_there = F.bit_or(F.col("seen").bitwiseAND(F.bitwise_not("clean"))).alias("open")
    each = known.where("family IS NOT NULL").groupBy("family", "word").agg(open_there)
    clean = F.col("clean").bitwiseAND(F.bitwise_not(F.coalesce("open", F.lit(0).cast("long"))))
    return known.join(each, ["family", "word"], "left").withColumn("clean", clean).select(*found.columns)


def is_in(mask: str) -> Column:
    """Whether the offset of a row is in a mask of its word."""
    return F.col(mask).bitwiseAND(bit_of("offset")) != 0


def events_of(chosen: DataFrame) -> DataFrame:
    """Return two events, or one without a success, of each of these rows of `messages`, with those columns of `project` that they have."""
    code = F.lit(int(EventCode.SUCCEEDED)).cast("long")
    start = F.struct("code", "ts", "seq", F.lit(None).cast("long").alias("duration_us"))
    success = F.struct(code.alias("code"), F.col("ok_ts").alias("ts"), F.col("ok_seq").alias("seq"), F.col("took").alias("duration_us"))
    each = F.when(F.col("ok_ts").isNull(), F.array(start)).otherwise(F.array(start, success))
    columns = ("writer_id", "mk", "offset", "exec_id", "record_ts", "dedup_hash")
    return chosen.select(*columns, *_of_the_first_attempt(), F.inline(each))


def _of_the_first_attempt() -> list[Column]:
    same = [F.lit(value).cast("long").alias(name) for name, value in (("attempt", 1), ("lost", 0), ("took", 0))]
    return [*same, F.lit(True).alias("at_origin")]
