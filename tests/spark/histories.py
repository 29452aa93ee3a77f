"""Made-up histories of a group, written in a few letters, as events of the exported table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ackwise.middleware.events import SCHEMA_VERSION, EventCode
from ackwise.stores.journal.parquet import SCHEMA, in_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DAY", "NOW", "SECOND", "TOPIC", "History", "no_events", "write_in_runs", "write_parquet", "write_produced"]

SECOND: Final = 1_000_000
DAY: Final = 86400 * SECOND
#: Every history is judged at this time, in microseconds.
NOW: Final = 1_767_225_600 * SECOND
TOPIC: Final = "orders"

LETTERS: Final = {
    "R": EventCode.RECEIVED,
    "U": EventCode.STARTED,
    "C": EventCode.CLAIMED,
    "S": EventCode.SUCCEEDED,
    "F": EventCode.FAILED,
    "B": EventCode.SENT_BACK,
    "X": EventCode.DEAD_LETTERED,
    "D": EventCode.DUP_SUPPRESSED,
    "E": EventCode.IN_FLIGHT_ELSEWHERE,
    "K": EventCode.SKIPPED,
    "G": EventCode.DROPPED,
    "L": EventCode.CLAIM_LOST,
    "T": EventCode.STALE,
    "A": EventCode.REDELIVERED,
    "I": EventCode.FAILED,
    "O": EventCode.FAILED,
    "Y": EventCode.LATE_SUCCESS,
    "Z": EventCode.CANCELLED,
    "J": EventCode.RELEASED,
}
_STEP = re.compile(r"(?P<offset>\d+)(?:@(?P<attempt>\d+))?:(?P<letters>[A-Z]+)$")
_RANGE = re.compile(r"(?P<code>RECEIVED_RANGE|MARKED|GAP|SEEK|TX_SETTLED)\[(?P<start>\d+),(?P<end>\d+)\)$")


class History:
    """What happened in one group. Its first event lies ten days back, further than its store remembers."""

    def __init__(self, group: str, *, topic: str = TOPIC, cluster: str = "c", session: Mapping[str, object] | None = None) -> None:
        self.group = group
        self.cluster = cluster
        self.topic = topic
        self.written = NOW
        self.produced: list[dict[str, Any]] = []
        self.rolled_on: dict[int, str] = {}
        """The boot id of the machine that rolled the last log of a writer."""
        self.events: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._exec_ids: dict[str, int] = {}
        self._in_place: dict[int, int] = {}
        self._given_up: dict[tuple[str, int], int] = {}
        self._clock = NOW - 20 * SECOND
        self.start("founder", at=NOW - 10 * DAY, **(session or {}))
        self.add("founder", EventCode.SESSION_END, at=NOW - 10 * DAY)

    def say(self, writer: str, words: str, *, ago: float | None = None, key: str | None = None, **fields: Any) -> History:
        """Events by `writer`, such as `0:RCS 1@2:RCF GAP[2,4) W=4`: offset, attempt, and a letter for each event.

        `ago` is seconds before `NOW`; without it, events follow each other shortly before. `C` and `U` begin a run, `S` and
        `F` end the one that the writer began last, as do `I`, which tries again in place, and `O`, which took too long; `Y` succeeds late
        in the one that took too long.
        """
        if ago is not None:
            self._clock = NOW - round(ago * SECOND)
        for word in words.split():
            if word.startswith("W="):
                self.add(writer, EventCode.COMMITTED, range_end=int(word[2:]), topic=self.topic, partition=0, **fields)
            elif found := _RANGE.match(word):
                self._range(writer, found, fields)
            elif found := _STEP.match(word):
                self._step(writer, found, key, fields)
            else:
                raise ValueError(f"{word!r} is no step of a history")
        if ago is not None:
            self._clock = NOW - 20 * SECOND
        return self

    def add(self, writer: str, code: EventCode | int, *, at: int | None = None, **fields: Any) -> History:
        """One event, `at` microseconds or a millisecond after the last one."""
        self._clock = self._clock + 1000
        seq = self._seqs.get(writer, 0)
        self._seqs[writer] = seq + 1
        event: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "writer_id": self.number(writer),
            "seq": seq,
            "event_type": int(code),
        }
        event |= {"event_ts": self._clock if at is None else at, "cluster": self.cluster, "group_id": self.group, "client": writer}
        self.events.append(event | fields)
        return self

    def tell(self, writer: str, words: str, *, of: str, leader: int | None = None, **fields: Any) -> History:
        """Duplicates of the first run of another writer, which that one could not record: of the record at `leader`, or of theirs."""
        said: dict[str, object] = {} if leader is None else {"leader": f"{self.topic}/0/{leader}"}
        attrs = json.dumps(said | {"writer": self.number(of)})
        return self.say(writer, words, exec_id=(self.number(of) << 20) + 1, attrs=attrs, **fields)

    def start(self, writer: str, *, at: int | None = None, **attrs: object) -> History:
        """The writer begins its session."""
        return self.add(writer, EventCode.SESSION_START, at=at, attrs=json.dumps({"mode": "before_settle", "retention": 86400, **attrs}))

    def mark(self, writer: str, *, died_on: str | None = "boot 1", rolled_on: str | None = "boot 1", ago: float = 9000) -> History:
        """The writer begins its session, and marks what it starts; its last log is rolled by the machine with the boot id `rolled_on`."""
        if rolled_on is not None:
            self.rolled_on[self.number(writer)] = rolled_on
        return self.start(writer, at=NOW - round(ago * SECOND), marks=True, boot_id=died_on)

    def skip(self, writer: str, number: int) -> History:
        """As many of the writer's events are missing."""
        self._seqs[writer] = self._seqs.get(writer, 0) + number
        return self

    def assign(
        self,
        writer: str,
        position: int,
        *,
        role: str | None = "source",
        topic: str | None = None,
        at: int | None = None,
        from_commit: bool = True,
        named: tuple[str, int] | None = None,
    ) -> History:
        """The writer gets partition 0 of `topic`, or of the history's own; the commit that it found names another and its last event."""
        attrs = None if named is None else json.dumps({"writer": self.number(named[0]), "seq": named[1]})
        return self.add(
            writer, EventCode.ASSIGNED, at=at, topic=topic or self.topic, partition=0, offset=position, role=role, from_commit=from_commit,
            attrs=attrs,
        )  # fmt: skip

    def produce(self, *offsets: int | None, ago: float | None = 100, aborted: bool | None = None, partition: int = 0) -> History:
        """Records were produced to the history's topic, `ago` seconds before `NOW`, or nobody knows when."""
        for offset in offsets:
            timestamp = None if ago is None else NOW - round(ago * SECOND)
            row = {"topic": self.topic, "partition": partition, "offset": offset, "timestamp": timestamp, "aborted": aborted, "key": "k"}
            self.produced.append(row)
        return self

    def send(
        self, writer: str, code: EventCode, message_id: str | None, offset: int | None = None, *, ago: float, **attrs: object
    ) -> History:
        """An event of the producer side about a message to the history's topic, `ago` seconds before `NOW`."""
        known = {} if offset is None else {"partition": 0, "offset": offset, "record_ts": NOW - round(ago * SECOND)}
        return self.add(
            writer,
            code,
            at=NOW - round(ago * SECOND),
            topic=self.topic,
            dedup_key=message_id,
            attrs=json.dumps(attrs) if attrs else None,
            **known,
        )

    def look(self, writer: str, role: str, committed: int | None, end: int, *, ago: float) -> History:
        """The writer looks at the ends of partition 0 of the group's topic of this role."""
        return self.add(
            writer, EventCode.BROKER_OFFSETS, at=NOW - round(ago * SECOND), topic=f"{self.group}.{role}", partition=0, offset=0,
            range_end=end, role=role, attrs=json.dumps({"committed": committed}),
        )  # fmt: skip

    def drain(self, ago: float, writer: str = "w1") -> History:
        """Delay and retry partitions are seen to be read to their ends."""
        return self.look(writer, "delay", 9, 9, ago=ago).look(writer, "retry", 9, 9, ago=ago - 0.001)

    def _range(self, writer: str, found: re.Match[str], fields: Mapping[str, Any]) -> None:
        start, end = int(found["start"]), int(found["end"])
        proof = {"proved": True} if found["code"] == "GAP" else {}
        where = {"topic": self.topic, "partition": 0, "offset": start, "range_end": end}
        self.add(writer, EventCode[found["code"]], **{**where, **proof, **fields})

    def _step(self, writer: str, found: re.Match[str], key: str | None, fields: Mapping[str, Any]) -> None:
        offset, attempt = int(found["offset"]), int(found["attempt"] or 1)
        for letter in found["letters"]:
            code = LETTERS[letter]
            if letter in "CU":
                self._exec_ids[writer] = self._exec_ids.get(writer, self.number(writer) << 20) + 1
            values: dict[str, Any] = {"topic": self.topic, "partition": 0, "offset": offset, "attempt": attempt, "handler": "bill"}
            values["dedup_hash"] = hash_of(key or f"{offset}")
            if letter in "CUSFLIOYJ":
                values["exec_id"] = self._exec_ids.get(writer, self.number(writer) << 20)
            if letter == "I":
                self._in_place[offset] = self._in_place.get(offset, 0) + 1
                values["attrs"] = json.dumps({"in_place": self._in_place[offset], "due": (self._clock + 10 * SECOND) // 1000})
            if letter == "O":
                self._given_up[writer, offset] = values["exec_id"]
                values["error"] = "ConsumeTimeout"
            if letter == "Y":
                values["exec_id"] = self._given_up.get((writer, offset), values["exec_id"])
            if attempt > 1:
                values |= {"phys_topic": f"{self.group}.retry", "phys_partition": 0, "phys_offset": offset}
            if letter == "A":
                values |= {"phys_topic": f"{self.group}.retry", "phys_partition": 0}
            self.add(writer, code, **(values | dict(fields)))

    def number(self, writer: str) -> int:
        """The id of the writer."""
        number = self._numbers.setdefault(writer, len(self._numbers) + 1)
        return (hash_of(self.group) & 0xFFFFFFFF) << 8 | number


def hash_of(text: str) -> int:
    """A stable 63-bit number."""
    number = 1469598103934665603
    for byte in text.encode():
        number = (number ^ byte) * 1099511628211 & (2**63 - 1)
    return number


def write_in_runs(path: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    """The same in run rows, where a roller would make some of them."""
    plain = pq.read_table(write_parquet(path, events))
    writers = plain["writer_id"].unique().to_pylist()
    tables = [table for writer in writers for table in in_runs(plain.filter(pc.field("writer_id") == writer).sort_by("seq"))]
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")
    return path


def write_parquet(path: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    """The events as a file of the exported table."""
    rows: Sequence[Mapping[str, Any]] = list(events)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays, schema=SCHEMA), path, compression="zstd")
    return path


def write_produced(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """What was produced, as a Parquet file."""
    types = {
        "topic": pa.string(), "partition": pa.int64(), "offset": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC"),
        "aborted": pa.bool_(), "key": pa.string(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(list(types.items()))), path)
    return path


def no_events(spark: SparkSession, folder: Path) -> DataFrame:
    """The events of an empty file, which Spark can't know to be empty: for a look at what it plans."""
    from ackwise.spark.events.schema import EVENT_SCHEMA

    return spark.read.schema(EVENT_SCHEMA).parquet(str(write_parquet(folder / "none.parquet", [])))
