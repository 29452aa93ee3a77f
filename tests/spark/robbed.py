"""Made-up nights of a group, with the files of each worker and the commits that the brokers keep; and what is left when files are gone.

Workers claim, run, complete and commit as the hosts do: events are durable before the store and the broker are told, and each commit
names its worker and that worker's last durable event. They are killed anywhere, replaced, and move partitions. Nobody loses a message,
and nothing runs twice that no kill explains: whatever is accused of a loss is accused wrongly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.spark.histories import NOW, SECOND, hash_of, write_parquet

from ackwise.middleware.events import SCHEMA_VERSION, EventCode
from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.spark.vocabulary import ANOMALIES, Flag, Verdict

__all__ = ["CONFIG", "Night", "Rate", "Robbery", "accusations", "night", "rates", "robberies"]

#: An hour after the last event: every lease is over, and who was killed is dead.
CONFIG: Final = ReconcileConfig(as_of=NOW / SECOND + 3600, grace=1.0, writer_timeout=60.0)

_PARTITIONS: Final = 3
_RECORDS: Final = 25
_TICK: Final = 200_000  # microseconds
_STOPS: Final = ("claimed", "succeeded", "completed", "committed")


class Robbery(NamedTuple):
    """One file, or all files of one worker, that is gone."""

    kind: str
    gone: frozenset[int]
    """Places in `Night.files`."""


@dataclass
class _Worker:
    number: int
    writer_id: int
    events: list[dict[str, Any]] = field(default_factory=list)
    durable: int = 0
    """How many of the events are."""
    owned: dict[int, int] = field(default_factory=dict)
    """The position in each partition."""
    was_killed: bool = False


@dataclass
class Night:
    """What was written; each file has neighbouring events of one worker."""

    group: str
    files: list[list[dict[str, Any]]]
    killed: frozenset[int]
    """Workers that were killed."""
    last_commits: list[LastCommit]

    def left(self, robbery: Robbery) -> list[dict[str, Any]]:
        return [event for place, file in enumerate(self.files) if place not in robbery.gone for event in file]

    def is_proved(self, robbery: Robbery, *, by_brokers: bool) -> bool:
        """Whether a number shows that something is gone: a later one of the same writer, or one that a commit names."""
        left = self.left(robbery)
        named = [(c.writer_id, c.last_seq) for c in self.last_commits] if by_brokers else []
        found = [json.loads(e["attrs"]) for e in left if e["event_type"] == EventCode.ASSIGNED and e["attrs"] is not None]
        named += [(said["writer"], said["seq"]) for said in found]
        named += [(e["writer_id"], e["seq"]) for e in left]
        missing = [(e["writer_id"], e["seq"]) for place in robbery.gone for e in self.files[place]]
        return any(writer == who and seq <= number for writer, seq in missing for who, number in named)

    def write(self, root: Path, robbery: Robbery | None = None) -> None:
        """The files as workers export them."""
        for place, file in enumerate(self.files):
            if robbery is None or place not in robbery.gone:
                first, last = file[0], file[-1]
                name = f"events-{first['writer_id']:016x}-{first['seq']:012d}-{last['seq']:012d}.parquet"
                write_parquet(root / "events" / "dt=2025-12-31" / "hr=23" / name, file)


def robberies(night: Night) -> Iterator[Robbery]:
    """Each file between others, each last file, and each writer, gone alone."""
    places: dict[int, list[int]] = {}
    for place, file in enumerate(night.files):
        places.setdefault(file[0]["writer_id"], []).append(place)
    for writer, mine in places.items():
        killed = writer in night.killed
        yield from (Robbery("file between", frozenset({place})) for place in mine[:-1])
        if len(mine) > 1:
            yield Robbery("last file of a killed writer" if killed else "last file", frozenset({mine[-1]}))
        yield Robbery("killed writer" if killed else "writer", frozenset(mine))


def night(number: int) -> Night:
    """The same number gives the same one."""
    return _Group(number).play()


class _Group:
    def __init__(self, number: int) -> None:
        self.draw = random.Random(number)
        self.group = f"night {number}"
        self.clock = NOW - 3600 * SECOND
        self.workers: list[_Worker] = []
        self.committed = dict.fromkeys(range(_PARTITIONS), 0)
        self.named: dict[int, tuple[int, int] | None] = dict.fromkeys(range(_PARTITIONS))
        self.claims: dict[tuple[int, int], _Worker | None] = {}  # None: it is done
        self.execs = 0

    def play(self) -> Night:
        living = [self._start() for _ in range(2)]
        for partition in range(_PARTITIONS):
            self._assign(living[partition % 2], partition)
        while any(position < _RECORDS for position in self.committed.values()):
            worker = self.draw.choice(living)
            if not worker.owned or self.draw.random() < 0.06:
                living = self._replace(living, worker, kill=self.draw.random() < 0.6)
            elif self.draw.random() < 0.05:
                self._move(worker, self.draw.choice(living))
            else:
                stop = self.draw.choice(_STOPS) if self.draw.random() < 0.1 else None
                if self._work(worker, self.draw.choice(sorted(worker.owned)), stop):
                    living = self._replace(living, worker, kill=True)
        for worker in living:
            if self.draw.random() < 0.5:
                self._end(worker)
            else:
                self._kill(worker)
        return self._night()

    def _night(self) -> Night:
        files = [part for worker in self.workers for part in self._files(worker)]
        killed = frozenset(worker.writer_id for worker in self.workers if worker.was_killed)
        return Night(self.group, files, killed, [LastCommit(self.group, *named) for named in self.named.values() if named is not None])

    def _files(self, worker: _Worker) -> Iterator[list[dict[str, Any]]]:
        begin = 0
        while begin < worker.durable:
            end = min(worker.durable, begin + self.draw.randint(4, 25))
            yield worker.events[begin:end]
            begin = end

    def _start(self) -> _Worker:
        number = len(self.workers) + 1
        worker = _Worker(number, (hash_of(self.group) & 0xFFFFFFFF) << 8 | number)
        self.workers.append(worker)
        attrs = {"mode": "before_settle", "retention": 60, "lease": 1, "namespace": "shop"}
        self._say(worker, EventCode.SESSION_START, attrs=json.dumps(attrs))
        return worker

    def _assign(self, worker: _Worker, partition: int) -> None:
        worker.owned[partition] = position = self.committed[partition]
        named = self.named[partition]
        attrs = None if named is None else json.dumps({"writer": named[0], "seq": named[1]})
        self._say(worker, EventCode.ASSIGNED, partition, position, role="source", from_commit=named is not None, attrs=attrs)

    def _work(self, worker: _Worker, partition: int, stop: str | None) -> bool:
        """One fetch, up to the commit; whether it was cut short by a kill."""
        start = worker.owned[partition]
        end = min(_RECORDS, start + self.draw.randint(1, 5))
        if start < end:
            self._say(worker, EventCode.RECEIVED_RANGE, partition, start, range_end=end)
        cut = self.draw.randrange(start, end) if stop is not None and start < end else None
        for offset in range(start, end):
            if self._run(worker, partition, offset, stop if offset == cut else None):
                return True
        worker.owned[partition] = end
        if self.draw.random() < 0.6:
            self._commit(worker, partition)
            return stop == "committed"
        return False

    def _run(self, worker: _Worker, partition: int, offset: int, stop: str | None) -> bool:
        message: dict[str, Any] = {"handler": "bill", "attempt": 1, "dedup_hash": hash_of(f"{partition}/{offset}")}
        key = partition, offset
        if key in self.claims and self.claims[key] is None:
            self._say(worker, EventCode.DUP_SUPPRESSED, partition, offset, **message)
            self._flush(worker)
            return False
        self.execs += 1
        message["exec_id"] = self.execs
        holder = self.claims.get(key)
        self.claims[key] = worker
        self._say(worker, EventCode.CLAIMED, partition, offset, took_unreleased=holder is not None, **message)
        self._flush(worker)
        if stop == "claimed":
            return True
        ending = EventCode.SUCCEEDED if self.draw.random() < 0.95 else EventCode.SKIPPED
        self._say(worker, ending, partition, offset, **message)
        self._flush(worker)
        if stop == "succeeded":
            return True
        self.claims[key] = None
        return stop == "completed"

    def _commit(self, worker: _Worker, partition: int) -> None:
        if (position := worker.owned[partition]) != self.committed[partition] or self.named[partition] is None:
            self.committed[partition] = position
            self.named[partition] = worker.writer_id, worker.durable - 1
            self._say(worker, EventCode.COMMITTED, partition, range_end=position)

    def _move(self, worker: _Worker, other: _Worker) -> None:
        partition = self.draw.choice(sorted(worker.owned))
        self._commit(worker, partition)
        self._say(worker, EventCode.REVOKED, partition, worker.owned.pop(partition))
        self._flush(worker)
        self._assign(other, partition)

    def _replace(self, living: list[_Worker], worker: _Worker, *, kill: bool) -> list[_Worker]:
        owned = sorted(worker.owned)
        if kill:
            self._kill(worker)
        else:
            self._end(worker)
        others = [other for other in living if other is not worker] + [self._start()]
        for partition in owned:
            self._assign(self.draw.choice(others), partition)
        return others

    def _end(self, worker: _Worker) -> None:
        for partition in sorted(worker.owned):
            self._commit(worker, partition)
            self._say(worker, EventCode.REVOKED, partition, worker.owned.pop(partition))
        self._say(worker, EventCode.SESSION_END)
        self._flush(worker)

    def _kill(self, worker: _Worker) -> None:
        """What was not durable is lost; now and then all of it was written by then."""
        if self.draw.random() < 0.3:
            self._flush(worker)
        worker.was_killed = True
        self.clock += 2 * SECOND

    def _flush(self, worker: _Worker) -> None:
        worker.durable = len(worker.events)

    def _say(self, worker: _Worker, code: EventCode, partition: int | None = None, offset: int | None = None, **fields: Any) -> None:
        self.clock += _TICK
        event: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION, "writer_id": worker.writer_id, "seq": len(worker.events), "event_type": int(code),
            "event_ts": self.clock, "cluster": "c", "group_id": self.group, "client": f"w{worker.number}", "attrs": None,
        }  # fmt: skip
        if partition is not None:
            event |= {"topic": "orders", "partition": partition, "offset": offset}
        worker.events.append(event | fields)


def accusations(found: Ruling) -> list[str]:
    """What makes the exit code 1: nights have no loss, and what ran twice did so."""
    red = {verdict.name for verdict in ANOMALIES - {Verdict.MULTI_EXECUTED}}
    said = [verdict.name for verdict, _ in found.messages.values()]
    said += [verdict for offsets in found.absent.values() for verdict in offsets.values()]
    past = ["COMMITTED_PAST" for _, flags in found.messages.values() if Flag.COMMITTED_PAST in flags]
    return sorted([verdict for verdict in said if verdict in red] + past + [verdict.name for verdict, _ in found.logical.values()])


class Rate(NamedTuple):
    """Of the robberies of one kind: how many there are, how many a number shows, and how many accuse somebody."""

    sets: int = 0
    proved: int = 0
    accused_though_proved: int = 0
    accused: int = 0

    def plus(self, *, is_proved: bool, accuses: bool) -> Rate:
        return Rate(self.sets + 1, self.proved + is_proved, self.accused_though_proved + (is_proved and accuses), self.accused + accuses)


def rates(nights: Iterable[Night], *, by_brokers: bool) -> dict[str, Rate]:
    """By kind of robbery, each alone; with or without what the brokers keep."""
    found: dict[str, Rate] = {}
    for each in nights:
        for robbery in robberies(each):
            ruling = rule(each.left(robbery), CONFIG, last_commits=each.last_commits if by_brokers else ())
            is_proved, accuses = each.is_proved(robbery, by_brokers=by_brokers), bool(accusations(ruling))
            found[robbery.kind] = found.get(robbery.kind, Rate()).plus(is_proved=is_proved, accuses=accuses)
    return found
