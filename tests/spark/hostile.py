"""Histories with a number that no worker writes, in each numeric column of an event and of a run row in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from tests.spark.histories import NOW, SECOND, History

from ackwise.middleware.events import EVENT_COLUMNS, RUN_COLUMNS, EventCode
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["Hostile", "events_of", "hostile_events", "hostile_rows"]

_NUMBERS: Final = (-(2**63), 1 - 2**63, -(2**62), -1, 0, 3, 130, 70_000, 2**53, 2**61, 2**62 - 1, 2**62, 2**63 - 2, 2**63 - 1)
_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32}
_LISTS: Final = ("record_ms", "hashes", "order_hashes", "at_us", "seqs", "took_us", "ok_us", "ok_seqs")


@dataclass(frozen=True)
class Hostile:
    """One group: its rows as they are in a file, and the events that they stand for."""

    group: str
    rows: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]


def hostile_events() -> Iterator[Hostile]:
    """Each number in each column of each event."""
    for name in (each for each in _numeric(EVENT_COLUMNS) if each != "writer_id"):  # which all groups would share
        for number in _numbers(SCHEMA.field(name).type):
            if name == "seq" and number in range(200):
                continue  # another event has it
            for place in range(len(_plain("g").events)):
                history = _plain(f"{name} {number} {place}")
                history.events[place] = {**history.events[place], name: number}
                yield Hostile(history.group, history.events, history.events)


def _plain(group: str) -> History:
    history = History(group, topic=group)
    steps = "RECEIVED_RANGE[0,8) GAP[6,7) SEEK[8,9) 0:CS 1:CS 2:CFB 1:D 2@2:CS 3:UX 4:C 5:S TX_SETTLED[0,3) MARKED[0,3) W=9 W=7"
    history.assign("w1", 0).say("w1", steps, record_ts=NOW - 100 * SECOND, mono_ns=5 * 10**9)
    history.say("w2", "RECEIVED_RANGE[7,9) MARKED[7,9) 7:C", ago=9000)
    return history.look("w1", "retry", 3, 5, ago=3).send("w1", EventCode.PRODUCED, "m", 4, ago=700)


def hostile_rows() -> Iterator[Hostile]:
    """Each number in each column of a run row, and lists of other lengths: of a row that may be clean, and of one that is not."""
    for each in _rows():
        if len({(event["writer_id"], event["seq"]) for event in each.events}) == len(each.events):  # others say two things of one event
            yield each


def _rows() -> Iterator[Hostile]:
    for attempt in (1, 2):
        for name in _numeric((*EVENT_COLUMNS, *RUN_COLUMNS)):
            if name in ("writer_id", "attempt"):
                continue
            for number in (*_numbers(SCHEMA.field(name).type), None):
                if SCHEMA.field(name).nullable or number is not None:
                    yield _with_row(f"run {attempt} {name} {number}", {"attempt": attempt, name: number})
        for name in (*_LISTS, "masks", "ok_masks"):
            kind = SCHEMA.field(name).type.value_type
            whole = _row("g")[name]
            for values in ([], whole[:1], [*whole, 1], [None, *whole[1:]], *([number, *whole[1:]] for number in _numbers(kind)), None):
                yield _with_row(f"run {attempt} {name} {values}", {"attempt": attempt, name: values})


def _with_row(group: str, changed: Mapping[str, Any]) -> Hostile:
    history = History(group, topic=group).assign("w1", 0).say("w1", "RECEIVED_RANGE[60,130) 61:CS W=130")
    row = {**_row(group), "writer_id": history.number("w2"), **changed}
    return Hostile(group, [*history.events, row], [*history.events, *events_of(row)])


def _row(group: str) -> dict[str, Any]:
    """Three messages, at 62, 63 and 66, two of which succeeded."""
    at = NOW - 100 * SECOND
    return {
        "schema_version": 1, "seq": 0, "event_type": int(EventCode.CLAIMED), "event_ts": at, "cluster": "c", "group_id": group,
        "client": "w2", "handler": "bill", "topic": group, "partition": 0, "offset": 62, "last_offset": 66, "n": 3,
        "masks": [-(2**62), 4], "exec_id": 7, "record_ts": at - 3000, "record_ts_max": at - 1000,
        "record_ms": [at // 1000 - 3, at // 1000 - 2, at // 1000 - 1], "hashes": [11, 12, 13], "order_hashes": [1, 2, 3],
        "at_us": [0, 5, 6], "seqs": [0, 1, 2], "took_us": [50, 0, 70], "mono_ns": 5 * 10**9, "ok_n": 2, "ok_masks": [2**62, 4],
        "ok_seq": 3, "ok_seqs": [0, 0, 1], "ok_ts": at + 100, "ok_ts_max": at + 130, "ok_us": [0, 0, 30],
        "ok_mono_ns": 5 * 10**9 + 100_000, "least_us": 100,
    }  # fmt: skip


def events_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a row with `n` stands for; one event without an offset if it contradicts itself."""
    if row["n"] is None:
        return [row]
    try:
        return list(_events(row))
    except (ValueError, TypeError):
        return [{**row, "offset": None}]


