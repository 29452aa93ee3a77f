"""The events in files that a journal exported, in order, whatever rows they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.spark.events.exploding import EVENTS, exploded

__all__ = ["events_in", "plain_events_in"]

_PLAIN: Final = pa.schema([field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in EVENTS])


def events_in(*files: Path) -> list[dict[str, Any]]:
    """The events by the columns of an event, of one file after the other."""
    return [event for table in map(_read, files) for event in table.to_pylist()]


def plain_events_in(*files: Path) -> list[dict[str, Any]]:
    """The same as the oracle takes them: times as microseconds."""
    return [event for table in map(_read, files) for event in table.cast(_PLAIN).to_pylist()]


def _read(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return exploded(file.read()).sort_by("seq")
