"""Rows of many row groups that are chosen by a few of their columns; of row groups without such a row no more is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ackwise.spark.events.reading import RowGroup, by_file, for_each, opened
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, no_rows
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["Choice", "Part", "batches_of", "chosen_rows", "parts_of"]

Choice = Callable[[pa.Table], Flags]

#: Files whose columns are in memory at the same time; for each by itself the calls take longer than the work.
_FILES: Final = 256


class Part(NamedTuple):
    """Columns of some row groups, one after the other."""

    groups: Sequence[RowGroup]
    rows: pa.Table
    group: Numbers
    """The place of its row group for each row."""

    def take(self, places: Numbers, columns: Sequence[str]) -> list[pa.Table]:
        """Return other columns of the rows at these places, which are in order. Raises `OSError`."""
        group = self.group[places]
        wanted = [(int(number), places[group == number] - int(np.searchsorted(self.group, number))) for number in np.unique(group)]
        return for_each(wanted, lambda each: self.groups[each[0]].read(columns).take(arrow(each[1])))


def parts_of(groups: Iterable[RowGroup], columns: Sequence[str]) -> Iterator[Part]:
    """Yield these columns of all rows of row groups. Raises `OSError`."""
    for some in batches_of(groups):
        tables = [table for each in for_each(some, lambda of_file: _read(of_file, columns)) for table in each]
        lengths = [len(table) for table in tables]
        yield Part([group for of_file in some for group in of_file], pa.concat_tables(tables), np.repeat(np.arange(len(tables)), lengths))


def batches_of(groups: Iterable[RowGroup]) -> Iterator[list[list[RowGroup]]]:
    """Yield the row groups of each file, of several files at a time."""
    files = by_file(groups)
    for first in range(0, len(files), _FILES):
        yield files[first : first + _FILES]


def chosen_rows(groups: Iterable[RowGroup], names: Sequence[str], choose: Choice, columns: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Return `columns` of the rows that are chosen by those with `names`. Raises `OSError`."""
    found = [rows for part in parts_of(groups, names) for rows in part.take(np.flatnonzero(choose(part.rows)), columns)]
    return pa.concat_tables([no_rows(SCHEMA).select(columns), *found])


def _read(groups: Sequence[RowGroup], columns: Sequence[str]) -> list[pa.Table]:
    with opened(groups[0]) as read:
        return [read(group, columns) for group in groups]
