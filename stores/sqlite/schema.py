"""The tables of the claim store and of the inbox in a SQLite file, and their versions: looked up, and created."""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from ackwise.stores.protocol import purpose
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sqlite.clock import TABLE as _CLOCK

__all__ = ["CLAIMS", "INBOX", "Part", "set_up", "version"]


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


_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS ackwise_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
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

_INBOX: Final = """
CREATE TABLE IF NOT EXISTS ackwise_inbox (
    place TEXT PRIMARY KEY,
    outcome INTEGER NOT NULL,
    next_attempt INTEGER NOT NULL,
    origin_topic TEXT NOT NULL,
    origin_partition INTEGER NOT NULL,
    origin_offset INTEGER NOT NULL,
    exec_id INTEGER NOT NULL,
    kept_until REAL NOT NULL
) WITHOUT ROWID
"""
_OFFSETS: Final = """
CREATE TABLE IF NOT EXISTS ackwise_offsets (
    owner TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    began INTEGER NOT NULL,
    PRIMARY KEY (owner, topic, partition)
) WITHOUT ROWID
"""
_INBOX_BY_END: Final = "CREATE INDEX IF NOT EXISTS ackwise_inbox_kept_until ON ackwise_inbox (kept_until)"

INBOX: Final = Part(purpose.INBOX, "ackwise_inbox", "ackwise_inbox_kept_until", (_INBOX, _OFFSETS, _INBOX_BY_END, _CLOCK))


def version(connection: sqlite3.Connection, part: Part) -> int:
    """Return the version of the tables, which are ours if there were none."""
    connection.execute(_VERSIONS)
    connection.execute("INSERT OR IGNORE INTO ackwise_schema VALUES (?, ?)", (part.name, part.purpose.version))
    (found,) = connection.execute("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,)).fetchone()
    return int(found)


def set_up(part: Part, address: str) -> Steps[None]:
    """Create what is missing, unless it is there in another version than ours. Any number may do so at once."""
    insert = Statement("INSERT OR IGNORE INTO ackwise_schema VALUES (?, ?)", (part.name, part.purpose.version))
    look = Statement("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,))
    *_, found = yield [Statement("BEGIN IMMEDIATE"), Statement(_VERSIONS), insert, look]
    part.purpose.require_version(found.rows[0][0], address, "name another file")
    yield [*map(Statement, part.ddl), Statement("COMMIT")]
