"""Ledger of the demo: an append-only file, durable before the handler succeeds. Nothing of Ackwise is in it.

One JSON line per order that was billed, from any number of workers. A line that a crash tore is not an entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class LedgerLine(NamedTuple):
    """One order was billed: how much, and where the record stood that asked for it."""

    order: str
    cents: int
    partition: int
    offset: int
    worker: int


class LedgerWriter:
    """Appends to the ledger. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, entries: Iterable[LedgerLine]) -> None:
        """Write `entries` and wait for the disk. Raises `OSError`; some of them may be there then."""
        # The first line end closes what another worker may have torn when it was killed.
        data = b"\n" + b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)


class LedgerReader:
    """Reads what was appended since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.entries: list[LedgerLine] = []

    def refresh(self) -> list[LedgerLine]:
        """All entries so far. A last line without its end is left for later; a torn one in between is passed over."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._position += len(whole)
            self.entries += [entry for line in whole.splitlines() if (entry := _parse(line)) is not None]
        return self.entries


def _parse(line: bytes) -> LedgerLine | None:
    try:
        return LedgerLine(*json.loads(line))
    except (ValueError, TypeError):
        return None
