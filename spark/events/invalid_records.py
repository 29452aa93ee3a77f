"""Records of an event topic that are no events, kept in a note beside what was collected.

ROOT/collected/{topic}/strangers/{batch}.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ackwise.stores.journal.layout import read_regular

__all__ = ["InvalidRecords", "invalid_records", "note"]


@dataclass(frozen=True, slots=True)
class InvalidRecords:
    """The invalid records of one topic, or of a batch of it."""

    folder: Path
    """The folder of the notes."""
    records: int
    first: str
    """The place of one of them: topic/partition/offset."""
    writers: frozenset[int]
    """The writers named by their keys: some event of each is missing."""


def note(found: InvalidRecords, batch: int) -> None:
    """Write down those of one batch; the same batch again replaces them. Raises `OSError`."""
    folder = found.folder
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{batch}.json"
    writers = [f"{writer:016x}" for writer in sorted(found.writers)]
    unfinished.write_text(json.dumps({"records": found.records, "first": found.first, "writers": writers}), encoding="utf-8")
    unfinished.replace(folder / f"{batch}.json")


def invalid_records(root: Path) -> list[InvalidRecords]:
    """Return the notes below `root`, one for each topic. Raises `OSError`."""
    found = [_together(folder, sorted(folder.glob("[0-9]*.json"))) for folder in sorted((root / "collected").glob("*/strangers"))]
    return [each for each in found if each.records]


def _together(folder: Path, files: Sequence[Path]) -> InvalidRecords:
    batches = [_batch(file) for file in files]
    writers = frozenset(writer for batch in batches for writer in batch.writers)
    return InvalidRecords(folder, sum(batch.records for batch in batches), batches[0].first if batches else "", writers)


def _batch(file: Path) -> InvalidRecords:
    """Return what a note says. A damaged one stands for a record of which nothing else is known."""
    try:
        said = json.loads(read_regular(file))
        writers = frozenset(int(writer, 16) for writer in said["writers"])
        return InvalidRecords(file.parent, int(said["records"]), str(said["first"]), writers)
    except (ValueError, KeyError, TypeError, RecursionError):
        return InvalidRecords(file.parent, 1, f"in the damaged note {file.name}", frozenset())
