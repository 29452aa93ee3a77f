"""The tables of claim store and inbox, with a partition of the claims for each day, and the statements that create them."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.tables import HALF_FREE, TYPES, Tables
from ackwise.stores.protocol.options import CLAIMS, INBOX, OUTBOX, Purpose
from ackwise.stores.sql.operation import Failure, Packet, Problem, Statement, Steps
from ackwise.stores.sql.schema import Layout, inbox, names_of, outbox, versions

BEGIN: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT: Final = Statement("COMMIT")
ROLLBACK: Final = Statement("ROLLBACK")

_BEHIND, _AHEAD = 1, 3
"""Days before and after today that get a partition; others share one."""

PATIENCE = 1000
"""Milliseconds that the workers may have to wait for a change of the tables."""

_PARTITIONS: Final = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""
_OWNS: Final = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass($1)"
_TODAY: Final = Statement("SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint")


def may_alter(tables: Tables) -> Steps[bool]:
    """Return whether the user owns the partitioned table, so that partitions can be made and dropped."""
    (owns,) = yield [Statement(_OWNS, (tables.daily_claims,))]
    return bool(owns.rows and owns.rows[0][0])


def partitions(tables: Tables) -> Steps[Mapping[int, str]]:
    """Return the days that have their own partition, with its name."""
    (found,) = yield [Statement(_PARTITIONS, (tables.daily_claims,))]
    days = {name: re.match(r"FOR VALUES FROM \('?(-?\d+)'?\)", bound) for name, bound in found.rows}
    return {int(day[1]): tables.sibling(name) for name, day in days.items() if day}


def today() -> Steps[int]:
    """Return the day of the server's clock, counted from 1970-01-01."""
    (day,) = yield [_TODAY]
    return int(day.rows[0][0])


def partition_ahead(tables: Tables) -> Steps[None]:
    """Make partitions for the days around today that have none, as far as it goes without waiting long or moving records."""
    there = yield from partitions(tables)
    now = yield from today()
    for day in range(now - _BEHIND, now + _AHEAD + 1):
        if day not in there:
            yield from _partition(tables, day)


def _partition(tables: Tables, day: int) -> Steps[None]:
    create = (
        f"CREATE TABLE IF NOT EXISTS {tables.of_day(_date(day))} PARTITION OF {tables.daily_claims} "
        f"FOR VALUES FROM ({day}) TO ({day + 1}) {HALF_FREE}"
    )
    try:
        yield [BEGIN, patience(PATIENCE), turn(tables), Statement(create), COMMIT]
    except Failure as failure:
        # Records of this day are in the partition for other days already, which may be too large to see; or long transactions
        # use the table. The day goes on there.
        if failure.problem is not Problem.BUSY and not isinstance(failure.error, asyncpg.CheckViolationError):
            raise
        yield [ROLLBACK]


def patience(milliseconds: int) -> Statement:
    """Let no statement of the transaction wait for longer."""
    return Statement(f"SET LOCAL lock_timeout = {milliseconds:d}; SET LOCAL statement_timeout = {milliseconds:d}")


def turn(tables: Tables) -> Statement:
    """Until the end of the transaction no other session creates: CREATE … IF NOT EXISTS fails for all but one of those who try at once."""
    return Statement("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (tables.named("schema"),))


def _date(day: int) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=day)


_EARLIEST: Final = 14
"""The first PostgreSQL that reads a range of a table's pages, which the cleanup does."""

# The columns stand in an order that wastes nothing to alignment, and none may be null: 88 bytes for a record with its header, or
# some 45 more while a named session holds it.
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
    # The session before may have made them all, and an index without a name would be made again.
    yield [Statement("; ".join(others)), COMMIT] if inserted.changed else [COMMIT]


def _of_schema(tables: Tables) -> Steps[Packet]:
    """Return what creates the schema; for an existing one it would take a right that is not needed."""
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
