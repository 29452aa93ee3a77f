"""The table of an inbox in PostgreSQL: made, looked at, and rid of what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres import offsets
from ackwise.stores.postgres.checking import missing_rights
from ackwise.stores.postgres.maintenance import believed_now, forget
from ackwise.stores.postgres.tables import Tables

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["VERSION", "clean", "complaints", "create", "require_durable", "require_rights", "require_table", "version"]

VERSION = 1

_EARLIEST = 14
"""The first PostgreSQL that reads a range of a table's pages, which the cleanup does."""

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

# Each record is written twice in its transaction, when it is taken and when it is finished: half of each page stays free for that,
# and no index holds a column that changes, so that no index has to know of the second time.
_COLUMNS = """
    k uuid PRIMARY KEY,
    exec_id bigint NOT NULL,
    origin_offset bigint NOT NULL,
    kept_until timestamptz NOT NULL,
    origin_partition int NOT NULL,
    next_attempt int NOT NULL,
    outcome smallint NOT NULL,
    origin_topic text NOT NULL"""


async def version(connection: Connection | PoolConnectionProxy, tables: Tables) -> int | None:
    """Which version the table has; `None` if it is missing."""
    if await connection.fetchval("SELECT to_regclass($1) IS NULL", tables.versions):
        return None
    found: int | None = await connection.fetchval(f"SELECT version FROM {tables.versions} WHERE part = 'inbox'")
    return found


async def require_table(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Raises `ConfigurationError` if it is missing, or only a newer Ackwise knows it."""
    if (found := await version(connection, tables)) is None:
        raise ConfigurationError(f"{address}: the table of the inbox is missing; run `ackwise store init URL`")
    _require_version(found, address)


async def require_rights(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Raises `ConfigurationError` if the user may not do what every batch does."""
    if missing := await missing_rights(connection, [tables.named("inbox"), tables.named("offsets")], "SELECT", "INSERT", "UPDATE"):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def require_durable(connection: Connection | PoolConnectionProxy, address: str) -> None:
    """Raises `ConfigurationError` if a commit can be forgotten after Kafka was told that its messages are done."""
    if await connection.fetchval("SHOW synchronous_commit") == "off":
        raise ConfigurationError(
            f"{address}: synchronous_commit is off, so a crash of the server can lose what Kafka was told is done; "
            "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )


async def create(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> None:
    """Create what is missing. Raises `ConfigurationError` if a newer Ackwise was here, and what asyncpg raises."""
    if (major := connection.get_server_version().major) < _EARLIEST:
        raise ConfigurationError(f"{address}: PostgreSQL {major} is too old for the inbox; it needs {_EARLIEST} or later")
    async with connection.transaction():
        # CREATE … IF NOT EXISTS fails for all but one of those who try at once.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", tables.versions)
        if (found := await version(connection, tables)) is not None:
            _require_version(found, address)
            return
        if tables.schema_name is not None and await connection.fetchval("SELECT to_regnamespace($1) IS NULL", tables.schema_name):
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {tables.schema_name}")
        await connection.execute(f"""
            CREATE TABLE IF NOT EXISTS {tables.versions} (part text PRIMARY KEY, version int NOT NULL);
            CREATE TABLE IF NOT EXISTS {tables.named("inbox")} ({_COLUMNS}) WITH (fillfactor = 50);
            CREATE TABLE IF NOT EXISTS {tables.named("offsets")} ({offsets.COLUMNS}) WITH (fillfactor = 50);
            INSERT INTO {tables.versions} VALUES ('inbox', {VERSION}) ON CONFLICT DO NOTHING""")


async def complaints(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> list[str]:
    """What is wrong or unwise, one sentence each with what to do."""
    if await version(connection, tables) is None:
        return [f"{address}: the table of the inbox is missing; run `ackwise store init URL`"]
    await require_table(connection, tables, address)
    await require_durable(connection, address)
    inbox = tables.named("inbox")
    if missing := await missing_rights(connection, [inbox], "SELECT", "INSERT", "UPDATE", "DELETE"):
        return [f"{address}: {missing[0]}"]
    many = f"SELECT count(*) = $1 FROM (SELECT FROM {inbox} WHERE kept_until <= clock_timestamp() LIMIT $1::bigint) AS found"
    if not await connection.fetchval(many, _MANY):
        return []
    return [f"{address}: {inbox} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day"]


async def clean(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> int:
    """Delete what is forgotten, some pages at a time, beside running workers; gives how many records."""
    await require_table(connection, tables, address)
    return await forget(connection, tables.named("inbox"), await believed_now(connection, address), "k")


def _require_version(found: int, address: str) -> None:
    if found > VERSION:
        raise ConfigurationError(
            f"{address}: its inbox has version {found}, and this Ackwise knows version {VERSION}; upgrade, or choose another prefix"
        )
