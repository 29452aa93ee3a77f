"""What a relay asks of an outbox, on one connection: who owns which shard, which rows are due, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ackwise.middleware.outbox import Failed, OutboxRow, Sent, key_hash
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxrows import CAUSE, MOST_BYTES, row_of
from ackwise.stores.protocol.outboxshards import Shard, divide

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    AnyConnection = Connection | PoolConnectionProxy

__all__ = ["failed", "free", "leave", "next_due", "own", "pending", "sent"]

_AT_LEAST: Final = 200
"""Rows that are read at once, though fewer are asked for: they may be blocked."""

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

# An earlier row of the key that holds it up: one that waits itself, is not due again yet, or is parked because it could not be sent.
# One moment for the whole statement: a row that became due in the middle of it would be left out, and hold up nothing.
_BLOCKER: Final = """
SELECT FROM {rows} AS before WHERE before.key_hash = r.key_hash AND before.id < r.id AND before.key_hash IS NOT NULL
    AND (before.attempts > 0 OR before.behind)
    AND (before.behind OR before.state = 2 AND before.next_at > statement_timestamp() OR before.state = 5 AND {block_key})
"""
# By id over all shards and not by shard, so that a backlog of any size is read from its beginning only. A row that is blocked is told
# without its value, and is put `behind` then: it leaves the index that is read here, until what blocks it is sent.
_PENDING: Final = f"""
WITH seen AS (
    SELECT id, shard, attempts, created, size::bigint, topic, value, message_key, headers, partition, message_id,
        key_hash IS NOT NULL AND EXISTS ({_BLOCKER.replace("{block_key}", "$5")}) AS is_blocked
    FROM {{rows}} AS r
    WHERE state = 2 AND NOT behind AND shard = ANY ($1) AND (next_at IS NULL OR next_at <= statement_timestamp())
        AND id <> ALL ($3::bigint[]) AND (key_hash IS NULL OR key_hash <> ALL ($4::bigint[]))
    ORDER BY id LIMIT $2
), summed AS (
    SELECT *, sum(CASE WHEN is_blocked THEN 0 ELSE size END) OVER (ORDER BY id) - size AS before_it FROM seen
)
SELECT id, shard, attempts, size, topic, CASE WHEN NOT is_blocked THEN value END AS value, message_key, headers, partition, message_id,
    is_blocked, extract(epoch FROM created) * 1000 AS created_ms
FROM summed WHERE is_blocked OR before_it < $6 ORDER BY id
"""
_PUT_BEHIND: Final = "UPDATE {rows} SET behind = true WHERE id = ANY ($1::bigint[]) AND state = 2 AND NOT behind"

# Some at a time: if the first of them fails, they are put behind it again.
_FREE: Final = """
UPDATE {rows} SET behind = false WHERE id IN (
    SELECT b.id FROM (SELECT DISTINCT key_hash FROM {ended}) AS e CROSS JOIN LATERAL (
        SELECT id FROM {rows} AS b WHERE b.behind AND b.key_hash IS NOT NULL AND b.key_hash = e.key_hash ORDER BY b.id LIMIT 1000
    ) AS b)
"""
# The net: whatever a row waited behind, it is gone or due. Each key is looked at once, however many rows wait.
_FREE_ALL: Final = f"""
WITH RECURSIVE keys AS (
    (SELECT key_hash FROM {{rows}} WHERE behind AND key_hash IS NOT NULL ORDER BY key_hash LIMIT 1)
    UNION ALL
    SELECT (SELECT b.key_hash FROM {{rows}} AS b WHERE b.behind AND b.key_hash IS NOT NULL AND b.key_hash > keys.key_hash
        ORDER BY b.key_hash LIMIT 1)
    FROM keys WHERE key_hash IS NOT NULL
)
UPDATE {{rows}} SET behind = false WHERE behind AND key_hash IS NOT NULL AND key_hash IN (
    SELECT key_hash FROM (SELECT key_hash, {2**62} AS id FROM keys) AS r
    WHERE NOT EXISTS ({_BLOCKER.replace("before.behind OR", "").replace("{block_key}", "$1")}))
"""

_MINE: Final = """
ARRAY(SELECT s.shard FROM {shards} AS s JOIN unnest($2::smallint[], $3::bigint[]) AS mine (shard, token)
    ON s.shard = mine.shard AND s.token = mine.token {lock})
