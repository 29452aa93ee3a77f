"""Complaints about the tables and settings of a claim store or an inbox, for `ackwise store check`, and what `open` refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.partitions import partitions, today
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import Statement, Steps

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


def of_claims(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do."""
    said = yield from missing_rights((tables.claims, tables.daily_claims), *_ALL)
    if not said:
        said += yield from _missing_partitions(tables)
        said += yield from _forgotten(tables.claims, tables.daily_claims)
        said += yield from _costly_indexes(tables)
    return said


def of_inbox(tables: Tables, address: str) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do. Raise `ConfigurationError` as `open` does."""
    yield from require_durable(address)
    inbox = tables.named("inbox")
    return (yield from missing_rights([inbox], *_ALL)) or (yield from _forgotten(inbox))


def require_durable(address: str) -> Steps[None]:
    """Raise `ConfigurationError` if a commit can be forgotten after Kafka was told that its messages are done."""
    (found,) = yield [Statement("SHOW synchronous_commit")]
    if found.rows[0][0] == "off":
        raise ConfigurationError(
            f"{address}: synchronous_commit is off, so a crash of the server can lose what Kafka was told is done; "
            "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )


def require_rights(among: Sequence[str], address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the user may not do with the tables `among` what every exchange or batch does."""
    if missing := (yield from missing_rights(among, "SELECT", "INSERT", "UPDATE")):
        raise ConfigurationError(f"{address}: {missing[0]}")


def missing_rights(among: Sequence[str], *needed: str) -> Steps[list[str]]:
    """Return one sentence for each table `among` these that the user may do less with than is `needed`."""
    found = yield [Statement(_RIGHTS, (table, needed)) for table in among]
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
