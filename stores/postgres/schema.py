"""The tables of claim store and inbox, and what creates those of all parts."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.partitions import BEGIN, COMMIT, turn
from ackwise.stores.postgres.tables import HALF_FREE, TYPES, Tables
from ackwise.stores.protocol.purpose import CLAIMS, INBOX, OUTBOX, Purpose
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.schema import Layout
from ackwise.stores.sql.tables import inbox, names_of, outbox, versions

_EARLIEST: Final = 14
"""The first PostgreSQL that reads a range of a table's pages, which the cleanup does."""

# The columns stand in an order that wastes nothing to alignment, and none may be null: 88 bytes for a record with its header, or
# some 45 more while somebody holds it who has a name.
_CLAIMS = """
    k uuid NOT NULL,{}
    token bigint NOT NULL,
    leased_until timestamptz NOT NULL,
    kept_until timestamptz NOT NULL,
    epoch int NOT NULL,
    next_attempt int NOT NULL,
    lost int NOT NULL,
    outcome smallint NOT NULL,
    took_unreleased boolean NOT NULL,
    holder text NOT NULL"""


def layout(tables: Tables, purpose: Purpose, address: str) -> Layout:
    """Return the tables of `purpose`."""
    version = Statement(f"SELECT version FROM {tables.named('schema')} WHERE part = $1", (purpose.part,))
    return Layout(purpose, address, version, functools.partial(_create, tables, purpose, address))


def found(tables: Tables) -> Steps[Tables]:
    """Return the tables, which are there, with the schema that they are in: where a search path leads may change."""
    where = "SELECT nspname FROM pg_namespace JOIN pg_class ON pg_namespace.oid = relnamespace WHERE pg_class.oid = to_regclass($1)"
    (answer,) = yield [Statement(where, (tables.named("schema"),))]
    return replace(tables, schema=answer.rows[0][0])


def ddl(tables: Tables, purpose: Purpose) -> list[str]:
    """Return statements that create what is missing."""
    names = names_of(tables)
    made = {CLAIMS: lambda: _of_claims(tables), INBOX: lambda: inbox(TYPES, names), OUTBOX: lambda: outbox(TYPES, names)}[purpose]()
    return [versions(TYPES, names), *made]


def _create(tables: Tables, purpose: Purpose, address: str) -> Steps[None]:
    (said,) = yield [Statement("SELECT current_setting('server_version_num')::int / 10000")]
    if (major := said.rows[0][0]) < _EARLIEST:
        raise ConfigurationError(f"{address}: PostgreSQL {major} is too old for the {purpose.tables}; it needs {_EARLIEST} or later")
    insert = f"INSERT INTO {tables.named('schema')} VALUES ($1, $2) ON CONFLICT DO NOTHING"
    ours, *others = ddl(tables, purpose)
    version = Statement(insert, (purpose.part, purpose.version))
    *_, inserted = yield [BEGIN, turn(tables), *(yield from _of_schema(tables)), Statement(ours), version]
    # Whoever had the turn before may have made them all, and an index without a name would be made again.
    yield [Statement("; ".join(others)), COMMIT] if inserted.changed else [COMMIT]


def _of_schema(tables: Tables) -> Steps[Packet]:
    """Return what creates the schema; for one that is there it would take a right that nobody needs."""
    if tables.schema_name is None:
        return []
    (missing,) = yield [Statement("SELECT to_regnamespace($1) IS NULL", (tables.schema_name,))]
    return [Statement(f"CREATE SCHEMA IF NOT EXISTS {tables.schema_name}")] if missing.rows[0][0] else []


def _of_claims(tables: Tables) -> list[str]:
    return [
        f"CREATE TABLE IF NOT EXISTS {tables.claims} ({_CLAIMS.format('')}, PRIMARY KEY (k)) {HALF_FREE}",
        f"CREATE TABLE IF NOT EXISTS {tables.daily_claims} ({_CLAIMS.format(' day bigint NOT NULL,')}, PRIMARY KEY (day, k)) "
        "PARTITION BY RANGE (day)",
        f"CREATE TABLE IF NOT EXISTS {tables.other_days} PARTITION OF {tables.daily_claims} DEFAULT {HALF_FREE}",
    ]