"""
# What the broker acknowledged may go whoever deletes it; a failure that is not the owner's may not be written beside the owner.
_OF_MINE: Final = "id = ANY ($1::bigint[]) AND state = 2 AND shard = ANY (" + _MINE.replace("{lock}", "") + ")"
_AND_FREED: Final = ", freed AS (" + _FREE.replace("{ended}", "ended") + ") SELECT count(*) FROM ended"
_DELETED: Final = "WITH ended AS (DELETE FROM {rows} WHERE " + _OF_MINE + " RETURNING key_hash)" + _AND_FREED
# A row that is kept holds up none, and is told by no key.
_KEPT: Final = (
    "WITH gone AS (SELECT id, key_hash FROM {rows} WHERE "
    + _OF_MINE
    + """ FOR UPDATE), ended AS (
UPDATE {rows} AS r SET state = 4, next_at = clock_timestamp() + $4 * interval '1 s', cause = NULL, key_hash = NULL, behind = false {blank}
FROM gone WHERE r.id = gone.id RETURNING gone.key_hash)"""
    + _AND_FREED
)
_FAILED: Final = (
    "WITH mine AS MATERIALIZED (SELECT "
    + _MINE.replace("{lock}", "FOR SHARE OF s")
    + """ AS shards), ended AS (
UPDATE {rows} AS r SET attempts = attempts + 1, cause = f.cause, state = CASE WHEN f.again_in IS NULL THEN 5 ELSE 2 END,
    next_at = clock_timestamp() + coalesce(f.again_in, 0) * interval '1 s'
FROM mine, unnest($1::bigint[], $4::text[], $5::float8[]) AS f (id, cause, again_in)
WHERE r.id = f.id AND r.state = 2 AND r.shard = ANY (mine.shards)
RETURNING r.key_hash, r.state), freed AS ("""
    + _FREE.replace("{ended}", "ended WHERE state = 5")
    + ") SELECT count(*) FROM ended"
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
    """See `RelayStore.pending`. What is found blocked is put behind and not read again, so nothing that comes after it is slowed."""
    hashes = [key_hash(topic, key) for topic, key in blocked]
    given, left_out, size = list[OutboxRow](), list(under_way), 0
    while len(given) < limit and size < MOST_BYTES:
        asked = sorted(shards), max(limit - len(given), _AT_LEAST), left_out, hashes, block_key, MOST_BYTES - size
        found = await connection.fetch(_PENDING.format(**tables.names), *asked)
        free = [row for row in found if not row["is_blocked"]][: limit - len(given)]
        given += map(row_of, free)
        size += sum(row["size"] for row in free)
        held_up = [row["id"] for row in found if row["is_blocked"]]
        if not held_up:
            break
        await connection.execute(_PUT_BEHIND.format(**tables.names), held_up)
        left_out += [row["id"] for row in free]
    return given


async def free(connection: AnyConnection, tables: OutboxTables, block_key: bool) -> None:
    """Let rows go on that wait behind none, as after somebody deleted it by hand; with `block_key` a parked row is one to wait behind."""
    await connection.execute(_FREE_ALL.format(**tables.names), block_key)


async def sent(connection: AnyConnection, tables: OutboxTables, rows: Sequence[Sent], shards: Mapping[int, int], keeping: Keeping) -> int:
    """See `RelayStore.sent`."""
    told = ([row.id for row in rows], *_tokens(rows, shards))
    if not keeping.sent:
        return int(await connection.fetchval(_DELETED.format(**tables.names), *told))
    blank = "".join(f", {column} = NULL" for column in keeping.blanked)
    return int(await connection.fetchval(_KEPT.format(**tables.names, blank=blank), *told, keeping.sent))


async def failed(connection: AnyConnection, tables: OutboxTables, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
    """See `RelayStore.failed`."""
    ids, _, causes, delays = zip(*failures, strict=True)
    told = (ids, *_tokens(failures, shards), [cause[:CAUSE] for cause in causes], delays)
    return int(await connection.fetchval(_FAILED.format(**tables.names), *told))


async def next_due(connection: AnyConnection, tables: OutboxTables, shards: Collection[int]) -> float | None:
    """See `RelayStore.next_due`."""
    found: float | None = await connection.fetchval(_NEXT_DUE.format(**tables.names), sorted(shards))
    return found


def _tokens(rows: Sequence[Sent | Failed], shards: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The shards of `rows` that are ours, with the tokens that we know."""
    mine = sorted({row.shard for row in rows} & shards.keys())
    return mine, [shards[shard] for shard in mine]
