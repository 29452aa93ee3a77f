"""The maintenance of a SQLite file with tables of ours: complaints about it, and the cleanup of forgotten records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sqlite.clock import Clocks, doubt, latest
from ackwise.stores.sqlite.file import File
from ackwise.stores.sqlite.schema import Part

_AT_ONCE: Final = 1000
"""Rows that one step deletes, which takes some milliseconds."""


def no_file(file: File) -> list[str]:
    """Return a sentence if there is no file."""
    file.require_folder()
    if file.path.exists():
        return []
    return [f"{file.path}: there is no such file; run `{file.purpose.init}`, or let the first worker make it"]


def complaints(address: str, part: Part, clock: Callable[[], float] | Clocks = time.time) -> Steps[list[str]]:
    """Return what is wrong or unwise about the file, one sentence each. Changes nothing.

    Raises `ConfigurationError` if another version than ours wrote it, and what SQLite raises, for a file that can't be written too.
    """
    if missing := (yield from _missing(address, part)):
        return [f"{address}: the file has no {missing}; run `{part.purpose.init}`, or let the first worker make it"]
    *_, mode, check = yield [
        Statement("BEGIN IMMEDIATE"),
        Statement("ROLLBACK"),
        Statement("PRAGMA journal_mode"),
        Statement("PRAGMA quick_check(1)"),
    ]
    said = [*_damage(check.rows[0][0]), *_journal(mode.rows[0][0], part), *(yield from doubt(part.name, clock))]
    return [f"{address}: {complaint}" for complaint in said]


def clean(address: str, part: Part, clock: Callable[[], float] | Clocks) -> Steps[int]:
    """Delete what was to be kept until now at the latest, some at a time; return how many rows. A wall clock that jumped is not believed.

    Raises `ConfigurationError` if nothing was set up or another version than ours wrote the file, and what SQLite raises.
    """
    if missing := (yield from _missing(address, part)):
        raise ConfigurationError(f"{address}: the file has no {missing}; name another, or run `{part.purpose.init}` first")
    some = f"SELECT place FROM {part.table} WHERE kept_until <= ? LIMIT {_AT_ONCE}"
    deleted = 0
    while True:
        now = yield from latest(part.name, clock)
        (gone,) = yield [Statement(f"DELETE FROM {part.table} WHERE place IN ({some})", (now,))]
        deleted += gone.changed
        if gone.changed < _AT_ONCE:
            return deleted


def _missing(address: str, part: Part) -> Steps[str | None]:
    (found,) = yield [Statement("SELECT name FROM sqlite_master")]
    there = {name for (name,) in found.rows}
    if "ackwise_schema" in there:
        (versions,) = yield [Statement("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,))]
        for (version,) in versions.rows:
            part.purpose.require_version(version, address, "name another file")
    if part.table not in there:
        return f"table {part.table}"
    return f"index {part.end_index}" if part.end_index not in there else None


def _damage(said: str) -> list[str]:
    if said == "ok":
        return []
    return [f"the file is damaged ({said}); move it away, and expect what was completed within the retention to run again"]


def _journal(mode: str, part: Part) -> list[str]:
    if mode == "wal":
        return []
    return [f"the file is in journal mode {mode}, in which readers and the writer wait for each other; run `{part.purpose.init}`"]