def _events(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    first, last = row["offset"], row["last_offset"]
    _check(0 <= first <= last < 2**62 and last - first < 65_536)
    offsets = _offsets(row, "masks") if row["masks"] is not None else list(range(first, last + 1))
    _check(len(offsets) == row["n"] and offsets[:1] == [first] and offsets[-1:] == [last])
    succeeded = _offsets(row, "ok_masks") if row["ok_masks"] is not None else offsets if row["ok_n"] else []
    _check({*succeeded} <= {*offsets} and len(succeeded) == (row["ok_n"] or 0))
    _check(not succeeded or None not in (row["ok_ts"], row["ok_seq"]))
    _check((row["exec_id"] or 0) < 2**63 - 65_536)
    for name in _LISTS:
        _check(row[name] is None or (len(row[name]) == len(offsets) and None not in row[name]))
        least = 0 if "seqs" in name else -(2**50)
        _check(row[name] is None or "hashes" in name or all(least <= value <= 2**50 for value in row[name]))
    for name, bound in (("event_ts", 2**61), ("ok_ts", 2**61), ("mono_ns", 2**62), ("ok_mono_ns", 2**62)):
        _check(abs(row[name] or 0) < bound)
    _check(all(0 <= (row[name] or 0) < 2**62 for name in ("seq", "ok_seq")))
    for rank, offset in enumerate(offsets):
        of = {name: None if row[name] is None else row[name][rank] for name in _LISTS}
        same = {
            "offset": offset,
            "exec_id": None if row["exec_id"] is None else row["exec_id"] + rank,
            "record_ts": None if of["record_ms"] is None else of["record_ms"] * 1000,
            "dedup_hash": of["hashes"],
        }
        yield {**row, **same, "seq": row["seq"] + _or(of["seqs"], rank), **_at(row, "event_ts", "mono_ns", _or(of["at_us"], 0))}
        if offset in succeeded:
            number, times = row["ok_seq"] + _or(of["ok_seqs"], rank), _at(row, "ok_ts", "ok_mono_ns", _or(of["ok_us"], 0))
            of_start = dict.fromkeys(("lost", "took_unreleased", "attrs", "error", "level", "due_ts"))
            yield {**row, **same, **of_start, "event_type": int(EventCode.SUCCEEDED), "seq": number, **times}


def _at(row: Mapping[str, Any], time: str, clock: str, after: int) -> dict[str, Any]:
    return {"event_ts": row[time] + after, "mono_ns": None if row[clock] is None else row[clock] + after * 1000}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _offsets(row: Mapping[str, Any], masks: str) -> list[int]:
    base = row["offset"] >> 6
    _check(len(row[masks]) == (row["last_offset"] >> 6) - base + 1)
    return [
        (base + place << 6) + bit for place, mask in enumerate(row[masks]) for bit in range(64) if ((mask or 0) & (2**64 - 1)) >> bit & 1
    ]


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def _numeric(columns: Any) -> list[str]:
    kinds = {column.name: SCHEMA.field(column.name).type for column in columns}
    return [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_timestamp(kind)]


def _numbers(kind: Any) -> list[int]:
    half = 2 ** (_BITS.get(kind, 64) - 1)
    return sorted({number for number in (*_NUMBERS, half - 1, -half) if -half <= number < half})
