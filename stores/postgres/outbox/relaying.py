"""What a relay asks of an outbox, on one connection: who owns which shard, which rows are due, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ackwise.middleware.outbox import Failed, OutboxRow, Sent, key_hash
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxrows import CAUSE, MOST_BYTES, row_of
from ackwise.stores.protocol.outboxshards import Shard, divide

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    AnyConnection = Connection | PoolConnectionProxy

__all__ = ["failed", "leave", "next_due", "own", "pending", "sent"]

_SIGN_IN: Final = """
INSERT INTO {relays} (owner, leased_until) VALUES ($1, clock_timestamp() + $2 * interval '1 s')
ON CONFLICT (owner) DO UPDATE SET leased_until = excluded.leased_until
"""
_SHARDS: Final = """
SELECT shard, token, owner, leased_until > clock_timestamp() AS is_leased FROM {shards} ORDER BY shard FOR UPDATE
"""
_CHANGE: Final = """
UPDATE {shards} SET owner = CASE WHEN shard = ANY ($4) THEN '' ELSE $1 END, token = token + CASE WHEN shard = ANY ($3) THEN 1 ELSE 0 END,
    leased_until = clock_timestamp() + CASE WHEN shard = ANY ($4) THEN 0 ELSE $5 END * interval '1 s'
WHERE shard = ANY ($2) OR shard = ANY ($3) OR shard = ANY ($4)
RETURNING shard, token, owner
"""

# By id over all shards and not by shard, so that a backlog of any size is read from its beginning only. A row whose key is blocked is
# passed over here: what blocks it is found in an index that has rows which failed, and no others.
_PENDING: Final = """
WITH found AS (
    SELECT id, shard, attempts, created, size, topic, value, message_key, headers, partition, message_id FROM {rows} AS r
    WHERE state = 2 AND shard = ANY ($1) AND (next_at IS NULL OR next_at <= clock_timestamp())
        AND id <> ALL ($3::bigint[]) AND (key_hash IS NULL OR key_hash <> ALL ($4::bigint[]) AND NOT EXISTS (
            SELECT FROM {rows} AS before WHERE before.key_hash = r.key_hash AND before.id < r.id AND before.attempts > 0
                AND before.key_hash IS NOT NULL
                AND (before.state = 2 AND before.next_at > clock_timestamp() OR before.state = 5 AND $5)))
    ORDER BY id LIMIT $2
), summed AS (
    SELECT *, sum(size::bigint) OVER (ORDER BY id) - size AS before_it FROM found
)
SELECT *, extract(epoch FROM created) * 1000 AS created_ms FROM summed WHERE before_it < $6 ORDER BY id
"""

_MINE: Final = """
ARRAY(SELECT s.shard FROM {shards} AS s JOIN unnest($2::smallint[], $3::bigint[]) AS mine (shard, token)
    ON s.shard = mine.shard AND s.token = mine.token {lock})
"""
# What the broker acknowledged may go whoever deletes it; a failure that is not the owner's may not be written beside the owner.
_SENT: Final = "DELETE FROM {rows} WHERE id = ANY ($1::bigint[]) AND state = 2 AND shard = ANY (" + _MINE.replace("{lock}", "") + ")"
_FAILED: Final = (
    "WITH mine AS MATERIALIZED (SELECT "
    + _MINE.replace("{lock}", "FOR SHARE OF s")
    + """ AS shards)
UPDATE {rows} AS r SET attempts = attempts + 1, cause = f.cause, state = CASE WHEN f.again_in IS NULL THEN 5 ELSE 2 END,
    next_at = clock_timestamp() + f.again_in * interval '1 s'
FROM mine, unnest($1::bigint[], $4::text[], $5::float8[]) AS f (id, cause, again_in)
WHERE r.id = f.id AND r.state = 2 AND r.shard = ANY (mine.shards)
"""
)
_NEXT_DUE: Final = """
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 FROM {rows}
WHERE state = 2 AND next_at IS NOT NULL AND next_at > clock_timestamp() AND shard = ANY ($1)
"""


async def own(connection: AnyConnection, tables: OutboxTables, owner: str, lease: float, share: int) -> dict[int, int]:
    """See `RelayStore.own`; one relay at a time divides."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_SIGN_IN.format(**tables.names), owner, lease)
        shards = [Shard(*row) for row in await connection.fetch(_SHARDS.format(**tables.names))]
        keep, take, give = divide(shards, owner, share)
        changed = await connection.fetch(_CHANGE.format(**tables.names), owner, keep, take, give, lease)
    return {shard: token for shard, token, whose in changed if whose == owner}


async def leave(connection: AnyConnection, tables: OutboxTables, owner: str) -> None:
    """See `RelayStore.leave`."""
    async with connection.transaction(isolation="read_committed"):
        await connection.fetch(_SHARDS.format(**tables.names))
        await connection.execute(f"UPDATE {tables.shards} SET owner = '' WHERE owner = $1", owner)
        await connection.execute(f"DELETE FROM {tables.relays} WHERE owner = $1", owner)


async def pending(
    connection: AnyConnection,
    tables: OutboxTables,
    shards: Collection[int],
    limit: int,
    under_way: Collection[int],
    blocked: Collection[tuple[str, bytes]],
    block_key: bool,
) -> list[OutboxRow]:
    """See `RelayStore.pending`."""
    hashes = [key_hash(topic, key) for topic, key in blocked]
    statement = _PENDING.format(**tables.names)
    found = await connection.fetch(statement, sorted(shards), limit, list(under_way), hashes, block_key, MOST_BYTES)
    return [row_of(row) for row in found]


async def sent(connection: AnyConnection, tables: OutboxTables, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
    """See `RelayStore.sent`."""
    status = await connection.execute(_SENT.format(**tables.names), [row.id for row in rows], *_tokens(rows, shards))
    return int(status.rpartition(" ")[2])


async def failed(connection: AnyConnection, tables: OutboxTables, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
    """See `RelayStore.failed`."""
    ids, _, causes, delays = zip(*failures, strict=True)
    told = (ids, *_tokens(failures, shards), [cause[:CAUSE] for cause in causes], delays)
    status = await connection.execute(_FAILED.format(**tables.names), *told)
    return int(status.rpartition(" ")[2])


async def next_due(connection: AnyConnection, tables: OutboxTables, shards: Collection[int]) -> float | None:
    """See `RelayStore.next_due`."""
    found: float | None = await connection.fetchval(_NEXT_DUE.format(**tables.names), sorted(shards))
    return found


def _tokens(rows: Sequence[Sent | Failed], shards: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The shards of `rows` that are ours, with the tokens that we know."""
    mine = sorted({row.shard for row in rows} & shards.keys())
    return mine, [shards[shard] for shard in mine]
