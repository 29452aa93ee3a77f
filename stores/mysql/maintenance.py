"""Checks and cleanup of a claim store or an inbox, for `ackwise store check` and `open`.

The cleanup deletes forgotten records along the primary key, some at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.schema import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps
from ackwise.stores.sql.schema import Layout, refuse_jumped, require

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

# Each touches no record, and is refused before it looks for one.
_ATTEMPTS = {
    "SELECT": "SELECT 1 FROM {} LIMIT 0",
    "INSERT": "INSERT INTO {0} SELECT * FROM {0} WHERE FALSE",
    "UPDATE": "UPDATE {} SET lost = 0 WHERE FALSE",
    "DELETE": "DELETE FROM {} WHERE FALSE",
}

_INBOX_ATTEMPTS = ("INSERT INTO {0} SELECT * FROM {0} WHERE FALSE", "UPDATE {0} SET {1} = 0 WHERE FALSE")

_SETTINGS = """
SELECT @@innodb_flush_log_at_trx_commit, SYSDATE(6) = NOW(6) FROM (SELECT SLEEP(0.001)) AS after_a_moment"""


def complaints_of_claims(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do."""
    said = yield from _missing(tables, *_ATTEMPTS)
    if "SELECT" not in "".join(said):
        said += yield from _forgotten(tables)
    said += yield from _settings()
    return said


def complaints_of_inbox(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do. Raise as `open` does."""
    yield from require_inbox_rights(tables)
    inbox, said = tables.named("inbox"), []
    yield [Statement(_ATTEMPTS["DELETE"].format(inbox))]
    (durable,) = yield [Statement("SELECT @@innodb_flush_log_at_trx_commit")]
    if durable.rows[0][0] != 1:
        said.append(
            f"innodb_flush_log_at_trx_commit is {durable.rows[0][0]}, so a crash of the server's machine can lose what "
            "was acknowledged to Kafka; set it to 1"
        )
    (forgotten,) = yield [Statement(f"SELECT 1 FROM {inbox} WHERE kept_until <= UTC_TIMESTAMP(6) LIMIT 1 OFFSET {_MANY}")]
    if forgotten.rows:
        said.append(f"{inbox} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day")
    return said


def require_rights(tables: Tables, address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the user may not do with the claims what every exchange does."""
    if missing := (yield from _missing(tables, "SELECT", "INSERT", "UPDATE")):
        raise ConfigurationError(f"{address}: {missing[0]}")


def require_inbox_rights(tables: Tables) -> Steps[None]:
    """Raise the server's error if the user may not do what every batch does."""
    for table, column in ((tables.named("inbox"), "outcome"), (tables.named("offsets"), "next_offset")):
        for attempt in _INBOX_ATTEMPTS:
            yield [Statement(attempt.format(table, column))]


def missing_rights(attempts: Mapping[str, str]) -> Steps[list[str]]:
    """Return the rights that the user does not have, of those that these statements need."""
    missing = []
    for right, attempt in attempts.items():
        try:
            yield [Statement(attempt)]
        except Failure as failure:
            if failure.problem is not Problem.FORBIDDEN:
                raise
            missing.append(right)
    return missing


def _missing(tables: Tables, *needed: str) -> Steps[list[str]]:
    """Return a sentence if the user may do less with the claims than is `needed`, otherwise nothing."""
    missing = yield from missing_rights({right: _ATTEMPTS[right].format(tables.claims) for right in needed})
    return [f"this user has no right to {', '.join(missing)} on {tables.claims}; grant it"] if missing else []


def _forgotten(tables: Tables) -> Steps[list[str]]:
    some = f"SELECT 1 FROM {tables.claims} WHERE kept_until <= UTC_TIMESTAMP(6) LIMIT {_MANY}"
    (count,) = yield [Statement(f"SELECT COUNT(*) FROM ({some}) AS found")]
    if count.rows[0][0] < _MANY:
        return []
    return [f"{tables.claims} holds {_MANY} forgotten records or more; run `ackwise store cleanup URL`, best every day"]


def _settings() -> Steps[list[str]]:
    (found,) = yield [Statement(_SETTINGS)]
    ((flush, frozen),) = found.rows
    said = []
    if flush != 1:
        said.append(
            f"innodb_flush_log_at_trx_commit is {flush}, so a crash of the server or its host forgets the last exchanges; "
            "set it to 1, or accept that their messages run again"
        )
    if frozen:
        said.append("sysdate-is-now is on, so a claim that had to wait gets a shorter lease; turn it off")
    return said


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
        # Only these are locked, and looked at again: work on another key waits for nothing.
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
