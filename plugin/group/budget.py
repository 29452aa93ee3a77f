"""Budget of raw bytes: how many fetched and unsettled ones a process may hold, over all its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

__all__ = ["BATCH_BYTES", "LANE_BYTES", "Budget", "sizes_of"]

#: Bytes that one partition may hold: RocketMQ's `pullThresholdSizeForQueue`.
LANE_BYTES: Final = 100 * 2**20

#: Bytes that a partition with nothing in hand may take where the process holds as much as it may.
BATCH_BYTES: Final = 2**20


class Budget:
    """`used` of `limit` bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def is_spent(self) -> bool:
        """Whether partitions take no more than one batch each."""
        return self.used > self.limit

    def room(self, held: int, *, is_empty: bool, most: int | None = None) -> int:
        """The bytes that a partition which holds `held` of `most` may take; if it `is_empty`, it always takes a batch."""
        most = LANE_BYTES if most is None else most
        room = min(most - held, self.limit - self.used)
        return max(room, min(most, BATCH_BYTES)) if is_empty else room


def sizes_of(records: Iterable[Any]) -> list[int]:
    """The raw bytes of each of `records`: its key, its value, its headers."""
    return [
        len(record.value or b"")
        + len(record.key or b"")
        + (sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0)
        for record in records
    ]
