"""The cleanup of a claim store or an inbox: forgotten records are deleted along the primary key, some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackwise.stores.mysql import schema
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.serverclock import refuse_jumped

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["believed_now", "clean_claims", "clean_inbox"]

AT_ONCE = 2000
"""Records that one step looks at; an exchange waits for one step at most."""


async def believed_now(connection: Connection, address: str) -> str:
    """Return the server's clock in UTC, as SQL. Raises `StoreUnavailable` if it jumped."""
    now, since_1970 = "UTC_TIMESTAMP(6)", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    ((text, microseconds),) = await schema.rows(connection, f"SELECT CAST({now} AS CHAR), {since_1970}")
    refuse_jumped(microseconds / 1_000_000, address)
    return f"'{text}'"


async def clean_claims(connection: Connection, tables: Tables, address: str) -> int:
    """Delete what is forgotten; return how many records.

    Raises `StoreUnavailable` if the server's clock jumped; one that jumps from now on deletes no more than is forgotten now.

    Steps follow the primary key, as exchanges do, so that neither waits for the other in a circle. Records are found by looking
    at all of them: an index on `kept_until` would make every exchange pay for what happens once a day.
    """
    now = await believed_now(connection, address)
    deleted = 0
    ((day,),) = await schema.rows(connection, f"SELECT MIN(day) FROM {tables.claims}")
    while day is not None:
        deleted += await _clean_day(connection, tables, day, now)
        ((day,),) = await schema.rows(connection, f"SELECT MIN(day) FROM {tables.claims} WHERE day > {day}")
    return deleted


async def clean_inbox(connection: Connection, tables: Tables, address: str) -> int:
    """Delete what is forgotten, some records at a time, beside running workers; return how many. Raise as `clean_claims`."""
    inbox, after, deleted = tables.named("inbox"), "", 0
    now = await believed_now(connection, address)
    while True:
        found = await schema.rows(connection, f"SELECT k FROM {inbox} WHERE kept_until <= {now} {after} ORDER BY k LIMIT {AT_ONCE}")
        if not found:
            return deleted
        # Only these are locked, and looked at again: whoever is at work on another key waits for nothing.
        some = ", ".join(f"x'{k.hex()}'" for (k,) in found)
        deleted += await schema.changed(connection, f"DELETE FROM {inbox} WHERE k IN ({some}) AND kept_until <= {now}")
        after = f"AND k > x'{found[-1][0].hex()}'"


async def _clean_day(connection: Connection, tables: Tables, day: int, now: str) -> int:
    deleted, beyond = 0, ""
    while True:
        of_step = f"day = {day}{beyond}"
        last = await schema.rows(connection, f"SELECT k FROM {tables.claims} WHERE {of_step} ORDER BY k LIMIT 1 OFFSET {AT_ONCE - 1}")
        if not last:
            return deleted + await _forget(connection, tables, of_step, now)
        end = f"x'{last[0][0].hex()}'"
        deleted += await _forget(connection, tables, f"{of_step} AND k <= {end}", now)
        beyond = f" AND k > {end}"


async def _forget(connection: Connection, tables: Tables, of_step: str, now: str) -> int:
    """Delete what is forgotten of one step; the server looks at each record again once it has its lock."""
    return await schema.changed(connection, f"DELETE FROM {tables.claims} WHERE {of_step} AND kept_until <= {now}")
