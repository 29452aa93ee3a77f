"""The cleanup of a claim store or an inbox: forgotten records are deleted along the primary key, some at a time."""

from __future__ import annotations

from ackwise.stores.mysql.schema import Tables
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.schema import Layout, refuse_jumped, require

AT_ONCE = 2000
"""Records that one step looks at; an exchange waits for one step at most."""


def believed_now(layout: Layout) -> Steps[str]:
    """Return the server's clock in UTC, as SQL. Raises `StoreUnavailable` if it jumped, `ConfigurationError` without tables."""
    yield from require(layout)
    now, since_1970 = "UTC_TIMESTAMP(6)", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    (found,) = yield [Statement(f"SELECT CAST({now} AS CHAR), {since_1970}")]
    ((text, microseconds),) = found.rows
    refuse_jumped(microseconds / 1_000_000, layout.address)
    return f"'{text}'"


def clean_claims(layout: Layout, tables: Tables) -> Steps[int]:
    """Delete what is forgotten; return how many records.

    Raises `StoreUnavailable` if the server's clock jumped; one that jumps from now on deletes no more than is forgotten now.

    Steps follow the primary key, as exchanges do, so that neither waits for the other in a circle. Records are found by looking
    at all of them: an index on `kept_until` would make every exchange pay for what happens once a day.
    """
    now = yield from believed_now(layout)
    deleted, beyond = 0, ""
    while True:
        (first,) = yield [Statement(f"SELECT MIN(day) FROM {tables.claims}{beyond}")]
        if (day := first.rows[0][0]) is None:
            return deleted
        deleted += yield from _clean_day(tables, day, now)
        beyond = f" WHERE day > {day}"


def clean_inbox(layout: Layout, tables: Tables) -> Steps[int]:
    """Delete what is forgotten, some records at a time, beside running workers; return how many. Raise as `clean_claims`."""
    inbox, after, deleted = tables.named("inbox"), "", 0
    now = yield from believed_now(layout)
    while True:
        look = f"SELECT k FROM {inbox} WHERE kept_until <= {now} {after} ORDER BY k LIMIT {AT_ONCE}"
        (found,) = yield [Statement(look)]
        if not found.rows:
            return deleted
        # Only these are locked, and looked at again: whoever is at work on another key waits for nothing.
        some = ", ".join(f"x'{k.hex()}'" for (k,) in found.rows)
        (gone,) = yield [Statement(f"DELETE FROM {inbox} WHERE k IN ({some}) AND kept_until <= {now}")]
        deleted += gone.changed
        after = f"AND k > x'{found.rows[-1][0].hex()}'"


def _clean_day(tables: Tables, day: int, now: str) -> Steps[int]:
    deleted, beyond = 0, ""
    while True:
        of_step = f"day = {day}{beyond}"
        (last,) = yield [Statement(f"SELECT k FROM {tables.claims} WHERE {of_step} ORDER BY k LIMIT 1 OFFSET {AT_ONCE - 1}")]
        end = f"x'{last.rows[0][0].hex()}'" if last.rows else None
        which = of_step if end is None else f"{of_step} AND k <= {end}"
        # The server looks at each record again once it has its lock.
        (gone,) = yield [Statement(f"DELETE FROM {tables.claims} WHERE {which} AND kept_until <= {now}")]
        deleted += gone.changed
        if end is None:
            return deleted
        beyond = f" AND k > {end}"
