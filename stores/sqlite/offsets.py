"""The offsets that a SQLite inbox keeps: the owner of a partition, and the offset where it goes on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from ackwise.middleware.transaction import Permit, Place, Progress

__all__ = ["advance", "lock", "permits", "take_over"]

_TAKE_OVER: Final = """
INSERT INTO ackwise_offsets
SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), 1, json_extract(value, '$[2]')
FROM json_each(?) WHERE TRUE
ON CONFLICT DO UPDATE SET generation = generation + 1 RETURNING topic, partition, next, generation
"""
_LOCK: Final = "SELECT next FROM ackwise_offsets WHERE owner = ? AND topic = ? AND partition = ? AND generation = ?"
_ADVANCE: Final = "UPDATE ackwise_offsets SET next = ? WHERE owner = ? AND topic = ? AND partition = ? AND generation = ?"
_PERMITS: Final = """
SELECT asked.key, ackwise_inbox.place IS NOT NULL, began IS NULL OR began > json_extract(value, '$[3]'), next > json_extract(value, '$[3]')
FROM json_each(?) AS asked
LEFT JOIN ackwise_inbox ON place = json_extract(value, '$[0]') AND kept_until > ?
LEFT JOIN ackwise_offsets ON owner = ? AND topic = json_extract(value, '$[1]') AND partition = json_extract(value, '$[2]')
ORDER BY asked.key
"""


def take_over(connection: sqlite3.Connection, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
    """Make the partitions those of `owner`; return where they go on. Raise what sqlite3 raises."""
    asked = json.dumps([(*place, position) for place, position in positions.items()])
    taken = connection.execute(_TAKE_OVER, (owner, asked)).fetchall()
    return {(topic, partition): Progress(next, generation) for topic, partition, next, generation in taken}


def lock(connection: sqlite3.Connection, owner: str, topic: str, partition: int, generation: int) -> int | None:
    """Return the next offset; `None` if the partition is somebody else's by now. The whole file is locked already."""
    row = connection.execute(_LOCK, (owner, topic, partition, generation)).fetchone()
    return None if row is None else int(row[0])


def advance(connection: sqlite3.Connection, owner: str, topic: str, partition: int, generation: int, next: int) -> bool:
    """Return whether the partition is still ours, and goes on at `next`."""
    return connection.execute(_ADVANCE, (next, owner, topic, partition, generation)).rowcount == 1


def permits(connection: sqlite3.Connection, owner: str, copies: Sequence[tuple[str, Place]], now: float) -> list[Permit]:
    """Return whether each copy, with the name of its record, may run. See `Permit`."""
    asked = json.dumps([(name, *origin) for name, origin in copies])
    rows = connection.execute(_PERMITS, (asked, now, owner)).fetchall()
    return [_permit(bool(is_known), bool(is_older), bool(is_passed)) for _, is_known, is_older, is_passed in rows]


def _permit(is_known: bool, is_older: bool, is_passed: bool) -> Permit:
    if is_known or is_older:
        return Permit.GRANTED
    return Permit.SUPERSEDED if is_passed else Permit.PENDING
