"""The cleanup of a claim store or an inbox: forgotten records are deleted, whole partitions where every record is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from ackwise.stores.postgres.partitions import may_alter, partition_ahead, partitions, today
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.serverclock import refuse_jumped

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["clean_claims", "clean_inbox"]

_PAGES_AT_ONCE = 128
"""Pages of one step, 1 MiB: some five thousand records."""

_YOUNGEST = 2
"""Days before today; younger partitions stay even if nothing in them is remembered, for records still come in."""

_KEY, _DAILY_KEY = ("k",), ("day", "k")

_PATIENCE = 1000
"""Milliseconds that the workers may have to wait for the end of a partition."""

_PAGES_AT_A_LOOK = 16384
"""Pages that are read at once to see whether a partition is forgotten, 128 MiB."""

_LOOK = """
SELECT count(*) AS records, coalesce(bool_or(kept_until > $3), false) AS remembered
FROM {} WHERE ctid >= $1::tid AND ctid < $2::tid
"""

_PAGES = """
SELECT coalesce(max(pg_relation_size(oid)), 0) / current_setting('block_size')::bigint
FROM (SELECT to_regclass($1)::oid AS oid UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)) AS of_one_table
"""

# Rows are found page by page: an index on `kept_until` would make every update of a record an update of that index too.
# Rows that somebody is writing are passed over, so that nobody waits for anybody here.
_FORGET = """
WITH forgotten AS (
    SELECT {key} FROM {table} WHERE ctid >= $1::tid AND ctid < $2::tid AND kept_until <= $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM {table} r USING forgotten f WHERE {same_key}
"""


async def _believed_now(connection: Connection | PoolConnectionProxy, address: str) -> datetime:
    """Return the server's clock. Raises `StoreUnavailable` if it jumped."""
    now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    refuse_jumped(now.timestamp(), address)
    return now


async def clean_claims(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> int:
    """Delete what is forgotten and make the partitions of the days to come; return how many records it deleted.

    A user who does not own the tables deletes records one by one, and partitions stay. Raises `StoreUnavailable` if the server's
    clock jumped; one that jumps from now on deletes no more than is forgotten now.
    """
    now = await _believed_now(connection, address)
    owner = await may_alter(connection, tables)
    deleted = 0
    if owner:
        await partition_ahead(connection, tables)
        deleted += await _retire_partitions(connection, tables, now)
    deleted += await _forget(connection, tables.claims, now, *_KEY)
    rest = tables.other_days if owner else tables.daily_claims
    return deleted + await _forget(connection, rest, now, *_DAILY_KEY)


async def clean_inbox(connection: Connection | PoolConnectionProxy, tables: Tables, address: str) -> int:
    """Delete what is forgotten, some pages at a time, beside running workers; return how many records. Raise as `clean_claims`."""
    return await _forget(connection, tables.named("inbox"), await _believed_now(connection, address), *_KEY)


async def _forget(connection: Connection | PoolConnectionProxy, table: str, now: datetime, *key: str) -> int:
    """Delete the records of `table`, with the primary key `key`, that are kept until `now` at the latest; return how many."""
    same_key = " AND ".join(f"r.{column} = f.{column}" for column in key)
    statement = _FORGET.format(table=table, key=", ".join(key), same_key=same_key)
    pages = int(await connection.fetchval(_PAGES, table))
    deleted = 0
    for page in range(0, pages, _PAGES_AT_ONCE):
        status = await connection.execute(statement, (page, 0), (page + _PAGES_AT_ONCE, 0), now)
        deleted += int(status.rpartition(" ")[2])
    return deleted


async def _retire_partitions(connection: Connection | PoolConnectionProxy, tables: Tables, now: datetime) -> int:
    before = await today(connection) - _YOUNGEST
    deleted = 0
    for day, partition in sorted((await partitions(connection, tables)).items()):
        if day >= before:
            break
        records = await _count_if_forgotten(connection, partition, now)
        if records is not None:
            deleted += await _retire(connection, tables, partition, records, now)
    return deleted


async def _count_if_forgotten(connection: Connection | PoolConnectionProxy, partition: str, now: datetime) -> int | None:
    """Return how many records a partition has; `None` if one of them is remembered."""
    pages = int(await connection.fetchval(_PAGES, partition))
    records = 0
    for page in range(0, pages, _PAGES_AT_A_LOOK):
        found = await connection.fetchrow(_LOOK.format(partition), (page, 0), (page + _PAGES_AT_A_LOOK, 0), now)
        if found is None or found["remembered"]:
            return None
        records += int(found["records"])
    return records


async def _retire(connection: Connection | PoolConnectionProxy, tables: Tables, partition: str, records: int, now: datetime) -> int:
    """Drop a partition, unless a claim of an old record came in meanwhile; return how many records went."""
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {_PATIENCE}; SET LOCAL statement_timeout = {_PATIENCE}")
            # The whole first, then its part, as the workers do; and before the last look, so that nothing can come in after it.
            await connection.execute(f"LOCK TABLE ONLY {tables.daily_claims} IN ACCESS EXCLUSIVE MODE")
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {partition} WHERE kept_until > $1)", now):
                return 0
            await connection.execute(f"DROP TABLE {partition}")
    except asyncpg.LockNotAvailableError:
        return 0
    except asyncpg.QueryCanceledError:
        # Too large for a look while the workers wait. Once it is empty and vacuumed, it is dropped the next time.
        return await _forget(connection, partition, now, *_DAILY_KEY)
    return records
