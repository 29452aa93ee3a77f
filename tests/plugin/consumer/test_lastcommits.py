"""What the brokers keep beside the last commits of a group, asked from outside."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from tests.servers import RawKafka
from tests.shared import SharedKafka

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.progress.commitmetadata import CommitMetadata, LastCommit, group_hash
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.groupstate import last_commits

pytestmark = pytest.mark.kafka


@pytest.fixture
async def committed(kafka: SharedKafka, raw_kafka: RawKafka) -> str:
    """A group with three partitions: two of one writer, one whose commit was copied from another group."""
    group = topic = await raw_kafka.new_topic(partitions=3)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(partitions)
        ours = [CommitMetadata(2**62, seq, group=group_hash(group)).encode() for seq in (7, 9)]
        beside = [*ours, CommitMetadata(2**62, 11, group=group_hash("another")).encode()]
        await consumer.commit({place: OffsetAndMetadata(0, text) for place, text in zip(partitions, beside, strict=True)})
    finally:
        await consumer.stop()
    return group


async def test_each_writer_is_named_with_its_last_events_and_what_is_foreign_is_passed_over(kafka: SharedKafka, committed: str) -> None:
    found = await last_commits(HostSettings(kafka.bootstrap, "reconcile"), {committed, "nobody"})
    assert found == [LastCommit(committed, 2**62, 7), LastCommit(committed, 2**62, 9)]


async def test_brokers_that_are_away_are_said_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match="localhost:1"):
        await last_commits(HostSettings("localhost:1", "reconcile"), {"g"})
