"""How an outbox in a SQLite file stands: its status, its parked rows, and its cleanup."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from typing import Final

from ackwise.middleware.outbox import OutboxStatus, Parked
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxrows import BARRIERS_KEPT, parked_of

__all__ = ["clean_some", "parked", "requeue", "show", "status"]

_COUNT: Final = "SELECT count(*), min(created) FROM ackwise_outbox WHERE state = {}"
_OWNERS: Final = """
SELECT owner, (SELECT count(*) FROM ackwise_outbox_shard AS s WHERE s.owner = r.owner) FROM ackwise_outbox_relay AS r WHERE leased_until > ?
"""
_PARKED: Final = """
SELECT id, topic, message_id, message_key, attempts, checks, cause, created * 1000 AS created_ms, {more}
FROM ackwise_outbox WHERE state = 5 AND {which} ORDER BY id LIMIT ?
"""
_REQUEUE: Final = "UPDATE ackwise_outbox SET state = 2, attempts = 0, checks = 0, next_at = NULL, cause = NULL WHERE state = 5"

_AT_ONCE: Final = 1000
"""Rows of one step of the cleanup, which takes some milliseconds."""

_CLEAN: Final = (
    "DELETE FROM ackwise_outbox WHERE id IN (SELECT id FROM ackwise_outbox WHERE state = 3 AND created < ? LIMIT ?)",
    "DELETE FROM ackwise_outbox WHERE id IN (SELECT id FROM ackwise_outbox WHERE state = 4 AND next_at < ? LIMIT ?)",
    "DELETE FROM ackwise_outbox WHERE id IN (SELECT id FROM ackwise_outbox WHERE state = 5 AND coalesce(next_at, created) < ? LIMIT ?)",
    """DELETE FROM ackwise_outbox_barrier WHERE tx_id IN (SELECT tx_id FROM ackwise_outbox_barrier AS b WHERE created < ? AND NOT EXISTS (
        SELECT 1 FROM ackwise_outbox AS r WHERE r.tx_id = b.tx_id AND r.tx_id <> '' AND r.state = 1) LIMIT ?)""",
)


def status(connection: sqlite3.Connection, now: float) -> OutboxStatus:
    """See `OutboxStore.status`."""
    told: list[tuple[int, float | None]] = []
    for state in (2, 1, 5):
        count, oldest = connection.execute(_COUNT.format(state)).fetchone()
        told.append((count, None if oldest is None else max(0.0, now - oldest)))
    kind = connection.execute("SELECT value FROM ackwise_outbox_meta WHERE name = 'relay_kind'").fetchone()
    owners = {str(row[0]): int(row[1]) for row in connection.execute(_OWNERS, (now,))}
    return OutboxStatus(*told[0], *told[1], *told[2], owners, None if kind is None else kind[0])


def parked(connection: sqlite3.Connection, limit: int, after: int) -> list[Parked]:
    """See `OutboxStore.parked`."""
    statement = _PARKED.format(more="NULL", which="id > ?")
    return [parked_of(row, is_whole=False) for row in connection.execute(statement, (after, limit))]


def show(connection: sqlite3.Connection, id: int) -> Parked | None:
    """See `OutboxStore.show`."""
    row = connection.execute(_PARKED.format(more="headers, value", which="id = ?"), (id, 1)).fetchone()
    return None if row is None else parked_of(row, is_whole=True)


def requeue(connection: sqlite3.Connection, rows: Collection[int] | None) -> int:
    """See `OutboxStore.requeue`."""
    if rows is None:
        return connection.execute(_REQUEUE).rowcount
    return connection.execute(f"{_REQUEUE} AND id IN (SELECT value FROM json_each(?))", (json.dumps([*rows]),)).rowcount


def clean_some(connection: sqlite3.Connection, keeping: Keeping, now: float) -> tuple[int, bool]:
    """Delete some rows that need not be kept, and some barriers that nobody needs; return how many records, and whether there may be
    more."""
    parked = float("-inf") if keeping.parked is None else now - keeping.parked
    before = (now - keeping.retention, now, parked, now - max(keeping.retention, BARRIERS_KEPT))
    counts = [connection.execute(statement, (until, _AT_ONCE)).rowcount for statement, until in zip(_CLEAN, before, strict=True)]
    return sum(counts), max(counts) == _AT_ONCE
