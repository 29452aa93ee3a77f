"""Budget of raw bytes: how many fetched and unsettled ones a process may hold, over all its partitions."""

from __future__ import annotations

from typing import Final

__all__ = ["BATCH_BYTES", "LANE_BYTES", "Budget"]

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
