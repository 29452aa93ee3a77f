"""Parcel: records of a delay line that come back together, packed as one batch before they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message import Delivery, Headers
from ackwise.middleware.wire import Copy
from ackwise.plugin.group.budget import Budget

__all__ = ["BatchPublisher", "CopyBatch", "Parcel", "Parcels"]

#: Milliseconds by which the first of a parcel may wait for its last.
_SLOT: Final = 20


class CopyBatch(Protocol):
    """Copies for one partition that are sent as a whole, once."""

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, /) -> bool:
        """Take one more; `False` if there is no room, and never will be."""
        ...

    def copies(self) -> Sequence[Copy]:
        """What is in it, for who must send it again."""
        ...


@runtime_checkable
class BatchPublisher(Protocol):
    """A publisher that takes whole batches besides. Any other is given copies."""

    def new_batch(self, topic: str, partition: int, /) -> CopyBatch:
        """An empty batch."""
        ...

    async def send(self, batches: Sequence[CopyBatch], /) -> list[PublishUnavailable | PublishRefused | None]:
        """Send batches that were never sent; one answer for each, in order."""
        ...


@dataclass(slots=True)
class Parcel:
    """Records of offsets `first` to before `end`, in a batch that may go at `until`. Times are epoch milliseconds."""

    batch: CopyBatch
    first: int
    end: int
    begins: int  #: when its first record is due
    until: int  #: when all of them are
    size: int = 0  #: bytes
    keys: set[int] = field(default_factory=set)  #: hashes of what they are cancelled by

    def take(self, record: Delivery, due: int, key: bytes, size: int, now_ms: int) -> bool:
        """Take the next record of the line, which comes back at `due`; `False` if it belongs into another parcel.

        Its timestamp is its due time: the topic keeps it from then on.
        """
        if record.offset != self.end or due > max(self.begins + _SLOT, now_ms):
            return False
        if not self.batch.append(record.key, record.value, record.headers, due):
            return False
        self.end += 1
        self.until = max(self.until, due)
        self.size += size
        self.keys.add(hash(key))
        return True


class Parcels:
    """The parcels of one line, in the order of its records, and their bytes, which count in a `budget` that all lines share."""

    def __init__(self, publisher: BatchPublisher, topic: str, budget: Budget) -> None:
        self.bytes = 0  #: of what was packed and not given back, also where it is on its way
        self._publisher = publisher
        self._topic = topic
        self._budget = budget
        self._parcels: deque[Parcel] = deque()

    def put(self, record: Delivery, due: int, key: bytes, size: int, now_ms: int) -> None:
        """Pack the next record of the line."""
        self.bytes += size
        self._budget.used += size
        if not self._parcels or not self._parcels[-1].take(record, due, key, size, now_ms):
            batch = self._publisher.new_batch(self._topic, record.partition)
            self._parcels.append(parcel := Parcel(batch, record.offset, record.offset, due, due))
            parcel.take(record, due, key, size, now_ms)

    def take_due(self, now_ms: int, most: int) -> list[Parcel]:
        """Take out what is due at the head, about `most` bytes."""
        taken, size = [], 0
        while self._parcels and self._parcels[0].until <= now_ms and size < most:
            taken.append(self._parcels.popleft())
            size += taken[-1].size
        return taken

    @property
    def next_due(self) -> int | None:
        """When the head may go; `None` without one."""
        return self._parcels[0].until if self._parcels else None

    def has_room(self, share: float) -> bool:
        """Whether all lines together hold less than this share of what they may."""
        return self._budget.used < self._budget.limit * share

    def give_back(self, parcel: Parcel) -> None:
        """What was taken out is no longer held."""
        self.bytes -= parcel.size
        self._budget.used -= parcel.size

    def leave(self) -> None:
        """Count for nothing from now on."""
        self._budget.used -= self.bytes
        self._budget = Budget(0)
