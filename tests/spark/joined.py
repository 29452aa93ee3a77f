"""Made-up events in the rows that a journal writes: neighbours as run rows, where that is possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.middleware.eventlog import FIELDS, NONE
from ackwise.middleware.events import EVENT_COLUMNS
from ackwise.stores.journal.parquet import SCHEMA
from ackwise.stores.journal.runs import LONGEST, Lists, parts_of

__all__ = ["write_joined"]

_COLUMN: Final = {"code": "event_type", "at_us": "event_ts", "record_ts_ms": "record_ts", "due_ms": "due_ts"}
_NONE: Final = NONE["q"]
_WRITER: Final = ("schema_version", "writer_id", "cluster", "group_id", "client")


def write_joined(path: Path, events: Iterable[Mapping[str, Any]], longest: int = LONGEST) -> Path:
    """The events as a file, with those of each writer joined."""
    of: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        of[tuple(event.get(name) for name in _WRITER)].append(event)
    tables = [_joined(sorted(each, key=lambda event: event.get("seq") or 0), longest) for each in of.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")
    return path


def _joined(events: Sequence[Mapping[str, Any]], longest: int) -> pa.Table:
    singles = [{**event, **dict.fromkeys(name for name in SCHEMA.names if name not in event)} for event in events]
    columns = {field.name: pa.array([event[field.name] for event in singles], field.type) for field in SCHEMA}
    plain = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    # What can't be one of a run for what the format of logs can't hold, or with times beyond it.
    fits = all(event[name] is not None for event in singles for name in ("writer_id", "seq", "event_type", "event_ts"))
    if not fits or any(event["record_ts"] is not None and event["record_ts"] % 1000 for event in singles):
        return plain
    numbers = {field.name.replace("at_ns", "at_us"): _numbers(columns, field.name.replace("at_ns", "at_us")) for field in FIELDS}
    has_clock = (numbers["mono_ns"] != _NONE).any()
    if not has_clock:
        numbers["mono_ns"] = numbers["at_us"] * 1000
    numbers["seq"] = columns["seq"].to_numpy()
    parts = parts_of(numbers, longest)
    runs = [_of_run(field, parts.columns, plain, parts.firsts, has_clock=has_clock) for field in SCHEMA]
    return pa.concat_tables([pa.table(runs, schema=SCHEMA), plain.take(pa.array(parts.singles))])


def _numbers(columns: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    field = next(each for each in FIELDS if each.name.replace("at_ns", "at_us") == name)
    column = columns[_COLUMN.get(name, name)]
    if field.is_text:
        found: npt.NDArray[Any] = np.array([0 if each is None else 1 + each for each in column.dictionary_encode().indices.to_pylist()])
        return found
    divided = 1000 if name.endswith("_ms") else 1
    values = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column.cast(pa.int64())
    return np.array([NONE[field.format] if each is None else each // divided for each in values.to_pylist()], np.int64)


def _of_run(field: pa.Field, columns: Mapping[str, Any], plain: pa.Table, firsts: Any, *, has_clock: bool) -> pa.Array:
    found = columns.get(field.name)
    if field.name in ("dedup_hash", "order_hash") or (field.name == "ok_mono_ns" and not has_clock):
        return pa.nulls(len(firsts), field.type)
    if found is None:
        known = any(column.name == field.name for column in EVENT_COLUMNS)
        return plain[field.name].take(pa.array(firsts)).combine_chunks() if known else pa.nulls(len(firsts), field.type)
    if isinstance(found, Lists):
        ends = np.append(0, np.cumsum(found.lengths)).astype(np.int32)
        values = pa.array(found.values.astype(field.type.value_type.to_pandas_dtype()))
        return pa.ListArray.from_arrays(pa.array(ends), values, type=field.type, mask=pa.array(~found.is_there))
    return pa.array(found, mask=found == _NONE).cast(field.type)
