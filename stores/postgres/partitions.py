"""The partitions of the claims' table, one for each day: found, and made ahead."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Final

import asyncpg

from ackwise.stores.postgres.tables import HALF_FREE, Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

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
    """Return the days that have a partition of their own, with its name."""
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
    """Until the end of the transaction nobody else creates: CREATE … IF NOT EXISTS fails for all but one of those who try at once."""
    return Statement("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (tables.named("schema"),))


def _date(day: int) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
