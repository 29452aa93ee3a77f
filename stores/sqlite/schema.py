"""The tables of the claim store and of the inbox in a SQLite file, and their versions: looked up, and created."""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from ackwise.stores.sqlite.clock import TABLE as _CLOCK

__all__ = ["CLAIMS", "INBOX", "VERSION", "Part", "create_claims", "create_inbox", "version"]

VERSION: Final = 1
"""Of the claims' table, and of the inbox's."""


class Part(NamedTuple):
    """What of a file belongs to one kind of store."""

    name: str  #: in `ackwise_schema`
    version: int
    table: str  #: has the columns `place` and `kept_until`
    end_index: str  #: on `kept_until`


CLAIMS: Final = Part("claims", VERSION, "ackwise_claims", "ackwise_claims_kept_until")
INBOX: Final = Part("inbox", VERSION, "ackwise_inbox", "ackwise_inbox_kept_until")

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
    owner TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID
"""
# Older versions name the columns that they know, and so what they claim has no owner: they and this one may share a file.
_OWNER: Final = "ALTER TABLE ackwise_claims ADD COLUMN owner TEXT NOT NULL DEFAULT ''"
_CLAIMS_BY_END: Final = "CREATE INDEX IF NOT EXISTS ackwise_claims_kept_until ON ackwise_claims (kept_until)"

_INBOX: Final = """
CREATE TABLE IF NOT EXISTS ackwise_inbox (
    place TEXT PRIMARY KEY,
    outcome INTEGER,
    next_attempt INTEGER NOT NULL,
    origin TEXT NOT NULL,
    exec_id INTEGER NOT NULL,
    kept_until REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ackwise_offsets (
    owner TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    began INTEGER NOT NULL,
    PRIMARY KEY (owner, topic, partition)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ackwise_inbox_kept_until ON ackwise_inbox (kept_until);
"""


def version(connection: sqlite3.Connection, part: Part) -> int:
    """Return the version of the tables, which are ours if there were none."""
    connection.execute(_VERSIONS)
    connection.execute("INSERT OR IGNORE INTO ackwise_schema VALUES (?, ?)", (part.name, part.version))
    (found,) = connection.execute("SELECT version FROM ackwise_schema WHERE part = ?", (part.name,)).fetchone()
    return int(found)


def create_claims(connection: sqlite3.Connection) -> None:
    """Create what is missing of the claims. To be called in a transaction that writes."""
    connection.execute(_CLAIMS)
    if not connection.execute("SELECT 1 FROM pragma_table_info('ackwise_claims') WHERE name = 'owner'").fetchone():
        connection.execute(_OWNER)
    connection.execute(_CLAIMS_BY_END)
    connection.execute(_CLOCK)


def create_inbox(connection: sqlite3.Connection) -> None:
    """Create what is missing of the inbox."""
    connection.executescript(_INBOX)
    connection.execute(_CLOCK)
