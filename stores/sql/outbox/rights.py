"""What a user of an outbox has to be allowed, and what of it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.operation import Failure, Packet, Problem, Steps
from ackwise.stores.sql.outbox.dialect import Dialect

OF_BUSINESS: Final = {"rows": ["INSERT"], "barrier": ["SELECT", "INSERT"], "meta": ["SELECT"]}
OF_RELAY: Final = {
    "rows": ["SELECT", "UPDATE", "DELETE"],
    "shards": ["SELECT", "UPDATE"],
    "relays": ["SELECT", "INSERT", "UPDATE", "DELETE"],
    "barrier": ["SELECT", "INSERT"],
    "meta": ["SELECT", "INSERT"],
}


def require_rights(sql: Dialect, address: str) -> Steps[None]:
    """Raise `ConfigurationError` if the user may do neither what a business transaction does nor what a relay does."""
    missing = yield from missing_rights(sql, OF_BUSINESS)
    if missing and (yield from missing_rights(sql, OF_RELAY)):
        raise ConfigurationError(f"{address}: {missing[0]}")


def missing_rights(sql: Dialect, needed: Mapping[str, Sequence[str]]) -> Steps[list[str]]:
    """Return one sentence for each table that the user may do less with than is `needed`."""
    said = []
    for table, rights in needed.items():
        missing = list(rights)
        for right in rights:
            if (yield from _is_granted(sql.may(right, table))):
                missing.remove(right)
        if missing:
            said.append(f"this user has no right to {', '.join(missing)} on {sql.tables[table]}; let its owner grant it")
    return said


def _is_granted(attempt: Packet) -> Steps[bool]:
    try:
        answers = (yield attempt) if attempt else ()
    except Failure as failure:
        if failure.problem is not Problem.FORBIDDEN:
            raise
        return False
    return not answers or not answers[0].rows or bool(answers[0].rows[0][0])
