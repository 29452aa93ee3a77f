"""The tables in a SQLite file: created with their versions, checked, and cleaned up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol import options
from ackwise.stores.protocol.options import Purpose
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.schema import inbox, names_of, outbox, versions
from ackwise.stores.sqlite.clock import TABLE as _CLOCK
from ackwise.stores.sqlite.clock import Clocks, doubt, latest
from ackwise.stores.sqlite.driver import File

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
    yield from require_set_up(address, part)
    some = f"SELECT place FROM {part.table} WHERE kept_until <= ? LIMIT {_AT_ONCE}"
    deleted = 0
    while True:
        now = yield from latest(part.name, clock)
        (gone,) = yield [Statement(f"DELETE FROM {part.table} WHERE place IN ({some})", (now,))]
        deleted += gone.changed
        if gone.changed < _AT_ONCE:
            return deleted


def require_set_up(address: str, part: Part) -> Steps[None]:
    """Raise `ConfigurationError` if nothing was set up, or another version than ours wrote the file."""
    if missing := (yield from _missing(address, part)):
        raise ConfigurationError(f"{address}: the file has no {missing}; name another, or run `{part.purpose.init}` first")


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


class Part(NamedTuple):
    """The parts of a file that belong to one kind of store."""

    purpose: Purpose
    table: str  #: has the columns `place` and `kept_until`
    end_index: str  #: on `kept_until`
    ddl: tuple[str, ...] = ()
    """Creates what is missing."""

    @property
    def name(self) -> str:
        """In `ackwise_schema`."""
        return self.purpose.part


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables in a file; ours have the first prefix."""

    prefix: str = "ackwise_"
    schema: str | None = None

    def named(self, name: str) -> str:
        """Our table `name`, quoted."""
        return ".".join(f'"{part.replace(chr(34), 2 * chr(34))}"' for part in (self.schema, self.prefix + name) if part is not None)


_NAMES: Final = names_of(Tables())

# AUTOINCREMENT: the id of a row that was deleted is never given again.
_TYPES: Final = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "key": "place TEXT",
    **dict.fromkeys(("int8", "int4", "int2", "bool"), "INTEGER"),
    **dict.fromkeys(("time", "created", "float"), "REAL"),
    "bytes": "BLOB",
    **dict.fromkeys(("letter", "part", "owner", "topic", "message_id", "name", "headers", "cause"), "TEXT"),
    "partition": "partition",
    "past": "0",
    **dict.fromkeys(("plain", "narrow"), "WITHOUT ROWID"),
    "wide": "",
    **{
        name: f" IF NOT EXISTS ackwise_outbox_{name}"
        for name in ("to_send", "tried", "failed", "due", "prepared", "of_transaction", "parked", "ended", "sent", "delayed", "expired")
    },
    "insert": "INSERT",
    "keeping": "ON CONFLICT DO NOTHING",
    "database_id": "lower(hex(randomblob(16)))",  # the statements are made once for all files
}

_VERSIONS: Final = versions(_TYPES, _NAMES)
_CLAIMS: Final = """
CREATE TABLE IF NOT EXISTS ackwise_claims (
    place TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    next_attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    took_unreleased INTEGER NOT NULL,
    outcome INTEGER,
    leased_until REAL NOT NULL,
    kept_until REAL NOT NULL,
    owner TEXT NOT NULL
) WITHOUT ROWID
"""
_CLAIMS_BY_END: Final = "CREATE INDEX IF NOT EXISTS ackwise_claims_kept_until ON ackwise_claims (kept_until)"

CLAIMS: Final = Part(options.CLAIMS, "ackwise_claims", "ackwise_claims_kept_until", (_CLAIMS, _CLAIMS_BY_END, _CLOCK))

_INBOX_BY_END: Final = "CREATE INDEX IF NOT EXISTS ackwise_inbox_kept_until ON ackwise_inbox (kept_until)"

INBOX: Final = Part(options.INBOX, "ackwise_inbox", "ackwise_inbox_kept_until", (*inbox(_TYPES, _NAMES), _INBOX_BY_END, _CLOCK))
OUTBOX: Final = Part(options.OUTBOX, "ackwise_outbox", "ackwise_outbox_to_send", tuple(outbox(_TYPES, _NAMES)))


def set_up(part: Part, address: str) -> Steps[None]:
    """Create what is missing, unless it is there in another version than ours. Any number may do so at once."""
    insert = Statement("INSERT OR IGNORE INTO ackwise_schema VALUES (?, ?)", (part.name, part.purpose.version))
    look = Statement("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,))
    *_, found = yield [Statement("BEGIN IMMEDIATE"), Statement(_VERSIONS), insert, look]
    part.purpose.require_version(found.rows[0][0], address, "name another file")
    yield [*map(Statement, part.ddl), Statement("COMMIT")]
