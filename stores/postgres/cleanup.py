"""What is forgotten, deleted: whole partitions where every record is, and single records where some are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from ackwise.stores.postgres import schema
from ackwise.stores.postgres.tables import Tables

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["clean"]

_PAGES_AT_ONCE = 128
"""Pages of one step, 1 MiB: some five thousand records."""

_YOUNGEST = 2
"""Days before today; younger partitions stay even if nothing in them is remembered, for records still come in."""

_REMEMBERS = "SELECT EXISTS (SELECT FROM {} WHERE kept_until > clock_timestamp())"

_PAGES = """
SELECT coalesce(max(pg_relation_size(oid)), 0) / current_setting('block_size')::bigint
FROM (SELECT to_regclass($1)::oid AS oid UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)) AS of_one_table
"""

# Rows are found page by page: an index on `kept_until` would make every update of a record an update of that index too.
# Rows that somebody is writing are passed over, so that nobody waits for anybody here.
_FORGET = """
WITH forgotten AS (
    SELECT {key} FROM {table} WHERE ctid >= $1::tid AND ctid < $2::tid AND kept_until <= clock_timestamp() FOR UPDATE SKIP LOCKED
)
DELETE FROM {table} r USING forgotten f WHERE {same_key}
"""


async def clean(connection: Connection | PoolConnectionProxy, tables: Tables) -> int:
    """Delete what is forgotten and make the partitions of the days to come; gives how many records it deleted.

    A user who does not own the tables deletes records one by one, and partitions stay.
    """
    owner = await schema.may_alter(connection, tables)
    deleted = 0
    if owner:
        await schema.partition_ahead(connection, tables)
        deleted += await _drop_partitions(connection, tables)
    deleted += await _delete(connection, tables.claims, _FORGET.format(table=tables.claims, key="k", same_key="r.k = f.k"))
    rest = tables.other_days if owner else tables.daily_claims
    return deleted + await _delete(connection, rest, _FORGET.format(table=rest, key="day, k", same_key="r.day = f.day AND r.k = f.k"))


async def _delete(connection: Connection | PoolConnectionProxy, table: str, forget: str) -> int:
    pages = int(await connection.fetchval(_PAGES, table))
    deleted = 0
    for page in range(0, pages, _PAGES_AT_ONCE):
        status = await connection.execute(forget, (page, 0), (page + _PAGES_AT_ONCE, 0))
        deleted += int(status.rpartition(" ")[2])
    return deleted


async def _drop_partitions(connection: Connection | PoolConnectionProxy, tables: Tables) -> int:
    before = await schema.today(connection) - _YOUNGEST
    dropped = 0
    for day, partition in sorted((await schema.partitions(connection, tables)).items()):
        if day >= before or await connection.fetchval(_REMEMBERS.format(partition)):
            continue
        records = int(await connection.fetchval(f"SELECT count(*) FROM {partition}"))
        if await _drop(connection, tables, partition):
            dropped += records
    return dropped


async def _drop(connection: Connection | PoolConnectionProxy, tables: Tables, partition: str) -> bool:
    """Drop a partition unless a claim of an old record came in meanwhile, or it would keep the workers waiting for more than a second."""
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '1s'")
            await connection.execute("SET LOCAL statement_timeout = '1s'")
            # The whole first, then its part, as the workers do; and before the last look, so that nothing can come in after it.
            await connection.execute(f"LOCK TABLE ONLY {tables.daily_claims} IN ACCESS EXCLUSIVE MODE")
            if await connection.fetchval(_REMEMBERS.format(partition)):
                return False
            await connection.execute(f"DROP TABLE {partition}")
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
        return False
    return True
