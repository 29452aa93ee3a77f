"""Events that are there twice with other content: nobody knows which of the two was written, so none of them counts.

The same event in two files is usual: a log that is still written, a folder that was copied, a topic that was collected. The
names of files have the numbers of their events; only files whose numbers overlap are read.
"""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Disputed", "disputed"]

#: What names the event, and the monotonic clock: within a run it is known to half a millisecond, and runs may be cut in several ways.
_NOT_COMPARED: Final = ("file", "writer_id", "seq", "mono_ns")


class Disputed(NamedTuple):
    """Numbers of a writer, from `first` to before `after`, that say one thing in a file and another in one more."""

    writer: int
    first: int
    after: int
    files: tuple[Path, ...]

    def __str__(self) -> str:
        """A sentence."""
        events = f"event {self.first}" if self.after == self.first + 1 else f"events {self.first} to {self.after - 1}"
        are = "is" if self.after == self.first + 1 else "are"
        return f"{events} of {self.writer:016x} {are} there with different content, in {self.files[0]} and {self.files[1]}; neither counts"


def disputed(files: Sequence[Path]) -> list[Disputed]:
    """Return the events that are there twice with other content. Raises `OSError` and what pyarrow raises for an unreadable file."""
    return [found for writer, overlapping in _overlapping(files) for found in _differences(writer, overlapping)]


def _overlapping(files: Sequence[Path]) -> Iterator[tuple[int, list[Path]]]:
    """Yield the files of a writer that have numbers in common with others; those with the same bytes once."""
    by_writer: dict[int, list[tuple[int, int, Path]]] = defaultdict(list)
    for path in files:
        numbers = path.stem.split("-")
        by_writer[int(numbers[1], 16)].append((int(numbers[2]), int(numbers[3]), path))
    for writer, spans in by_writer.items():
        together: list[Path] = []
        until = -1
        for first, last, path in sorted(spans):
            if first > until:
                if len(together) > 1:
                    yield writer, together
                together = []
            if not any(other.name == path.name and filecmp.cmp(other, path, shallow=False) for other in together):
                together.append(path)
            until = max(until, last)
        if len(together) > 1:
            yield writer, together


def _differences(writer: int, files: Sequence[Path]) -> Iterator[Disputed]:
    import pyarrow as pa
    from pyarrow.compute import SortOptions
    from pyarrow.compute import call_function as call

    from ackwise.spark.events.exploding import exploded

    rows = exploded(pa.concat_tables([_read(path, place) for place, path in enumerate(files)]), "file")
    rows = rows.take(call("sort_indices", [rows], options=SortOptions([("writer_id", "ascending"), ("seq", "ascending")])))
    one, other = rows.slice(0, len(rows) - 1), rows.slice(1)
    same = call("and", [call("equal", [one[name], other[name]]) for name in ("writer_id", "seq")])
    differ = pa.array([False] * len(one))
    for name in rows.schema.names:
        if name not in _NOT_COMPARED:
            differ = call("or", [differ, _differ(one[name], other[name])])
    found = one.append_column("other", other["file"]).filter(call("and", [same, differ]))
    told = zip(*(found[name].to_pylist() for name in ("seq", "file", "other")), strict=True)
    for _, group in groupby(enumerate(sorted(told)), key=lambda each: int(each[1][0]) - each[0]):
        numbers = [each for _, each in group]
        yield Disputed(writer, numbers[0][0], numbers[-1][0] + 1, (files[numbers[0][1]], files[numbers[0][2]]))


def _differ(one: Any, other: Any) -> Any:
    from pyarrow.compute import call_function as call

    values = call("coalesce", [call("not_equal", [one, other]), False])
    return call("or", [values, call("xor", [call("is_null", [one]), call("is_null", [other])])])


def _read(path: Path, place: int) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ackwise.stores.journal.parquet import SCHEMA

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        rows = file.read()
    columns = [rows[field.name].cast(field.type) for field in SCHEMA]
    return pa.table([*columns, pa.repeat(place, len(rows))], names=[*SCHEMA.names, "file"])
