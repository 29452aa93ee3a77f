"""Run rows as messages. Pure: a table of Arrow in, tables of Arrow out.

A run row stands for the starts of a run of messages, and for those of its successes that came into the same file.
`stores/journal/runs.py` says what its columns mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackwise.middleware.events import EventCode
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, begins, flat, is_there, lengths, numbers

__all__ = ["BOUND", "BOUNDS", "BY_KEY_IN_TURN", "FAR", "IN_TURN", "LISTS", "MESSAGES", "MOST_OFFSETS", "PIECE", "RunRows", "messages"]

Words = npt.NDArray[np.uint64]

#: The offsets of a run are within so many, and below this bound.
MOST_OFFSETS: Final = 65_536
BOUND: Final = 2**62

#: No time is so far from 1970, in microseconds, and no other number as large: what is computed of them does not overflow.
BOUNDS: Final = {
    **dict.fromkeys(("ts", "ok_ts"), (-(2**61), 2**61)),
    **dict.fromkeys(("mono_ns", "ok_mono_ns"), (-(2**62), 2**62)),
    **dict.fromkeys(("seq", "ok_seq"), (-1, 2**62)),
}

_BITS: Final = 64
_SHIFT: Final = 6
_ALL: Final = np.uint64(2**64 - 1)
_MASKS: Final = ("masks", "ok_masks")
#: Lists with a value of each message, in the order of offsets.
LISTS: Final = ("record_ms", "hashes", "order_hashes", "at_us", "seqs", "ok_us", "ok_seqs", "took_us")
#: No time is so far from 1970, in milliseconds, and no other number of a list is as large.
FAR: Final = 2**50
#: Bits of what numbers within a run are apart, where the order within it is looked at.
_APART: Final = 32

#: The messages of runs. Times are microseconds; `ok_seq`, `ok_ts` and `took` are null without a success. `clock` and `ok_clock` are how far
#: the writer's clock was ahead of one that is never set. `misstated` is 1 where the row had another extreme than its lists. A success whose
#: start is in another file is a message of that code. A row that contradicts itself is one message without an offset. A row whose
#: code is negative is about a whole run row, see `PIECE`.
MESSAGES: Final = pa.schema(
    [
        (name, pa.int64())
        for name in (
            *("writer_id", "mk", "code", "seq", "ts", "offset", "exec_id", "record_ts", "dedup_hash", "order_hash", "clock"),
            *("ok_seq", "ok_ts", "took", "ok_clock", "misstated"),
        )
    ]
)
#: What the columns of `MESSAGES` are in a row about a whole run row, whose code is that without its sign: offsets, the least and the
#: largest number of a start, the largest number, the first time and the last. `in_turn` has `IN_TURN` if its messages started in the order
#: of their offsets, and `BY_KEY_IN_TURN` if each also did so after those of earlier calls had ended; what started together is one call.
PIECE: Final = {
    "low": "offset", "high": "exec_id", "first": "seq", "last_start": "took", "last": "ok_seq", "began": "ts", "ended": "ok_ts",
    "in_turn": "misstated",
}  # fmt: skip
IN_TURN: Final = 1
BY_KEY_IN_TURN: Final = 2
_SAME: Final = ("writer_id", "mk", "code")
#: Messages that are laid out at once.
_PART: Final = 500_000


def messages(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the messages of projected run rows, as `MESSAGES` has them."""
    parts = np.cumsum(np.clip(_numbers(rows["n"]), 1, MOST_OFFSETS)) // _PART
    for place in np.unique(parts):
        first, after = np.searchsorted(parts, (place, place + 1))
        some = rows.slice(first, after - first)
        runs = RunRows(some)
        yield _messages(runs)
        yield _pieces(runs)
        if not runs.is_well_formed.all():
            yield _strange(some.filter(arrow(~runs.is_well_formed)))


