"""What a relay asks of an outbox, on one connection: who owns which shard, which rows are due, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ackwise.middleware.outbox import SHARDS, Failed, OutboxRow, Sent, key_hash
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.outbox.sql import BEGIN, MESSAGE, NOW, cause, changed, name, named, numbers, seconds
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxrows import MOST_BYTES, row_of
from ackwise.stores.protocol.outboxshards import Shard, divide

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["failed", "leave", "next_due", "own", "pending", "sent"]

_LOOK: Final = """
INSERT INTO {relays} (owner, leased_until) VALUES ({owner}, {until}) ON DUPLICATE KEY UPDATE leased_until = {until};
SELECT shard, token, owner, leased_until > UTC_TIMESTAMP(6) FROM {shards} ORDER BY shard FOR UPDATE
"""
_CHANGE: Final = """
UPDATE {shards} SET leased_until = {until} WHERE shard IN ({keep});
UPDATE {shards} SET leased_until = {until}, owner = {owner}, token = token + 1 WHERE shard IN ({take});
UPDATE {shards} SET owner = '' WHERE shard IN ({give});
SELECT shard, token FROM {shards} WHERE owner = {owner};
COMMIT
"""
_LEAVE: Final = """
DELETE FROM {relays} WHERE owner = {owner};
SELECT shard FROM {shards} ORDER BY shard FOR UPDATE;
UPDATE {shards} SET owner = '' WHERE owner = {owner};
COMMIT
"""

# By id over all shards and not by shard, so that a backlog of any size is read from its beginning only. A row whose key is blocked is
# passed over here: what blocks is found in the index, as it is due later, or parked. The large columns are read last, of few rows.
_PENDING: Final = """
WITH blocks AS (
    SELECT key_hash, MIN(id) AS first_id FROM {rows} FORCE INDEX (by_due)
    WHERE key_hash IS NOT NULL AND (state = 2 AND next_at > {now} {parked})
    GROUP BY key_hash
), found AS (
    ({one} AND r.next_at IS NULL ORDER BY r.id LIMIT {limit})
    UNION ALL
    ({one} AND r.next_at <= {now} ORDER BY r.id LIMIT {limit})
), summed AS (
    SELECT id, SUM(size) OVER (ORDER BY id) - size AS before_it FROM (SELECT id, size FROM found ORDER BY id LIMIT {limit}) AS first_ones
)
SELECT {columns} FROM summed AS s STRAIGHT_JOIN {rows} AS r ON r.id = s.id WHERE s.before_it < {most}
"""
_ONE: Final = """
SELECT r.id, r.size FROM {rows} AS r FORCE INDEX (by_due) LEFT JOIN blocks AS b ON b.key_hash = r.key_hash AND b.first_id < r.id
WHERE r.state = 2 AND b.key_hash IS NULL {and_more}"""
_NAMES: Final = ("id", "shard", "attempts", "created_ms", *MESSAGE)
_COLUMNS: Final = (
    "r.id, r.shard, r.attempts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.created) DIV 1000, r.topic, r.value, r.message_key, r.headers, "
    "r.`partition`, r.message_id"
)

_MINE: Final = "SELECT shard FROM {shards} WHERE (shard, token) IN ({tokens})"
# Shards first and in their order, as `own` locks them: a statement over rows would lock the shard of each row as it comes to it.
_LOCKED: Final = _MINE + " ORDER BY shard LOCK IN SHARE MODE; "
# What the broker acknowledged may go whoever deletes it; a failure that is not the owner's may not be written beside the owner.
_OF_MINE: Final = "WHERE r.id IN ({ids}) AND r.state = 2 AND r.shard IN (" + _MINE + "); COMMIT"
_DELETED: Final = _LOCKED + "DELETE r FROM {rows} AS r FORCE INDEX (PRIMARY) " + _OF_MINE
_KEPT: Final = (
    _LOCKED
    + "UPDATE {rows} AS r FORCE INDEX (PRIMARY) SET r.state = 4, r.next_at = {until}, r.cause = NULL, r.key_hash = NULL {blank} "
    + _OF_MINE
)
_FAILED: Final = """
UPDATE {rows} FORCE INDEX (PRIMARY) SET attempts = attempts + 1, cause = {cause}, state = {state}, next_at = {again}
WHERE id = {id} AND state = 2 AND shard IN ({mine})
"""
_NEXT_DUE: Final = """
SELECT TIMESTAMPDIFF(MICROSECOND, {now}, MIN(next_at)) FROM {rows} FORCE INDEX (by_due)
WHERE state = 2 AND next_at > {now} AND shard IN ({shards})
"""


async def own(connection: Connection, tables: OutboxTables, owner: str, lease: float, share: int) -> dict[int, int]:
    """See `RelayStore.own`; one relay at a time divides."""
    with_owner = {**tables.names, "owner": name("owner", owner), "until": seconds(lease)}
    found = await rows_of(connection, BEGIN + _LOOK.format(**with_owner))
    shards = [Shard(number, token, whose.decode(), bool(is_leased)) for number, token, whose, is_leased in found]
    keep, take, give = (numbers(some) for some in divide(shards, owner, share))
    mine = await rows_of(connection, _CHANGE.format(**with_owner, keep=keep, take=take, give=give))
    return {int(shard): int(token) for shard, token in mine}


async def leave(connection: Connection, tables: OutboxTables, owner: str) -> None:
    """See `RelayStore.leave`."""
    await rows_of(connection, BEGIN + _LEAVE.format(**tables.names, owner=name("owner", owner)))


async def pending(
    connection: Connection,
    tables: OutboxTables,
    shards: Collection[int],
    limit: int,
    under_way: Collection[int],
    blocked: Collection[tuple[str, bytes]],
    block_key: bool,
) -> list[OutboxRow]:
    """See `RelayStore.pending`."""
    more = "" if len(shards) >= SHARDS else f" AND r.shard IN ({numbers(shards)})"
    if under_way:
        more += f" AND r.id NOT IN ({numbers(under_way)})"
    if blocked:
        more += f" AND (r.key_hash IS NULL OR r.key_hash NOT IN ({numbers(key_hash(topic, key) for topic, key in blocked)}))"
    packet = _PENDING.format(
        rows=tables.rows,
        one=_ONE.format(rows=tables.rows, and_more=more),
        parked="OR state = 5 AND attempts > 0" if block_key else "",
        columns=_COLUMNS,
        limit=int(limit),
        most=MOST_BYTES,
        now=NOW,
    )
    return sorted(row_of(row) for row in await named(connection, _NAMES, f"{BEGIN}{packet}; COMMIT"))


async def sent(connection: Connection, tables: OutboxTables, rows: Sequence[Sent], shards: Mapping[int, int], keeping: Keeping) -> int:
    """See `RelayStore.sent`."""
    told = {**tables.names, "ids": numbers(row.id for row in rows), "tokens": _tokens(rows, shards)}
    if not keeping.sent:
        return await changed(connection, BEGIN + _DELETED.format(**told))
    blank = "".join(f", r.{column} = NULL" for column in keeping.blanked)
    return await changed(connection, BEGIN + _KEPT.format(**told, until=seconds(keeping.sent), blank=blank))


async def failed(connection: Connection, tables: OutboxTables, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
    """See `RelayStore.failed`; the tokens are locked until the failures are written."""
    mine = _MINE.format(**tables.names, tokens=_tokens(failures, shards))
    updates = [
        _FAILED.format(
            rows=tables.rows,
            mine=mine,
            id=int(failure.id),
            cause=cause(failure.cause),
            state=2 if failure.again_in is not None else 5,
            again=seconds(failure.again_in or 0.0),
        )
        for failure in sorted(failures, key=lambda failure: failure.id)
    ]
    locked = _LOCKED.format(**tables.names, tokens=_tokens(failures, shards))
    return await changed(connection, f"{BEGIN}{locked}{'; '.join(updates)}; COMMIT")


async def next_due(connection: Connection, tables: OutboxTables, shards: Collection[int]) -> float | None:
    """See `RelayStore.next_due`."""
    statement = _NEXT_DUE.format(rows=tables.rows, now=NOW, shards=numbers(shards))
    ((microseconds,),) = await rows_of(connection, f"{BEGIN}{statement}; COMMIT")
    return None if microseconds is None else microseconds / 1e6


def _tokens(rows: Sequence[Sent | Failed], shards: Mapping[int, int]) -> str:
    """The shards of `rows` that are ours, with the tokens that we know."""
    mine = sorted({row.shard for row in rows} & shards.keys())
    return ", ".join(f"({shard:d}, {shards[shard]:d})" for shard in mine) or "(NULL, NULL)"
