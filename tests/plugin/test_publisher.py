"""What a publisher answers for each copy, and where a copy arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.servers import RawKafka

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.message import Headers
from ackwise.middleware.wire import Copy
from ackwise.plugin.localbroker import LocalKafka, embedded_broker
from ackwise.plugin.publisher import KafkaPublisher
from ackwise.plugin.settings import HostSettings

NOWHERE = HostSettings("127.0.0.1:1", "billing")


async def test_a_publisher_that_finds_no_broker_says_so() -> None:
    with pytest.raises(PublishUnavailable, match=r"brokers '127\.0\.0\.1:1' do not answer"):
        await KafkaPublisher(NOWHERE).start()


async def test_options_that_a_producer_refuses_are_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"client_options can't be used for a producer: .*security_protocol"):
        await KafkaPublisher(HostSettings("127.0.0.1:1", "billing", client_options={"security_protocol": "blue"})).start()


async def test_without_a_start_nothing_is_published_and_a_stop_does_nothing() -> None:
    publisher = KafkaPublisher(NOWHERE)
    (answer,) = await publisher.publish([Copy("billing.retry", 0, b"k", b"v", ())])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()


@pytest.fixture
async def topic(raw_kafka: RawKafka) -> str:
    return await raw_kafka.new_topic(2, max_message_bytes=200_000)


@pytest.fixture
async def publisher(kafka: LocalKafka) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(HostSettings(kafka.bootstrap, "billing"))
    await publisher.start()
    yield publisher
    await publisher.stop()


async def test_a_copy_arrives_as_it_is(raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher) -> None:
    headers: Headers = (("trace", b"1"), ("trace", None), ("empty", b""))
    assert await publisher.publish([Copy(topic, 1, b"key", b"value", headers)]) == [None]
    (record,) = await raw_kafka.records(topic)
    assert (record.partition, record.key, record.value) == (1, b"key", b"value")
    assert list(record.headers) == list(headers)


@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", None), (None, None), (b"", b"")])
async def test_keys_and_values_may_be_null_or_empty_both_at_once_as_well(
    raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher, key: bytes | None, value: bytes | None
) -> None:
    assert await publisher.publish([Copy(topic, 0, key, value, (("h", b"x"),))]) == [None]
    (record,) = await raw_kafka.records(topic)
    assert (record.key, record.value, tuple(record.headers)) == (key, value, (("h", b"x"),))


async def test_a_copy_for_a_partition_that_is_not_there_is_folded_into_those_that_are(
    raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher
) -> None:
    assert await publisher.publish([Copy(topic, 5, b"k", b"v", ())]) == [None]
    assert [record.partition for record in await raw_kafka.records(topic)] == [1]


async def test_a_copy_that_is_too_large_is_refused_for_good_and_its_neighbours_arrive(
    raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher
) -> None:
    copies = [Copy(topic, 0, b"k", value, ()) for value in (b"a", b"x" * 300_000, b"b")]
    first, refused, last = await publisher.publish(copies)
    assert (first, last) == (None, None)
    assert isinstance(refused, PublishRefused)
    assert {record.value for record in await raw_kafka.records(topic)} == {b"a", b"b"}


async def test_large_copies_go_together_if_each_of_them_fits(raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher) -> None:
    copies = [Copy(topic, 0, b"k", bytes([number]) * 150_000, ()) for number in range(8)]
    assert await publisher.publish(copies) == [None] * 8
    assert len(await raw_kafka.records(topic)) == 8


async def test_a_cancelled_publish_is_cancelled(topic: str, publisher: KafkaPublisher) -> None:
    task = asyncio.create_task(publisher.publish([Copy(topic, 0, b"k", b"v", ())]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await publisher.publish([Copy(topic, 0, b"k", b"w", ())]) == [None]


@pytest.mark.embedded
async def test_a_broker_that_is_gone_is_not_a_refusal_since_it_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.publisher._TIMEOUT", 0.5)
    with embedded_broker() as broker:
        publisher = KafkaPublisher(HostSettings(broker.bootstrap, "billing"))
        await publisher.start()
    (answer,) = await publisher.publish([Copy("billing.retry", 0, b"k", b"v", ())])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()
