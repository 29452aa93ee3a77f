"""Run rows: events that tell the same of neighbouring messages, as one row. Pure functions of NumPy arrays.

A *lane* is a partition as one handler reads it in one dedup epoch. A run row stands for an event about each of `n` messages of a
lane, in the order of their offsets; the columns of an event describe the first message. A row of starts (CLAIMED, STARTED) has
the successes of its messages as well, as far as they are in the same log file.

    n, offset, last_offset, masks   the messages: a bit for each offset of a word of 64, from `offset >> 6` on; null: all of them
    exec_id                         of the first message; that of the message at rank r is larger by r, whatever the offsets are
    event_ts, at_us                 microseconds from the first event to each; null: all at once
    seq, seqs                       sequence numbers after the first; null: consecutive
    mono_ns                         of the first event; that of the others follows from `at_us`, to half a millisecond
    record_ts, record_ts_max        the oldest and the newest record
    record_ms, hashes               record time and dedup hash of each; null: none
    order_hashes                    hash of the order key of each; null: none has one
    duration_us, took_us            how long each took that has an outcome; one of the two is null
    ok_n, ok_masks                  how many succeeded, and which, in the words of `masks`; null: none, and all
    ok_ts, ok_ts_max, ok_us         the first and the last success, and microseconds from the first to each; null: all at once
    ok_seq, ok_seqs                 the least sequence number of a success, and the others after it; null: consecutive and of all
    ok_mono_ns                      of the first success
    least_us                        the least time from a start to its success

Lists are indexed by rank, the number of set bits of `masks` before an offset. Those about successes have a 0 for a message without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ackwise.middleware.eventlog import FIELDS, NONE
from ackwise.middleware.events import EventCode

__all__ = ["END", "LONGEST", "Lists", "Numbers", "Parts", "parts_of"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Offsets from the first message of a run to after the last.
LONGEST: Final = 65_536
#: Messages of a run: `ackwise publish` sends it as one record, of which Kafka takes a megabyte.
_MOST: Final = 4096
#: Offsets from here on are in no run.
END: Final = 2**62

_STARTS: Final = (EventCode.CLAIMED, EventCode.STARTED)
_JOINED: Final = (
    *_STARTS,
    EventCode.SUCCEEDED,
    EventCode.DUP_SUPPRESSED,
    EventCode.SKIPPED,
    EventCode.RELEASED,
    EventCode.FAILED,
    EventCode.SENT_BACK,
)
#: What only single rows have: a copy, a range, an event of the producer side.
_SINGLE: Final = (*("phys_topic", "phys_partition", "phys_offset", "range_end", "dedup_key", "role", "from_commit", "proved", "queue_us"),)
_LANE: Final = ("topic", "topic_id", "partition", "handler", "dedup_epoch", "generation", "attempt")
_SHARED: Final = ("code", *_LANE, "lost", "took_unreleased", "attrs", "error", "level", "due_ms")
#: What the success of a start has not.
_PLAIN: Final = ("lost", "took_unreleased", "attrs", "error", "level", "due_ms", "order_hash")

_DAY_MS: Final = 86_400_000
#: Differences that fit a list.
_FAR: Final = 2**30
#: Half of what times by the two clocks may be apart within a run, nanoseconds: what one of them was set by ends it.
_SET: Final = 250_000
_NONE: Final = {field.name: 0 if field.is_text else NONE[field.format] for field in FIELDS}
_NO_NUMBER: Final = NONE["q"]
_NO_DURATION: Final = NONE["i"]


class Lists(NamedTuple):
    """A list for each run that has one."""

    values: npt.NDArray[Any]
    lengths: Numbers
    is_there: Flags


class Parts(NamedTuple):
    """The events of a log in rows. Places are those of events in its columns."""

    singles: Numbers
    """Events that are rows by themselves, in order."""
    firsts: Numbers
    """The first event of each run."""
    columns: Mapping[str, Numbers | Lists]
    """Of the run rows, times in the unit of their names or in microseconds. The smallest number stands for none."""


def parts_of(events: Mapping[str, npt.NDArray[Any]], longest: int = LONGEST) -> Parts:
    """Return the rows of a log's events: its columns by name, `seq`, and `at_us` for `at_ns`; texts are numbers, 0 for none.

    `record_ts_ms` and `due_ms` are dates or none. `longest` is the span of offsets of a run at most.
    """
    in_runs = _in_runs(events)
    success = _successes(events, in_runs)
    rows = in_runs.copy()
    rows[success[success >= 0]] = False
    members, begins = _cut(events, np.flatnonzero(rows), success, longest)
    sizes = np.diff(np.append(begins, len(members)))
    is_lone = (sizes == 1) & (success[members[begins]] < 0)
    kept = np.repeat(~is_lone, sizes)
    in_runs[members[~kept]] = False
    members, sizes = members[kept], sizes[~is_lone]
    begins = np.cumsum(sizes) - sizes
    return Parts(np.flatnonzero(~in_runs), members[begins], _columns(events, members, begins, sizes, success))


def _in_runs(events: Mapping[str, npt.NDArray[Any]]) -> Flags:
    """Which events may be in a run."""
    codes = np.zeros(256, np.bool_)
    codes[list(_JOINED)] = True
    offset, attempt, record_ms = events["offset"], events["attempt"], events["record_ts_ms"]
    found = codes[events["code"].astype(np.uint8)]
    found &= (offset >= 0) & (offset < END) & (events["topic"] != 0) & (events["partition"] != _NONE["partition"])
    found &= (attempt == 1) | (attempt == _NONE["attempt"])
    found &= record_ms <= events["at_us"] // 1000 + _DAY_MS
    for name in _SINGLE:
        found &= events[name] == _NONE[name]
    return found


def _successes(events: Mapping[str, npt.NDArray[Any]], in_runs: Flags) -> Numbers:
    """Return the place of the success of each start, or -1."""
    code, offset, exec_id = events["code"], events["offset"], events["exec_id"]
    is_start = in_runs & np.isin(code, _STARTS) & (events["duration_us"] == _NO_DURATION)
    is_success = in_runs & (code == EventCode.SUCCEEDED)
    for name in _PLAIN:
        is_success &= events[name] == _NONE[name]
    places = np.flatnonzero((is_start | is_success) & (exec_id != _NO_NUMBER))
    lane = _keys(events, _LANE, places)
    order = np.lexsort((offset[places], lane))  # stable, so events of a message stay in order
    places, lane = places[order], lane[order]
    before, after = places[:-1], places[1:]
    found = is_start[before] & is_success[after] & (lane[:-1] == lane[1:])
    for name in ("offset", "exec_id", "record_ts_ms", "dedup_hash"):
        found &= events[name][before] == events[name][after]
    found &= (events["mono_ns"][before] == _NO_NUMBER) == (events["mono_ns"][after] == _NO_NUMBER)
    success = np.full(len(code), -1, np.int64)
    success[before[found]] = after[found]
    return success


def _cut(events: Mapping[str, npt.NDArray[Any]], rows: Numbers, success: Numbers, longest: int) -> tuple[Numbers, Numbers]:
    """Return the events in the order of runs, and where each run begins."""
    found = success[rows]
    lists = [events["duration_us"][rows] == _NO_DURATION, (found >= 0) & (events["duration_us"][found] == _NO_DURATION)]
    lists.append(events["order_hash"][rows] == _NONE["order_hash"])
    lists += [events[name][rows] == _NO_NUMBER for name in ("record_ts_ms", "dedup_hash", "exec_id", "mono_ns")]
    keys = _keys(events, _SHARED, rows, lists)
    order = np.argsort(keys, kind="stable")
    members, keys = rows[order], keys[order]
    offset, exec_id = events["offset"][members], events["exec_id"][members]
    cut = np.ones(len(members), np.bool_)
    cut[1:] = (keys[1:] != keys[:-1]) | (offset[1:] <= offset[:-1])
    cut[1:] |= (exec_id[1:] != exec_id[:-1] + 1) & (exec_id[1:] != _NO_NUMBER)
    place = np.arange(len(members))
    span = (offset - _of_first(offset, cut)) // longest
    cut[1:] |= span[1:] != span[:-1]
    span = (place - _of_first(place, cut)) // _MOST
    cut[1:] |= span[1:] != span[:-1]
    _cut_far(events, members, success[members], cut)
    return members, np.flatnonzero(cut)


def _cut_far(events: Mapping[str, npt.NDArray[Any]], members: Numbers, found: Numbers, cut: Flags) -> None:
    """Add cuts until times and sequence numbers fit lists, and one clock tells the other."""
    if not len(members):
        return
    skew = np.where(events["mono_ns"] == _NO_NUMBER, 0, events["at_us"] * 1000 - events["mono_ns"])
    limits = ((events["at_us"], _FAR), (events["seq"], _FAR), (skew, _SET))
    place = np.arange(len(members))
    while True:
        begins = np.flatnonzero(cut)
        sizes = np.diff(np.append(begins, len(members)))
        first = np.repeat(begins, sizes)
        of_success = np.minimum.reduceat(np.where(found >= 0, place, len(members)), begins)
        base = np.repeat(of_success, sizes)
        base = np.where(base < len(members), found[np.minimum(base, len(members) - 1)], 0)
        is_far = np.zeros(len(members), np.bool_)
        for values, limit in limits:
            is_far |= _is_far(values[members], values[members[first]], limit)
            is_far |= (found >= 0) & _is_far(values[found], values[base], limit)
        if not is_far.any():
            return
        places = np.minimum.reduceat(np.where(is_far, place, len(members)), begins)
        cut[places[places < len(members)]] = True


def _is_far(values: Numbers, base: Numbers, limit: int) -> Flags:
    difference = values - base
    return (difference > limit) | (difference < -limit)


def _columns(
    events: Mapping[str, npt.NDArray[Any]], members: Numbers, begins: Numbers, sizes: Numbers, success: Numbers
) -> dict[str, Numbers | Lists]:
    runs = _Runs(members, begins, sizes)
    offset, found = events["offset"][members], success[members]
    first = offset[begins] if len(begins) else offset
    last = offset[begins + sizes - 1] if len(begins) else offset
    has = found >= 0
    ok_n = runs.sum(has)
    is_ok = ok_n > 0
    order_hash = events["order_hash"][members]
    record_ms = events["record_ts_ms"][members]
    has_record = runs.first(record_ms) != _NO_NUMBER
    seq, at_us = (events[name][members] - runs.of_first(events[name][members]) for name in ("seq", "at_us"))
    ok_at, ok_number = events["at_us"][found], events["seq"][found]
    ok_ts, ok_seq = runs.least(ok_at, has), runs.least(ok_number, has)
    ok_us, ok_seqs = (np.where(has, values - runs.each(base), 0) for values, base in ((ok_at, ok_ts), (ok_number, ok_seq)))
    took = np.where(has, events["duration_us"][found], events["duration_us"][members]).astype(np.int64)
    has_took = took != _NO_DURATION
    least, most = runs.least(took, has_took), runs.most(took, has_took)
    words = (first >> 6, (last >> 6) - (first >> 6) + 1)
    rank = np.arange(len(members)) - runs.of_first(np.arange(len(members)))
    return {
        "n": sizes,
        "last_offset": last,
        "masks": runs.masks(offset, *words, np.ones(len(members), np.bool_), sizes <= last - first),
        "record_ts": _scaled(runs.least(record_ms), has_record),
        "record_ts_max": _scaled(runs.most(record_ms), has_record),
        "record_ms": runs.lists(record_ms, has_record),
        "order_hashes": runs.lists(order_hash, runs.first(order_hash) != _NONE["order_hash"]),
        "hashes": runs.lists(events["dedup_hash"][members], runs.first(events["dedup_hash"][members]) != _NO_NUMBER),
        "at_us": runs.lists(at_us, runs.any(at_us != 0)),
        "seqs": runs.lists(seq, runs.any(seq != rank)),
        "duration_us": np.where(least == most, least, _NO_NUMBER),
        "took_us": runs.lists(np.where(has_took, took, 0), least != most),
        "ok_n": np.where(is_ok, ok_n, _NO_NUMBER),
        "ok_masks": runs.masks(offset, *words, has, is_ok & (ok_n < sizes)),
        "ok_seq": ok_seq,
        "ok_seqs": runs.lists(ok_seqs, is_ok & ((ok_n < sizes) | runs.any(ok_seqs != rank))),
        "ok_ts": ok_ts,
        "ok_ts_max": runs.most(ok_at, has),
        "ok_us": runs.lists(ok_us, runs.any(ok_us != 0)),
        "ok_mono_ns": runs.least(np.where(ok_us == 0, events["mono_ns"][found], np.iinfo(np.int64).max), has),
        "least_us": runs.least(ok_at - events["at_us"][members], has),
    }


class _Runs:
    """Members of runs, one run after the other."""

    def __init__(self, members: Numbers, begins: Numbers, sizes: Numbers) -> None:
        self._members = members
        self._begins = begins
        self._sizes = sizes

    def each(self, values: npt.NDArray[Any]) -> Any:
        """A value of each run, at each of its members."""
        return np.repeat(values, self._sizes)

    def first(self, values: npt.NDArray[Any]) -> Any:
        return values[self._begins]

    def of_first(self, values: npt.NDArray[Any]) -> Any:
        return self.each(self.first(values))

    def sum(self, values: npt.NDArray[Any]) -> Numbers:
        return self._reduced(np.add, values.astype(np.int64))

    def any(self, values: Flags) -> Flags:
        return self.sum(values) > 0

    def least(self, values: Numbers, where: Flags | None = None) -> Numbers:
        """The least value of those `where`, or none."""
        given = values if where is None else np.where(where, values, np.iinfo(np.int64).max)
        found = self._reduced(np.minimum, given)
        return found if where is None else np.where(self.any(where), found, _NO_NUMBER)

    def most(self, values: Numbers, where: Flags | None = None) -> Numbers:
        return self._reduced(np.maximum, values if where is None else np.where(where, values, _NO_NUMBER))

    def lists(self, values: npt.NDArray[Any], is_there: Flags) -> Lists:
        """A list of the values of each run that has one."""
        return Lists(values[self.each(is_there)], np.where(is_there, self._sizes, 0), is_there)

    def masks(self, offset: Numbers, word: Numbers, words: Numbers, where: Flags, is_there: Flags) -> Lists:
        """The offsets `where`, as bits of the words of each run that has masks."""
        lengths = np.where(is_there, words, 0)
        values = np.zeros(lengths.sum(), np.uint64)
        chosen = where & self.each(is_there)
        at = ((offset >> 6) - self.each(word - (np.cumsum(lengths) - lengths)))[chosen]
        bits = np.left_shift(np.uint64(1), (offset[chosen] & 63).astype(np.uint64))
        if len(at):
            starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
            values[at[starts]] = np.bitwise_or.reduceat(bits, starts)
        return Lists(values.view(np.int64), lengths, is_there)

    def _reduced(self, function: np.ufunc, values: Numbers) -> Numbers:
        found: Numbers = function.reduceat(values, self._begins) if len(self._begins) else values[:0]
        return found


def _of_first(values: Numbers, cut: Flags) -> Numbers:
    """The value at the last cut before each."""
    begins = np.flatnonzero(cut)
    return np.repeat(values[begins], np.diff(np.append(begins, len(values))))


def _keys(events: Mapping[str, npt.NDArray[Any]], names: tuple[str, ...], places: Numbers, more: list[Flags] | None = None) -> Numbers:
    """Return numbers from 0 on, equal where all of these columns are."""
    keys, count = np.zeros(len(places), np.int64), 1
    # What is the same in all events has no strides, and needs no look.
    for values in (*(events[name][places] for name in names if events[name].strides != (0,)), *(more or [])):
        if not len(values) or (values == values[0]).all():
            continue
        found, which = np.unique(values, return_inverse=True)
        keys, count = keys * len(found) + which, count * len(found)
        if count > len(places):
            found, keys = np.unique(keys, return_inverse=True)
            count = len(found)
    return cast("Numbers", keys.astype(np.uint16) if count <= 2**16 else keys)


def _scaled(milliseconds: Numbers, where: Flags) -> Numbers:
    return np.where(where, milliseconds * 1000, _NO_NUMBER)