def _messages(runs: RunRows) -> pa.Table:
    row, is_ok = runs.row_of_message, runs.is_ok
    is_same, (took, has_took) = runs.is_there("duration_us")[row], runs.of_each("took_us")
    record_ms, has_record = runs.of_each("record_ms")
    is_success = is_ok | (runs.number("code")[row] == EventCode.SUCCEEDED)
    columns: dict[str, tuple[Numbers, Flags | None]] = {
        **{name: (runs.number(name)[row], None) for name in _SAME},
        "seq": (runs.numbered("seq", "seqs"), None),
        "ts": (runs.timed("ts", "at_us"), None),
        "offset": (runs.offset, None),
        "exec_id": (runs.number("exec_id")[row] + runs.rank, runs.is_there("exec_id")[row]),
        "record_ts": (record_ms * 1000, has_record),
        "dedup_hash": runs.of_each("hashes"),
        "order_hash": runs.of_each("order_hashes"),
        "clock": ((runs.number("ts") - runs.number("mono_ns") // 1000)[row], runs.is_there("mono_ns")[row]),
        "ok_seq": (runs.numbered("ok_seq", "ok_seqs"), is_ok),
        "ok_ts": (runs.timed("ok_ts", "ok_us"), is_ok),
        "took": (np.where(is_same, runs.number("duration_us")[row], took), is_success & (is_same | has_took)),
        "ok_clock": ((runs.number("ok_ts") - runs.number("ok_mono_ns") // 1000)[row], is_ok & runs.is_there("ok_mono_ns")[row]),
        "misstated": (runs.misstated()[row].astype(np.int64), None),
    }
    return pa.table([arrow(*columns[name]) for name in MESSAGES.names], schema=MESSAGES)


def _pieces(runs: RunRows) -> pa.Table:
    row, is_ok = runs.row_of_message, runs.is_ok
    seq, ts = runs.numbered("seq", "seqs"), runs.timed("ts", "at_us")
    end, end_ts = (np.where(is_ok, ok, own) for ok, own in ((runs.numbered("ok_seq", "ok_seqs"), seq), (runs.timed("ok_ts", "ok_us"), ts)))
    first, last = runs.reduced(np.minimum, seq), runs.reduced(np.maximum, np.maximum(seq, end))
    # No two rows share the upper bits, so the numbers of one do not count for the next.
    after = seq - first[row]
    until = np.maximum.accumulate((row << _APART) + np.clip(np.maximum(end, seq) - first[row], 0, 2**_APART - 1)) - (row << _APART)
    is_next = row[1:] == row[:-1]
    falls, meets = is_next & (after[1:] <= after[:-1]), is_next & (ts[1:] != ts[:-1]) & (after[1:] <= until[:-1])
    in_turn, by_key = np.ones(len(first), np.bool_), last - first < 2**_APART
    in_turn[row[1:][falls]] = by_key[row[1:][falls | meets]] = False
    columns = {
        **{name: runs.number(name) for name in ("writer_id", "mk")},
        "code": -runs.number("code"),
        PIECE["low"]: runs.number("offset"),
        PIECE["high"]: runs.number("last_offset"),
        PIECE["first"]: first,
        PIECE["last_start"]: runs.reduced(np.maximum, seq),
        PIECE["last"]: last,
        PIECE["began"]: runs.reduced(np.minimum, ts),
        PIECE["ended"]: runs.reduced(np.maximum, end_ts),
        PIECE["in_turn"]: in_turn * IN_TURN + by_key * BY_KEY_IN_TURN,
    }
    none = pa.nulls(len(first), pa.int64())
    return pa.table([columns.get(name, none) for name in MESSAGES.names], schema=MESSAGES)


def _strange(rows: pa.Table) -> pa.Table:
    known = {name: rows[name].cast(pa.int64()) for name in (*_SAME, "seq", "ts")}
    return pa.table([known.get(name, pa.nulls(len(rows), pa.int64())) for name in MESSAGES.names], schema=MESSAGES)


class RunRows:
    """Those of the run rows that do not contradict themselves, laid out as words and as messages in the order of their offsets."""

    def __init__(self, rows: pa.Table) -> None:
        self.is_well_formed = _within_bounds(rows)
        self._lay_out(rows)
        if (wrong := self._wrong()).any():
            self.is_well_formed[np.flatnonzero(self.is_well_formed)[wrong]] = False
            self._lay_out(rows)

    def number(self, name: str) -> Numbers:
        """A column of numbers; 0 for none."""
        return _numbers(self._rows[name])

    def is_there(self, name: str) -> Flags:
        """Whether a row has the value."""
        return is_there(self._rows[name])

    def of_each(self, name: str) -> tuple[Numbers, Flags]:
        """The value of each message in a column of lists, 0 for none, and whether there is one."""
        if name not in self._of_each:
            lists = self._rows[name]
            there, values = is_there(lists)[self.row_of_message], _numbers(flat(lists))
            if len(values) < len(there):
                found = np.zeros(len(there), np.int64)
                found[there] = values
            else:
                found = values
            self._of_each[name] = found, there
        return self._of_each[name]

    def timed(self, first: str, after: str) -> Numbers:
        """The time of each message."""
        found: Numbers = self.number(first)[self.row_of_message] + self.of_each(after)[0]
        return found

    def numbered(self, first: str, after: str) -> Numbers:
        """The sequence number of each message; without a list they are consecutive."""
        found, there = self.of_each(after)
        numbers: Numbers = self.number(first)[self.row_of_message] + np.where(there, found, self.rank)
        return numbers

    def _lay_out(self, rows: pa.Table) -> None:
        self._of_each: dict[str, tuple[Numbers, Flags]] = {}
        self._rows = rows if self.is_well_formed.all() else rows.filter(arrow(self.is_well_formed))
        first, last = self.number("offset"), self.number("last_offset")
        self._sizes = (last >> _SHIFT) - (first >> _SHIFT) + 1  # in words
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._row_of_word = np.repeat(np.arange(len(first)), self._sizes)
        self._place = np.arange(len(self._row_of_word)) - self._starts[self._row_of_word]
        self.word = (first >> _SHIFT)[self._row_of_word] + self._place
        self.claimed = self._masks("masks", self._whole(first, last))
        self.ok = self._masks("ok_masks", np.where((self.number("ok_n") > 0)[self._row_of_word], self.claimed, np.uint64(0)))
        places = np.flatnonzero(_bits(self.claimed))
        self.is_ok = _bits(self.ok)[places]
        self.offset = (self.word[places >> _SHIFT] << _SHIFT) + (places & (_BITS - 1))
        self.row_of_message = self._row_of_word[places >> _SHIFT]
        self._begins = np.searchsorted(self.row_of_message, np.arange(len(first)))
        self.rank = np.arange(len(places)) - self._begins[self.row_of_message]

    def _whole(self, first: Numbers, last: Numbers) -> Words:
        """The masks of runs without holes."""
        row = self._row_of_word
        low = np.where(self.word == first[row] >> _SHIFT, first[row] & 63, 0).astype(np.uint64)
        high = np.where(self.word == last[row] >> _SHIFT, 63 - (last[row] & 63), 0).astype(np.uint64)
        found: Words = (_ALL << low) & (_ALL >> high)
        return found

    def _masks(self, name: str, default: Words) -> Words:
        """The masks of a column, word by word; of rows without a list, or with one of another length, the default."""
        lists = self._rows[name]
        chosen = (is_there(lists) & (lengths(lists) == self._sizes))[self._row_of_word]
        found = default.copy()
        found[chosen] = _numbers(flat(lists))[begins(lists)[self._row_of_word[chosen]] + self._place[chosen]].view(np.uint64)
        return found

    def _wrong(self) -> Flags:
        """Which of the rows contradict themselves."""
        rows, number, (low, high) = len(self._rows), self.number("n"), ((self.number(name) & 63) for name in ("offset", "last_offset"))
        wrong: Flags = np.bincount(self.row_of_message, minlength=rows) != number
        wrong |= np.bincount(self.row_of_message[self.is_ok], minlength=rows) != self.number("ok_n")
        wrong[self._row_of_word[(self.ok & ~self.claimed) != 0]] = True
        at_first, at_last = self.claimed[self._starts], self.claimed[self._starts + self._sizes - 1]
        wrong |= _lowest(at_first) != low
        wrong |= _highest(at_last) != high
        for name in _MASKS:
            wrong |= self.is_there(name) & (lengths(self._rows[name]) != self._sizes)
        for name in LISTS:
            lists = self._rows[name]
            wrong |= self.is_there(name) & (lengths(lists) != number)
            values = flat(lists)
            is_wrong = ~is_there(values)
            if "hashes" not in name:
                is_wrong = is_wrong | ((given := _numbers(values)) != np.clip(given, 0 if "seqs" in name else -FAR, FAR))
            if is_wrong.any():
                wrong[np.repeat(np.arange(rows), lengths(lists))[is_wrong]] = True
        return wrong

    def misstated(self) -> Flags:
        """Which of the rows have another extreme than their lists."""
        is_ok, none = self.is_ok, np.iinfo(np.int64).max
        took = np.where(is_ok, self.timed("ok_ts", "ok_us") - self.timed("ts", "at_us"), none)
        record = self.of_each("record_ms")[0] * 1000
        wrong: Flags = (self.number("ok_n") > 0) & (self.reduced(np.minimum, took) != self.number("least_us"))
        for name, function in (("record_ts", np.minimum), ("record_ts_max", np.maximum)):
            wrong |= self.is_there("record_ms") & (self.reduced(function, record) != self.number(name))
        return wrong

    def reduced(self, function: np.ufunc, values: Numbers) -> Numbers:
        """What a function makes of the values of the messages of each row."""
        found: Numbers = function.reduceat(values, self._begins) if len(self._begins) else values[:0]
        return found


def _within_bounds(rows: pa.Table) -> Flags:
    """Whether the numbers of a row are such that it can be laid out at all."""
    offset, last, number, successes = (_numbers(rows[name]) for name in ("offset", "last_offset", "n", "ok_n"))
    found: Flags = (offset >= 0) & (last >= offset) & (last < BOUND) & (number > 0) & (successes >= 0) & (successes <= number)
    found &= is_there(rows["offset"]) & is_there(rows["last_offset"])
    found &= np.where(found, last - offset, 0) < MOST_OFFSETS
    found &= (successes == 0) | (is_there(rows["ok_ts"]) & is_there(rows["ok_seq"]))
    found &= _numbers(rows["exec_id"]) < 2**63 - MOST_OFFSETS
    for name, (before, after) in BOUNDS.items():
        number = _numbers(rows[name])
        found &= (number > before) & (number < after)
    return found


def _bits(words: Words) -> Flags:
    found: Flags = np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)
    return found


def _lowest(words: Words) -> Numbers:
    """The place of the lowest bit of each word, as of a row: 0 without any."""
    found: Numbers = _bits(words).reshape(-1, _BITS).argmax(axis=1)
    return found


def _highest(words: Words) -> Numbers:
    found: Numbers = _BITS - 1 - _bits(words).reshape(-1, _BITS)[:, ::-1].argmax(axis=1)
    return found


def _numbers(column: Any) -> Numbers:
    return numbers(column, 0)
