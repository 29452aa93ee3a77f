"""Complaints about the tables and settings of a claim store or an inbox, for `ackwise store check`, and what `open` refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres import schema
from ackwise.stores.postgres.partitions import partitions, today
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol.purpose import CLAIMS, INBOX

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["claims_complaints", "inbox_complaints", "missing_rights", "require_durable", "require_rights"]

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

_INDEXES = """
SELECT DISTINCT i.indexrelid::regclass::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid IN (
    SELECT to_regclass($1) UNION ALL SELECT to_regclass($2) UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($2)
) AND a.attname NOT IN ('k', 'day')
"""


async def claims_complaints(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> list[str]:
    """Return one sentence for each, with what to do."""
    found = await schema.version(connection, tables, CLAIMS)
    if found is None:
        return [CLAIMS.not_there(address)]
    CLAIMS.require_version(found, address)
    said = await missing_rights(connection, (tables.claims, tables.daily_claims), "SELECT", "INSERT", "UPDATE", "DELETE")
    if not said:
        said += await _missing_partitions(connection, tables)
        said += await _forgotten(connection, tables.claims, tables.daily_claims)
        said += await _costly_indexes(connection, tables)
    return [f"{address}: {complaint}" for complaint in said]


async def inbox_complaints(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> list[str]:
    """Return one sentence for each, with what to do. Raise `ConfigurationError` as `open` does."""
    if await schema.version(connection, tables, INBOX) is None:
        return [INBOX.not_there(address)]
    await schema.require_tables(connection, tables, INBOX, address)
    await require_durable(connection, address)
    inbox = tables.named("inbox")
    if missing := await missing_rights(connection, [inbox], "SELECT", "INSERT", "UPDATE", "DELETE"):
        return [f"{address}: {missing[0]}"]
    return [f"{address}: {complaint}" for complaint in await _forgotten(connection, inbox)]


async def require_durable(connection: Connection | PoolConnectionProxy, address: str) -> None:
    """Raise `ConfigurationError` if a commit can be forgotten after Kafka was told that its messages are done."""
    if await connection.fetchval("SHOW synchronous_commit") == "off":
        raise ConfigurationError(
            f"{address}: synchronous_commit is off, so a crash of the server can lose what Kafka was told is done; "
            "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )


async def require_rights(connection: Connection | PoolConnectionProxy, among: Sequence[str], address: str) -> None:
    """Raise `ConfigurationError` if the user may not do with the tables `among` what every exchange or batch does."""
    if missing := await missing_rights(connection, among, "SELECT", "INSERT", "UPDATE"):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def missing_rights(connection: Connection | PoolConnectionProxy, among: Sequence[str], *needed: str) -> list[str]:
    """One sentence for each table `among` these that the user may do less with than is `needed`."""
    said = []
    for table in among:
        may = await connection.fetch("SELECT r, has_table_privilege(to_regclass($1), r) FROM unnest($2::text[]) AS r", table, needed)
        if missing := [right for right, granted in may if not granted]:
            said.append(f"this user has no right to {', '.join(missing)} on {table}; let its owner grant it")
    return said


async def _missing_partitions(connection: Connection | PoolConnectionProxy, tables: Tables) -> list[str]:
    tomorrow = await today(connection) + 1
    if tomorrow in await partitions(connection, tables):
        return []
    return [f"{tables.daily_claims} has no partition for tomorrow; let its owner run `ackwise store cleanup URL` every day"]


async def _forgotten(connection: Connection | PoolConnectionProxy, *among: str) -> list[str]:
    many = "SELECT count(*) = $1 FROM (SELECT FROM {} WHERE kept_until <= clock_timestamp() LIMIT $1::bigint) AS found"
    return [
        f"{table} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day"
        for table in among
        if await connection.fetchval(many.format(table), _MANY)
    ]


async def _costly_indexes(connection: Connection | PoolConnectionProxy, tables: Tables) -> list[str]:
    return [
        f"the index {name} has a column that every exchange changes, which makes each update slow and large; drop it"
        for (name,) in await connection.fetch(_INDEXES, tables.claims, tables.daily_claims)
    ]
