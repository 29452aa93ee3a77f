"""Events as columns of numbers, and the files that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.middleware.events import EVENT_COLUMNS, SCHEMA_VERSION, EventCode, Kind
from ackwise.stores.journal.layout import parquet_path
from ackwise.stores.journal.parquet import SCHEMA, content_of, in_runs

Numbers = npt.NDArray[np.int64]
Rows = dict[str, Numbers]
"""By column of `_COLUMNS` what each event has there, `NONE` for nothing. A text is its place in `Writer.texts`."""

NONE: Final = -(2**63)

_COLUMNS: Final = (
    "event_type", "event_ts", "topic", "partition", "offset", "range_end", "record_ts", "attempt", "level", "due_ts", "exec_id",
    "dedup_hash", "duration_us", "error", "role", "from_commit", "attrs",
)  # fmt: skip
_TEXTS: Final = frozenset({"topic", "error", "role", "attrs"})
_TYPES: Final = {field.name: field.type for field in SCHEMA}
#: Of so many files of a set one is there once more, and of as many there is a copy that was made before the log was full.
_TWICE: Final = 50


@dataclass(slots=True)
class Writer:
    """A worker of a group during one day."""

    writer_id: int
    number: int
    group: str
    client: str
    texts: list[str]
    next_seq: int = 0
    files: int = 0

    def place(self, text: str) -> int:
        """Where a text is in `texts`, from now on."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def rows_of(writer: Writer, events: Sequence[Mapping[str, int | str]]) -> Rows:
    """Single events as columns."""
    placed = [{name: writer.place(value) if isinstance(value, str) else value for name, value in event.items()} for event in events]
    return {name: np.array([event.get(name, NONE) for event in placed], np.int64) for name in _COLUMNS}


def joined(parts: Sequence[Rows]) -> Rows:
    """All of them, in the order in which they happened."""
    every = {name: np.concatenate([part.get(name, _nothing(part)) for part in parts]) for name in _COLUMNS}
    order = np.argsort(every["event_ts"], kind="stable")
    return {name: values[order] for name, values in every.items()}


def write_events(root: Path, writer: Writer, rows: Rows, at_most: int, next_day: int, is_lost: bool = False) -> int:
    """Number the events and write them as the worker's roller does, at most so many to a file; return how many.

    `root/events` has the files, `root/single` the same with a row per event. Some of the events are there again at `next_day`
    (microseconds). Of events that are lost only the numbers are used up.
    """
    count = len(rows["event_ts"])
    seqs = np.arange(writer.next_seq, writer.next_seq + count, dtype=np.int64)
    writer.next_seq += count
    if is_lost:
        return 0
    for begin in range(0, count, at_most):
        table = _table(writer, {name: values[begin : begin + at_most] for name, values in rows.items()}, seqs[begin : begin + at_most])
        _write(root, writer, table, int(rows["event_ts"][min(begin + at_most, count) - 1]))
        writer.files += 1
        match (writer.number + writer.files) % _TWICE:
            case 0:
                _write(root, writer, table, next_day)
            case 1 if len(table) > 1:
                _write(root, writer, table.slice(0, len(table) // 2), next_day)
    return count


def _nothing(part: Rows) -> Numbers:
    return np.full(len(part["event_ts"]), NONE, np.int64)


def _write(root: Path, writer: Writer, table: pa.Table, closed: int) -> None:
    seqs = table["seq"]
    path = parquet_path(root, writer.writer_id, seqs[0].as_py(), seqs[-1].as_py(), closed * 1000)
    single = root / "single" / path.relative_to(root / "events")
    for each in (path, single):
        each.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content_of(in_runs(table), path.name))
    pq.write_table(table, single, compression="zstd")


def _table(writer: Writer, rows: Rows, seqs: Numbers) -> pa.Table:
    code, is_copy = rows["event_type"], rows["attempt"] > 1
    is_about_message, is_claim = code < EventCode.COMMITTED, code == EventCode.CLAIMED
    same = {
        "schema_version": SCHEMA_VERSION,
        "writer_id": writer.writer_id,
        "cluster": "main",
        "group_id": writer.group,
        "client": writer.client,
    }
    given = {
        "seq": seqs,
        "phys_partition": np.where(is_copy, 0, NONE),
        "phys_offset": np.where(is_copy, rows["offset"], NONE),
        "dedup_epoch": np.where(is_about_message, 0, NONE),
        "mono_ns": rows["event_ts"] * 1000,
        "lost": np.where(is_claim, 0, NONE),
        "took_unreleased": np.where(is_claim, 0, NONE),
        "proved": np.where(code == EventCode.GAP, 1, NONE),
        **rows,
    }
    texts = {
        "handler": (np.where(is_about_message, 0, NONE), ["handle"]),
        "phys_topic": (np.where(is_copy, 0, NONE), [f"{writer.group}.retry"]),
    }
    texts |= {name: (rows[name], writer.texts) for name in _TEXTS}
    arrays = {}
    for name, kind, _ in EVENT_COLUMNS:
        if name in same:
            arrays[name] = pa.repeat(pa.scalar(same[name], _TYPES[name]), len(seqs))
        elif name in texts:
            arrays[name] = _dictionary(*texts[name])
        elif name in given:
            arrays[name] = _numbers(given[name], kind, _TYPES[name])
        else:
            arrays[name] = pa.nulls(len(seqs), _TYPES[name])
    return pa.table(arrays)


def _numbers(values: Numbers, kind: Kind, arrow_type: Any) -> Any:
    mask = values == NONE
    mask = mask if mask.any() else None
    if kind is Kind.BOOL:
        return pa.array(values > 0, mask=mask)
    if kind is Kind.TIMESTAMP:
        return pa.array(values, mask=mask).cast(arrow_type)
    return pa.array(values if kind is Kind.INT64 else values.astype(arrow_type.to_pandas_dtype()), mask=mask)


def _dictionary(places: Numbers, texts: Sequence[str]) -> Any:
    indices = pa.array(places.astype(np.int32), mask=places == NONE)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))
