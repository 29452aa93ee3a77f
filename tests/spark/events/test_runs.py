"""Events that become run rows and are exploded again, on both engines: nothing of any event is lost, whatever ends a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ackwise.middleware.eventlog import EventBuffer, EventLog, LogHeader, encoded, parse_log
from ackwise.middleware.events import EVENT_COLUMNS, Event, EventCode, RunEvents
from ackwise.spark.events import exploding
from ackwise.spark.events.runs import explode
from ackwise.spark.events.schema import FILE_SCHEMA
from ackwise.stores.journal.parquet import SCHEMA, tables_of
from ackwise.stores.journal.runs import LONGEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_NS: Final = 1_767_272_400_000_000_000
NOW_MS: Final = NOW_NS // 1_000_000
HISTORIES: Final = 60
#: How far `mono_ns` may be off within a run.
NEAR: Final = 500_000


class Clock:
    """A clock that goes on by little with each look, is read a moment after the other one, and may be set."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.mono = 5_000_000_000
        self.ahead = NOW_NS

    def now(self) -> int:
        self.mono += self.chance.choice([0, 1_700, 40_000, 3_000_000])
        return self.ahead + self.mono

    def monotonic(self) -> int:
        return self.mono + self.chance.randrange(900)


class Worker:
    """Records what workers do, and more."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = Clock(self.chance)
        self.first_seq = self.chance.choice([0, 0, 12_345])
        self.buffer = EventBuffer(self.first_seq, now_ns=self.clock.now, mono_ns=self.clock.monotonic)
        self.offsets = {
            (topic, partition): self.chance.choice([0, 60, 2**40])
            for topic in ("orders", "bills")
            for partition in range(self.chance.choice([1, 2]))
        }
        self.exec_id = self.chance.randrange(2**62)
        self.unreported = list[RunEvents]()

    def logs(self) -> list[EventLog]:
        """What it records, in one file or more: outcomes may stand in another one than their start."""
        for _ in range(self.chance.randrange(1, 15)):
            self.call()
        self.report(0)
        blocks, writer, found = self.buffer.seal(), self.chance.getrandbits(63), list[EventLog]()
        while blocks:
            number, first_seq = self.chance.randrange(1, len(blocks) + 1), blocks[0].first_seq
            log = parse_log(LogHeader(writer, first_seq, "c", "g").encode() + encoded(blocks[:number], first_seq))
            assert isinstance(log, EventLog)
            found.append(log)
            blocks = blocks[number:]
        return found

    def call(self) -> None:
        """A handler's call, one way or another."""
        self.report(0.5)
        chance, size = self.chance, self.chance.choice([1, 1, 2, 10, 70, 200])
        where = chance.choice(list(self.offsets))
        offsets = [*self.some_offsets(where, size)]
        chance.choice([self.in_runs, self.one_by_one])(where, offsets)
        if chance.random() < 0.3:
            self.buffer.record(Event(EventCode.COMMITTED, *where, range_end=offsets[-1] + 1))
        if chance.random() < 0.1:
            self.clock.ahead += chance.choice([-(10**9), 10**9, 3_600 * 10**12])  # set in mid-run
        if chance.random() < 0.1:
            self.buffer.record(claimed(where, offsets[0], self.exec_id, attempt=2, phys_topic="retry", phys_partition=0, phys_offset=5))
        if chance.random() < 0.05:
            self.offsets[where] = max(0, self.offsets[where] - chance.choice([50, 500]))  # rewound

    def report(self, stops: float) -> None:
        """Record outcomes of earlier calls, of the first ones first."""
        while self.unreported and self.chance.random() >= stops:
            self.buffer.record_run(self.unreported.pop(0))

    def some_offsets(self, where: tuple[str, int], size: int) -> Iterator[int]:
        gap = self.chance.choice([0, 0, 0.1, 0.5])
        for _ in range(size):
            while self.chance.random() < gap:
                self.offsets[where] += self.chance.choice([1, 1, 63, 40_000])
            yield self.offsets[where]
            self.offsets[where] += 1

    def run_of(self, where: tuple[str, int], offsets: Sequence[int]) -> dict[str, Any]:
        chance = self.chance
        self.exec_id += chance.choice([0, 0, 10])
        ids = range(self.exec_id, self.exec_id + len(offsets)) if chance.random() < 0.8 else None
        self.exec_id += len(offsets)
        return {
            "exec_ids": ids,
            "dedup_hashes": None if chance.random() < 0.1 else [chance.getrandbits(64) - 2**63 | 1 for _ in offsets],
            "record_ts_ms": [NOW_MS + chance.choice([-5, 0, 3, 10**8, 2**60] if chance.random() < 0.01 else [-5]) for _ in offsets],
            "dedup_epoch": chance.choice([None, 0, 0, 1]),
            "handler": chance.choice(["bill", "bill", "ship"]),
        }

    def in_runs(self, where: tuple[str, int], offsets: Sequence[int]) -> None:
        shared = {"attempt": 1, **self.run_of(where, offsets)}
        keys = [self.chance.choice([None, 5, -7]) for _ in offsets] if self.chance.random() < 0.3 else None
        self.buffer.record_run(RunEvents(EventCode.CLAIMED, *where, offsets, lost=0, took_unreleased=False, order_hashes=keys, **shared))
        for code, fields in self.outcomes():
            some = [place for place in range(len(offsets)) if self.chance.random() < self.chance.choice([0.2, 0.9, 1, 1])]
            lists = {
                name: shared[name] if shared[name] is None or len(some) == len(offsets) else [shared[name][place] for place in some]
                for name in ("exec_ids", "dedup_hashes", "record_ts_ms")
            }
            if some:
                chosen = offsets if len(some) == len(offsets) else [offsets[place] for place in some]
                self.unreported.append(RunEvents(code, *where, chosen, **{**shared, **lists, **fields}))
        self.report(0.3)

    def one_by_one(self, where: tuple[str, int], offsets: Sequence[int]) -> None:
        shared = self.run_of(where, offsets)
        waiting: list[Event] = []
        for place, offset in enumerate(offsets):
            fields = {
                "handler": shared["handler"],
                "exec_id": None if shared["exec_ids"] is None else shared["exec_ids"][place],
                "dedup_hash": None if shared["dedup_hashes"] is None else shared["dedup_hashes"][place],
                "record_ts_ms": shared["record_ts_ms"][place],
                "dedup_epoch": shared["dedup_epoch"],
            }
            self.buffer.record(claimed(where, offset, lost=0, took_unreleased=self.chance.random() < 0.02, **fields))
            for code, told in self.outcomes():
                took = {"duration_us": self.chance.choice([None, 7, self.chance.randrange(2**31)])}
                waiting.append(Event(code, *where, offset, attempt=1, **{**fields, **took, **told}))
            while waiting and self.chance.random() < 0.7:
                self.buffer.record(waiting.pop(self.chance.randrange(len(waiting))))
        for event in waiting:
            self.buffer.record(event)

    def outcomes(self) -> list[tuple[EventCode, dict[str, Any]]]:
        success: tuple[EventCode, dict[str, Any]] = (EventCode.SUCCEEDED, {"duration_us": self.chance.choice([900, 900, None])})
        others: list[list[tuple[EventCode, dict[str, Any]]]] = [
            [],
            [success, success],
            [(EventCode.FAILED, {"error": "Broken", "duration_us": 5}), (EventCode.SENT_BACK, {})],
            [(EventCode.SUCCEEDED, {"attrs": '{"out_of_order": true}'})],
            [(EventCode.DUP_SUPPRESSED, {"exec_ids": None})] if self.chance.random() < 0 else [(EventCode.SKIPPED, {})],
            [(EventCode.RELEASED, {})],
        ]
        return [success] if self.chance.random() < 0.7 else self.chance.choice(others)


