"""`OutboxTables`: the tables of an outbox in PostgreSQL, as SQL; and what creates them."""

from __future__ import annotations

import hashlib
from typing import Final

from ackwise.middleware.outbox import SHARDS
from ackwise.stores.postgres.tables import HALF_FREE, Tables
from ackwise.stores.sql.outbox.dialect import STATES, TABLES

__all__ = ["OutboxTables"]

# The columns stand in an order that wastes nothing to alignment. Rows come and go, so vacuum comes after a number of changes, whatever the
# size of the table. The indexes are partial: an ordinary row is in two of them, by its id among all, and by its id among those to be sent.
_DDL: Final = """
CREATE TABLE IF NOT EXISTS {rows} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at timestamptz,
    key_hash bigint,
    size int NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    checks int NOT NULL DEFAULT 0,
    partition int,
    shard smallint NOT NULL,
    state smallint NOT NULL DEFAULT {LOCAL_COMMIT},
    behind boolean NOT NULL DEFAULT false,
    message_id text NOT NULL,
    topic text NOT NULL,
    message_key bytea,
    value bytea,
    headers text,
    cause text,
    tx_id text NOT NULL DEFAULT '',
    producer_group text NOT NULL DEFAULT '',
    barrier_in text NOT NULL DEFAULT '')
    WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX ON {rows} (id) WHERE state = {LOCAL_COMMIT} AND NOT behind;
CREATE INDEX ON {rows} (key_hash, id) WHERE key_hash IS NOT NULL AND (attempts > 0 OR behind);
CREATE INDEX ON {rows} (next_at) WHERE state = {LOCAL_COMMIT} AND next_at IS NOT NULL;
CREATE INDEX ON {rows} (next_at) WHERE state = {PREPARED};
CREATE INDEX ON {rows} (tx_id) WHERE tx_id <> '';
CREATE INDEX ON {rows} (id) WHERE state = {MESSAGE_ERROR};
CREATE INDEX ON {rows} (id) WHERE state = {LOCAL_ROLLBACK};
CREATE INDEX ON {rows} (next_at) WHERE state = {GLOBAL_COMMIT};
CREATE TABLE IF NOT EXISTS {shards} (
    token bigint NOT NULL DEFAULT 0, leased_until timestamptz NOT NULL DEFAULT '-infinity',
    shard smallint PRIMARY KEY, owner text NOT NULL DEFAULT '') {half_free};
INSERT INTO {shards} (shard) SELECT generate_series(0, {last_shard}) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS {relays} (
    owner text PRIMARY KEY, leased_until timestamptz NOT NULL, idle_until timestamptz) {half_free};
CREATE TABLE IF NOT EXISTS {barrier} (
    tx_id text PRIMARY KEY, outcome char(1) NOT NULL, created timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS {meta} (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO {meta} VALUES ('database_id', replace(gen_random_uuid()::text, '-', '')) ON CONFLICT DO NOTHING"""


class OutboxTables:
    """The tables of the outbox beside the other ones of `tables`."""

    def __init__(self, tables: Tables) -> None:
        self.all = tables
        self.names = {word: tables.named(name) for word, name in TABLES.items()}  #: what statements are formatted with
        self.rows = self.names["rows"]

    @property
    def channel(self) -> str:
        """Of the notifications: a name of any length would be cut."""
        return f"ackwise_outbox_{hashlib.blake2b(self.rows.encode(), digest_size=8).hexdigest()}"

    @property
    def ddl(self) -> str:
        """Creates what is missing."""
        return _DDL.format(**self.names, **STATES, half_free=HALF_FREE, last_shard=SHARDS - 1)
