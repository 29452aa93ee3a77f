"""The tables of claim store, inbox and outbox, and their versions: looked up, and created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.postgres import offsets
from ackwise.stores.postgres.partitions import PATIENCE, partition_ahead, take_turn
from ackwise.stores.postgres.tables import HALF_FREE, Tables
from ackwise.stores.protocol.purpose import CLAIMS, Purpose

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["VERSION", "add_holder", "create", "keeps_owners", "require_tables", "version"]

VERSION: Final = 1
"""Of the claims' tables, of the inbox's and of the outbox's."""

_EARLIEST: Final = 14
"""The first PostgreSQL that reads a range of a table's pages, which the cleanup does."""

# The columns stand in an order that wastes nothing to alignment, and none may be null: 88 bytes for a record with its header, or
# some 45 more while somebody holds it who has a name. That came later, so older versions must do without it: they insert what they know.
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
    {}"""
_HOLDER = "holder text NOT NULL DEFAULT ''"

# Each record is written twice in its transaction, when it is taken and when it is finished.
_INBOX = """
    k uuid PRIMARY KEY,
    exec_id bigint NOT NULL,
    origin_offset bigint NOT NULL,
    kept_until timestamptz NOT NULL,
    origin_partition int NOT NULL,
    next_attempt int NOT NULL,
    outcome smallint NOT NULL,
    origin_topic text NOT NULL"""

_HOLDERS = """
SELECT count(*) = 2 FROM pg_attribute
WHERE attrelid IN (to_regclass($1), to_regclass($2)) AND attname = 'holder' AND NOT attisdropped
"""


async def version(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose) -> int | None:
    """Return the version of the tables; `None` if they are missing."""
    if await connection.fetchval("SELECT to_regclass($1) IS NULL", tables.versions):
        return None
    found: int | None = await connection.fetchval(f"SELECT version FROM {tables.versions} WHERE part = '{purpose.part}'")
    return found


async def require_tables(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, address: str) -> None:
    """Raise `ConfigurationError` for tables that are missing, or that only a newer Ackwise knows."""
    found = await version(connection, tables, purpose)
    if found is None:
        raise ConfigurationError(purpose.not_there(address))
    purpose.require_version(found, VERSION, address)


async def create(
    connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, address: str, ddl: str | None = None
) -> None:
    """Create what is missing, with the statements `ddl` where they are not those of claims or inbox.

    Raise `ConfigurationError` if a newer Ackwise was here, and what asyncpg raises.
    """
    if (major := connection.get_server_version().major) < _EARLIEST:
        raise ConfigurationError(f"{address}: PostgreSQL {major} is too old for the {purpose.tables}; it needs {_EARLIEST} or later")
    async with connection.transaction():
        await take_turn(connection, tables)
        found = await version(connection, tables, purpose)
        if found is None:
            await _create_tables(connection, tables, purpose, ddl)
        else:
            purpose.require_version(found, VERSION, address)
    if purpose is CLAIMS:
        await partition_ahead(connection, tables)


async def _create_tables(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, ddl: str | None) -> None:
    if tables.schema_name is not None and await connection.fetchval("SELECT to_regnamespace($1) IS NULL", tables.schema_name):
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {tables.schema_name}")
    await connection.execute(f"""
        CREATE TABLE IF NOT EXISTS {tables.versions} (part text PRIMARY KEY, version int NOT NULL);
        {ddl or (_of_claims(tables) if purpose is CLAIMS else _of_inbox(tables))};
        INSERT INTO {tables.versions} VALUES ('{purpose.part}', {VERSION}) ON CONFLICT DO NOTHING""")


def _of_claims(tables: Tables) -> str:
    return f"""
        CREATE TABLE IF NOT EXISTS {tables.claims} ({_CLAIMS.format("", _HOLDER)}, PRIMARY KEY (k)) {HALF_FREE};
        CREATE TABLE IF NOT EXISTS {tables.daily_claims} ({_CLAIMS.format(" day bigint NOT NULL,", _HOLDER)}, PRIMARY KEY (day, k))
            PARTITION BY RANGE (day);
        CREATE TABLE IF NOT EXISTS {tables.other_days} PARTITION OF {tables.daily_claims} DEFAULT {HALF_FREE}"""


def _of_inbox(tables: Tables) -> str:
    return f"""
        CREATE TABLE IF NOT EXISTS {tables.named("inbox")} ({_INBOX}) {HALF_FREE};
        CREATE TABLE IF NOT EXISTS {tables.named("offsets")} ({offsets.COLUMNS}) {HALF_FREE}"""


async def keeps_owners(connection: Connection | PoolConnectionProxy, tables: Tables) -> bool:
    """Return whether the tables have a place for the owner of a claim; those of older versions have none."""
    return bool(await connection.fetchval(_HOLDERS, tables.claims, tables.daily_claims))


async def add_holder(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Make a place for the owners of claims, beside running workers of any version, which wait for it for a second at most.

    Raises `StoreUnavailable` if somebody uses the tables for longer, and what asyncpg raises; then all goes on without owners.
    """
    if await keeps_owners(connection, tables):
        return
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {PATIENCE}; SET LOCAL statement_timeout = {PATIENCE}")
            await take_turn(connection, tables)
            if not await keeps_owners(connection, tables):
                # As the exchanges lock them: the undated first.
                await connection.execute(f"ALTER TABLE {tables.claims} ADD COLUMN IF NOT EXISTS {_HOLDER}")
                await connection.execute(f"ALTER TABLE {tables.daily_claims} ADD COLUMN IF NOT EXISTS {_HOLDER}")
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError):
        raise StoreUnavailable(
            f"{address}: a long transaction uses the tables of the claim store, so they could not get the column for owners; "
            "look for it in pg_stat_activity, and run `ackwise store init URL` again"
        ) from None
