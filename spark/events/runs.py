"""`explode`: the rows of event files as events. `stores/journal/runs.py` says what a run row is."""

from __future__ import annotations

from typing import Final

from ackwise.middleware.events import EVENT_COLUMNS, EventCode
from ackwise.spark.frames import Column, DataFrame, F

__all__ = ["explode"]

_END: Final = 2**62  # of the offsets that a run may have
_LONGEST: Final = 65_536  # offsets, from the first of a run to after its last
_BITS: Final = 63  # of an offset that are its place in a word
_LISTS: Final = ("record_ms", "hashes", "order_hashes", "at_us", "seqs", "took_us", "ok_us", "ok_seqs")
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
        *(F.col(name).alias(f"row_{name}") for name in scalars), F.inline(F.arrays_zip("ranks", *_LISTS, "offsets", "oks"))
    )
    is_ok = F.coalesce(F.col("oks") == 1, F.col("row_ok_n").isNotNull())
    each = F.when(is_ok, F.array(F.lit(False), F.lit(True))).otherwise(F.array(F.lit(False)))
    twice = spread.select("*", F.explode(each).alias("is_success"))
    found = _values()
    return twice.select(*(found.get(name, F.col(f"row_{name}")).alias(name) for name in (*_NAMES, *also)))


def _checked(rows: DataFrame) -> DataFrame:
    """Without lists and offset where a run row can't be right, so that it has one rank."""
    n, first, last = F.col("n"), F.col("offset"), F.col("last_offset")
    span = last - first
    is_run = (n >= 1) & (first >= 0) & (last < _END) & (span >= n - 1) & (span < _LONGEST)
    words = F.shiftright(last, 6) - F.shiftright(first, 6) + 1
    is_right = F.when(F.col("masks").isNull(), n == span + 1).otherwise(F.size("masks") == words)
    for name in _LISTS:
        is_right &= F.col(name).isNull() | (F.size(name) == n)
    is_right &= F.col("ok_masks").isNull() | (F.size("ok_masks") == words)
    is_right &= F.coalesce(F.when(is_run & is_right, F.size(_offsets()) == n), F.lit(False))
    # Without `n` it is not right either.
    right = {name: F.when(is_right, F.col(name)) for name in ("n", "ok_n", "masks", "ok_masks", *_LISTS)}
    return rows.withColumns({**right, "offset": F.when(n.isNull() | is_right, F.col("offset"))})


def _offsets() -> Column:
    """The offsets of a run row."""
    all_of_them = F.sequence("offset", "last_offset")
    return F.when(F.col("masks").isNull(), all_of_them).otherwise(F.filter(all_of_them, lambda offset: _bit("masks", offset) == 1))


def _lists() -> dict[str, Column]:
    """All lists, empty where there is none: `offsets` where they have holes, and `oks`, whether each succeeded."""
    lists = {name: F.coalesce(F.col(name), F.array()) for name in _LISTS}
    lists["offsets"] = F.when(F.col("masks").isNotNull(), _offsets()).otherwise(F.array())
    oks = F.transform(_offsets(), lambda offset: _bit("ok_masks", offset))
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
    return {
        "seq": of("ok_seq", "seq") + number,
        "event_type": F.when(is_success, F.lit(int(EventCode.SUCCEEDED))).otherwise(F.col("row_event_type")).cast("tinyint"),
        "event_ts": F.timestamp_micros(F.when(is_success, F.unix_micros("row_ok_ts")).otherwise(F.unix_micros("row_event_ts")) + after),
        "mono_ns": of("ok_mono_ns", "mono_ns") + after * 1000,
        "offset": F.coalesce(F.col("offsets"), F.col("row_offset") + rank),
        "record_ts": F.when(is_run, F.timestamp_micros(F.col("record_ms") * 1000)).otherwise(F.col("row_record_ts")),
        "exec_id": F.col("row_exec_id") + rank,
        "order_hash": F.when(~is_success, F.when(is_run, F.col("order_hashes")).otherwise(F.col("row_order_hash"))),
        "dedup_hash": F.when(is_run, F.col("hashes")).otherwise(F.col("row_dedup_hash")),
        "duration_us": F.when(~has_ok | is_success, took).cast("int"),
        **{name: F.when(~is_success, F.col(f"row_{name}")) for name in _OF_STARTS},
    }
