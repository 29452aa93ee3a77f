"""`explode`: the rows of event files as events. `stores/journal/runs.py` says what a run row is."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Final

from ackwise.middleware.events import EVENT_COLUMNS, EventCode
from ackwise.spark.events.bitmap import from_on
from ackwise.spark.frames import Column, DataFrame, F
from ackwise.spark.kernels.runs import BOUND, BOUNDS, FAR, LISTS, MOST_OFFSETS

__all__ = ["explode"]

_LAST_ID: Final = 2**63 - MOST_OFFSETS
_BITS: Final = 63  # of an offset that are its place in a word
_OF_STARTS: Final = ("lost", "took_unreleased", "attrs", "error", "level", "due_ts")
_NAMES: Final = tuple(column.name for column in EVENT_COLUMNS)


def explode(rows: DataFrame, *also: str) -> DataFrame:
    """Return a row per event, with the columns of an event, from rows as they are in files; and the columns `also` of its row.

    A run row whose numbers contradict each other is one event without an offset, which counts as an event of an unknown code. A row
    without `n` is one event, whatever columns of runs it has. `exploding` does the same to tables of Arrow.
    """
    listed = _checked(rows).withColumns({"ranks": F.sequence(F.lit(0), F.coalesce(F.col("n") - 1, F.lit(0))), **_lists()})
    scalars = (*_NAMES, *also, "n", "ok_n", "ok_seq", "ok_ts", "ok_mono_ns")
    # One list of all: what stands beside a list that is exploded is copied for each of its values.
    spread = listed.select(
        *(F.col(name).alias(f"row_{name}") for name in scalars), F.inline(F.arrays_zip("ranks", *LISTS, "offsets", "oks"))
    )
    is_ok = F.coalesce(F.col("oks") == 1, F.col("row_ok_n").isNotNull())
    each = F.when(is_ok, F.array(F.lit(False), F.lit(True))).otherwise(F.array(F.lit(False)))
    twice = spread.select("*", F.explode(each).alias("is_success"))
    found = _values()
    return twice.select(*(found.get(name, F.col(f"row_{name}")).alias(name) for name in (*_NAMES, *also)))


def _checked(rows: DataFrame) -> DataFrame:
    """Without lists and offset where a run row can't be right, so that it has one rank. `kernels.runs` has the same rules."""
    n, first, last, successes = F.col("n"), F.col("offset"), F.col("last_offset"), F.coalesce("ok_n", F.lit(0))
    is_run = (
        (n >= 1) & (first >= 0) & (first <= last) & (last < BOUND) & (last - first < MOST_OFFSETS) & (successes >= 0) & (successes <= n)
    )
    is_run &= (successes == 0) | (F.col("ok_ts").isNotNull() & F.col("ok_seq").isNotNull())
    is_run &= F.coalesce(F.col("exec_id") < _LAST_ID, F.lit(True))
    for name, (before, after) in BOUNDS.items():
        number = F.unix_micros("event_ts" if name == "ts" else name) if name.endswith("ts") else F.col(name)
        is_run &= F.coalesce((number > before) & (number < after), F.lit(True))
    words = F.shiftright(last, 6) - F.shiftright(first, 6) + 1
    is_right = reduce(operator.and_, (F.col(name).isNull() | (F.size(name) == words) for name in ("masks", "ok_masks")))
    for name in LISTS:
        least = 0 if "seqs" in name else -FAR
        known = F.col(name) if "hashes" in name else F.filter(F.col(name), lambda each: (each >= least) & (each <= FAR))  # noqa: B023
        is_right &= F.col(name).isNull() | ((F.size(name) == n) & (F.size(F.array_compact(known)) == n))
    is_of = [F.size(_offsets()) == n, _bit("masks", first) == 1, _bit("masks", last) == 1]
    is_in = F.when(F.col("masks").isNull(), n == last - first + 1).otherwise(reduce(operator.and_, is_of) & (_outside("masks") == 0))
    of_all = F.when(successes > 0, n).otherwise(F.lit(0))
    ok_number = F.size(F.filter(_offsets(), lambda offset: _bit("ok_masks", offset) == 1))
    is_ok = F.when(F.col("ok_masks").isNull(), of_all == successes).otherwise(
        (ok_number == successes) & (_outside("ok_masks", "masks") == 0)
    )
    # One after the other: no list is made of a row that can't have it.
    right = F.when(is_run, F.when(is_right, is_in & is_ok).otherwise(F.lit(False))).otherwise(F.lit(False))
    # A column, since its text is long and an engine reads it wherever it stands. Without `n` a row is not right either.
    judged, is_right = rows.withColumn("is_right", F.coalesce(right, F.lit(False))), F.col("is_right")
    kept = {name: F.when(is_right, F.col(name)) for name in ("n", "masks", "ok_masks", *LISTS)}
    ok_n = F.when(is_right & (successes > 0), F.col("ok_n"))
    return judged.withColumns({**kept, "ok_n": ok_n, "offset": F.when(n.isNull() | is_right, F.col("offset"))})


