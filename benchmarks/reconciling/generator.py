"""Writes a made-up set of events, and beside it what the reconciliation must say of it.

    FOLDER/events/…      events, as workers leave them behind
    FOLDER/single/…      the same, a row each
    FOLDER/produced/…    what was produced to the topics that are told of
    FOLDER/truth/…       see `truth`

The truth follows from how each message was made; neither the job nor its oracle is asked. Only one slice of one worker is in memory at a
time, so a set may be as large as the disk.

    python -m benchmarks.reconciling.generator FOLDER [--events 1000000] [--batch 500] [--exceptions 0.05] [--without-dedup]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.reconciling.fates import FATES, LEVELS, Hash, Who
from benchmarks.reconciling.rows import NONE, Numbers, Rows, Writer, joined, rows_of, write_events
from benchmarks.reconciling.shape import DAY, SECOND, SEGMENT, START, Shape
from benchmarks.reconciling.truth import Truth

from ackwise.middleware.events import EventCode
from ackwise.spark.vocabulary import Flag, LogicalVerdict, Verdict

_RETENTION: Final = 1800 * SECOND
_ACTIVE: Final = 0.6  # of a slice; the rest is for what follows, and for workers to be silent for long enough to be dead
_SETTLING: Final = 120 * SECOND  # after that, longer than any message takes
_POLL: Final = 500  # messages; of a topic, all in a row
_CALL: Final = 10_000  # from the start of a call to that of the next one
_COMMIT: Final = 5000  # messages
_NOT_TOLD: Final = 997  # every so many records the producer keeps one to itself
_BEFORE: Final = 3  # records that were produced below the first offset that anybody read
_JUMP: Final = slice(100, 130)
_DELETED: Final = slice(0, 20)

_FATE: Final = {fate.name: number for number, fate in enumerate(FATES)}
_OFTEN: Final = 100  # a share from which a fate is not rare
_STEPS: Final = [step for fate in FATES for step in fate.steps]
_STEP_COUNT: Final = np.array([len(fate.steps) for fate in FATES], np.int64)
_FIRST_STEP: Final = np.cumsum(_STEP_COUNT) - _STEP_COUNT
_HASH: Final = np.array([fate.hash for fate in FATES], np.int64)
_VERDICT: Final = np.array([fate.verdict for fate in FATES], np.int64)
#: Whether it is run at all.
_RUNS: Final = np.array([any(step.run >= 0 for step in fate.steps) for fate in FATES], np.int64)
_FLAGS: Final = np.array([fate.flags for fate in FATES], np.int64)
_CODE, _WHO, _ATTEMPT, _RUN, _AT, _OLDER, _MARKED = (np.array(column, np.int64) for column in zip(*_STEPS, strict=True))
#: What a marked step says: that it ran out of order, that its key is that of a dead letter, and which redrive it is about.
_ATTRS: Final = ('{"out_of_order": true}', '{"outcome": "dead"}', '{"redrive": "redrive-1"}')
_ATTR_OF: Final = np.zeros(max(EventCode) + 1, np.int64)
_ATTR_OF[[EventCode.DUP_SUPPRESSED, EventCode.REDELIVERED, EventCode.DEAD_LETTERED]] = 1, 2, 2


class Made(NamedTuple):
    """What was written."""

    events: int
    messages: int
    produced: int


class _Slice(NamedTuple):
    """A part of a day."""

    day: int
    number: int
    begin: int
    active: int
    """How long messages arrive."""
    is_first: bool
    """Of the day, as is the next one."""
    is_last: bool
    is_end: bool
    """Of everything."""

    @property
    def settled(self) -> int:
        return self.begin + self.active + _SETTLING


class _Part(NamedTuple):
    """One partition in one slice."""

    topic: int
    offset: Numbers
    time: Numbers
    """When its handler was called."""
    record: Numbers
    """When it was produced."""
    fate: Numbers
    hash: Numbers
    until: int
    """The end of what is committed."""

    @property
    def first(self) -> int:
        return int(self.offset[0])


def generate(shape: Shape, folder: Path) -> Made:
    """Write the set; the same shape always gives the same one."""
    with Truth(folder) as truth:
        world = _World(shape, folder, truth)
        for part in _slices(shape):
            world.pass_slice(part)
        world.finish()
        return Made(world.events, truth.messages, truth.produced)


def _slices(shape: Shape) -> Iterable[_Slice]:
    for day in range(shape.days):
        for number in range(shape.slices):
            begin = START + (day * shape.slices + number) * shape.slice_time
            is_last = number == shape.slices - 1
            active = round(shape.slice_time * _ACTIVE)
            yield _Slice(day, number, begin, active, number == 0, is_last, is_last and day == shape.days - 1)


class _World:
    """What goes on from slice to slice."""

    def __init__(self, shape: Shape, root: Path, truth: Truth) -> None:
        self.shape = shape
        self.root = root
        self.truth = truth
        self.events = 0
        self._draw = np.random.default_rng(shape.seed)
        self._shares = _shares(shape)
        self._writers: dict[tuple[str, int], Writer] = {}
        self._next = {where: shape.first_offset(*where[1:]) for where in self._places()}
        self._until: dict[tuple[str, int, int], int] = {}
        self._gaps: dict[tuple[str, int, int], int] = defaultdict(int)
        self._executions: dict[tuple[str, int, int], int] = defaultdict(int)
        """Of each lane, how many there were."""
        self._remembered: dict[tuple[str, int], tuple[Numbers, Numbers]] = {}
        self._twins: dict[str, dict[int, tuple[int, int]]] = {group: {} for group in shape.groups}
        """When the first and when the last of the records with a hash was run."""
        self._phantoms: dict[str, list[int]] = {group: [] for group in shape.groups}

    def pass_slice(self, now: _Slice) -> None:
        """Everything that happens in it, worker by worker."""
        if now.is_first:
            self._start_workers(now.day)
        for group in self.shape.groups:
            others: list[list[Rows]] = [[], []]
            for worker in range(self.shape.partitions):
                is_lost = self._is_lost(group, worker, now)
                parts = self._parts(group, worker, now, is_lost)
                for part in parts:
                    self._tell(group, worker, part, now, is_lost)
                rows = self._message_rows(group, worker, parts, now)
                of = [{name: values[rows["who"] == who] for name, values in rows.items()} for who in (Who.OWN, Who.STANDBY, Who.VICTIM)]
                self._write(group, worker, [of[0], *self._partition_rows(group, worker, parts, now)], now, is_lost)
                others[0].append(of[1])
                others[1].append(of[2])
            for who, rows_of_others in zip((Who.STANDBY, Who.VICTIM), others, strict=True):
                writer = self._writers[group, self._other(who)]
                self._write(group, self._other(who), [*rows_of_others, rows_of(writer, self._says_of_itself(group, who, now))], now)

    def finish(self) -> None:
        """Write what is known only at the end."""
        for group in self.shape.groups:
            twins = {hashed: last - first > _RETENTION for hashed, (first, last) in self._twins[group].items()}
            self.truth.say_logical(group, LogicalVerdict.LOGICAL_DUPLICATE, twins)
            self.truth.say_logical(group, LogicalVerdict.PHANTOM, dict.fromkeys(self._phantoms[group], False))
        self.truth.say_accounts(
            (group, self.shape.topic(topic), worker, self.shape.first_offset(topic, worker), self._until[group, topic, worker],
             self._gaps[group, topic, worker]) for group, topic, worker in self._places()
        )  # fmt: skip
        self.truth.hold_back(self.shape.topic(0), 10, START)

    def _places(self) -> Iterable[tuple[str, int, int]]:
        for group in self.shape.groups:
            for topic in range(self.shape.topics):
                for worker in range(self.shape.partitions):
                    yield group, topic, worker

    def _start_workers(self, day: int) -> None:
        """All of them again, each day."""
        each = self.shape.partitions + 2
        for place, group in enumerate(self.shape.groups):
            texts = [*map(self.shape.topic, range(self.shape.topics)), "ValueError", "max-reconsume-times", *_ATTRS]
            for worker in range(each):
                number = (place * self.shape.days + day) * each + worker + 1
                writer_id = int(_mixed(np.array([number + (self.shape.seed << 32)], np.int64))[0] & (2**63 - 1))
                client = {self._other(Who.STANDBY): "standby", self._other(Who.VICTIM): "victim"}.get(worker, f"worker {worker}")
                self._writers[group, worker] = Writer(writer_id, number, group, client, [*texts])

    def _other(self, who: int) -> int:
        return self.shape.partitions + who - Who.STANDBY

    def _is_lost(self, group: str, worker: int, now: _Slice) -> bool:
        """Whether the worker's file of this slice is missing."""
        return group == self.shape.groups[-1] and (now.day, now.number) == (0, 1) and worker % 4 == min(1, self.shape.partitions - 1)

    def _write(self, group: str, worker: int, rows: Sequence[Rows], now: _Slice, is_lost: bool = False) -> None:
        next_day = START + (now.day + 1) * DAY
        self.events += write_events(self.root, self._writers[group, worker], joined(rows), self.shape.events_per_file, next_day, is_lost)

    def _parts(self, group: str, worker: int, now: _Slice, is_lost: bool) -> list[_Part]:
        parts = []
        for topic in range(self.shape.topics):
            count = self.shape.messages(topic, worker)
            first = self._next[group, topic, worker]
            self._next[group, topic, worker] = first + count
            offset = np.arange(first, first + count, dtype=np.int64)
            at = now.begin + 2 * SECOND + np.arange(count, dtype=np.int64) * now.active // count
            called = _called(at, self.shape.batch) + topic * _POLL * _CALL
            tail = min(50, count // 10) if now.is_end else 0
            fate = self._fates(group, topic, worker, offset, now, is_lost, tail)
            parts.append(
                _Part(
                    topic,
                    offset,
                    called,
                    at // 1000 * 1000 - 200_000,
                    fate,
                    self._own_hashes(group, topic, worker, offset),
                    first + count - tail,
                )
            )
        self._share_hashes(group, worker, parts, is_lost)
        return parts

    def _fates(self, group: str, topic: int, worker: int, offset: Numbers, now: _Slice, is_lost: bool, tail: int) -> Numbers:
        fate = np.zeros(len(offset), np.int64)
        if not is_lost:
            found = np.searchsorted(self._shares, self._draw.random(len(offset)), side="right") + 1
            fate[found < len(FATES)] = found[found < len(FATES)]
        fate[[0, -1, -2]] = 0  # how far one file reaches and where the next one resumes must not depend on chance
        if tail:
            begun = _FATE["in flight" if self.shape.deduplicates else "waiting"]
            fate[-tail:] = np.resize([_FATE["waiting"], begun, 0], tail)
        if self._jumps(group, topic, worker, now):
            fate[_JUMP] = _FATE["jumped over"]
        if self._lacks_oldest(topic, now):
            fate[_DELETED] = _FATE["deleted"]
        if self.shape.is_transactional(topic):
            fate[offset % SEGMENT == SEGMENT - 1] = _FATE["marker"]
        return fate

    def _jumps(self, group: str, topic: int, worker: int, now: _Slice) -> bool:
        """Whether somebody seeks."""
        return (group, topic, worker, now.day, now.number) == (self.shape.groups[0], min(2, self.shape.topics - 1), 0, 0, 1)

    def _lacks_oldest(self, topic: int, now: _Slice) -> bool:
        return topic == self.shape.topics - 1 and (now.day, now.number) == (0, 0)

    def _goes_back(self, group: str, topic: int, worker: int, now: _Slice) -> bool:
        """Whether the group commits an offset that is lower than the one before."""
        return (group, topic, worker, now.day, now.number) == (self.shape.groups[0], 0, self.shape.partitions - 1, 0, 1)

    def _own_hashes(self, group: str, topic: int, worker: int, offset: Numbers) -> Numbers:
        place = (self.shape.groups.index(group) * 64 + topic) * 4096 + worker
        return _mixed((place << 36) + offset + (self.shape.seed << 56))

    def _share_hashes(self, group: str, worker: int, parts: Sequence[_Part], is_lost: bool) -> None:
        """Give some messages the hash of another one."""
        remembered = self._remembered.pop((group, worker), None)
        for part in parts:
            done = np.flatnonzero((part.fate == 0) & (part.offset < part.until))
            if remembered is None:
                part.fate[_HASH[part.fate] == Hash.OLD] = 0
            else:
                self._take_hashes(group, part, Hash.OLD, *remembered)
            self._take_hashes(group, part, Hash.NEIGHBOUR, part.hash[done], part.time[done])
            dead = np.flatnonzero((part.fate == _FATE["dead letter"]) & (part.offset < part.until))
            if len(dead):
                self._take_hashes(group, part, Hash.DEAD, part.hash[dead], part.time[dead])
            else:
                part.fate[_HASH[part.fate] == Hash.DEAD] = 0
        first = parts[0]
        done = np.flatnonzero((first.fate == 0) & (first.offset < first.until))[:1000]
        if not is_lost:
            self._remembered[group, worker] = first.hash[done], first.time[done]

    def _take_hashes(self, group: str, part: _Part, kind: int, hashes: Numbers, times: Numbers) -> None:
        takers = np.flatnonzero(_HASH[part.fate] == kind)
        mates = self._draw.choice(len(hashes), len(takers))
        part.hash[takers] = hashes[mates]
        for taker, mate in zip(takers.tolist(), mates.tolist(), strict=True):
            if FATES[part.fate[taker]].verdict in (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE):
                hashed, ran = int(hashes[mate]), (int(part.time[taker]), int(times[mate]))
                known = self._twins[group].get(hashed, ran)
                self._twins[group][hashed] = min(*known, *ran), max(*known, *ran)

    def _tell(self, group: str, worker: int, part: _Part, now: _Slice, is_lost: bool) -> None:
        where, is_blind = (group, self.shape.topic(part.topic), worker), group == self.shape.groups[-1]
        self._until[group, part.topic, worker] = part.until
        if is_lost:
            self.truth.say_range(where, part.first, part.until, Verdict.UNKNOWN_EXPORT_GAP, Verdict.UNKNOWN_EXPORT_GAP)
        else:
            self._tell_messages(where, part, now, is_blind)
            self._tell_missing(where, part)
            self._gaps[group, part.topic, worker] += int(np.sum((part.fate == _FATE["marker"]) & (part.offset < part.until)))
        if self.shape.is_told(part.topic):
            self._tell_produced(where, part, now, is_lost, is_blind)

    def _tell_messages(self, where: tuple[str, str, int], part: _Part, now: _Slice, is_blind: bool) -> None:
        verdict, flags, unknown = _VERDICT[part.fate], _FLAGS[part.fate], Verdict.UNKNOWN_EXPORT_GAP
        if not self.shape.deduplicates:
            flags[_RUNS[part.fate] == 1] |= Flag.UNCLAIMED
        if now.is_end:
            verdict[verdict == Verdict.RETRY_LOST] = Verdict.RETRYING
        suppressed = verdict == Verdict.PHANTOM_SUPPRESSED
        is_early = part.time + _AT[_FIRST_STEP[_FATE["suppressed wrongly"]]] - _RETENTION < START
        verdict[suppressed & (is_early | is_blind)] = unknown
        if is_blind:
            flags[verdict == Verdict.STUCK] &= ~Flag.COMMITTED_PAST
            verdict[(verdict == Verdict.RETRY_LOST) | (verdict == Verdict.STUCK)] = unknown
        if self._goes_back(where[0], part.topic, where[2], now):
            flags[part.offset >= part.until - 2 * SEGMENT] |= Flag.REWOUND
        has_events = _STEP_COUNT[part.fate] > 0
        self._phantoms[where[0]] += part.hash[verdict == Verdict.PHANTOM_SUPPRESSED].tolist()
        self.truth.say_messages(where, part.offset[has_events], verdict[has_events], flags[has_events])

    def _tell_missing(self, where: tuple[str, str, int], part: _Part) -> None:
        is_missing = (_STEP_COUNT[part.fate] == 0) & (part.fate != _FATE["marker"]) & (part.offset < part.until)
        verdict, offset = _VERDICT[part.fate][is_missing], part.offset[is_missing]
        told = verdict.copy()
        if self.shape.is_told(part.topic):
            told[(verdict == Verdict.NEVER_SEEN) & self._is_told(part)[is_missing]] = Verdict.LOST_PRODUCED
        self.truth.say_missing(where, offset, verdict, told)

    def _tell_produced(self, where: tuple[str, str, int], part: _Part, now: _Slice, is_lost: bool, is_blind: bool) -> None:
        told, is_record = self._is_told(part), part.fate != _FATE["marker"]
        is_beginning = (now.day, now.number) == (0, 0)
        if where[0] == self.shape.groups[0]:
            if is_beginning:
                before = np.arange(part.first - _BEFORE, part.first, dtype=np.int64)
                self.truth.produce(*where[1:], before, np.full(_BEFORE, START + SECOND, np.int64))
            self.truth.produce(*where[1:], part.offset[told & is_record], part.time[told & is_record])
        if is_beginning and not is_blind:
            self.truth.say_range(where, part.first - _BEFORE, part.first, None, Verdict.LOST_PRODUCED)
        if not is_lost:
            self.truth.say_orphans(where, part.offset[~told & (_STEP_COUNT[part.fate] > 0)])

    def _is_told(self, part: _Part) -> npt.NDArray[np.bool_]:
        """Whether the producer tells of each; of the last ones always, which is as far as its table can be trusted."""
        told: npt.NDArray[np.bool_] = (part.offset % _NOT_TOLD != 0) | (part.offset >= part.first + len(part.offset) - 100)
        return told

    def _message_rows(self, group: str, worker: int, parts: Sequence[_Part], now: _Slice) -> Rows:
        topic = np.concatenate([np.full(len(part.offset), part.topic, np.int64) for part in parts])
        offset, times, record, fate, hashes = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:6])
        counts = _STEP_COUNT[fate]
        of = np.repeat(np.arange(len(counts)), counts)
        step = _FIRST_STEP[fate][of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        code, run, attempt, time_of = _CODE[step], _RUN[step], _ATTEMPT[step], times[of]
        numbers = np.array([self._writers[group, each].number for each in (worker, self._other(Who.STANDBY), self._other(Who.VICTIM))])
        execution = (numbers[_WHO[step]] << 40) + (run << 36) + self._numbered(group, worker, parts)[of]
        sent, ran = code == EventCode.SENT_BACK, (code == EventCode.SUCCEEDED) | (code == EventCode.FAILED)
        ts = time_of + _AT[step]
        due = ts + np.array(LEVELS, np.int64)[attempt - 1] * SECOND
        if now.is_end:  # what was not seen again by now may still come
            due[np.isin(fate[of], [_FATE["copy gone"], _FATE["copy received and gone"]])] = self.shape.end + 3600 * SECOND
        return {
            "who": _WHO[step],
            "event_type": code if self.shape.deduplicates else np.where(code == EventCode.CLAIMED, EventCode.STARTED, code),
            "event_ts": ts,
            "topic": topic[of],
            "partition": np.full(len(of), worker, np.int64),
            "offset": offset[of],
            "record_ts": record[of] - _OLDER[step] * 3600 * SECOND,
            "attempt": attempt,
            "level": np.where(sent, attempt, NONE),
            "due_ts": np.where(sent, due // 1000 * 1000, NONE),
            "exec_id": np.where(run >= 0, execution, NONE),
            "dedup_hash": hashes[of] if self.shape.deduplicates else np.full(len(of), NONE, np.int64),
            "duration_us": np.where(ran, 200 + (_mixed(ts) & 4095), NONE),
            "error": np.where(
                code == EventCode.FAILED, self.shape.topics, np.where(code == EventCode.DEAD_LETTERED, self.shape.topics + 1, NONE)
            ),
            "attrs": np.where(_MARKED[step] == 1, self.shape.topics + 2 + _ATTR_OF[code], NONE),
        }

    def _numbered(self, group: str, worker: int, parts: Sequence[_Part]) -> Numbers:
        """Numbers for the executions of messages: each lane counts its own, as in workers."""
        found = []
        for part in parts:
            lane = group, worker, part.topic
            numbers = self._executions[lane] + np.cumsum(_RUNS[part.fate])
            self._executions[lane] = int(numbers[-1])
            found.append((part.topic * self.shape.partitions + worker << 28) + numbers)
        return np.concatenate(found)

    def _partition_rows(self, group: str, worker: int, parts: Sequence[_Part], now: _Slice) -> list[Rows]:
        """What a worker says of its partitions, and of itself."""
        single = self._says_of_itself(group, Who.OWN, now)
        many = []
        for part in parts:
            fetched = ~np.isin(part.fate, [_FATE["never fetched"], _FATE["deleted"], _FATE["jumped over"]])
            many += [_ranges(part, worker, fetched), _markers(part, worker), _commits(part, worker)]
            single += self._says_of(group, part, worker, now)
        return [*many, rows_of(self._writers[group, worker], single)]

    def _says_of(self, group: str, part: _Part, worker: int, now: _Slice) -> list[dict[str, int | str]]:
        def event(code: EventCode, at: int, **fields: int | str) -> dict[str, int | str]:
            return {"event_type": code, "event_ts": at, "topic": part.topic, "partition": worker, **fields}

        found = [event(EventCode.COMMITTED, now.settled, range_end=part.until)]
        if now.is_first:
            found.append(event(EventCode.ASSIGNED, now.begin + SECOND, offset=part.first, role="source", from_commit=int(now.day > 0)))
        if self._lacks_oldest(part.topic, now):
            resumed = part.first + _DELETED.stop
            why = {"reason": "out-of-range", "goes_on_at": resumed}
            found.append(event(EventCode.SEEK, now.begin + SECOND + 1, offset=part.first, range_end=resumed, attrs=json.dumps(why)))
        if self._jumps(group, part.topic, worker, now):
            jump = {"offset": part.first + _JUMP.start, "range_end": part.first + _JUMP.stop}
            found.append(event(EventCode.SEEK, int(part.time[_JUMP.start]), **jump, attrs=json.dumps({"reason": "operator"})))
        if self._goes_back(group, part.topic, worker, now):
            found.append(event(EventCode.COMMITTED, now.settled + SECOND, range_end=part.until - 2 * SEGMENT))
        if now.is_last and not now.is_end:
            found.append(event(EventCode.REVOKED, now.settled + 2 * SECOND, offset=part.until))
        return found

    def _says_of_itself(self, group: str, who: int, now: _Slice) -> list[dict[str, int | str]]:
        found: list[dict[str, int | str]] = []
        if now.is_first:
            claims = {"lease": 30, "retention": _RETENTION // SECOND} if self.shape.deduplicates else {}
            session = {"mode": "before_settle", **claims, "levels": LEVELS}
            found.append({"event_type": EventCode.SESSION_START, "event_ts": now.begin, "attrs": json.dumps(session)})
        if who == Who.VICTIM:
            return found
        if now.is_end:
            found.append({"event_type": EventCode.HEARTBEAT, "event_ts": self.shape.end})
        else:
            last = EventCode.SESSION_END if now.is_last else EventCode.HEARTBEAT
            found.append({"event_type": last, "event_ts": now.settled + 3 * SECOND})
        if who == Who.STANDBY and now.is_end:
            found += [self._drained(group, "delay", 2), self._drained(group, "retry", 1)]
        return found

    def _drained(self, group: str, role: str, ago: int) -> dict[str, int | str]:
        where: dict[str, int | str] = {"topic": f"{group}.{role}", "role": role, "partition": 0, "offset": 0, "range_end": 1000}
        return {"event_type": EventCode.BROKER_OFFSETS, "event_ts": self.shape.end - ago * SECOND, "attrs": '{"committed": 1000}', **where}


def _shares(shape: Shape) -> npt.NDArray[np.float64]:
    """The share of each fate but the first, and of those before it. What is rare in a small set comes on top."""
    shares = np.array([0 if fate.needs_claims and not shape.deduplicates else fate.share for fate in FATES[1:]])
    more = np.where(shares < _OFTEN, shape.rare, 1)
    found: npt.NDArray[np.float64] = np.cumsum(shares * more) * shape.exceptions / shares.sum()
    return found


def _called(at: Numbers, batch: int) -> Numbers:
    """When the handler was called for each message: polls come when their last message is there, batches one after the other."""
    place = np.arange(len(at))
    last = np.minimum((place // _POLL + 1) * _POLL, len(at)) - 1
    found: Numbers = at[last] + place % _POLL // batch * _CALL
    return found


def _ranges(part: _Part, worker: int, fetched: npt.NDArray[np.bool_]) -> Rows:
    """What each poll brought: neighbours, and at most so many."""
    polls = np.arange(len(fetched)) % _POLL == 0
    before, after = np.append(False, fetched[:-1]), np.append(fetched[1:], False)
    starts = np.flatnonzero(fetched & (~before | polls))
    ends = np.flatnonzero(fetched & (~after | np.append(polls[1:], True)))
    return _of_partition(part, worker, EventCode.RECEIVED_RANGE, part.time[starts], part.offset[starts], part.offset[ends] + 1)


def _markers(part: _Part, worker: int) -> Rows:
    at = np.flatnonzero(part.fate == _FATE["marker"])
    return _of_partition(part, worker, EventCode.GAP, part.time[at], part.offset[at], part.offset[at] + 1)


def _commits(part: _Part, worker: int) -> Rows:
    at = np.arange(_COMMIT, len(part.offset), _COMMIT)
    at = at[part.offset[at] < part.until]
    return _of_partition(part, worker, EventCode.COMMITTED, part.time[at], np.full(len(at), NONE, np.int64), part.offset[at])


def _of_partition(part: _Part, worker: int, code: EventCode, at: Numbers, start: Numbers, end: Numbers) -> Rows:
    same = {"event_type": int(code), "topic": part.topic, "partition": worker}
    return {name: np.full(len(at), value, np.int64) for name, value in same.items()} | {"event_ts": at, "offset": start, "range_end": end}


def _mixed(numbers: Numbers) -> Numbers:
    """Other numbers that look like chance, different ones for different ones (Steele, Lea and Flood, SplitMix64)."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Numbers = (z ^ (z >> np.uint64(31))).astype(np.int64)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=500, help="messages of a call of a handler")
    parser.add_argument("--without-dedup", action="store_true")
    parser.add_argument("--exceptions", type=float, default=0.05, help="the share of messages that are not just run once")
    parser.add_argument("--events-per-file", type=int, default=100_000, help="at most")
    options: Any = parser.parse_args(arguments)
    started = time.perf_counter()
    shape = Shape(
        options.events,
        batch=options.batch,
        deduplicates=not options.without_dedup,
        exceptions=options.exceptions,
        events_per_file=options.events_per_file,
    )
    made = generate(shape, options.folder)
    taken = time.perf_counter() - started
    print(f"{made.events:,} events of {made.messages:,} messages in {taken:.1f} s: {made.events / taken:,.0f} events/s")


if __name__ == "__main__":
    main()
