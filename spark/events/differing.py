"""The events of one writer that files state differently.

Files that have numbers in common most often have the same rows, or rows of the same events that were cut elsewhere. So events are laid
out only of rows that have a number which is there again, and that no other row equals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.compute import SortOptions
from pyarrow.compute import call_function as call

from ackwise.spark.events.exploding import NUMBERED, exploded, numbered
from ackwise.spark.events.reading import read
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, is_there, no_rows, numbers
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["Differing", "differing"]

#: The place of the file, and the monotonic clock: within a run it is known to half a millisecond, and runs may be cut in several ways.
_NOT_COMPARED: Final = ("file", "mono_ns", "ok_mono_ns")


class Differing(NamedTuple):
    """An event that two files state differently."""

    seq: int
    file: int
    """The place of the one file."""
    other: int
    """That of the other one, or of the same: it may state an event twice."""


def differing(files: Sequence[Path]) -> list[Differing]:
    """Return the events with a writer and a number that another event has, too, and with other content.

    Raises `OSError` for a file that can't be read.
    """
    rows = _once(pa.concat_tables(_with_repeated_numbers(files)))
    seq, row, _ = numbered(rows)
    rows = rows.take(arrow(np.unique(row[_are_repeated(seq)])))
    if not len(rows):
        return []
    events = _sorted(exploded(rows, "file"), "writer_id", "seq")
    one, other = events.slice(0, len(events) - 1), events.slice(1)
    is_same = ~_differ(one.select(["writer_id", "seq"]), other.select(["writer_id", "seq"])) & is_there(one["seq"])
    found = np.flatnonzero(is_same & _differ(one, other))
    seq, file = (numbers(events[name], 0) for name in ("seq", "file"))
    return [Differing(int(seq[at]), int(file[at]), int(file[at + 1])) for at in found]


def _with_repeated_numbers(files: Sequence[Path]) -> Iterator[pa.Table]:
    """Yield the rows of each file that have an event whose number is there again, with the place of their file as `file`."""
    each = [numbered(read(path, NUMBERED)) for path in files]
    are_repeated = _are_repeated(np.concatenate([events.seq for events in each]))
    parts = np.split(are_repeated, np.cumsum([len(events.seq) for events in each])[:-1])
    for place, (path, events, part) in enumerate(zip(files, each, parts, strict=True)):
        chosen = np.unique(events.row[part])
        rows = read(path, SCHEMA.names).take(arrow(chosen)) if len(chosen) else no_rows(SCHEMA)
        yield rows.append_column("file", arrow(np.full(len(rows), place)))


def _are_repeated(numbers: Numbers) -> Flags:
    """Which of the numbers are there more than once."""
    order = np.argsort(numbers, kind="stable")
    again = np.flatnonzero(np.diff(numbers[order]) == 0)
    found = np.zeros(len(numbers), np.bool_)
    found[order[again]] = found[order[again + 1]] = True
    return found


def _once(rows: pa.Table) -> pa.Table:
    """The rows without those that another one equals, of which the first file's stays."""
    rows = _sorted(rows, "writer_id", "seq", "n", "ok_n")
    return rows.filter(arrow(np.append(True, _differ(rows.slice(0, len(rows) - 1), rows.slice(1))))) if len(rows) > 1 else rows


def _sorted(rows: pa.Table, *names: str) -> pa.Table:
    return rows.take(call("sort_indices", [rows], options=SortOptions([(name, "ascending") for name in names])))


def _differ(one: pa.Table, other: pa.Table) -> Flags:
    """Which rows of the one table differ from those of the other in the same place."""
    found = np.zeros(len(one), np.bool_)
    for field in one.schema:
        if field.name not in _NOT_COMPARED:
            differ = _lists_differ if pa.types.is_list(field.type) else _values_differ
            found |= differ(one[field.name], other[field.name])
    return found


def _values_differ(one: Any, other: Any) -> Flags:
    found: Flags = (numbers(call("not_equal", [one, other]), 0) != 0) | (is_there(one) != is_there(other))
    return found


def _lists_differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Flags:
    sizes, others = (numbers(call("list_value_length", [each]), -1) for each in (one, other))
    found: Flags = sizes != others
    same = np.flatnonzero(~found)
    values = (each.take(arrow(same)).combine_chunks().flatten() for each in (one, other))
    found[np.repeat(same, np.maximum(sizes[same], 0))[_values_differ(*values)]] = True
    return found
