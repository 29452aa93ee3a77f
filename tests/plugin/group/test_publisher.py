"""What a publisher answers for each copy, and where a copy arrives."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka.errors import KafkaConnectionError
from tests.plugin.group.producers import Factory, Producer
from tests.servers import RawKafka
from tests.shared import SharedKafka

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.message import Headers
from ackwise.middleware.wire import Copy
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.local.broker import embedded_broker
from ackwise.plugin.settings.hostsettings import HostSettings

NOWHERE = HostSettings("127.0.0.1:1", "billing")


async def test_a_publisher_that_finds_no_broker_says_so() -> None:
    with pytest.raises(PublishUnavailable, match=r"brokers '127\.0\.0\.1:1' do not answer"):
        await KafkaPublisher(NOWHERE).start()


async def test_options_that_a_producer_refuses_are_refused_with_a_sentence() -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    with pytest.raises(ConfigurationError, match=r"client_options can't be used for a producer: .*sasl_plain_password"):
        await KafkaPublisher(HostSettings("127.0.0.1:1", "billing", client_options=options)).start()


async def test_without_a_start_nothing_is_published_and_a_stop_does_nothing() -> None:
    publisher = KafkaPublisher(NOWHERE)
    (answer,) = await publisher.publish([Copy("billing.retry", 0, b"k", b"v", ())])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Factory:
    factory = Factory()
    monkeypatch.setattr("ackwise.plugin.group.publisher.AIOKafkaProducer", factory)
    return factory


A_COPY = Copy("billing.retry", 0, b"k", b"v", ())


async def published(publisher: KafkaPublisher) -> None:
    """Until a copy is acknowledged, as who holds it tries it again."""
    async with asyncio.timeout(5):
        while await publisher.publish([A_COPY]) != [None]:  # noqa: ASYNC110  # it is a task beside this that makes it so
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("odd"), OSError("gone"), KafkaConnectionError("gone")], ids=repr)
async def test_whatever_a_send_ends_with_the_copy_is_not_acknowledged_and_its_neighbours_are(
    factory: Factory, error: BaseException
) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    factory.raise_once("send", error)
    first, second = await publisher.publish([A_COPY, A_COPY])
    assert isinstance(first, PublishUnavailable)
    assert second is None
    await publisher.stop()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), OSError("gone"), KafkaConnectionError("gone")], ids=repr)
async def test_a_start_that_is_cancelled_from_inside_is_a_broker_that_does_not_answer(factory: Factory, error: BaseException) -> None:
    publisher = KafkaPublisher(NOWHERE)
    factory.raise_once("start", error)
    with pytest.raises(PublishUnavailable, match="do not answer a producer"):
        await publisher.start()
    assert factory.made[0].is_closed
    await publisher.start()
    await published(publisher)
    await publisher.stop()


def _sender_raises(producer: Producer) -> None:
    producer._sender.sender_task.set_exception(KafkaConnectionError("odd"))
    producer._sender.sender_task.exception()


@pytest.mark.parametrize(
    "end",
    [
        lambda producer: producer._sender.sender_task.cancel(),
        lambda producer: producer._sender.sender_task.set_result(None),
        _sender_raises,
        lambda producer: producer.client._sync_task.cancel(),
    ],
    ids=["cancelled", "returned", "raised", "metadata"],
)
async def test_a_producer_whose_tasks_have_ended_is_replaced_once_and_let_go(
    factory: Factory, caplog: pytest.LogCaptureFixture, end: Callable[[Producer], object]
) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    await published(publisher)
    end(factory.made[0])
    answers = await asyncio.gather(*(publisher.publish([A_COPY]) for _ in range(3)))
    assert all(isinstance(answer, PublishUnavailable) for (answer,) in answers)
    await published(publisher)
    await publisher.stop()
    assert [(len(producer.sent), producer.is_closed) for producer in factory.made] == [(1, True), (1, True)]
    assert caplog.text.count("the producer has stopped by itself") == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KafkaConnectionError("gone"), ValueError("odd")], ids=repr)
async def test_a_producer_that_can_t_be_replaced_now_is_replaced_later(
    factory: Factory, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    factory.made[0]._sender.sender_task.cancel()
    factory.raise_once("start", error)
    await published(publisher)
    await publisher.stop()
    assert [producer.is_closed for producer in factory.made] == [True, True, True]
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KafkaConnectionError("gone"), ValueError("odd")], ids=repr)
async def test_whatever_a_producer_closes_with_its_connections_are_closed_and_nothing_is_raised(
    factory: Factory, error: BaseException
) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    factory.raise_once("stop", error)
    await publisher.stop()
    assert factory.made[0].is_closed


@pytest.fixture
async def topic(raw_kafka: RawKafka) -> str:
    return await raw_kafka.new_topic(2, max_message_bytes=200_000)


@pytest.fixture
async def publisher(kafka: SharedKafka) -> AsyncIterator[KafkaPublisher]:
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
    monkeypatch.setattr("ackwise.plugin.group.publisher._TIMEOUT", 0.5)
    with embedded_broker() as broker:
        publisher = KafkaPublisher(HostSettings(broker.bootstrap, "billing"))
        await publisher.start()
    (answer,) = await publisher.publish([Copy("billing.retry", 0, b"k", b"v", ())])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()
