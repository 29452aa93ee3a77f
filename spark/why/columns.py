"""Columns of Arrow as arrays of NumPy, and which rows of a table have what is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow.compute import SetLookupOptions
from pyarrow.compute import call_function as call

from ackwise.spark.events.schema import MESSAGE_CODES, NO_OFFSET
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, is_there, numbers, texts

__all__ = ["COLUMNS", "about_messages", "alike", "has_any", "ints", "is_at", "is_one_of", "keys_of"]

#: What is read of events that are not about the messages in question; the rest is half of the work.
COLUMNS: Final = (
    *("writer_id", "seq", "event_type", "event_ts", "cluster", "group_id", "client", "handler", "topic", "topic_id", "partition", "offset"),
    *("range_end", "record_ts", "phys_topic", "attempt", "dedup_epoch", "role", "from_commit", "attrs", "proved"),
)
_LEAST: Final = np.iinfo(np.int64).min


def ints(column: Any) -> Numbers:
    """Return the numbers of a column, times as microseconds; the least number for none."""
    return numbers(column, _LEAST)


def is_one_of(column: Any, values: Collection[int] | Collection[str]) -> Flags:
    """Return which rows have one of these numbers or texts."""
    known = texts(values) if pa.types.is_string(column.type) else arrow(np.array([*values], np.int64))  # type: ignore[arg-type]
    found: Flags = numbers(call("is_in", [column], SetLookupOptions(known)), 0) != 0
    return found


def has_any(rows: pa.Table, codes: Collection[int]) -> Flags:
    """Return which rows are events of these codes."""
    known = np.zeros(256, np.bool_)
    known[[int(code) for code in codes]] = True
    found: Flags = known[ints(rows["event_type"]) & 255]
    return found


def is_at(rows: pa.Table, topic: str, partition: int) -> Flags:
    """Return which rows are about a partition."""
    found: Flags = (ints(rows["partition"]) == partition) & is_one_of(rows["topic"], [topic])
    return found


def about_messages(events: pa.Table) -> Flags:
    """Return which events are about messages that the group consumes: of known codes, at offsets that a log may have."""
    offset, end = ints(events["offset"]), ints(events["range_end"])
    found: Flags = has_any(events, MESSAGE_CODES) & is_there(events["partition"]) & (offset >= 0) & (offset < NO_OFFSET)
    found &= (end == _LEAST) | ((end >= 0) & (end < NO_OFFSET))
    return found


def keys_of(rows: pa.Table, *names: str) -> Numbers:
    """Return a number for each row, from 0 on, which is the same where all of these columns are."""
    keys = np.zeros(len(rows), np.int64)
    for name in names:
        column = rows[name]
        values = _places(column) if pa.types.is_string(column.type) else ints(column)
        found, which = np.unique(values, return_inverse=True)
        keys = np.unique(keys * len(found) + which, return_inverse=True)[1]
    return keys


def alike(keys: Numbers) -> Iterator[Numbers]:
    """Yield the places of the rows of each key, in order."""
    order = np.argsort(keys, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else ()


def _places(column: pa.ChunkedArray) -> Numbers:
    """Return a number for each text; -1 for none."""
    one = column.combine_chunks()
    return numbers(one.dictionary_encode().indices, -1)
