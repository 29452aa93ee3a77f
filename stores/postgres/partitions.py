"""The partitions of the claims' table, one for each day: found, and made ahead."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.stores.postgres.tables import HALF_FREE, Tables

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["PATIENCE", "may_alter", "partition_ahead", "partitions", "take_turn", "today"]

_BEHIND, _AHEAD = 1, 3
"""Days before and after today that get a partition; others share one."""

PATIENCE: Final = 1000
"""Milliseconds that the workers may have to wait for a change of the tables."""

_PARTITIONS: Final = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""


async def may_alter(connection: Connection | PoolConnectionProxy, tables: Tables) -> bool:
    """Return whether the user owns the partitioned table, so that partitions can be made and dropped."""
    owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass($1)"
    return bool(await connection.fetchval(owns, tables.daily_claims))


async def partitions(connection: Connection | PoolConnectionProxy, tables: Tables) -> Mapping[int, str]:
    """The days that have a partition of their own, with its name."""
    found = await connection.fetch(_PARTITIONS, tables.daily_claims)
    days = {name: re.match(r"FOR VALUES FROM \('?(-?\d+)'?\)", bound) for name, bound in found}
    return {int(day[1]): tables.sibling(name) for name, day in days.items() if day}


async def today(connection: Connection | PoolConnectionProxy) -> int:
    """Return the day of the server's clock, counted from 1970-01-01."""
    return int(await connection.fetchval("SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint"))


async def partition_ahead(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    """Make partitions for the days around today that have none, as far as it goes without waiting long or moving records."""
    there, now = await partitions(connection, tables), await today(connection)
    for day in range(now - _BEHIND, now + _AHEAD + 1):
        if day in there:
            continue
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {PATIENCE}; SET LOCAL statement_timeout = {PATIENCE}")
                await take_turn(connection, tables)
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {tables.of_day(_date(day))} PARTITION OF {tables.daily_claims} "
                    f"FOR VALUES FROM ({day}) TO ({day + 1}) {HALF_FREE}"
                )
        except (asyncpg.CheckViolationError, asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
            # Records of this day are in the partition for other days already, which may be too large to see; or long transactions
            # use the table. The day goes on there.
            continue


async def take_turn(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    """Until the end of the transaction nobody else creates: CREATE … IF NOT EXISTS fails for all but one of those who try at once."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", tables.versions)


def _date(day: int) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
