"""A topic that goes away while a worker reads it, and comes back, on a real broker."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.failures.test_unreadable import Given, committed_at, host
from tests.servers import RawKafka, connected
from tests.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


async def test_a_topic_that_was_away_is_read_again_soon_after_it_is_there(
    raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not after the five minutes that the client waits before it asks for its metadata again."""
    monkeypatch.setattr("ackwise.plugin.consumer.polling._LOOK_FOR_TOPICS", 0.5)
    caplog.set_level("INFO", "ackwise")
    topic, other, group = await raw_kafka.new_topic(), await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")
    given: Given = defaultdict(list)
    async with (
        host(raw_kafka, group, [topic, other], given),
        connected(AIOKafkaAdminClient(bootstrap_servers=raw_kafka.bootstrap)) as admin,
    ):
        await committed_at(raw_kafka, group, TopicPartition(topic, 0), 1)
        await admin.delete_topics([topic])
        await until(lambda: f"topics missing: group={group} topics={topic}" in caplog.text)
        await until(lambda: any(f"group={group}" in line and f"missing={topic}" in line for line in caplog.text.splitlines()))
        answer: Any = await admin.create_topics([NewTopic(topic, 1, 1)])
        assert not any(code for _, code, *_ in answer.topic_errors)
        await raw_kafka.produce(topic, b"b", b"c")
        await until(lambda: len(given[TopicPartition(topic, 0)]) >= 3)
