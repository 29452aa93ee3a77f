"""The offsets that a PostgreSQL inbox keeps: the owner of a partition, and the offset where it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Permit, Place, Progress

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["COLUMNS", "advance", "lock", "permits", "take_over"]

# One small row per partition that every batch changes: no index holds what changes, and there is room beside it.
COLUMNS = """
    owner text, topic text, partition int,
    next bigint NOT NULL, generation bigint NOT NULL, began bigint NOT NULL,
    PRIMARY KEY (owner, topic, partition)"""

_TAKE_OVER = """
INSERT INTO {offsets} AS o (owner, topic, partition, next, generation, began)
SELECT $1, asked.topic, asked.partition, asked.position, 1, asked.position
FROM unnest($2::text[], $3::int[], $4::bigint[]) AS asked (topic, partition, position) ORDER BY asked.topic, asked.partition
ON CONFLICT (owner, topic, partition) DO UPDATE SET generation = o.generation + 1 RETURNING o.topic, o.partition, o.next, o.generation
"""

_LOCK = """
SELECT next, pg_current_xact_id()::text FROM {offsets}
WHERE owner = $1 AND topic = $2 AND partition = $3 AND generation = $4 FOR UPDATE
"""

_ADVANCE = """
UPDATE {offsets} SET next = $5 WHERE owner = $1 AND topic = $2 AND partition = $3 AND generation = $4 RETURNING true
"""

# A row of the inbox that was taken and never finished or sent back has the attempt 0, and permits nothing.
_PERMITS = """
SELECT r.k IS NOT NULL OR o.began IS NULL OR o.began > asked.place AS granted, o.next > asked.place AS passed
FROM unnest($1::uuid[], $2::text[], $3::int[], $4::bigint[]) WITH ORDINALITY AS asked (k, topic, partition, place, number)
LEFT JOIN {inbox} AS r ON r.k = asked.k AND r.kept_until > clock_timestamp() AND r.next_attempt > 0
LEFT JOIN {offsets} AS o ON o.owner = $5 AND o.topic = asked.topic AND o.partition = asked.partition
ORDER BY asked.number
"""


async def take_over(
    connection: PoolConnectionProxy, offsets: str, owner: str, positions: Mapping[tuple[str, int], int], timeout: float
) -> dict[tuple[str, int], Progress]:
    """The partitions are ours from now on; waits for batches of the owners before. Raises what asyncpg raises.

    In the order of their names, so that two workers never wait for each other.
    """
    topics, partitions = [topic for topic, _ in positions], [partition for _, partition in positions]
    asked = owner, topics, partitions, list(positions.values())
    rows = await connection.fetch(_TAKE_OVER.format(offsets=offsets), *asked, timeout=timeout)
    return {(row["topic"], row["partition"]): Progress(row["next"], row["generation"]) for row in rows}


async def lock(
    connection: PoolConnectionProxy, offsets: str, owner: str, topic: str, partition: int, generation: int
) -> tuple[int, str] | None:
    """Return the next offset, locked, and which transaction it is; `None` if the partition is somebody else's by now."""
    row = await connection.fetchrow(_LOCK.format(offsets=offsets), owner, topic, partition, generation)
    return None if row is None else (row[0], row[1])


async def advance(
    connection: PoolConnectionProxy, offsets: str, owner: str, topic: str, partition: int, generation: int, next: int
) -> bool:
    """Return whether the partition is still ours, and goes on at `next`."""
    return bool(await connection.fetchval(_ADVANCE.format(offsets=offsets), owner, topic, partition, generation, next))


async def permits(
    connection: PoolConnectionProxy, inbox: str, offsets: str, owner: str, copies: Sequence[tuple[ClaimKey, Place]]
) -> list[Permit]:
    """May these copies run? See `Permit`."""
    if not copies:
        return []
    topics, partitions, places = zip(*(origin for _, origin in copies), strict=True)
    keys = [key.id.hex() for key, _ in copies]
    rows = await connection.fetch(_PERMITS.format(inbox=inbox, offsets=offsets), keys, topics, partitions, places, owner)
    return [Permit.GRANTED if row["granted"] else Permit.SUPERSEDED if row["passed"] else Permit.PENDING for row in rows]
