"""The tables of claim store, inbox and outbox, and their versions: looked up, and created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres import offsets
from ackwise.stores.postgres.partitions import partition_ahead, take_turn
from ackwise.stores.postgres.tables import HALF_FREE, Tables
from ackwise.stores.protocol.purpose import CLAIMS, Purpose

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["create", "require_tables", "version"]

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


async def version(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose) -> int | None:
    """Return the version of the tables; `None` if they are missing."""
    if await connection.fetchval("SELECT to_regclass($1) IS NULL", tables.versions):
        return None
    found: int | None = await connection.fetchval(f"SELECT version FROM {tables.versions} WHERE part = '{purpose.part}'")
    return found


async def require_tables(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, address: str) -> None:
    """Raise `ConfigurationError` for tables that are missing, or of another version than ours."""
    found = await version(connection, tables, purpose)
    if found is None:
        raise ConfigurationError(purpose.not_there(address))
    purpose.require_version(found, address)


async def create(
    connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, address: str, ddl: str | None = None
) -> None:
    """Create what is missing, with the statements `ddl` where they are not those of claims or inbox.

    Raise `ConfigurationError` for tables of another version than ours, and what asyncpg raises.
    """
    if (major := connection.get_server_version().major) < _EARLIEST:
        raise ConfigurationError(f"{address}: PostgreSQL {major} is too old for the {purpose.tables}; it needs {_EARLIEST} or later")
    async with connection.transaction():
        await take_turn(connection, tables)
        found = await version(connection, tables, purpose)
        if found is None:
            await _create_tables(connection, tables, purpose, ddl)
        else:
            purpose.require_version(found, address)
    if purpose is CLAIMS:
        await partition_ahead(connection, tables)


async def _create_tables(connection: Connection | PoolConnectionProxy, tables: Tables, purpose: Purpose, ddl: str | None) -> None:
    if tables.schema_name is not None and await connection.fetchval("SELECT to_regnamespace($1) IS NULL", tables.schema_name):
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {tables.schema_name}")
    await connection.execute(f"""
        CREATE TABLE IF NOT EXISTS {tables.versions} (part text PRIMARY KEY, version int NOT NULL);
        {ddl or (_of_claims(tables) if purpose is CLAIMS else _of_inbox(tables))};
        INSERT INTO {tables.versions} VALUES ('{purpose.part}', {purpose.version}) ON CONFLICT DO NOTHING""")


def _of_claims(tables: Tables) -> str:
    return f"""
        CREATE TABLE IF NOT EXISTS {tables.claims} ({_CLAIMS.format("")}, PRIMARY KEY (k)) {HALF_FREE};
        CREATE TABLE IF NOT EXISTS {tables.daily_claims} ({_CLAIMS.format(" day bigint NOT NULL,")}, PRIMARY KEY (day, k))
            PARTITION BY RANGE (day);
        CREATE TABLE IF NOT EXISTS {tables.other_days} PARTITION OF {tables.daily_claims} DEFAULT {HALF_FREE}"""


def _of_inbox(tables: Tables) -> str:
    return f"""
        CREATE TABLE IF NOT EXISTS {tables.named("inbox")} ({_INBOX}) {HALF_FREE};
        CREATE TABLE IF NOT EXISTS {tables.named("offsets")} ({offsets.COLUMNS}) {HALF_FREE}"""
