"""What a relay asks of an outbox in a SQLite file, on one connection, in a transaction where it writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ackwise.middleware.outbox import SHARDS, Failed, OutboxRow, Sent, key_hash
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxrows import CAUSE, MOST_BYTES, row_of
from ackwise.stores.protocol.outboxshards import Shard, divide

__all__ = ["failed", "leave", "next_due", "own", "pending", "sent"]

# By id, from the beginning. What blocks a key is found in an index that has rows which failed, and no others.
_PENDING: Final = """
SELECT id, shard, attempts, created * 1000 AS created_ms, size, topic, value, message_key, headers, partition, message_id
FROM ackwise_outbox AS r INDEXED BY ackwise_outbox_to_send
WHERE state = 2 AND shard IN (SELECT value FROM json_each(:shards)) AND (next_at IS NULL OR next_at <= :now)
    AND id NOT IN (SELECT value FROM json_each(:under_way))
    AND (key_hash IS NULL OR key_hash NOT IN (SELECT value FROM json_each(:blocked)) AND NOT EXISTS (
        SELECT 1 FROM ackwise_outbox AS before WHERE before.key_hash = r.key_hash AND before.id < r.id AND before.attempts > 0
            AND (before.state = 2 AND before.next_at > :now OR before.state = 5 AND :block_key)))
ORDER BY id LIMIT :limit
"""
_FAILED: Final = """
UPDATE ackwise_outbox SET attempts = attempts + 1, cause = ?, state = ?, next_at = ? WHERE id = ? AND shard = ? AND state = 2
"""


def own(connection: sqlite3.Connection, owner: str, lease: float, now: float) -> dict[int, int]:
    """See `RelayStore.own`; whoever calls has proved that there is no other relay."""
    rows = connection.execute("SELECT shard, token, owner, owner = ? FROM ackwise_outbox_shard ORDER BY shard", (owner,))
    keep, take, _ = divide([Shard(*row) for row in rows], owner, SHARDS)
    connection.execute("DELETE FROM ackwise_outbox_relay")
    connection.execute("INSERT INTO ackwise_outbox_relay VALUES (?, ?)", (owner, now + lease))
    change = "UPDATE ackwise_outbox_shard SET owner = ?, leased_until = ?, token = token + ? WHERE shard = ?"
    grown = [(number, 0) for number in keep] + [(number, 1) for number in take]
    connection.executemany(change, [(owner, now + lease, more, number) for number, more in grown])
    return {row["shard"]: row["token"] for row in connection.execute("SELECT shard, token FROM ackwise_outbox_shard")}


def leave(connection: sqlite3.Connection, owner: str) -> None:
    """See `RelayStore.leave`."""
    connection.execute("UPDATE ackwise_outbox_shard SET owner = '' WHERE owner = ?", (owner,))
    connection.execute("DELETE FROM ackwise_outbox_relay WHERE owner = ?", (owner,))


def pending(
    connection: sqlite3.Connection,
    shards: Collection[int],
    limit: int,
    under_way: Collection[int],
    blocked: Collection[tuple[str, bytes]],
    block_key: bool,
    now: float,
) -> list[OutboxRow]:
    """See `RelayStore.pending`."""
    asked = {
        "shards": json.dumps([*shards]),
        "under_way": json.dumps([*under_way]),
        "blocked": json.dumps([key_hash(topic, key) for topic, key in blocked]),
        "block_key": block_key,
        "limit": limit,
        "now": now,
    }
    given, size = list[OutboxRow](), 0
    for row in connection.execute(_PENDING, asked):
        given.append(row_of(row))
        size += row["size"]
        if size >= MOST_BYTES:
            break
    return given


def sent(connection: sqlite3.Connection, rows: Sequence[Sent], shards: Mapping[int, int], keeping: Keeping, now: float) -> int:
    """See `RelayStore.sent`."""
    mine = _mine(connection, shards)
    ids = json.dumps([row.id for row in rows if row.shard in mine])
    which = "WHERE state = 2 AND id IN (SELECT value FROM json_each(:ids))"
    if not keeping.sent:
        return connection.execute(f"DELETE FROM ackwise_outbox {which}", {"ids": ids}).rowcount
    blank = "".join(f", {column} = NULL" for column in keeping.blanked)
    statement = f"UPDATE ackwise_outbox SET state = 4, next_at = :until, cause = NULL, key_hash = NULL{blank} {which}"
    return connection.execute(statement, {"ids": ids, "until": now + keeping.sent}).rowcount


def failed(connection: sqlite3.Connection, failures: Sequence[Failed], shards: Mapping[int, int], now: float) -> int:
    """See `RelayStore.failed`."""
    mine = _mine(connection, shards)
    told = [
        (cause[:CAUSE], 5 if again_in is None else 2, now + (again_in or 0.0), id, shard)
        for id, shard, cause, again_in in failures
        if shard in mine
    ]
    return connection.executemany(_FAILED, told).rowcount if told else 0


def next_due(connection: sqlite3.Connection, shards: Collection[int], now: float) -> float | None:
    """See `RelayStore.next_due`."""
    statement = """
        SELECT min(next_at) - :now FROM ackwise_outbox
        WHERE state = 2 AND next_at IS NOT NULL AND next_at > :now AND shard IN (SELECT value FROM json_each(:shards))"""
    (found,) = connection.execute(statement, {"now": now, "shards": json.dumps([*shards])}).fetchone()
    return None if found is None else float(found)


def _mine(connection: sqlite3.Connection, shards: Mapping[int, int]) -> set[int]:
    """The shards whose tokens are those that we know."""
    return {number for number, token in connection.execute("SELECT shard, token FROM ackwise_outbox_shard") if shards.get(number) == token}
