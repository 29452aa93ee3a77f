"""Origins: the records of source topics, where their producers wrote them."""

from __future__ import annotations

import time
from bisect import bisect_left
from operator import attrgetter
from typing import Any, Final

from aiokafka import TopicPartition

from ackwise.middleware.message import Origin
from ackwise.plugin.client.reading import Bounds, TopicReader, Unreadable

__all__ = ["Origins"]

#: Seconds for which the ends of a log are taken for what they were: asking for each of a thousand steps would take long.
_FRESH: Final = 5.0


class Origins:
    """The logs of the source topics. Each call raises `Unavailable`."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._there: dict[str, frozenset[TopicPartition]] = {}
        self._bounds: dict[TopicPartition, tuple[float, Bounds]] = {}
        self._held: tuple[TopicPartition | None, int, list[Any], int] = None, 0, [], 0
        """What was read last: a partition, from where, the records, and the offset that they go to."""

    async def bounds(self, partition: TopicPartition) -> Bounds:
        """What the log has; nothing where there is no such partition."""
        if partition.topic not in self._there:
            self._there[partition.topic] = frozenset(await self._reader.partitions([partition.topic]))
        if partition not in self._there[partition.topic]:
            return Bounds(0, 0)
        asked_at, known = self._bounds.get(partition, (-_FRESH, Bounds(0, 0)))
        if time.monotonic() - asked_at >= _FRESH:
            known = (await self._reader.bounds([partition]))[partition]
            self._bounds[partition] = time.monotonic(), known
        return known

    async def read(self, partition: TopicPartition, start: int, end: int, most: int) -> tuple[list[Any], int]:
        """At most `most` records of [`start`, `end`), which the log has, and the offset that they go to.

        What is below that and not among them, is not there. Raises `Unreadable` where the log has less than it had.
        """
        held, first, records, through = self._held
        if held != partition or not first <= start < through:
            ends = (await self.bounds(partition)).end
            if ends <= start:
                raise Unreadable(f"{partition.topic}/{partition.partition} ends at {ends} now and had a record at {start}; start again")
            records, through = await self._reader.portion(partition, start, ends)
            self._held = partition, start, records, through
        at = bisect_left(records, start, key=attrgetter("offset"))
        found = records[at : min(at + most, bisect_left(records, end, key=attrgetter("offset")))]
        return found, found[-1].offset + 1 if len(found) == most else min(end, through)

    async def record(self, origin: Origin) -> Any:
        """One record; `None` if it is no longer there, or another one is now."""
        partition = TopicPartition(origin.topic, origin.partition)
        start, end = await self.bounds(partition)
        found = await self._reader.first(partition, origin.offset, origin.offset + 1) if start <= origin.offset < end else None
        return None if found is None or found.timestamp != origin.timestamp_ms else found
