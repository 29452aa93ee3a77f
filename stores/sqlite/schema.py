"""The tables of the claim store and of the inbox in a SQLite file, and their versions: looked up, and created."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from ackwise.stores.protocol import purpose
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.operation import Failure, Statement, Steps, run_now
from ackwise.stores.sql.tables import inbox, names_of, outbox, versions
from ackwise.stores.sqlite.clock import TABLE as _CLOCK
from ackwise.stores.sqlite.file import File
from ackwise.stores.sqlite.runner import SQLiteRunner

C = TypeVar("C", bound=sqlite3.Connection)


class Part(NamedTuple):
    """What of a file belongs to one kind of store."""

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
        """The table `name` of ours, quoted."""
        return ".".join(f'"{part.replace(chr(34), 2 * chr(34))}"' for part in (self.schema, self.prefix + name) if part is not None)


_NAMES: Final = names_of(Tables())

# AUTOINCREMENT: the id of a row that was deleted is never given again.
_TYPES: Final = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "key": "place TEXT",
    **dict.fromkeys(("int8", "int4", "int2"), "INTEGER"),
    **dict.fromkeys(("time", "created"), "REAL"),
    "bytes": "BLOB",
    **dict.fromkeys(("letter", "part", "owner", "topic", "message_id", "name", "headers", "cause"), "TEXT"),
    "partition": "partition",
    "past": "0",
    **dict.fromkeys(("plain", "narrow"), "WITHOUT ROWID"),
    "wide": "",
    **{
        name: f" IF NOT EXISTS ackwise_outbox_{name}"
        for name in ("to_send", "failed", "due", "prepared", "of_transaction", "parked", "ended", "sent")
    },
    "holds_up": "attempts > 0",
    "insert": "INSERT",
    "keeping": "ON CONFLICT DO NOTHING",
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

CLAIMS: Final = Part(purpose.CLAIMS, "ackwise_claims", "ackwise_claims_kept_until", (_CLAIMS, _CLAIMS_BY_END, _CLOCK))

_INBOX_BY_END: Final = "CREATE INDEX IF NOT EXISTS ackwise_inbox_kept_until ON ackwise_inbox (kept_until)"

INBOX: Final = Part(purpose.INBOX, "ackwise_inbox", "ackwise_inbox_kept_until", (*inbox(_TYPES, _NAMES), _INBOX_BY_END, _CLOCK))
OUTBOX: Final = Part(purpose.OUTBOX, "ackwise_outbox", "ackwise_outbox_to_send", tuple(outbox(_TYPES, _NAMES)))


def set_up(part: Part, address: str) -> Steps[None]:
    """Create what is missing, unless it is there in another version than ours. Any number may do so at once."""
    insert = Statement("INSERT OR IGNORE INTO ackwise_schema VALUES (?, ?)", (part.name, part.purpose.version))
    look = Statement("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,))
    *_, found = yield [Statement("BEGIN IMMEDIATE"), Statement(_VERSIONS), insert, look]
    part.purpose.require_version(found.rows[0][0], address, "name another file")
    yield [*map(Statement, part.ddl), Statement("COMMIT")]


def connected(file: File, part: Part | None, factory: type[C], prepare: Callable[[C], object] | None = None) -> C:
    """Return a connection that waits for nobody; `part` is set up if it is given. Raises our errors for those of SQLite."""
    connection = None
    try:
        connection = sqlite3.connect(file.path, timeout=file.timeout, isolation_level=None, factory=factory)
        if part is not None:
            connection.execute("PRAGMA journal_mode = WAL")
            run_now(set_up(part, str(file.path)), SQLiteRunner(connection))
        connection.execute("PRAGMA busy_timeout = 0")  # from here on we wait ourselves, and let the event loop go on
        if prepare is not None:
            prepare(connection)
    except BaseException as raised:
        if connection is not None:
            connection.close()
        error = raised.error if isinstance(raised, Failure) else raised
        if isinstance(error, sqlite3.Error):
            raise file.as_store_error(error) from error
        raise
    return connection