def claimed(where: tuple[str, int], offset: int, exec_id: int | None = None, **fields: Any) -> Event:
    return Event(EventCode.CLAIMED, *where, offset, **{"handler": "bill", "attempt": 1, "exec_id": exec_id, **fields})


def recorded(log: EventLog) -> list[dict[str, Any]]:
    """The events of the log, by the columns of a file."""
    return [_row(log, row) for block in log.blocks for row in block.rows()]


def _row(log: EventLog, row: Any) -> dict[str, Any]:
    header, event = log.header, row.event._asdict()
    record_ms = event.pop("record_ts_ms")
    is_date = record_ms is not None and abs(record_ms) < 10**14
    told = {
        "schema_version": header.schema_version, "writer_id": header.writer_id, "seq": row.seq, "event_type": int(event.pop("code")),
        "event_ts": row.at_ns // 1000, "cluster": header.cluster, "group_id": header.group_id, "client": header.client,
        "record_ts": record_ms * 1000 if record_ms is not None and is_date else None,
        "due_ts": event.pop("due_ms"), "mono_ns": row.mono_ns, **event,
    }  # fmt: skip
    return {column.name: told[column.name] for column in EVENT_COLUMNS}


def exploded(session: SparkSession, files: Sequence[Path]) -> dict[int, list[dict[str, Any]]]:
    """The events in files, in order, by writer."""
    rows = explode(session.read.schema(FILE_SCHEMA).parquet(*map(str, files)))
    names = [column.name for column in EVENT_COLUMNS]
    assert rows.columns == names
    found: dict[int, list[dict[str, Any]]] = {}
    for row in sorted((_plain(dict(zip(names, row, strict=True))) for row in rows.collect()), key=lambda row: row["seq"]):
        found.setdefault(row["writer_id"], []).append(row)
    return found


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: pa.scalar(row[name], pa.timestamp("us", None if row[name] is None else row[name].tzinfo and "UTC")) for name in TIMES}
    return row | {name: time.cast(pa.int64()).as_py() for name, time in times.items()}


