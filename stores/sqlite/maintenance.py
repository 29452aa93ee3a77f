"""The maintenance of a SQLite file with tables of ours: complaints about it, and the cleanup of forgotten records."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sqlite.clock import Clocks, doubt, latest
from ackwise.stores.sqlite.schema import Part

__all__ = ["clean", "complaints", "forget_some"]

_AT_ONCE: Final = 1000
"""Rows that one step deletes, which takes some milliseconds."""


def complaints(path: Path, part: Part, timeout: float, clock: Callable[[], float] | Clocks = time.time) -> list[str]:
    """Return what is wrong or unwise about the file, one sentence each. Changes nothing.

    Raises `ConfigurationError` if another version than ours wrote it, and what sqlite3 raises, for a file that can't be written too.
    """
    if not path.exists():
        return [f"{path}: there is no such file; run `ackwise store init URL`, or let the first worker make it"]
    with closing(_connect(path, timeout)) as connection:
        if missing := _missing(connection, path, part):
            return [f"{path}: the file has no {missing}; run `ackwise store init URL`, or let the first worker make it"]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        return [f"{path}: {complaint}" for complaint in (*_damage(connection), *_journal(connection), *doubt(connection, part.name, clock))]


async def clean(step: Callable[[], int]) -> int:
    """Repeat `step`, which is `forget_some`, in a thread until nothing is left to delete; return how many rows that were.

    It rests as long as it works, since a worker that waits for the file looks for it now and then only.
    """
    deleted = 0
    while True:
        began = time.monotonic()
        some = await asyncio.to_thread(step)
        deleted += some
        if some < _AT_ONCE:
            return deleted
        await asyncio.sleep(time.monotonic() - began)


def forget_some(path: Path, part: Part, timeout: float, clock: Callable[[], float] | Clocks) -> int:
    """Delete some of what was to be kept until now at the latest; return how many rows. A wall clock that jumped is not believed.

    Raises `ConfigurationError` if nothing was set up or another version than ours wrote the file, and what sqlite3 raises.
    """
    if not path.exists():
        raise ConfigurationError(f"{path}: there is no such file; name another, or run `ackwise store init URL` first")
    with closing(_connect(path, timeout)) as connection:
        if missing := _missing(connection, path, part):
            raise ConfigurationError(f"{path}: the file has no {missing}; name another, or run `ackwise store init URL` first")
        some = f"SELECT place FROM {part.table} WHERE kept_until <= ? LIMIT {_AT_ONCE}"
        return connection.execute(f"DELETE FROM {part.table} WHERE place IN ({some})", (latest(connection, part.name, clock),)).rowcount


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    """Unlike the stores, it never makes the file."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=timeout, isolation_level=None)


def _missing(connection: sqlite3.Connection, path: Path, part: Part) -> str | None:
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if "ackwise_schema" in there:
        found = connection.execute("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,)).fetchone()
        if found is not None:
            part.purpose.require_version(found[0], str(path), "name another file")
    if part.table not in there:
        return f"table {part.table}"
    return f"index {part.end_index}" if part.end_index not in there else None


def _damage(connection: sqlite3.Connection) -> list[str]:
    (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said == "ok":
        return []
    return [f"the file is damaged ({said}); move it away, and expect what was completed within the retention to run again"]


def _journal(connection: sqlite3.Connection) -> list[str]:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode == "wal":
        return []
    return [f"the file is in journal mode {mode}, in which readers and the writer wait for each other; run `ackwise store init URL`"]
