"""Checks and cleanup of a claim store or an inbox, for `ackwise store check` and `open`.

The cleanup deletes forgotten records, and drops a whole partition where every record is forgotten.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.schema import BEGIN, COMMIT, ROLLBACK, may_alter, partition_ahead, partitions, patience, today
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps
from ackwise.stores.sql.schema import Layout, refuse_jumped, require

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

_INDEXES = """
SELECT DISTINCT i.indexrelid::regclass::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid IN (
    SELECT to_regclass($1) UNION ALL SELECT to_regclass($2) UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($2)
) AND a.attname NOT IN ('k', 'day')
"""


_ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_RIGHTS: Final = "SELECT r FROM unnest($2::text[]) AS r WHERE NOT has_table_privilege(to_regclass($1), r)"
_FORGOTTEN: Final = "SELECT count(*) = $1 FROM (SELECT FROM {} WHERE kept_until <= clock_timestamp() LIMIT $1::bigint) AS found"


def complaints_of_claims(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do."""
    said = yield from missing_rights((tables.claims, tables.daily_claims), *_ALL)
    if not said:
        said += yield from _missing_partitions(tables)
        said += yield from _forgotten(tables.claims, tables.daily_claims)
        said += yield from _costly_indexes(tables)
    return said


def complaints_of_inbox(tables: Tables, address: str) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do. Raise `ConfigurationError` as `open` does."""
    yield from require_durable(address)
    inbox = tables.named("inbox")
    return (yield from missing_rights([inbox], *_ALL)) or (yield from _forgotten(inbox))


def require_durable(address: str) -> Steps[None]:
    """Raise `ConfigurationError` if a commit can be lost after its messages were acknowledged to Kafka."""
    (found,) = yield [Statement("SHOW synchronous_commit")]
    if found.rows[0][0] == "off":
        raise ConfigurationError(
            f"{address}: synchronous_commit is off, so a crash of the server can lose what was acknowledged to Kafka; "
            "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )


def require_readable(address: str) -> Steps[None]:
    """Raise `ConfigurationError` if texts may be any bytes: one that is no UTF-8 would fail each statement that reads it."""
    (found,) = yield [Statement("SHOW server_encoding")]
    if found.rows[0][0] == "SQL_ASCII":
        raise ConfigurationError(
            f"{address}: the encoding of the database is SQL_ASCII, so a text may be any bytes, and one row that is no UTF-8 would stop "
            "each read of the outbox; make the outbox in a database with the encoding UTF8"
        )


def require_rights(among: Sequence[str], address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the user may not do with the tables `among` what every exchange or batch does."""
    if missing := (yield from missing_rights(among, "SELECT", "INSERT", "UPDATE")):
        raise ConfigurationError(f"{address}: {missing[0]}")


def missing_rights(among: Sequence[str], *needed: str) -> Steps[list[str]]:
    """Return one sentence for each table `among` these that the user may do less with than is `needed`."""
    found = yield [Statement(_RIGHTS, (table, [*needed])) for table in among]
    return [
        f"this user has no right to {', '.join(right for (right,) in missing.rows)} on {table}; let its owner grant it"
        for table, missing in zip(among, found, strict=True)
        if missing.rows
    ]


def _missing_partitions(tables: Tables) -> Steps[list[str]]:
    tomorrow = (yield from today()) + 1
    if tomorrow in (yield from partitions(tables)):
        return []
    return [f"{tables.daily_claims} has no partition for tomorrow; let its owner run `ackwise store cleanup URL` every day"]


def _forgotten(*among: str) -> Steps[list[str]]:
    found = yield [Statement(_FORGOTTEN.format(table), (_MANY,)) for table in among]
    return [
        f"{table} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day"
        for table, many in zip(among, found, strict=True)
        if many.rows[0][0]
    ]


def _costly_indexes(tables: Tables) -> Steps[list[str]]:
    (found,) = yield [Statement(_INDEXES, (tables.claims, tables.daily_claims))]
    return [
        f"the index {name} has a column that every exchange changes, which makes each update slow and large; drop it"
        for (name,) in found.rows
    ]


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
# Rows that are being written are passed over, so that cleaning waits for no transaction.
_FORGET = """
WITH forgotten AS (
    SELECT {key} FROM {table} WHERE ctid >= $1::tid AND ctid < $2::tid AND kept_until <= $3 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {table} r USING forgotten f WHERE {same_key} RETURNING 1
)
SELECT count(*) FROM gone
"""


