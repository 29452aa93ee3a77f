"""The tables of an outbox in a SQLite file: created, and looked at."""

from __future__ import annotations

import sqlite3
from typing import Final

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.outbox import SHARDS
from ackwise.stores.protocol import purpose
from ackwise.stores.sql.outbox.dialect import STATES, TABLES
from ackwise.stores.sqlite.file import File
from ackwise.stores.sqlite.schema import Part

__all__ = ["NAMES", "OUTBOX", "as_error", "create"]

OUTBOX: Final = Part(purpose.OUTBOX, "ackwise_outbox", "ackwise_outbox_to_send")

#: What statements are formatted with.
NAMES: Final = {word: f"ackwise_{name}" for word, name in TABLES.items()}

# AUTOINCREMENT: the id of a row that was deleted is never given again.
_DDL: Final = f"""
CREATE TABLE IF NOT EXISTS ackwise_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created REAL NOT NULL,
    next_at REAL,
    key_hash INTEGER,
    size INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    checks INTEGER NOT NULL DEFAULT 0,
    partition INTEGER,
    shard INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT {STATES["LOCAL_COMMIT"]},
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    message_key BLOB,
    headers TEXT,
    cause TEXT,
    tx_id TEXT NOT NULL DEFAULT '',
    producer_group TEXT NOT NULL DEFAULT '',
    barrier_in TEXT NOT NULL DEFAULT '',
    value BLOB
);
CREATE INDEX IF NOT EXISTS ackwise_outbox_to_send ON ackwise_outbox (id) WHERE state = {STATES["LOCAL_COMMIT"]};
CREATE INDEX IF NOT EXISTS ackwise_outbox_failed ON ackwise_outbox (key_hash, id) WHERE attempts > 0;
CREATE INDEX IF NOT EXISTS ackwise_outbox_due ON ackwise_outbox (next_at) WHERE state = {STATES["LOCAL_COMMIT"]} AND next_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS ackwise_outbox_prepared ON ackwise_outbox (next_at) WHERE state = {STATES["PREPARED"]};
CREATE INDEX IF NOT EXISTS ackwise_outbox_of_transaction ON ackwise_outbox (tx_id) WHERE tx_id <> '';
CREATE INDEX IF NOT EXISTS ackwise_outbox_parked ON ackwise_outbox (id) WHERE state = {STATES["MESSAGE_ERROR"]};
CREATE INDEX IF NOT EXISTS ackwise_outbox_ended ON ackwise_outbox (id) WHERE state = {STATES["LOCAL_ROLLBACK"]};
CREATE INDEX IF NOT EXISTS ackwise_outbox_sent ON ackwise_outbox (next_at) WHERE state = {STATES["GLOBAL_COMMIT"]};
CREATE TABLE IF NOT EXISTS ackwise_outbox_shard (
    shard INTEGER PRIMARY KEY, token INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '', leased_until REAL NOT NULL DEFAULT 0
);
WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n < {SHARDS - 1})
INSERT OR IGNORE INTO ackwise_outbox_shard (shard) SELECT n FROM numbers;
CREATE TABLE IF NOT EXISTS ackwise_outbox_relay (owner TEXT PRIMARY KEY, leased_until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ackwise_outbox_barrier (tx_id TEXT PRIMARY KEY, outcome TEXT NOT NULL, created REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ackwise_outbox_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO ackwise_outbox_meta VALUES ('database_id', lower(hex(randomblob(16))));
"""


def create(connection: sqlite3.Connection) -> None:
    """Create what is missing."""
    connection.executescript(_DDL)


def as_error(file: File, error: sqlite3.Error) -> ConfigurationError | StoreUnavailable:
    """Return the error for what SQLite raised."""
    if "no such table: ackwise_outbox" in str(error):
        return ConfigurationError(
            f"{file.path}: the tables of the outbox are missing where the connection leads; open the outbox once, or run "
            "`ackwise outbox init URL`, and connect to this file"
        )
    return file.unavailable(error)
