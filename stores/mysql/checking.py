"""Complaints about the tables and the server of a claim store or an inbox, for `ackwise store check`, and what `open` refuses."""

from __future__ import annotations

from collections.abc import Mapping

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.schema import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

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


def of_claims(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do."""
    said = yield from _missing(tables, *_ATTEMPTS)
    if "SELECT" not in "".join(said):
        said += yield from _forgotten(tables)
    said += yield from _settings()
    return said


def of_inbox(tables: Tables) -> Steps[list[str]]:
    """Return one sentence for each complaint, with what to do. Raise as `open` does."""
    yield from require_inbox_rights(tables)
    inbox, said = tables.named("inbox"), []
    yield [Statement(_ATTEMPTS["DELETE"].format(inbox))]
    (durable,) = yield [Statement("SELECT @@innodb_flush_log_at_trx_commit")]
    if durable.rows[0][0] != 1:
        said.append(
            f"innodb_flush_log_at_trx_commit is {durable.rows[0][0]}, so a crash of the server's machine can lose what Kafka "
            "was told is done; set it to 1"
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