def _outside(masks: str, all_masks: str | None = None) -> Column:
    """How many words of a run row have a bit that is of no message."""
    word = F.shiftright("offset", 6)
    places = F.sequence(word, F.shiftright("last_offset", 6))

    def others(place: Column) -> Column:
        of_run = from_on(F.col("offset"), place).bitwiseAND(F.bitwise_not(from_on(F.col("last_offset") + 1, place)))
        index = (place - word).cast("int")
        if all_masks is not None:
            of_run = F.coalesce(F.get(all_masks, index), of_run)
        return F.get(masks, index).bitwiseAND(F.bitwise_not(of_run))

    return F.size(F.filter(places, lambda place: others(place) != 0))


def _offsets() -> Column:
    """The offsets of a run row."""
    all_of_them = F.sequence("offset", "last_offset")
    return F.when(F.col("masks").isNull(), all_of_them).otherwise(F.filter(all_of_them, lambda offset: _bit("masks", offset) == 1))


def _lists() -> dict[str, Column]:
    """All lists, empty where there is none: `offsets` where they have holes, and `oks`, whether each succeeded."""
    lists = {name: F.coalesce(F.col(name), F.array()) for name in LISTS}
    lists["offsets"] = F.when(F.col("masks").isNotNull(), _offsets()).otherwise(F.array())
    oks = F.transform(_offsets(), lambda offset: F.coalesce(_bit("ok_masks", offset), F.lit(0)))
    lists["oks"] = F.when(F.col("ok_masks").isNotNull() & F.col("ok_n").isNotNull(), oks).otherwise(F.array())
    return lists


def _bit(masks: str, offset: Column) -> Column:
    word = F.shiftright(offset, 6) - F.shiftright("offset", 6)
    return F.getbit(F.get(masks, word.cast("int")), offset.bitwiseAND(_BITS).cast("int"))


def _values() -> dict[str, Column]:
    """The columns of an event that differ from those of its row."""
    is_success, rank = F.col("is_success"), F.col("ranks").cast("long")
    is_run, has_ok = F.col("row_n").isNotNull(), F.col("row_ok_n").isNotNull()
    after = F.coalesce(F.when(is_success, F.col("ok_us")).otherwise(F.col("at_us")), F.lit(0)).cast("long")
    number = F.coalesce(F.when(is_success, F.col("ok_seqs")).otherwise(F.col("seqs")), rank)

    def of(success: str, start: str) -> Column:
        return F.when(is_success, F.col(f"row_{success}")).otherwise(F.col(f"row_{start}"))

    took = F.coalesce(F.col("took_us"), F.col("row_duration_us"))
    later = F.timestamp_micros(F.when(is_success, F.unix_micros("row_ok_ts")).otherwise(F.unix_micros("row_event_ts")) + after)
    return {
        "seq": of("ok_seq", "seq") + number,
        "event_type": F.when(is_success, F.lit(int(EventCode.SUCCEEDED))).otherwise(F.col("row_event_type")).cast("tinyint"),
        "event_ts": F.when(is_run, later).otherwise(F.col("row_event_ts")),
        "mono_ns": of("ok_mono_ns", "mono_ns") + after * 1000,
        "offset": F.coalesce(F.col("offsets"), F.col("row_offset") + rank),
        "record_ts": F.when(is_run, F.timestamp_micros(F.col("record_ms") * 1000)).otherwise(F.col("row_record_ts")),
        "exec_id": F.col("row_exec_id") + rank,
        "order_hash": F.when(~is_success, F.when(is_run, F.col("order_hashes")).otherwise(F.col("row_order_hash"))),
        "dedup_hash": F.when(is_run, F.col("hashes")).otherwise(F.col("row_dedup_hash")),
        "duration_us": F.when(~has_ok | is_success, took).cast("int"),
        **{name: F.when(~is_success, F.col(f"row_{name}")) for name in _OF_STARTS},
    }
