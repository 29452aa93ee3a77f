"""The store's tables: made, looked at, and partitioned ahead of the days to come."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.postgres.tables import Tables

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = [
    "VERSION",
    "add_holder",
    "create",
    "keeps_owners",
    "may_alter",
    "partition_ahead",
    "partitions",
    "require_version",
    "today",
    "version",
]

VERSION = 1
"""Of the claims' tables."""

_EARLIEST = 14
"""The first PostgreSQL that reads a range of a table's pages, which the cleanup does."""

_BEHIND, _AHEAD = 1, 3
"""Days before and after today that get a partition; others share one."""

# The columns stand in an order that wastes nothing to alignment, and none may be null: 88 bytes for a record with its header, or
# some 45 more while somebody holds it who has a name. That came later, so older versions must do without it: they insert what they know.
_COLUMNS = """
    k uuid NOT NULL,{}
    token bigint NOT NULL,
    leased_until timestamptz NOT NULL,
    kept_until timestamptz NOT NULL,
    epoch int NOT NULL,
    next_attempt int NOT NULL,
    lost int NOT NULL,
    outcome smallint NOT NULL,
    took_unreleased boolean NOT NULL,
    {}"""
_HOLDER = "holder text NOT NULL DEFAULT ''"

# Half of each page stays free, and no index holds a column that changes: so the new version of a record finds room beside the
# old one, and no index has to know of it.
_HALF_FREE = "WITH (fillfactor = 50)"

_PATIENCE = 1000
"""Milliseconds that the workers may have to wait for a change of the tables."""

_HOLDERS = """
SELECT count(*) = 2 FROM pg_attribute
WHERE attrelid IN (to_regclass($1), to_regclass($2)) AND attname = 'holder' AND NOT attisdropped
"""

_PARTITIONS = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""


async def version(connection: Connection | PoolConnectionProxy, tables: Tables) -> int | None:
    """Which version the tables have; `None` if they are missing."""
    if await connection.fetchval("SELECT to_regclass($1) IS NULL", tables.versions):
        return None
    found: int | None = await connection.fetchval(f"SELECT version FROM {tables.versions} WHERE part = 'claims'")
    return found


def require_version(found: int, address: str) -> None:
    """Raises `ConfigurationError` for a version that only a newer Ackwise knows."""
    if found > VERSION:
        raise ConfigurationError(
            f"{address}: its claims have version {found}, and this Ackwise knows version {VERSION}; upgrade, or choose another prefix"
        )


async def create(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Create what is missing. Raises `ConfigurationError` if a newer Ackwise was here, and what asyncpg raises."""
    if (major := connection.get_server_version().major) < _EARLIEST:
        raise ConfigurationError(f"{address}: PostgreSQL {major} is too old for the claim store; it needs {_EARLIEST} or later")
    async with connection.transaction():
        await _take_turn(connection, tables)
        found = await version(connection, tables)
        if found is None:
            await _create_tables(connection, tables)
        else:
            require_version(found, address)
    await partition_ahead(connection, tables)


async def _create_tables(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    if tables.schema_name is not None and await connection.fetchval("SELECT to_regnamespace($1) IS NULL", tables.schema_name):
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {tables.schema_name}")
    await connection.execute(f"""
        CREATE TABLE IF NOT EXISTS {tables.versions} (part text PRIMARY KEY, version int NOT NULL);
        CREATE TABLE IF NOT EXISTS {tables.claims} ({_COLUMNS.format("", _HOLDER)}, PRIMARY KEY (k)) {_HALF_FREE};
        CREATE TABLE IF NOT EXISTS {tables.daily_claims} ({_COLUMNS.format(" day bigint NOT NULL,", _HOLDER)}, PRIMARY KEY (day, k))
            PARTITION BY RANGE (day);
        CREATE TABLE IF NOT EXISTS {tables.other_days} PARTITION OF {tables.daily_claims} DEFAULT {_HALF_FREE};
        INSERT INTO {tables.versions} VALUES ('claims', {VERSION}) ON CONFLICT DO NOTHING""")


async def keeps_owners(connection: Connection | PoolConnectionProxy, tables: Tables) -> bool:
    """Whether the tables have a place for the owner of a claim; those of older versions have none."""
    return bool(await connection.fetchval(_HOLDERS, tables.claims, tables.daily_claims))


async def add_holder(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Make a place for the owners of claims, beside running workers of any version, which wait for it for a second at most.

    Raises `StoreUnavailable` if somebody uses the tables for longer, and what asyncpg raises; then all goes on without owners.
    """
    if await keeps_owners(connection, tables):
        return
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {_PATIENCE}; SET LOCAL statement_timeout = {_PATIENCE}")
            await _take_turn(connection, tables)
            if not await keeps_owners(connection, tables):
                # As the exchanges lock them: the undated first.
                await connection.execute(f"ALTER TABLE {tables.claims} ADD COLUMN IF NOT EXISTS {_HOLDER}")
                await connection.execute(f"ALTER TABLE {tables.daily_claims} ADD COLUMN IF NOT EXISTS {_HOLDER}")
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError):
        raise StoreUnavailable(
            f"{address}: a long transaction uses the tables of the claim store, so they could not get the column for owners; "
            "look for it in pg_stat_activity, and run `ackwise store init URL` again"
        ) from None


async def may_alter(connection: Connection | PoolConnectionProxy, tables: Tables) -> bool:
    """Whether the user owns the partitioned table, so that partitions can be made and dropped."""
    owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass($1)"
    return bool(await connection.fetchval(owns, tables.daily_claims))


async def partitions(connection: Connection | PoolConnectionProxy, tables: Tables) -> Mapping[int, str]:
    """The days that have a partition of their own, with its name."""
    found = await connection.fetch(_PARTITIONS, tables.daily_claims)
    days = {name: re.match(r"FOR VALUES FROM \('?(-?\d+)'?\)", bound) for name, bound in found}
    return {int(day[1]): tables.sibling(name) for name, day in days.items() if day}


async def today(connection: Connection | PoolConnectionProxy) -> int:
    """The day of the server's clock, counted from 1970-01-01."""
    return int(await connection.fetchval("SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint"))


async def partition_ahead(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    """Make partitions for the days around today that have none, as far as it goes without waiting long or moving records."""
    there, now = await partitions(connection, tables), await today(connection)
    for day in range(now - _BEHIND, now + _AHEAD + 1):
        if day in there:
            continue
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {_PATIENCE}; SET LOCAL statement_timeout = {_PATIENCE}")
                await _take_turn(connection, tables)
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {tables.of_day(_date(day))} PARTITION OF {tables.daily_claims} "
                    f"FOR VALUES FROM ({day}) TO ({day + 1}) {_HALF_FREE}"
                )
        except (asyncpg.CheckViolationError, asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
            # Records of this day are in the partition for other days already, which may be too large to see; or long transactions
            # use the table. The day goes on there.
            continue


async def _take_turn(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    """Until the end of the transaction nobody else creates: CREATE … IF NOT EXISTS fails for all but one of those who try at once."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", tables.versions)


def _date(day: int) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
