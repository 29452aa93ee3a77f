"""A message without an answer: what is written, what is counted, and what is raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from tests.waiting import until

from ackwise import Producer
from ackwise.errors import ConfigurationError, PublishUnavailable
from ackwise.plugin.producer.oneway import ONE_WAY
from ackwise.testing import MemoryKafka


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("traces", partitions=3)
        yield kafka


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    ONE_WAY.clear()
    yield
    ONE_WAY.clear()


async def test_it_is_written_as_a_message_of_send_is_and_counted(kafka: MemoryKafka) -> None:
    async with Producer(kafka.bootstrap) as producer:
        for number in range(20):
            await producer.send_one_way("traces", {"n": number}, key="k", headers={"a": "b"}, message_id=f"m{number}")
        expected = await producer.send("traces", b"last", key="k")
        await until(lambda: len(kafka.records("traces")) == 21)
    written = kafka.records("traces", expected.partition)  # type: ignore[union-attr]  # there is no outbox
    assert len(written) == 21
    record = next(record for record in written if record.value == b'{"n":7}')
    assert record.headers == [("a", b"b"), ("message-id", b"m7")]
    assert ONE_WAY == {"sent": 20}


async def test_leaving_the_block_writes_what_was_handed_over(kafka: MemoryKafka) -> None:
    async with Producer(kafka.bootstrap, linger="50ms") as producer:
        await asyncio.gather(*(producer.send_one_way("traces", bytes(1000)) for _ in range(500)))
    assert len(kafka.records("traces")) == ONE_WAY["sent"] == 500


async def test_no_broker_is_waited_for_and_a_refusal_is_not_learnt(kafka: MemoryKafka) -> None:
    kafka.create_topic("small", max_message_bytes=500)
    async with Producer(kafka.bootstrap) as producer:
        await producer.send_one_way("small", b"first")
        holding = kafka.faults.hold("Produce")
        await producer.send_one_way("small", bytes(1000))
        await until(lambda: ONE_WAY["sent"] == 2)
        holding.end()
    assert [record.value for record in kafka.records("small")] == [b"first"]


async def test_a_message_that_can_t_be_handed_over_raises_and_is_counted(kafka: MemoryKafka) -> None:
    async with Producer(kafka.bootstrap, timeout=2) as producer:
        with pytest.raises(
            PublishUnavailable, match=r"topic 'nowhere': the message could not be handed to a broker \(.*\); it is not sent"
        ):
            await producer.send_one_way("nowhere", b"v")
        with pytest.raises(ConfigurationError, match="topic 'traces' has 3 partitions, and no partition 7"):
            await producer.send_one_way("traces", b"v", partition=7)
        kafka.faults.hold("Metadata")
        client: Any = producer._one_way._client
        client._producer.client.cluster._partitions.pop("traces")
        began = asyncio.get_running_loop().time()
        with pytest.raises(PublishUnavailable, match="topic 'traces': the message could not be handed to a broker"):
            await producer.send_one_way("traces", b"v")
        assert asyncio.get_running_loop().time() - began < 4.0
        kafka.faults.clear()
    assert ONE_WAY == {"failed": 3}


async def test_a_message_that_the_client_could_not_write_is_counted_and_logged_once(
    kafka: MemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer(kafka.bootstrap) as producer:
        for number in range(2):
            await producer.send_one_way("traces", b"%d" % number)
            await until(lambda at=number: ONE_WAY["sent"] == at + 1)  # type: ignore[misc]
            client: Any = producer._one_way._client
            client._producer.client.send = refuse
            await producer.send_one_way("traces", b"lost")
            await until(lambda at=number: ONE_WAY["failed"] == at + 1)  # type: ignore[misc]
        await producer.send_one_way("traces", b"after")
    assert {record.value for record in kafka.records("traces")} >= {b"after"}
    assert [record.getMessage() for record in caplog.records if record.name == "ackwise"] == [
        'one-way message failed: topic=traces error="KafkaError: broken"'
    ]


async def refuse(*_: object, **__: object) -> Any:
    raise KafkaError("broken")


async def test_outside_of_its_block_it_sends_nothing(kafka: MemoryKafka) -> None:
    producer = Producer(kafka.bootstrap)
    with pytest.raises(ConfigurationError, match="this Producer is not open"):
        await producer.send_one_way("traces", b"v")
    async with producer:
        with pytest.raises(ConfigurationError, match="start with 'ackwise-'"):
            await producer.send_one_way("traces", b"v", headers={"ackwise-due": "1"})
        assert producer._one_way._client is None
    with pytest.raises(ConfigurationError, match="this Producer is not open"):
        await producer.send_one_way("traces", b"v")
    assert not ONE_WAY