def believed_now(layout: Layout) -> Steps[datetime.datetime]:
    """Return the server's clock. Raises `StoreUnavailable` if it jumped, and `ConfigurationError` if the tables are missing."""
    yield from require(layout)
    (found,) = yield [Statement("SELECT clock_timestamp()")]
    now: datetime.datetime = found.rows[0][0]
    refuse_jumped(now.timestamp(), layout.address)
    return now


def clean_claims(layout: Layout, tables: Tables) -> Steps[int]:
    """Delete what is forgotten and make the partitions of the days to come; return how many records it deleted.

    A user who does not own the tables deletes records one by one, and partitions stay. Raises `StoreUnavailable` if the server's
    clock jumped; one that jumps from now on deletes no more than is forgotten now.
    """
    now = yield from believed_now(layout)
    owner = yield from may_alter(tables)
    deleted = 0
    if owner:
        yield from partition_ahead(tables)
        deleted += yield from _retire_partitions(tables, now)
    deleted += yield from _forget(tables.claims, now, *_KEY)
    rest = tables.other_days if owner else tables.daily_claims
    return deleted + (yield from _forget(rest, now, *_DAILY_KEY))


def clean_inbox(layout: Layout, tables: Tables) -> Steps[int]:
    """Delete what is forgotten, some pages at a time, beside running workers; return how many records. Raise as `clean_claims`."""
    now = yield from believed_now(layout)
    return (yield from _forget(tables.named("inbox"), now, *_KEY))


def _forget(table: str, now: datetime.datetime, *key: str) -> Steps[int]:
    """Delete the records of `table`, with the primary key `key`, that are kept until `now` at the latest; return how many."""
    same_key = " AND ".join(f"r.{column} = f.{column}" for column in key)
    text = _FORGET.format(table=table, key=", ".join(key), same_key=same_key)
    deleted = 0
    for page in range(0, (yield from _pages(table)), _PAGES_AT_ONCE):
        (gone,) = yield [Statement(text, ((page, 0), (page + _PAGES_AT_ONCE, 0), now))]
        deleted += gone.rows[0][0]
    return deleted


def _pages(table: str) -> Steps[int]:
    (pages,) = yield [Statement(_PAGES, (table,))]
    return int(pages.rows[0][0])


def _retire_partitions(tables: Tables, now: datetime.datetime) -> Steps[int]:
    before = (yield from today()) - _YOUNGEST
    deleted = 0
    for day, partition in sorted((yield from partitions(tables)).items()):
        if day >= before:
            break
        records = yield from _count_if_forgotten(partition, now)
        if records is not None:
            deleted += yield from _retire(tables, partition, records, now)
    return deleted


def _count_if_forgotten(partition: str, now: datetime.datetime) -> Steps[int | None]:
    """Return how many records a partition has; `None` if one of them is remembered."""
    records = 0
    for page in range(0, (yield from _pages(partition)), _PAGES_AT_A_LOOK):
        (found,) = yield [Statement(_LOOK.format(partition), ((page, 0), (page + _PAGES_AT_A_LOOK, 0), now))]
        ((some, remembered),) = found.rows
        if remembered:
            return None
        records += some
    return records


def _retire(tables: Tables, partition: str, records: int, now: datetime.datetime) -> Steps[int]:
    """Drop a partition, unless a claim of an old record came in meanwhile; return how many records went."""
    # The whole first, then its part, as the workers do; and before the last look, so that nothing can come in after it.
    lock = Statement(f"LOCK TABLE ONLY {tables.daily_claims} IN ACCESS EXCLUSIVE MODE")
    look = Statement(f"SELECT EXISTS (SELECT FROM {partition} WHERE kept_until > $1)", (now,))
    try:
        *_, remembered = yield [BEGIN, patience(_PATIENCE), lock, look]
        if remembered.rows[0][0]:
            yield [ROLLBACK]
            return 0
        yield [Statement(f"DROP TABLE {partition}"), COMMIT]
    except Failure as failure:
        if failure.problem is not Problem.BUSY:
            raise
        yield [ROLLBACK]
        if isinstance(failure.error, asyncpg.LockNotAvailableError):
            return 0
        # Too large for a look while the workers wait. Once it is empty and vacuumed, it is dropped the next time.
        return (yield from _forget(partition, now, *_DAILY_KEY))
    return records