TIMES: Final = ("event_ts", "record_ts", "due_ts")


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one["mono_ns"] - other["mono_ns"]) <= NEAR
        assert one | {"mono_ns": 0} == other | {"mono_ns": 0}


@pytest.mark.parametrize("longest", [7, 64, LONGEST])
def test_exploded_run_rows_are_the_recorded_events_in_all_columns(session: SparkSession, tmp_path: Path, longest: int) -> None:
    workers = [Worker(seed).logs() for seed in range(HISTORIES)]
    files, in_runs = list[Path](), 0
    for number, log in enumerate(log for logs in workers for log in logs):
        runs, singles = tables_of(log, longest)
        in_runs += len(log.column("code")) - len(singles)
        pq.write_table(pa.concat_tables([runs, singles]), tmp_path / f"{number}.parquet")
        files.append(tmp_path / f"{number}.parquet")
    assert in_runs > HISTORIES * 20
    found = exploded(session, files)
    for logs in workers:
        assert_same(found[logs[0].header.writer_id], [event for log in logs for event in recorded(log)])


def test_tables_are_exploded_as_frames_are_whatever_their_rows_say(session: SparkSession, tmp_path: Path) -> None:
    logs = [log for seed in range(HISTORIES) for log in Worker(seed).logs()]
    rows = pa.concat_tables([table for log in logs for table in tables_of(log)])
    rows = pa.concat_tables([rows, damaged(rows, random.Random(3))])
    rows = rows.set_column(1, SCHEMA.field("writer_id"), pa.array(range(len(rows)), pa.int64()))
    pq.write_table(rows, tmp_path / "rows.parquet")
    frame = exploded(session, [tmp_path / "rows.parquet"])
    table = [_plain(row) for row in exploding.exploded(rows).to_pylist()]
    assert sorted(table, key=place) == sorted((row for each in frame.values() for row in each), key=place)
    numbered = exploding.numbered(rows.select(exploding.NUMBERED))
    assert sorted(zip(numbered.row.tolist(), numbered.seq.tolist(), strict=True)) == sorted((row["writer_id"], row["seq"]) for row in table)
    assert sum(row["offset"] is None for row in table) > 20


def damaged(rows: pa.Table, chance: random.Random) -> pa.Table:
    """The run rows, each with another value in one of its columns of runs, or in two."""
    runs = rows.filter(rows["n"].is_valid()).to_pylist()
    names = ["n", "offset", "last_offset", "masks", "ok_n", "ok_masks", "record_ms", "hashes", "at_us", "seqs", "ok_us", "ok_seqs"]
    for run in runs:
        for name in chance.sample(names, chance.choice([1, 1, 2])):
            run[name] = changed(run[name], chance)
    return pa.Table.from_pylist(runs, SCHEMA)


def changed(value: Any, chance: random.Random) -> Any:
    if value is None or not isinstance(value, list):
        return value and chance.choice([None, value + 1, value - 1, -value, 0])
    return chance.choice([None, value[1:], [*value, 1], [None, *value[1:]], [each ^ 1 for each in value], []])


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((value is not None, value) for value in row.values())
