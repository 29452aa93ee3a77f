"""A log file as an Arrow table and as a Parquet file: the only module of the journal that imports pyarrow."""

from __future__ import annotations

import io
import json
import os
import struct
from array import array
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.compute import call_function as call

from ackwise.middleware.eventlog import FIELDS, NONE, EventLog, Field
from ackwise.middleware.events import COLUMNS, Column, Kind
from ackwise.stores.journal.layout import FILE_MODE, create_regular, make_directories, parquet_path, sync_directory
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
}
SCHEMA = pa.schema([pa.field(column.name, _TYPES[column.kind], column.nullable) for column in COLUMNS])

#: In the file's metadata: how many events of each code its writer had recorded before, as a JSON object.
_COUNTS: Final = b"ackwise.counts"

_WIDTHS = {"q": pa.int64(), "i": pa.int32(), "h": pa.int16(), "b": pa.int8()}
_FIELDS = {field.name: field for field in FIELDS}
_FIELD_OF = {"event_type": "code", "event_ts": "at_ns", "record_ts": "record_ts_ms", "due_ts": "due_ms"}

# 0001-01-01 and 9999-12-31, as milliseconds: neither Python nor SQL has dates beyond, and a producer may send any number.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999

# A dictionary pays where values repeat; a key or a JSON object hardly does. Numbers grow in small steps.
_REPEATING = [column.name for column in COLUMNS if column.kind is Kind.STRING and column.name not in ("dedup_key", "attrs")]
_GROWING = [column.name for column in COLUMNS if column.kind not in (Kind.STRING, Kind.BOOL)]
#: How files of events are written.
WRITE_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": _REPEATING,
    "column_encoding": dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
    "write_statistics": ["partition", "offset", "event_ts"],
    "write_page_checksum": True,  # a bit that flips on the disk must not become another verdict
}


def to_table(log: EventLog) -> pa.Table:
    """The log's events as a table of `SCHEMA`, moved column by column and never as Python values."""
    table = pa.table([_column(column, log) for column in COLUMNS], schema=SCHEMA)
    counts = log.header.counts
    return table if counts is None else table.replace_schema_metadata({_COUNTS: json.dumps(counts, sort_keys=True)})


def content_of(table: pa.Table, name: str) -> bytes:
    """Return the content of an event file of this name, with its sum."""
    known = {**(table.schema.metadata or {}), KEY: PLACEHOLDER}
    written = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(known), written, **WRITE_OPTIONS)
    return sealed(written.getvalue(), name)


def export(log: EventLog, root: Path, file_mode: int = FILE_MODE) -> Path:
    """Write the log's events, of which there is at least one, below `root` and answer the file, which is durable.

    Exporting the same events again writes the same file again. Raises `OSError`.
    """
    header = log.header
    path = parquet_path(root, header.writer_id, header.first_seq, log.next_seq - 1, log.last_at_ns)
    make_directories(root, path.parent, file_mode)
    unfinished = path.with_name(f".{path.name}.tmp")
    with os.fdopen(create_regular(unfinished, file_mode), "wb") as file:
        file.write(content_of(to_table(log), path.name))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)
    return path


def _column(column: Column, log: EventLog) -> pa.Array:
    arrow_type = _TYPES[column.kind]
    field = _FIELDS.get(_FIELD_OF.get(column.name, column.name))
    if field is not None:
        return _strings(field, log) if field.is_text else _numbers(field, log).cast(arrow_type)
    first_seq, next_seq = log.header.first_seq, log.next_seq
    if column.name == "seq":
        return _array(arrow_type, array("q", range(first_seq, next_seq)).tobytes())
    return pa.repeat(pa.scalar(getattr(log.header, column.name), arrow_type), next_seq - first_seq)


def _strings(field: Field, log: EventLog) -> pa.Array:
    given = log.column(field.name)
    if given == bytes(len(given)):
        return pa.nulls(len(given) // 4, pa.string())
    bases, base = array("i"), 0
    for block in log.blocks:
        bases.extend(array("i", [base]) * block.count)
        base += len(block.strings)
    strings = pa.array([text for block in log.blocks for text in block.strings], pa.string())
    places = _array(pa.int32(), given)
    return strings.take(call("add", [places, _array(pa.int32(), bases.tobytes())]))


def _numbers(field: Field, log: EventLog) -> pa.Array:
    given = log.column(field.name)
    values = _array(_WIDTHS[field.format], given)
    if given == struct.pack(f"<{field.format}", NONE[field.format]) * len(values):  # most fields, in most files
        return pa.nulls(len(values), values.type)
    if field.name == "at_ns":
        return values.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False)
    nothing = pa.scalar(None, values.type)
    if field.name in ("record_ts_ms", "due_ms"):
        is_date = call("and", [call("greater_equal", [values, _FIRST_MS]), call("less_equal", [values, _LAST_MS])])
        return call("if_else", [is_date, values, nothing]).cast(pa.timestamp("ms", "UTC"))
    return call("if_else", [call("equal", [values, pa.scalar(NONE[field.format], values.type)]), nothing, values])


def _array(arrow_type: pa.DataType, content: bytes) -> pa.Array:
    count = len(content) // arrow_type.byte_width
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(content)])
