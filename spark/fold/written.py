"""The sequence numbers that are in files of events, read without Spark: two columns of many say which events are missing."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from ackwise.spark.events.numbers import Run, joined, runs_in, without
from ackwise.spark.events.sources import Evidence, counted, events_of
from ackwise.spark.fold.tracks import SeqRun

__all__ = ["written_in"]

#: An event without one of these is none, see `project`.
_IDENTITY: Final = ["writer_id", "seq", "event_type", "event_ts"]


def written_in(evidence: Evidence) -> list[SeqRun]:
    """Return the numbers in its files, without disputed ones: of each writer, without a hole within, in order.

    Raises `OSError` for a file that can't be read.
    """
    runs: dict[int, list[Run]] = defaultdict(list)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(_numbers, evidence.files):
            for writer_id, each in found.items():
                runs[writer_id] += each
    counted = {writer_id: without(joined(each), _disputed(evidence, writer_id)) for writer_id, each in sorted(runs.items())}
    return [SeqRun(writer_id, first, after - 1) for writer_id, each in counted.items() for first, after in each]


def _disputed(evidence: Evidence, writer_id: int) -> list[Run]:
    return [(each.first, each.after) for each in evidence.disputed if each.writer == writer_id]


def _numbers(path: Path) -> dict[int, list[Run]]:
    """Return the runs of numbers by writer. Where the rows of a file have as many as its name says, these are what it has."""
    rows = _read(path, ["n", "ok_n"])
    if (named := events_of(path)) is not None and counted(rows) == named.after - named.first:
        return {named.writer_id: [(named.first, named.after)]}
    found: dict[int, list[Run]] = {}
    for writer_id, numbers in _by_writer(path):
        found[writer_id] = runs_in(numbers)
    return found


def _by_writer(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    from ackwise.spark.events.exploding import exploded

    rows = _read(path, None)
    rows = (rows if rows["n"].null_count == len(rows) else exploded(rows)).select(_IDENTITY)
    if any(column.null_count for column in rows.columns):
        rows = rows.drop_null()
    grouped = rows.group_by("writer_id", use_threads=False).aggregate([("seq", "list")])
    for writer_id, numbers in zip(grouped["writer_id"].to_pylist(), grouped["seq_list"], strict=True):
        yield writer_id, numbers.values.cast(pa.int64())


def _read(path: Path, columns: Sequence[str] | None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True).read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise OSError(errno.EIO, f"can't be read as events: {str(error).splitlines()[0]}", str(path)) from error
