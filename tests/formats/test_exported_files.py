"""The schema and the metadata of an exported file of events, and its path."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from tests.formats.golden import check
from tests.formats.test_event_log import HEADER, SINGLE

from ackwise.middleware.eventlog import EventBuffer, EventLog, parse_log
from ackwise.middleware.events import SCHEMA_VERSION
from ackwise.stores.journal.parquet import SCHEMA, export


def test_version_3(tmp_path: Path) -> None:
    assert SCHEMA_VERSION == 3
    buffer = EventBuffer(4, now_ns=lambda: 1_767_272_400_000_000_000, mono_ns=lambda: 7)
    for event in SINGLE:
        buffer.record(event)
    log = parse_log(HEADER.encode() + b"".join(block.encode() for block in buffer.seal()))
    assert isinstance(log, EventLog)
    path = export(log, tmp_path)
    found = pq.read_schema(path)
    assert found.equals(SCHEMA)
    columns = [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in found]
    metadata = [f"{name.decode()}: {value!r}" for name, value in sorted(found.metadata.items()) if name == b"ackwise.counts"]
    assert sorted(found.metadata) == [b"ackwise.counts", b"ackwise.sum"]
    rows = pq.ParquetFile(path).read().to_pylist()
    values = [f"{name}: {value}" for row in rows for name, value in row.items() if value is not None]
    check("exported-file", [str(path.relative_to(tmp_path)), "-- columns", *columns, "-- metadata", *metadata, "-- two rows", *values])
