"""The shop that sends orders, and the observer that watches the topics: both ends of the demo on Kafka."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.policies.delaytopic import CANCELLATIONS, WAITS, wait_of
from ackwise.plugin.demo.scenario import DeadLetterSeen, PlannedRecord
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.topicreader import TopicReader

PARTITIONS: Final = 4

#: Records between two looks at the progress bar.
_CHUNK: Final = 1000


async def open_topic(brokers: str, topic: str) -> None:
    """Create `topic` on a real broker. Raises `KafkaError`."""
    async with _admin(brokers) as admin:
        response: Any = await admin.create_topics([NewTopic(topic, PARTITIONS, replication_factor=1)])
        for _, code, *_ in response.topic_errors:
            if code:
                raise for_code(code)


async def count_members(brokers: str, group: str) -> int:
    """How many members of `group` have their partitions; 0 while they are being handed out. Not for the embedded broker."""
    async with _admin(brokers) as admin:
        try:
            (answer,) = await admin.describe_consumer_groups([group])
        except KafkaError as error:
            if error.retriable:  # the first group of a cluster has to wait for its coordinator
                return 0
            raise
    described: Any = answer.to_object()["groups"][0]
    return len(described["members"]) if described["state"] == "Stable" else 0


@asynccontextmanager
async def _admin(brokers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    async with opened(admin):
        yield admin


async def send(brokers: str, topic: str, records: Sequence[PlannedRecord], progress: Callable[[int], None]) -> list[tuple[int, int]]:
    """Send `records` in order, acks=all; returns where the broker says that each one stands: partition and offset."""
    positions: list[tuple[int, int]] = []
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", linger_ms=5)
    async with opened(producer):
        for start in range(0, len(records), _CHUNK):
            reports = [await producer.send(topic, record.value, key=record.key.encode()) for record in records[start : start + _CHUNK]]
            positions += [(report.partition, report.offset) for report in await asyncio.gather(*reports)]
            progress(len(positions))
    return positions


class Observer:
    """Looks at the topics of a group as anybody could, without being a member of it."""

    def __init__(self, group: str, topic: str, levels: Sequence[str], admin: AIOKafkaAdminClient) -> None:
        self._group = group
        self._levels = levels
        self._read = _places(topic, f"{group}.retry")
        self._admin = admin
        self._reader = TopicReader(admin, committed=False)
        self._seen = dict.fromkeys(_places(f"{group}.dlq"), 0)
        self.dead_letters: list[DeadLetterSeen] = []

    async def refresh_dead_letters(self) -> list[DeadLetterSeen]:
        """All dead letters so far."""
        for place, end in (await self._reader.ends(self._seen)).items():
            self.dead_letters += [_dead_letter(record) async for record in self._reader.records(place, self._seen[place], end)]
            self._seen[place] = end
        return self.dead_letters

    async def retried(self) -> dict[str, int]:
        """How many copies were written to the rung of each delay level: its own, or the longest within it."""
        ends = await self._reader.ends(await self._rungs())
        written: Counter[int] = Counter()
        for place, end in ends.items():
            written[wait_of(place.partition)] += end
        waits = [max(wait for wait in WAITS if wait <= parse_duration(level, what="a level")) for level in self._levels]
        return {level: written[wait] for level, wait in zip(self._levels, waits, strict=True)}

    async def passed(self, group: str, topic: str) -> dict[int, int]:
        """Up to where `group` has committed each partition of `topic`; no entry for one that it never did."""
        committed = await self._committed(group, _places(topic))
        return {place.partition: offset for place, offset in committed.items() if offset >= 0}

    async def is_idle(self) -> bool:
        """Whether worker and relay have committed everything that there is."""
        return await self._is_committed(self._group, self._read) and await self._is_committed(f"{self._group}.relay", await self._rungs())

    async def _rungs(self) -> list[TopicPartition]:
        """Those that there are: the embedded broker makes few partitions."""
        return [place for place in await self._reader.partitions([f"{self._group}.delay"]) if place.partition != CANCELLATIONS]

    async def _is_committed(self, group: str, partitions: Sequence[TopicPartition]) -> bool:
        ends, committed = await self._reader.ends(partitions), await self._committed(group, partitions)
        return all(end == 0 or committed.get(partition, -1) >= end for partition, end in ends.items())

    async def _committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, Any] = await self._admin.list_consumer_group_offsets(group, partitions=list(partitions))
        return {partition: committed.offset for partition, committed in found.items()}


@asynccontextmanager
async def observe(brokers: str, group: str, topic: str, levels: Sequence[str]) -> AsyncIterator[Observer]:
    """An observer, connected while the block runs. The dead-letter topic must be there."""
    async with _admin(brokers) as admin:
        yield Observer(group, topic, levels, admin)


def _places(*topics: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]


def _dead_letter(record: Any) -> DeadLetterSeen:
    headers = dict(record.headers)
    return DeadLetterSeen(
        (record.key or b"").decode(),
        headers.get("ackwise-reason", b"").decode(),
        int(headers.get("ackwise-origin-partition", -1)),
        int(headers.get("ackwise-origin-offset", -1)),
    )
