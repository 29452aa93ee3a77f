"""The offsets that a MariaDB or MySQL inbox keeps: the owner of a partition, and the offset where it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Permit, Place, Progress
from ackwise.stores.mysql.exchanging import rows_of

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["TABLE", "advance", "lock", "permits", "take_over"]

TABLE: Final = """
CREATE TABLE IF NOT EXISTS {} (
    owner VARBINARY(512) NOT NULL,
    topic VARBINARY(249) NOT NULL,
    part INT NOT NULL,
    next_offset BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    began BIGINT NOT NULL,
    PRIMARY KEY (owner, topic, part)
) ENGINE = InnoDB"""

_TAKE_OVER: Final = """
START TRANSACTION;
INSERT INTO {offsets} VALUES {rows}
ON DUPLICATE KEY UPDATE generation = generation + 1;
SELECT topic, part, next_offset, generation FROM {offsets} WHERE owner = {owner} AND (topic, part) IN ({places});
COMMIT
"""

_LOCK: Final = "SELECT next_offset FROM {offsets} WHERE {here} AND generation = {generation} FOR UPDATE"

_ADVANCE: Final = """
UPDATE {offsets} SET next_offset = {next} WHERE {here} AND generation = {generation};
SELECT next_offset FROM {offsets} WHERE {here} AND generation = {generation}
"""

# A record of the inbox that was taken and never finished or sent back has the attempt 0, and permits nothing.
_PERMITS: Final = """
SELECT r.k IS NOT NULL OR o.began IS NULL OR o.began > asked.place, o.next_offset > asked.place
FROM ({asked}) AS asked
LEFT JOIN {inbox} AS r ON r.k = asked.k AND r.kept_until > UTC_TIMESTAMP(6) AND r.next_attempt > 0
LEFT JOIN {offsets} AS o ON o.owner = {owner} AND o.topic = asked.topic AND o.part = asked.part
ORDER BY asked.number
"""


async def take_over(
    connection: Connection, offsets: str, owner: str, positions: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], Progress]:
    """The partitions are ours from now on; waits for batches of the owners before. Raises what asyncmy raises.

    In the order of their names, so that two workers never wait for each other.
    """
    places = {place: f"{_text(place[0])}, {place[1]:d}" for place in sorted(positions)}
    rows = ", ".join(f"({_text(owner)}, {spelled}, {positions[place]:d}, 1, {positions[place]:d})" for place, spelled in places.items())
    packet = _TAKE_OVER.format(
        offsets=offsets, owner=_text(owner), rows=rows, places=", ".join(f"({spelled})" for spelled in places.values())
    )
    found = await rows_of(connection, packet)
    return {(bytes(topic).decode(), partition): Progress(next, generation) for topic, partition, next, generation in found}


async def lock(connection: Connection, offsets: str, owner: str, topic: str, partition: int, generation: int) -> int | None:
    """Return the next offset, locked; `None` if the partition is somebody else's by now."""
    found = await rows_of(connection, _LOCK.format(offsets=offsets, here=_here(owner, topic, partition), generation=int(generation)))
    return int(found[0][0]) if found else None


async def advance(connection: Connection, offsets: str, owner: str, topic: str, partition: int, generation: int, next: int) -> bool:
    """Return whether the partition is still ours, and goes on at `next`."""
    here = _here(owner, topic, partition)
    found = await rows_of(connection, _ADVANCE.format(offsets=offsets, here=here, generation=int(generation), next=int(next)))
    return [tuple(row) for row in found] == [(next,)]


async def permits(connection: Connection, inbox: str, offsets: str, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
    """May these copies run? See `Permit`."""
    if not copies:
        return []
    asked = " UNION ALL ".join(
        f"SELECT {number} AS number, x'{key.id.hex()}' AS k, {_text(topic)} AS topic, {partition:d} AS part, {offset:d} AS place"
        for number, (key, (topic, partition, offset)) in enumerate(copies)
    )
    found = await rows_of(connection, _PERMITS.format(inbox=inbox, offsets=offsets, owner=_text(owner), asked=asked))
    return [Permit.GRANTED if granted else Permit.SUPERSEDED if passed else Permit.PENDING for granted, passed in found]


def _here(owner: str, topic: str, partition: int) -> str:
    return f"owner = {_text(owner)} AND topic = {_text(topic)} AND part = {partition:d}"


def _text(value: str) -> str:
    """As a literal into which nothing else can be read."""
    return f"x'{value.encode().hex()}'"
