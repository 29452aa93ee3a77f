"""A log file as a Parquet file: row groups of run rows, then row groups of single rows. The only module that imports pyarrow."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.compute import call_function as call

from ackwise.middleware.eventlog import FIELDS, NONE, EventLog
from ackwise.middleware.events import COLUMNS, EVENT_COLUMNS, Column, Kind
from ackwise.stores.journal.columns import Columns
from ackwise.stores.journal.layout import FILE_MODE, create_regular, make_directories, parquet_path, sync_directory
from ackwise.stores.journal.runs import LONGEST, Lists, parts_of
from ackwise.stores.journal.sums import KEY, PLACEHOLDER, sealed

# Microseconds with a zone: Spark refuses nanoseconds, and reads a time without a zone as TIMESTAMP_NTZ.
_TYPES = {
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.BOOL: pa.bool_(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.INT32_LIST: pa.list_(pa.field("element", pa.int32())),
    Kind.INT64_LIST: pa.list_(pa.field("element", pa.int64())),
}
SCHEMA = pa.schema([pa.field(column.name, _TYPES[column.kind], column.nullable) for column in COLUMNS])

#: In the file's metadata: how many events of each code its writer had recorded before, as a JSON object.
_COUNTS: Final = b"ackwise.counts"

#: In the file's metadata: the boot id of the machine that rolled the last log of a writer that was gone.
ROLLED_ON: Final = b"ackwise.rolled_on"

_FIELDS: Final = {field.name: field for field in FIELDS}
_FIELD_OF: Final = {"event_type": "code", "event_ts": "at_us", "record_ts": "record_ts_ms", "due_ts": "due_ms"}
_NUMBERED: Final = {column.name for column in EVENT_COLUMNS if _FIELD_OF.get(column.name, column.name) in {*_FIELDS, "at_us", "seq"}}
_NONE: Final = NONE["q"]

# 0001-01-01 and 9999-12-31, as milliseconds: neither Python nor SQL has dates beyond, and a producer may send any number.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999

# A dictionary pays where values repeat; a key or a JSON object hardly does. Numbers grow in small steps.
_REPEATING = [column.name for column in COLUMNS if column.kind is Kind.STRING and column.name not in ("dedup_key", "attrs")]
_LISTS = [column.name for column in COLUMNS if column.kind in (Kind.INT32_LIST, Kind.INT64_LIST)]
_GROWING = [column.name for column in COLUMNS if column.kind not in (Kind.STRING, Kind.BOOL) and column.name not in _LISTS]
#: How files of events are written.
WRITE_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": _REPEATING,
    "column_encoding": {
        **dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        # Steps between hashes are as long as hashes.
        **{f"{name}.list.element": "PLAIN" if name.endswith("hashes") else "DELTA_BINARY_PACKED" for name in _LISTS},
    },
    "write_statistics": ["partition", "offset", "last_offset", "event_ts", "n"],
    "write_page_checksum": True,  # a bit that flips on the disk must not become another verdict
}


def content_of(tables: Sequence[pa.Table], name: str, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the content of an event file of this name, with its sum. Each table is in row groups of its own."""
    written = io.BytesIO()
    schema = SCHEMA.with_metadata({**(metadata or {}), KEY: PLACEHOLDER})
    with pq.ParquetWriter(written, schema, **WRITE_OPTIONS) as writer:
        for table in tables:
            if len(table) or table is tables[-1]:
                writer.write_table(table.replace_schema_metadata(schema.metadata))
    return sealed(written.getvalue(), name)


def export(log: EventLog, root: Path, file_mode: int = FILE_MODE, rolled_on: str | None = None) -> Path:
    """Write the log's events, of which there is at least one, below `root` and answer the file, which is durable.

    `rolled_on` is the boot id of this machine, if the log is the last one of its writer.

    Exporting the same events again writes the same file again. Raises `OSError`.
    """
    header = log.header
    path = parquet_path(root, header.writer_id, header.first_seq, log.next_seq - 1, log.last_at_ns)
    metadata = {} if header.counts is None else {_COUNTS: json.dumps(header.counts, sort_keys=True).encode()}
    if rolled_on is not None:
        metadata[ROLLED_ON] = rolled_on.encode()
    make_directories(root, path.parent, file_mode)
    unfinished = path.with_name(f".{path.name}.tmp")
    with os.fdopen(create_regular(unfinished, file_mode), "wb") as file:
        file.write(content_of(tables_of(log), path.name, metadata))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)
    return path


def tables_of(log: EventLog, longest: int = LONGEST) -> list[pa.Table]:
    """The log's events in tables of `SCHEMA`, moved column by column and never as Python values: run rows, and single rows."""
    return _tables(_OfLog(log), longest)


