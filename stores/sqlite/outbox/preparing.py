"""Half messages and barriers of an outbox in a SQLite file, on one connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.outbox import CheckAnswer, Prepared, RowState, TransactionOutcome
from ackwise.stores.protocol.outboxrows import CAUSE, DECIDED, prepared_of, state_of

__all__ = ["answered", "barrier", "database_id", "decide", "due_checks", "probe"]

_BARRIER: Final = "INSERT OR IGNORE INTO ackwise_outbox_barrier VALUES (?, ?, ?)"
_DUE: Final = """
SELECT id FROM ackwise_outbox WHERE state = 1 AND next_at <= :now AND (producer_group = :group OR :group IS NULL AND barrier_in =
    (SELECT value FROM ackwise_outbox_meta WHERE name = 'database_id')) ORDER BY next_at, id LIMIT :limit
"""
_ROWS: Final = """
SELECT id, topic, value, message_key, headers, partition, message_id, tx_id, checks, producer_group, barrier_in,
    created * 1000 AS created_ms
FROM ackwise_outbox WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
# Only the half message that is still open is changed: whoever decided first, decided.
_ANSWERED: Final = """
UPDATE ackwise_outbox SET state = ?, checks = checks + ?, next_at = ?, cause = nullif(?, '') WHERE id = ? AND state = 1
"""


def database_id(connection: sqlite3.Connection) -> str:
    """See `BarrierStore.database_id`. Raises `ConfigurationError` for a connection to a file without an outbox."""
    if _first(connection, "SELECT name FROM sqlite_master WHERE name = 'ackwise_outbox_meta'") is None:
        raise ConfigurationError("the connection leads to a file that has no outbox; open the outbox in that file once")
    return str(_first(connection, "SELECT value FROM ackwise_outbox_meta WHERE name = 'database_id'"))


def barrier(connection: sqlite3.Connection, tx_id: str, now: float) -> None:
    """See `BarrierStore.barrier`."""
    if not connection.in_transaction:
        raise ConfigurationError(f"the barrier of {tx_id} has to be in the local transaction, and none is open; begin one")
    if connection.execute(_BARRIER, (tx_id, "C", now)).rowcount == 1:
        return
    if _first(connection, "SELECT outcome FROM ackwise_outbox_barrier WHERE tx_id = ?", tx_id) == "C":
        raise TransactionAborted(
            f"the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
        )
    raise TransactionAborted(f"a check-back took the local transaction {tx_id} for rolled back, as it had not begun; nothing of it stays")


def probe(connection: sqlite3.Connection, tx_id: str, now: float) -> TransactionOutcome:
    """See `BarrierStore.probe`; while a local transaction runs, nobody else writes to the file."""
    connection.execute(_BARRIER, (tx_id, "R", now))
    found = _first(connection, "SELECT outcome FROM ackwise_outbox_barrier WHERE tx_id = ?", tx_id)
    return TransactionOutcome.COMMIT if found == "C" else TransactionOutcome.ROLLBACK


def decide(connection: sqlite3.Connection, tx_id: str, outcome: TransactionOutcome) -> int:
    """See `PreparedStore.decide`."""
    if outcome is TransactionOutcome.UNKNOWN:
        return 0
    statement = "UPDATE ackwise_outbox SET state = ?, next_at = NULL WHERE tx_id = ? AND tx_id <> '' AND state = 1"
    return connection.execute(statement, (int(DECIDED[outcome]), tx_id)).rowcount


def due_checks(connection: sqlite3.Connection, producer_group: str | None, limit: int, lease: float, now: float) -> list[Prepared]:
    """See `PreparedStore.due_checks`."""
    asked = {"now": now, "group": producer_group, "limit": limit}
    ids = json.dumps([row["id"] for row in connection.execute(_DUE, asked)])
    connection.execute("UPDATE ackwise_outbox SET next_at = ? WHERE id IN (SELECT value FROM json_each(?))", (now + lease, ids))
    return [prepared_of(row) for row in connection.execute(_ROWS, (ids,))]


def answered(connection: sqlite3.Connection, answers: Sequence[CheckAnswer], now: float) -> int:
    """See `PreparedStore.answered`."""
    told = []
    for answer in answers:
        state = state_of(answer)
        next_at = now + (answer.again_in or 0.0) if state in (RowState.PREPARED, RowState.MESSAGE_ERROR) else None
        told.append((int(state), answer.outcome is TransactionOutcome.UNKNOWN, next_at, answer.cause[:CAUSE], answer.id))
    return connection.executemany(_ANSWERED, told).rowcount


def _first(connection: sqlite3.Connection, statement: str, *arguments: object) -> object:
    """The first column of the first row, whatever the row factory of the connection."""
    cursor = connection.cursor()
    cursor.row_factory = None
    row = cursor.execute(statement, arguments).fetchone()
    return None if row is None else row[0]
