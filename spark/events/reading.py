"""Columns of files of events, and of their row groups, as Arrow: of what the footer says that it can't be there, nothing is read."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

__all__ = ["Reader", "RowGroup", "by_file", "footer_of", "for_each", "opened", "read", "row_groups"]

T = TypeVar("T")
S = TypeVar("S")

#: Of columns with statistics, what a row group may have: from the first to the second.
_BOUNDED: Final = ("partition", "offset", "last_offset")
_ANY: Final = (-(2**63), 2**63)
_NONE: Final = (0, -1)
_CHECKED: Final[Mapping[str, bool]] = {"page_checksum_verification": True, "pre_buffer": False}
_FOOTERS: Final = 1024  # that are kept, of 100 KiB in memory


class RowGroup(NamedTuple):
    """A row group of a file of events, and what its statistics say."""

    path: Path
    number: int
    length: int
    bounds: Mapping[str, tuple[int, int]]
    has_runs: bool
    """Whether it may have run rows."""
    has_singles: bool
    """Whether it may have rows of single events."""
    footer: Any
    """The metadata of its file, or `None` if it is to be read again."""

    def may_be_of(self, partition: int) -> bool:
        """Whether it may have a row about a partition of this number."""
        low, high = self.bounds["partition"]
        return low <= partition <= high

    def may_have(self, partition: int, offsets: Sequence[int]) -> bool:
        """Whether it may have a row about one of these offsets, which are in order, of a partition of this number."""
        low, high = self.bounds["offset"]
        place = bisect_left(offsets, low)
        return self.may_be_of(partition) and place < len(offsets) and offsets[place] <= max(high, self.bounds["last_offset"][1])

    def read(self, columns: Sequence[str]) -> Any:
        """Return these columns. Raises `OSError` if they can't be read."""
        with opened(self) as read:
            return read(self, columns)


Reader = Callable[[RowGroup, Sequence[str]], Any]
"""Returns columns of a row group of one file. Raises `OSError` if they can't be read."""


@contextmanager
def opened(group: RowGroup) -> Iterator[Reader]:
    """Read row groups of the same file; to open it takes as long as to read a few columns. Raises `OSError`."""
    with _opened(group.path, group.footer) as file:
        yield lambda group, columns: _read(file, group.path, columns, [group.number])


def read(path: Path, columns: Sequence[str]) -> Any:
    """Return these columns of a file, in the types that events have. Raises `OSError` if they can't be read."""
    with _opened(path) as file:
        return _read(file, path, columns, range(file.num_row_groups))


def for_each(items: Iterable[S], work: Callable[[S], T]) -> list[T]:
    """Return what `work` makes of each, which are read at the same time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(work, items)]


def by_file(groups: Iterable[RowGroup]) -> list[list[RowGroup]]:
    """Return the row groups of each file."""
    return [[*of] for _, of in groupby(groups, key=lambda group: group.path)]


def footer_of(path: Path) -> Any:
    """Return the metadata of a Parquet file. Raises `OSError` and what pyarrow raises for one that can't be read."""
    import pyarrow.parquet as pq

    return pq.read_metadata(path)


def row_groups(files: Iterable[Path]) -> list[RowGroup]:
    """Return the row groups of these files. Raises `OSError` for a file that can't be read."""
    return [group for groups in for_each(enumerate(files), lambda each: _groups_of(each[1], each[0] < _FOOTERS)) for group in groups]


def _groups_of(path: Path, is_kept: bool) -> list[RowGroup]:
    import pyarrow as pa

    try:
        footer = footer_of(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    places = {name: footer.schema.names.index(name) for name in (*_BOUNDED, "n")}
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = {name: group.column(place).statistics for name, place in places.items()}
        bounds = {name: _bounds(statistics[name], group.num_rows) for name in _BOUNDED}
        n = statistics["n"]
        nulls = n.null_count if n is not None and n.has_null_count else None
        has_runs, has_singles = nulls != group.num_rows, nulls != 0
        found.append(RowGroup(path, number, group.num_rows, bounds, has_runs, has_singles, footer if is_kept else None))
    return found


def _bounds(statistics: Any, rows: int) -> tuple[int, int]:
    if statistics is None:
        return _ANY
    if statistics.has_min_max:
        return statistics.min, statistics.max
    return _NONE if statistics.has_null_count and statistics.null_count == rows else _ANY


@contextmanager
def _opened(path: Path, footer: Any = None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # By Arrow's own file: a path is first looked at in many ways. What is read before it is asked for costs more than it saves.
        with pa.OSFile(str(path)) as bytes_of, pq.ParquetFile(bytes_of, metadata=footer, **_CHECKED) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _read(file: Any, path: Path, columns: Sequence[str], groups: Sequence[int]) -> Any:
    import pyarrow as pa

    from ackwise.stores.journal.parquet import SCHEMA

    names = list(columns)
    try:
        found = file.read_row_groups(groups, columns=names, use_threads=False).select(names)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return found if found.schema.equals(schema) else found.cast(schema)


def _unreadable(path: Path, error: Exception) -> OSError:
    if isinstance(error, OSError) and error.filename == str(path):
        return error
    return OSError(errno.EIO, f"can't be read as events: {str(error).splitlines()[0]}", str(path))