def in_runs(events: pa.Table, longest: int = LONGEST) -> list[pa.Table]:
    """The same of events that a writer recorded, in order. A record time that is no whole millisecond, as Kafka has them, is in no run."""
    micros = call("coalesce", [events["record_ts"].cast(pa.int64()), 0])
    is_whole = pa.array(np.asarray(micros) % 1000 == 0)
    runs, singles = _tables(_OfTable(events.filter(is_whole)), longest)
    rest = events.filter(call("invert", [is_whole]))
    nulls = {field.name: pa.nulls(len(rest), field.type) for field in SCHEMA}
    others = [rest[name].cast(SCHEMA.field(name).type) if name in rest.column_names else values for name, values in nulls.items()]
    return [runs, pa.concat_tables([singles, pa.table(others, schema=SCHEMA)])]


def _tables(events: _Events, longest: int) -> list[pa.Table]:
    parts = parts_of(events.numbers, longest)
    runs = [_of_run(column, parts.columns, events, parts.firsts) for column in COLUMNS]
    singles = [
        events.column(column, parts.singles) if column in EVENT_COLUMNS else pa.nulls(len(parts.singles), _TYPES[column.kind])
        for column in COLUMNS
    ]
    return [pa.table(columns, schema=SCHEMA) for columns in (runs, singles)]


def _of_run(column: Column, columns: Mapping[str, Any], events: _Events, firsts: npt.NDArray[np.int64]) -> pa.Array:
    kind = _TYPES[column.kind]
    if column.name in ("dedup_hash", "order_hash"):
        return pa.nulls(len(firsts), kind)  # they are in `hashes` and `order_hashes`
    found = columns.get(column.name)
    if found is None:
        return events.column(column, firsts) if column in EVENT_COLUMNS else pa.nulls(len(firsts), kind)
    if isinstance(found, Lists):
        ends = np.append(0, np.cumsum(found.lengths)).astype(np.int32)
        values = pa.array(found.values.astype(kind.value_type.to_pandas_dtype()))
        return pa.ListArray.from_arrays(pa.array(ends), values, type=kind, mask=pa.array(~found.is_there))
    return pa.array(found, mask=found == _NONE).cast(kind)


class _Events(Protocol):
    """Events as arrays."""

    @property
    def numbers(self) -> Mapping[str, npt.NDArray[Any]]:
        """What `parts_of` takes."""
        ...

    def column(self, column: Column, places: npt.NDArray[np.int64]) -> pa.Array:
        """A column of the events at these places."""
        ...


class _OfTable:
    """The events in a table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.numbers: dict[str, npt.NDArray[Any]] = {
            _FIELD_OF.get(name) or name: self._numbers(table[name]) for name in table.column_names if name in _NUMBERED
        }
        for name in ("record_ts_ms", "due_ms"):
            values = self.numbers[name]
            self.numbers[name] = np.where(values == _NONE, _NONE, values // 1000)

    def column(self, column: Column, places: npt.NDArray[np.int64]) -> pa.Array:
        return self._table[column.name].take(pa.array(places)).combine_chunks().cast(_TYPES[column.kind])

    def _numbers(self, values: pa.ChunkedArray) -> npt.NDArray[Any]:
        kind = values.type
        if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
            places = values.cast(pa.string()).combine_chunks().dictionary_encode().indices
            return np.asarray(call("add", [places, 1]).fill_null(0))
        plain = pa.int64() if pa.types.is_timestamp(kind) else pa.int8() if pa.types.is_boolean(kind) else kind
        none = {8: NONE["b"], 16: NONE["h"], 32: NONE["i"], 64: NONE["q"]}[plain.bit_width]
        return np.asarray(values.cast(plain).fill_null(none))


class _OfLog:
    """The events of a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        columns = Columns(log)
        self._texts = columns.texts
        numbers = {**columns.fields, "seq": columns.seq}
        numbers["at_us"] = numbers.pop("at_ns") // 1000
        for name in ("record_ts_ms", "due_ms"):
            is_date = (numbers[name] >= _FIRST_MS) & (numbers[name] <= _LAST_MS)
            numbers[name] = np.where(is_date, numbers[name], _NONE)
        self.numbers: Final[Mapping[str, npt.NDArray[Any]]] = numbers

    def column(self, column: Column, places: npt.NDArray[np.int64]) -> pa.Array:
        kind = _TYPES[column.kind]
        name = _FIELD_OF.get(column.name, column.name)
        if name not in self.numbers:
            return pa.repeat(pa.scalar(getattr(self._log.header, name), kind), len(places))
        values = self.numbers[name][places]
        field = _FIELDS.get(name)
        if field is not None and field.is_text:
            return pa.nulls(len(values), kind) if not values.any() else pa.array(self._texts, kind).take(pa.array(values))
        is_null = None if field is None else values == NONE[field.format]
        if column.kind is Kind.BOOL:
            return pa.array(values != 0, mask=is_null)
        found = pa.array(values, mask=is_null)
        return found.cast(pa.timestamp("ms", "UTC") if name.endswith("_ms") else kind).cast(kind)
