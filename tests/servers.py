"""The real brokers that tests run against, and what tests do with them past the code that is tested."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownMemberIdError
from aiokafka.protocol.commit import OffsetCommitRequest
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.local.localkafka import LocalKafka, local_kafka

#: Small files, so that logs roll and a broker starts again quickly; a worker that died is missed after a moment, not after
#: the six seconds that brokers insist on otherwise; what can be compacted is, not fifteen seconds later; and a share group may
#: have short locks, and is joined at once.
PROPERTIES: Mapping[str, str] = {
    "log.segment.bytes": str(1024 * 1024),
    "log.index.size.max.bytes": str(64 * 1024),
    "group.min.session.timeout.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
}

ClientT = TypeVar("ClientT", AIOKafkaAdminClient, AIOKafkaConsumer, AIOKafkaProducer)

#: Different in each process: what tests of several of them make on one server has its own names.
_TAG = os.urandom(3).hex()
_numbers = itertools.count(1)


def new_name(kind: str) -> str:
    """A name that no other test uses, in whichever process: the kind of thing, and what tells it from others."""
    return f"{kind}-{_TAG}-{next(_numbers)}"


@contextmanager
def kafka_or_skip(directory: Path, properties: Mapping[str, str] = PROPERTIES) -> Iterator[LocalKafka]:
    """A real Kafka. A machine where it can't start skips the test and says why; for CI that is a failure."""
    with _skipping("a real Kafka"):
        running = local_kafka(directory, properties=properties)
        broker = running.__enter__()
    try:
        yield broker
    finally:
        running.__exit__(None, None, None)


@asynccontextmanager
async def connected(client: ClientT) -> AsyncIterator[ClientT]:
    """A client of aiokafka while the block runs. It is closed once it has started, however often who uses it is cancelled meanwhile.

    A start or a close that is cut short would leave a connection open.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
        yield client
    finally:
        closing = asyncio.ensure_future(_close(client, starting))
        try:
            await asyncio.shield(closing)
        finally:
            await asyncio.wait([closing])


async def move_group(bootstrap: str, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
    """Commit these offsets for a group without members, as `kafka-consumer-groups --reset-offsets` does; False while it has members."""
    topics: dict[str, list[tuple[int, int, str]]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, []).append((place.partition, offset, ""))
    request = OffsetCommitRequest(
        group, OffsetCommitRequest.DEFAULT_GENERATION_ID, "", OffsetCommitRequest.DEFAULT_RETENTION_TIME, [*topics.items()]
    )
    async with connected(AIOKafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        coordinator = await admin.find_coordinator(group)
        answer: Any = await admin._send_request(request, coordinator)
    codes = {code for _, partitions in answer.topics for _, code in partitions}
    assert codes <= {0, UnknownMemberIdError.errno}, codes
    return codes == {0}


async def _close(client: Any, starting: asyncio.Future[None]) -> None:
    await asyncio.wait([starting])
    await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


@contextmanager
def _skipping(what: str) -> Iterator[None]:
    try:
        yield
    except AckwiseError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"needs {what}: {error}")


class RawKafka:
    """Topics, groups and records of one test, made and read with aiokafka alone."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)

    async def start(self) -> None:
        """Connect, once there is somebody to ask for topics: a broker that has just come back may know of no broker, itself included."""
        await self._admin.start()
        client = self._admin._client
        async with asyncio.timeout(PATIENCE):
            while client.cluster.controller is None:
                await client.force_metadata_update()
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._admin.close()

    def new_group(self) -> str:
        """A name that no other test uses."""
        return new_name("group")

    async def new_topic(self, partitions: int = 1, **config: object) -> str:
        """A topic that no other test uses; `max_message_bytes=5000` is its `max.message.bytes`."""
        name = new_name("topic")
        configs = {key.replace("_", "."): str(value) for key, value in config.items()}
        await self._make(NewTopic(name, partitions, 1, topic_configs=configs))
        return name

    async def create(self, topic: str) -> None:
        """Make a topic of this name, with one partition."""
        await self._make(NewTopic(topic, 1, 1))

    async def delete(self, topic: str) -> None:
        """Delete a topic, and wait until nobody names it."""
        await self._admin.delete_topics([topic])
        await until(self.topics, lambda topics: topic not in topics)

    async def alter(self, topic: str, **config: object) -> None:
        """Set these settings of a topic, and no others."""
        configs = {key.replace("_", "."): str(value) for key, value in config.items()}
        await self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])

    async def produce(
        self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0, headers: Sequence[tuple[str, bytes]] = ()
    ) -> list[int]:
        """Write values in order, acknowledged by all replicas; returns their offsets."""
        async with connected(AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all")) as producer:
            sent = [await producer.send(topic, value, key=key, partition=partition, headers=list(headers)) for value in values]
            return [(await one).offset for one in sent]

    async def records(self, topic: str) -> list[ConsumerRecord[bytes | None, bytes | None]]:
        """Everything in a topic, partition by partition."""
        async with connected(AIOKafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)) as consumer:
            partitions = [TopicPartition(topic, number) for number in sorted(await self._partitions(topic))]
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(partitions)
            found = []
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    found.append(await consumer.getone(partition))
            return found

    async def topics(self) -> set[str]:
        """The names of all topics."""
        return set(await self._admin.list_topics())

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed."""
        return {partition: found.offset for partition, found in (await self._admin.list_consumer_group_offsets(group)).items()}

    async def _make(self, topic: NewTopic) -> None:
        """Returns once a broker names it: the answer of the controller comes before that."""
        response: Any = await self._admin.create_topics([topic])
        assert [code for _, code, _ in response.topic_errors] == [0]
        await until(self.topics, lambda topics: topic.name in topics)

    async def _partitions(self, topic: str) -> list[int]:
        (described,) = await self._admin.describe_topics([topic])
        return [partition["partition"] for partition in described["partitions"]]
