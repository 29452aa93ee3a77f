"""The groups that events are about, found without reading all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ackwise.middleware.eventlog import Unreadable, parse_log
from ackwise.spark.events.sources import exported, writer_of
from ackwise.stores.journal.layout import log_files, writer_and_first_seq

__all__ = ["groups_in"]


def groups_in(roots: Sequence[Path]) -> set[str]:
    """Return the groups of all writers below `roots`. A file that can't be read is passed over. Raises `OSError`."""
    groups = set[str]()
    for root in roots:
        of_writer = {writer_of(path): path for path in exported(root).files}
        for path in of_writer.values():
            groups |= _groups_of(path)
        for log in log_files(root):
            found = writer_and_first_seq(log)
            if found is not None and found[0] not in of_writer:
                groups |= _group_of(log)
    return groups


def _groups_of(path: Path) -> set[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {name for name in pq.ParquetFile(path).read(columns=["group_id"]).column("group_id").unique().to_pylist() if name}
    except (pa.ArrowException, OSError, KeyError):
        return set()


def _group_of(log: Path) -> set[str]:
    try:
        parsed = parse_log(log.read_bytes())
    except OSError:
        return set()
    return set() if isinstance(parsed, Unreadable) or not parsed.header.group_id else {parsed.header.group_id}
