"""Who overtook whom: pure functions of tables of Arrow that have all rows of their partitions.

Most of a partition is in order, as its run rows show without a look at single messages. A *piece* is a run row, or what single events tell
of a message by one worker: from which offset to which, and between which events of its worker, and which times, it ran. A partition is
cut where all pieces before have lower offsets and were over before those behind began: by the numbers of their worker, between two workers
by the clocks. Nobody overtook anybody across a cut. `unproved` says where that proves nothing, and `overtaken` compares messages:

    a later one began before an earlier one was done, and not in one call with it;
    by partition also: not while the earlier one ran with success, nor while both failed, since a worker tells in portions what it ran
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackwise.middleware.events import EventCode

__all__ = ["BY_KEY", "BY_PARTITION", "ENDS", "OVERTAKEN", "PIECES", "STARTS", "STEPS", "UNPROVED", "overtaken", "unproved"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Columns = dict[str, Numbers]

#: What `kind` says of the order of a worker; 0: it says none.
BY_PARTITION: Final = 1
BY_KEY: Final = 2
STARTS: Final = (EventCode.CLAIMED, EventCode.STARTED)
ENDS: Final = (EventCode.SUCCEEDED, EventCode.FAILED, EventCode.RELEASED)

#: Of the messages of a run row, or of one that single events tell of: offsets, between which numbers of the writer, and which times, they
#: ran, and 1 for `in_turn` if none of them overtook another. By partition only starts and dead letters count as such numbers.
PIECES: Final = ("mk", "writer_id", "low", "high", "first", "last", "began", "ended", "in_turn")
#: Words of offsets with messages that are to be compared.
UNPROVED: Final = pa.schema([(name, pa.int64()) for name in ("mk", "word")])
#: Starts, ends and dead letters of messages. A start may have its success beside it: `end_seq`, `end_ts`. `is_out` is 1 for an end that
#: says that the run was out of order.
STEPS: Final = ("mk", "offset", "writer_id", "exec_id", "kind", "code", "seq", "ts", "key", "end_seq", "end_ts", "is_out")
#: `is_sure` is 1 if no clock and no missing event can explain it.
OVERTAKEN: Final = pa.schema([(name, pa.int64()) for name in ("mk", "offset", "overtaken_by", "is_sure")])

_NONE: Final = np.iinfo(np.int64).min
_NEVER: Final = np.iinfo(np.int64).max
_SHIFT: Final = 6
#: A rank is below, and what ranks are kept apart by above.
_RANK: Final = 32
#: Messages that are compared with other workers at once.
_AT_ONCE: Final = 500_000


def unproved(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the words of messages that are to be compared; takes `PIECES`."""
    found = {name: rows[name].to_numpy() for name in PIECES}
    found = _sorted(found, "mk", "low")
    lanes = np.append(_begins(found["mk"]), len(rows))
    is_open = np.concatenate([_open({name: of[i:j] for name, of in found.items()}) for i, j in pairwise(lanes)] or [np.zeros(0, np.bool_)])
    mk, low, high = (found[name][is_open] for name in ("mk", "low", "high"))
    sizes = (high >> _SHIFT) - (low >> _SHIFT) + 1
    word = np.repeat(low >> _SHIFT, sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    words = _sorted({"mk": np.repeat(mk, sizes), "word": word}, "mk", "word")
    firsts = _begins(words["mk"], words["word"])
    yield pa.table([words["mk"][firsts], words["word"][firsts]], schema=UNPROVED)


def _open(pieces: Columns) -> Flags:
    """Which pieces of a partition are not alone between two cuts, or not in turn."""
    is_cut = np.ones(len(pieces["low"]), np.bool_)
    is_cut[1:] = np.maximum.accumulate(pieces["high"])[:-1] < pieces["low"][1:]
    writers = np.unique(pieces["writer_id"])
    for writer in writers:
        mine = pieces["writer_id"] == writer
        is_cut[1:] &= _until(np.where(mine, pieces["last"], _NONE)) < _from(np.where(mine, pieces["first"], _NEVER))
        if len(writers) > 1:
            is_cut[1:] &= _until(np.where(mine, pieces["ended"], _NONE)) <= _from(np.where(mine, _NEVER, pieces["began"]))
    block = np.cumsum(is_cut) - 1
    found: Flags = (np.bincount(block)[block] > 1) | (pieces["in_turn"] == 0)
    return found


def _until(values: Numbers) -> Numbers:
    """The largest value before each but the first."""
    return np.maximum.accumulate(values)[:-1]


def _from(values: Numbers) -> Numbers:
    """The least value from each but the first on."""
    return np.minimum.accumulate(values[::-1])[::-1][1:]


def overtaken(rows: pa.Table, *, grace: int, wrong: Collection[int], blind: Collection[int]) -> Iterator[pa.Table]:
    """Yield the messages that were overtaken, by `STEPS` of all messages that may have.

    Of several messages that overtook one, that which proves it is named, and of those the one that began first. `grace` is microseconds,
    `wrong` writers whose clocks are, `blind` has `mk` of partitions with missing events.
    """
    if not len(rows):
        return
    nothing = {"exec_id": _NONE, "key": _NONE, "end_seq": _NEVER, "end_ts": _NEVER}
    found = {name: rows[name].fill_null(nothing.get(name, 0)).to_numpy() for name in STEPS}
    is_dead = found["code"] == EventCode.DEAD_LETTERED
    runs = _runs(_chosen(found, ~is_dead))
    if not len(runs["mk"]):
        return
    messages = _Messages(runs, _chosen(found, is_dead))
    lanes = _Lanes(messages)
    earlier, later = lanes.compared()
    if not len(earlier):
        return
    done, start = _chosen(messages.done, earlier), _chosen(lanes.starts, later)
    is_of_one = done["writer_id"] == start["writer_id"]
    is_right = ~np.isin(done["writer_id"], [*wrong]) & ~np.isin(start["writer_id"], [*wrong])
    is_sure = (is_of_one | ((done["ts"] - start["ts"] > grace) & is_right)) & ~np.isin(done["mk"], [*blind])
    order = np.lexsort((start["offset"], start["ts"], ~is_sure, earlier))
    firsts = order[_begins(earlier[order])]
    yield pa.table(
        [done["mk"][firsts], done["offset"][firsts], start["offset"][firsts], is_sure[firsts].astype(np.int64)], schema=OVERTAKEN
    )


def _runs(steps: Columns) -> Columns:
    """Return the runs that are not out of order, sorted by message and time; `end` and `end_ts` are `_NEVER` where no end is told."""
    steps = _sorted(steps, "mk", "offset", "writer_id", "exec_id", "seq")
    begins = _begins(*(steps[name] for name in ("mk", "offset", "writer_id", "exec_id")))
    if not len(begins):
        return {**steps, "end": steps["seq"], "is_void": steps["seq"]}
    place, is_start = np.arange(len(steps["mk"])), np.isin(steps["code"], STARTS)
    first = np.minimum.reduceat(np.where(is_start, place, len(place)), begins)
    end, end_ts = np.where(is_start, steps["end_seq"], steps["seq"]), np.where(is_start, steps["end_ts"], steps["ts"])
    least = np.minimum.reduceat(end, begins)
    at_end = np.minimum.reduceat(np.where(end == np.repeat(least, np.diff(np.append(begins, len(place)))), place, len(place)), begins)
    is_void = np.maximum.reduceat(np.isin(steps["code"], (EventCode.FAILED, EventCode.RELEASED)).astype(np.int64), begins)
    counts = (first < len(place)) & (np.maximum.reduceat(steps["is_out"], begins) == 0)
    runs = _chosen(steps, first[counts]) | {"end": least[counts], "end_ts": end_ts[at_end[counts]], "is_void": is_void[counts]}
    return _sorted(runs, "mk", "offset", "ts", "writer_id", "seq")


class _Messages:
    """What became of each message: its runs until it was done."""

    def __init__(self, runs: Columns, dead_letters: Columns) -> None:
        self.runs = runs
        place, none = np.arange(len(runs["mk"])), len(runs["mk"])
        self.begins = _begins(runs["mk"], runs["offset"])
        self.sizes = np.diff(np.append(self.begins, none))
        counts = runs["is_void"] == 0
        counted = np.minimum.reduceat(np.where(counts, place, none), self.begins)
        end = np.where(runs["end"] == _NEVER, runs["seq"], runs["end"])
        end_ts = np.where(runs["end"] == _NEVER, runs["ts"], runs["end_ts"])
        self.is_done = counted < none
        at = np.where(self.is_done, counted, self.begins)
        self.done = _chosen({**runs, "start": runs["seq"], "seq": end}, at)
        """How each was done, and where `start` has the run in which it was: valid if `is_done`."""
        self.done["ts"] = np.minimum.reduceat(np.where(counts, end_ts, _NEVER), self.begins)
        until = np.where(self.is_done, runs["ts"][at], _NEVER)
        self.is_plain = self.is_done & (counted == self.begins)
        """Done in its first run."""
        self.is_relevant = place <= np.repeat(np.where(self.is_done, counted, none), self.sizes)
        self._take(dead_letters, until)

    def _take(self, dead_letters: Columns, until: Numbers) -> None:
        """Let messages be done by their dead letters, if these were before."""
        dead_letters = _sorted(dead_letters, "mk", "offset", "ts", "writer_id", "seq")
        firsts = _begins(dead_letters["mk"], dead_letters["offset"])
        mk, offset = (self.runs[name][self.begins] for name in ("mk", "offset"))
        for each in firsts:
            low, high = np.searchsorted(mk, dead_letters["mk"][each]), np.searchsorted(mk, dead_letters["mk"][each], "right")
            message = int(low + np.searchsorted(offset[low:high], dead_letters["offset"][each]))
            if message == high or offset[message] != dead_letters["offset"][each]:
                continue
            self.done["ts"][message] = min(self.done["ts"][message], dead_letters["ts"][each])
            if dead_letters["ts"][each] < until[message]:
                for name in ("writer_id", "seq", "kind"):
                    self.done[name][message] = dead_letters[name][each]
                self.done["key"][message] = self.runs["key"][self.begins[message]]
                self.is_done[message], self.is_plain[message] = True, False
                its = self.runs_of(message)
                self.is_relevant[its] = self.runs["ts"][its] < dead_letters["ts"][each]

    def runs_of(self, message: int) -> slice:
        """Where its runs are."""
        return slice(self.begins[message], self.begins[message] + self.sizes[message])


class _Least:
    """The least of `values` behind each place of the lanes, in the order of offsets."""

    def __init__(self, lane: Numbers, values: Numbers) -> None:
        self._places = np.argsort(values, kind="stable")
        self._sorted = values[self._places]
        rank = np.empty(len(values), np.int64)
        rank[self._places] = np.arange(len(rank))
        # Lanes are numbered upwards, so those behind do not count for the ones before.
        self._least = np.minimum.accumulate(((lane << _RANK) | rank)[::-1])[::-1]

    def from_place(self, places: Numbers) -> Numbers:
        """Where the least value of the lane is, from each of these places on."""
        found: Numbers = self._places[self._least[places] & ((1 << _RANK) - 1)]
        return found

    def until(self, lane: int, value: int) -> int:
        """From which place on all values of the lane are at least this one."""
        return int(np.searchsorted(self._least, (lane << _RANK) | int(np.searchsorted(self._sorted, value))))


class _Lanes:
    """The starts of runs that keep an order: those of a key, or of a partition. A *lane* has those of one worker, by their offsets."""

    def __init__(self, messages: _Messages) -> None:
        self._messages = messages
        starts = _chosen(messages.runs, messages.is_relevant & _has_order(messages.runs))
        self.victims = np.flatnonzero(messages.is_done & _has_order(messages.done))
        done = _chosen(messages.done, self.victims)
        group = _numbered(
            *(np.concatenate([starts[name], done[name]]) for name in ("mk", "kind")),
            np.concatenate([np.where(each["kind"] == BY_KEY, each["key"], 0) for each in (starts, done)]),
        )
        starts["group"], self._group = group[: len(starts["mk"])], group[len(starts["mk"]) :]
        self.starts = _sorted(starts, "group", "writer_id", "offset", "seq")
        begins = _begins(self.starts["group"], self.starts["writer_id"])
        self.lane = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(self.starts["mk"]))))
        self._group_of, self._writer_of = self.starts["group"][begins], self.starts["writer_id"][begins]
        if len(begins):
            self._high = np.maximum.reduceat(self.starts["offset"], begins)
            self._began = np.minimum.reduceat(self.starts["ts"], begins)
        offsets = np.unique(self.starts["offset"])
        self._at = (self.lane << _RANK) | np.searchsorted(offsets, self.starts["offset"])
        self._rank = np.searchsorted(offsets, done["offset"], "right")  # of the first offset behind it
        self._by_number, self._by_clock = (_Least(self.lane, self.starts[name]) for name in ("seq", "ts"))

    def compared(self) -> tuple[Numbers, Numbers]:
        """Return the messages that were overtaken, and for each worker the first start that overtook it, as places in `starts`."""
        found: list[tuple[Numbers, Numbers]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        first = np.searchsorted(self._group_of, self._group)
        number = np.searchsorted(self._group_of, self._group, "right") - first
        parts = np.cumsum(number) // _AT_ONCE
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            sizes = number[chosen]
            lane = np.repeat(first[chosen], sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            found.append(self._of_part(np.repeat(chosen, sizes), lane))
        earlier, later = (np.concatenate(each) for each in zip(*found, strict=True))
        return earlier, later

    def _of_part(self, place: Numbers, lane: Numbers) -> tuple[Numbers, Numbers]:
        """The same for messages, by their places in `victims`, and a lane beside each."""
        done = self._messages.done
        message = self.victims[place]
        may = (self._high[lane] > done["offset"][message]) & (self._began[lane] < done["ts"][message])
        may |= (self._high[lane] > done["offset"][message]) & (self._writer_of[lane] == done["writer_id"][message])
        place, lane, message = place[may], lane[may], message[may]
        behind = np.searchsorted(self._at, (lane << _RANK) | self._rank[place])
        is_of_one = self._writer_of[lane] == done["writer_id"][message]
        start = np.where(is_of_one, self._by_number.from_place(behind), self._by_clock.from_place(behind))
        is_plain = self._messages.is_plain[message]
        only_starts = is_plain & (done["kind"][message] == BY_PARTITION)
        until = np.where(only_starts, done["start"][message], done["seq"][message])
        is_late = np.where(is_of_one, self.starts["seq"][start] < until, self.starts["ts"][start] < done["ts"][message])
        began = self._messages.runs["ts"][self._messages.begins[message]]
        is_known = is_plain & (~is_of_one | (self.starts["ts"][start] != began))
        for each in np.flatnonzero(is_late & ~is_known):
            one = self._exactly(int(message[each]), int(lane[each]), int(behind[each]), is_of_one=bool(is_of_one[each]))
            is_late[each], start[each] = one is not None, start[each] if one is None else one
        return message[is_late], start[is_late]

    def _exactly(self, message: int, lane: int, behind: int, *, is_of_one: bool) -> int | None:
        """The first start of a lane, from a place on, that overtook the message."""
        messages, starts = self._messages, self.starts
        by, column = (self._by_number, "seq") if is_of_one else (self._by_clock, "ts")
        limit = int(messages.done[column][message])
        places = np.arange(behind, max(behind, by.until(lane, limit)))
        places = places[starts[column][places] < limit]
        its = messages.runs_of(message)
        for run in np.flatnonzero(messages.is_relevant[its] & (messages.runs["writer_id"][its] == self._writer_of[lane])) + its.start:
            seq, ts, end = (int(messages.runs[name][run]) for name in ("seq", "ts", "end"))
            is_beside = starts["ts"][places] == ts
            if messages.done["kind"][message] == BY_PARTITION:
                is_portion = (starts["is_void"][places] == 1) | (messages.runs["is_void"][run] == 0)
                is_beside |= is_portion & (starts["seq"][places] > seq) & (starts["seq"][places] < end)
            places = places[~is_beside]
        return int(places[np.lexsort((starts["offset"][places], starts[column][places]))[0]]) if len(places) else None


def _has_order(columns: Columns) -> Flags:
    """What has no key has no order by key."""
    found: Flags = (columns["kind"] == BY_PARTITION) | ((columns["kind"] == BY_KEY) & (columns["key"] != _NONE))
    return found


def _numbered(*columns: Numbers) -> Numbers:
    """Number rows upwards, those alike the same."""
    order = np.lexsort(columns[::-1])
    begins = np.zeros(len(order), np.int64)
    begins[_begins(*(each[order] for each in columns))] = 1
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(begins) - 1
    return found


def _sorted(columns: Columns, *by: str) -> Columns:
    return _chosen(columns, np.lexsort([columns[name] for name in reversed(by)]))


def _chosen(columns: Columns, which: Any) -> Columns:
    return {name: values[which] for name, values in columns.items()}


def _begins(*columns: Numbers) -> Numbers:
    """Where rows are not as the one before."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = np.any([each[1:] != each[:-1] for each in columns], axis=0)
    return np.flatnonzero(differs)
