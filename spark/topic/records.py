"""A row of a file of events as a Kafka record: the writer is the key, one JSON object the value.

Rows of a log that a dead process left have two more columns: `rolled_on`, see `Logs`, and `rolled_to`, the file's last sequence number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.spark.events.sources import events_of
from ackwise.stores.journal.parquet import ROLLED_ON, SCHEMA

__all__ = ["KafkaRecord", "records_of"]

#: Rows that are Python values at a time.
_ROWS: Final = 5_000
#: Times as whole microseconds since 1970: JSON has no times, and every reader has numbers.
_PLAIN: Final = pa.schema([pa.field(field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type) for field in SCHEMA])

KafkaRecord = tuple[bytes, bytes]
"""Key and value."""


def records_of(file: Path) -> Iterator[KafkaRecord]:
    """Yield the rows of an exported file, in its order. Null columns are left out.

    Raises `OSError`, and `pyarrow.ArrowInvalid` for a file that is not Parquet.
    """
    with pq.ParquetFile(file) as parquet:
        names = [name for name in _PLAIN.names if name in parquet.schema_arrow.names]
        plain = pa.schema([_PLAIN.field(name) for name in names])
        boot_id, named = (parquet.schema_arrow.metadata or {}).get(ROLLED_ON, b"").decode(), events_of(file)
        rolled = {"rolled_on": boot_id, "rolled_to": named.after - 1} if boot_id and named is not None else {}
        for batch in parquet.iter_batches(_ROWS, columns=names):
            for row in pa.Table.from_batches([batch]).select(names).cast(plain).to_pylist():
                event = {name: value for name, value in row.items() if value is not None} | rolled
                yield b"%016x" % row["writer_id"], json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
