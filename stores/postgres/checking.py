"""What is wrong or unwise about a claim store's tables, for `ackwise store check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ackwise.stores.postgres import schema
from ackwise.stores.postgres.tables import Tables

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["complaints", "missing_rights"]

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

_INDEXES = """
SELECT DISTINCT i.indexrelid::regclass::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid IN (
    SELECT to_regclass($1) UNION ALL SELECT to_regclass($2) UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($2)
) AND a.attname NOT IN ('k', 'day')
"""

_NAMELESS = (
    "its claims can't name their owner, so what a dead worker held waits until its lease ends; "
    "let an owner run `ackwise store init URL`, then start the workers anew"
)


async def complaints(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> list[str]:
    """One sentence for each, with what to do."""
    found = await schema.version(connection, tables)
    if found is None:
        return [f"{address}: the tables of the claim store are missing; run `ackwise store init URL`"]
    schema.require_version(found, address)
    said = await missing_rights(connection, (tables.claims, tables.daily_claims), "SELECT", "INSERT", "UPDATE", "DELETE")
    if not await schema.keeps_owners(connection, tables):
        said.append(_NAMELESS)
    if not said:
        said += await _missing_partitions(connection, tables)
        said += await _forgotten(connection, tables)
        said += await _costly_indexes(connection, tables)
    return [f"{address}: {complaint}" for complaint in said]


async def missing_rights(connection: Connection | PoolConnectionProxy, among: Sequence[str], *needed: str) -> list[str]:
    """One sentence for each table `among` these that the user may do less with than is `needed`."""
    said = []
    for table in among:
        may = await connection.fetch("SELECT r, has_table_privilege(to_regclass($1), r) FROM unnest($2::text[]) AS r", table, needed)
        if missing := [right for right, granted in may if not granted]:
            said.append(f"this user has no right to {', '.join(missing)} on {table}; let its owner grant it")
    return said


async def _missing_partitions(connection: Connection | PoolConnectionProxy, tables: Tables) -> list[str]:
    tomorrow = await schema.today(connection) + 1
    if tomorrow in await schema.partitions(connection, tables):
        return []
    return [f"{tables.daily_claims} has no partition for tomorrow; let its owner run `ackwise store cleanup URL` every day"]


async def _forgotten(connection: Connection | PoolConnectionProxy, tables: Tables) -> list[str]:
    many = "SELECT count(*) = $1 FROM (SELECT FROM {} WHERE kept_until <= clock_timestamp() LIMIT $1::bigint) AS found"
    return [
        f"{table} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day"
        for table in (tables.claims, tables.daily_claims)
        if await connection.fetchval(many.format(table), _MANY)
    ]


async def _costly_indexes(connection: Connection | PoolConnectionProxy, tables: Tables) -> list[str]:
    return [
        f"the index {name} has a column that every exchange changes, which makes each update slow and large; drop it"
        for (name,) in await connection.fetch(_INDEXES, tables.claims, tables.daily_claims)
    ]
