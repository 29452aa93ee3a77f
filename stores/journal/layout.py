"""Where the journal's files lie and what they are called.

    ROOT/wal/{writer:016x}-{first_seq:012d}.wal
    ROOT/events/dt=2026-01-01/hr=13/events-{writer:016x}-{first_seq:012d}-{last_seq:012d}.parquet

A name that starts with `.` is not finished; everybody passes it by. `.wal.damaged` is a log that was exported up to a
destroyed block and kept for what stands behind it.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

__all__ = [
    "damaged_path",
    "is_damaged",
    "log_files",
    "log_path",
    "make_directories",
    "parquet_path",
    "sync_directory",
    "writer_and_first_seq",
]

_DAMAGED = ".damaged"
_LOG_NAME = re.compile(r"([0-9a-f]{16})-(\d{12,})\.wal(?:\.damaged)?")


def log_path(root: Path, writer_id: int, first_seq: int) -> Path:
    """The log file whose first event is `first_seq`."""
    return root / "wal" / f"{writer_id:016x}-{first_seq:012d}.wal"


def damaged_path(path: Path) -> Path:
    """Where a log file stays that was destroyed in the middle."""
    return path.with_name(path.name + _DAMAGED)


def is_damaged(path: Path) -> bool:
    """Whether it stays for what is behind the damage only."""
    return path.name.endswith(_DAMAGED)


def log_files(root: Path) -> list[Path]:
    """Every finished log file, damaged ones included, oldest first for each writer. Raises `OSError`."""
    try:
        names = os.listdir(root / "wal")  # glob would take a folder that it may not read for an empty one
    except FileNotFoundError:
        return []
    return [root / "wal" / name for name in sorted(names) if name.endswith((".wal", _DAMAGED)) and not name.startswith(".")]


def parquet_path(root: Path, writer_id: int, first_seq: int, last_seq: int, closed_ns: int) -> Path:
    """The exported file. The same events always get the same path, so exporting them twice overwrites."""
    closed = datetime.fromtimestamp(closed_ns // 1_000_000_000, UTC)
    name = f"events-{writer_id:016x}-{first_seq:012d}-{last_seq:012d}.parquet"
    return root / "events" / f"dt={closed:%Y-%m-%d}" / f"hr={closed:%H}" / name


def writer_and_first_seq(path: Path) -> tuple[int, int] | None:
    """What a log file's name says; `None` if it is not the name of one."""
    found = _LOG_NAME.fullmatch(path.name)
    return (int(found[1], 16), int(found[2])) if found else None


def make_directories(root: Path, directory: Path) -> None:
    """Make `directory` below `root`, durably. Raises `FileNotFoundError` if `root` itself is not there.

    A root that vanished is never made again: it may be a mount that is gone, and what lay below is not our disk.
    """
    if directory == root or directory.is_dir():
        return
    make_directories(root, directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
