"""What a publisher answers for each copy, and where a copy arrives."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from aiokafka.errors import KafkaConnectionError
from tests.leaderless import Leaderless
from tests.plugin.consumer.producers import Factory, Producer
from tests.servers import RawKafka
from tests.shared import SharedKafka
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import TopicMissing
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.policies.delaytopic import wait_of
from ackwise.plugin.local.localkafka import embedded_broker
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing import MemoryKafka

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
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher.AIOKafkaProducer", factory)
    return factory


#: What a call of a client may end with.
ENDS = (asyncio.CancelledError(), KafkaConnectionError("gone"), ValueError("odd"))

A_COPY = Copy("billing.retry", 0, b"k", b"v", ())


async def published(publisher: KafkaPublisher) -> None:
    """Until a copy is acknowledged, as who holds it tries it again."""
    await until(lambda: publisher.publish([A_COPY]), lambda answers: answers == [None])


async def test_whatever_a_send_or_a_close_ends_with_only_that_copy_is_not_acknowledged_and_all_connections_are_closed(
    factory: Factory,
) -> None:
    for error in ENDS:
        publisher = KafkaPublisher(NOWHERE)
        await publisher.start()
        factory.raise_once("send", error)
        first, second = await publisher.publish([A_COPY, replace(A_COPY, partition=1)])
        assert isinstance(first, PublishUnavailable), error
        assert second is None
        factory.raise_once("stop", error)
        await publisher.stop()
        assert factory.made[-1].is_closed


async def test_a_start_that_is_cancelled_from_inside_is_a_broker_that_does_not_answer(factory: Factory) -> None:
    for error in (asyncio.CancelledError(), OSError("gone"), KafkaConnectionError("gone")):
        publisher = KafkaPublisher(NOWHERE)
        factory.raise_once("start", error)
        with pytest.raises(PublishUnavailable, match="do not answer a producer"):
            await publisher.start()
        assert factory.made[-1].is_closed
        await publisher.start()
        await published(publisher)
        await publisher.stop()


def _sender_raises(producer: Producer) -> None:
    producer._sender.sender_task.set_exception(KafkaConnectionError("odd"))
    producer._sender.sender_task.exception()


async def test_a_producer_whose_tasks_have_ended_is_replaced_once_and_let_go(factory: Factory, caplog: pytest.LogCaptureFixture) -> None:
    ends: dict[str, Callable[[Producer], object]] = {
        "cancelled": lambda producer: producer._sender.sender_task.cancel(),
        "returned": lambda producer: producer._sender.sender_task.set_result(None),
        "raised": _sender_raises,
        "metadata": lambda producer: producer.client._sync_task.cancel(),
    }
    for name, end in ends.items():
        factory.made.clear()
        caplog.clear()
        publisher = KafkaPublisher(NOWHERE)
        await publisher.start()
        await published(publisher)
        end(factory.made[0])
        answers = await asyncio.gather(*(publisher.publish([A_COPY]) for _ in range(3)))
        assert all(isinstance(answer, PublishUnavailable) for (answer,) in answers), name
        await published(publisher)
        await publisher.stop()
        assert [(len(producer.sent), producer.is_closed) for producer in factory.made] == [(1, True), (1, True)]
        assert caplog.text.count("publisher's producer stopped by itself") == 1


async def test_a_producer_that_can_t_be_replaced_now_is_replaced_later(factory: Factory, caplog: pytest.LogCaptureFixture) -> None:
    for error in ENDS:
        factory.made.clear()
        publisher = KafkaPublisher(NOWHERE)
        await publisher.start()
        factory.made[0]._sender.sender_task.cancel()
        factory.raise_once("start", error)
        await published(publisher)
        await publisher.stop()
        assert [producer.is_closed for producer in factory.made] == [True, True, True], error
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_batch_whose_send_the_client_cancels_itself_is_not_acknowledged(factory: Factory) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()

    async def send_batch(*_: object, **__: object) -> asyncio.Future[None]:
        return cancelled

    factory.made[0].send_batch = send_batch  # type: ignore[method-assign]
    (answer,) = await publisher.publish([A_COPY])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()


async def test_a_copy_that_the_client_can_t_encode_is_refused_for_good_and_those_beside_it_are_written(factory: Factory) -> None:
    publisher = KafkaPublisher(NOWHERE)
    await publisher.start()
    odd = replace(A_COPY, headers=((None, b"name"),))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE):
        answers = await publisher.publish([A_COPY, A_COPY, odd, A_COPY])
    assert [answer is None for answer in answers] == [True, True, False, True]
    assert isinstance(answers[2], PublishRefused)
    await publisher.stop()


@pytest.fixture
async def delay() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("billing.delay", partitions=27)
        yield kafka


def waiting(value: bytes, seconds: float, partition: int = 0) -> Copy:
    return Copy("billing.delay", partition, b"k", value, (), round((time.time() + seconds) * 1000))


async def test_a_copy_that_waits_is_written_to_the_rung_for_what_is_left(delay: MemoryKafka) -> None:
    publisher = KafkaPublisher(HostSettings(delay.bootstrap, "billing"))
    await publisher.start()
    copies = [waiting(b"%d" % seconds, seconds + 0.5) for seconds in (1, 10, 60, 7200, 259_200)]
    sends = [replace(copy, is_send=True) for copy in copies]
    assert await publisher.publish([*copies, *sends, waiting(b"overdue", -5.0)]) == [None] * 11
    await publisher.stop()
    found = {wait_of(number): delay.records("billing.delay", number) for number in range(1, 14)}
    assert {wait: [record.value for record in records] for wait, records in found.items() if records} == {
        1: [b"1", b"overdue"], 10: [b"10"], 60: [b"60"], 3600: [b"7200"], 86_400: [b"259200"],
    }  # fmt: skip
    assert sum(len(delay.records("billing.delay", number)) for number in range(14, 27)) == 5
    assert delay.records("billing.delay", 0) == []


async def test_a_topic_that_is_not_there_is_told_from_one_that_does_not_answer(delay: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._LEARN", 0.5)
    publisher = KafkaPublisher(HostSettings(delay.bootstrap, "billing"))
    await publisher.start()
    (missing,) = await publisher.publish([A_COPY])
    delay.faults.hold("Metadata")
    (unknown,) = await publisher.publish([A_COPY])
    delay.faults.clear()
    assert (type(missing), str(missing)) == (TopicMissing, "topic 'billing.retry' does not exist")
    assert type(unknown) is PublishUnavailable
    await publisher.stop()


async def test_where_a_rung_does_not_acknowledge_its_copies_take_the_next_shorter_one_and_one_at_a_time_tries_it(
    delay: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._SILENT", 0.3)
    silent = Leaderless(delay, ("billing.delay", 1))
    publisher = KafkaPublisher(HostSettings(delay.bootstrap, "billing"))
    await publisher.start()
    assert await publisher.publish([waiting(b"%d" % number, 10.5) for number in range(5)]) == [None] * 5
    assert [record.value for record in delay.records("billing.delay", 10)] == [b"%d" % number for number in range(5)]
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._SILENT", 60.0)
    publishing = [asyncio.create_task(publisher.publish([waiting(b"more", 10.5)])) for _ in range(20)]
    await until(lambda: sum(task.done() for task in publishing) == 19)
    assert len(delay.records("billing.delay", 10)) == 24
    silent.places.clear()
    assert await asyncio.gather(*publishing) == [[None]] * 20
    await until(lambda: delay.records("billing.delay", 1))
    await publisher.stop()


@pytest.mark.slow  # a copy waits until a silent partition is given up
async def test_a_copy_that_waited_for_a_silent_rung_takes_the_one_for_what_is_left_then(
    delay: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._SILENT", 0.3)
    five, one = (next(number for number in range(1, 14) if wait_of(number) == wait) for wait in (5, 1))
    Leaderless(delay, ("billing.delay", five))
    times = iter((1_000.0, 1_005.0))
    publisher = KafkaPublisher(HostSettings(delay.bootstrap, "billing"), wall=lambda: next(times))
    await publisher.start()
    assert await publisher.publish([replace(waiting(b"soon", 0.0), until=1_006_000)]) == [None]
    await publisher.stop()
    assert [record.value for record in delay.records("billing.delay", one)] == [b"soon"]


@pytest.fixture
async def topic(raw_kafka: RawKafka) -> str:
    return await raw_kafka.new_topic(2, max_message_bytes=200_000)


@pytest.fixture
async def publisher(kafka: SharedKafka) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(HostSettings(kafka.bootstrap, "billing"))
    await publisher.start()
    yield publisher
    await publisher.stop()


async def test_a_copy_arrives_as_it_is_also_with_nothing_in_it(raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher) -> None:
    headers: Headers = (("trace", b"1"), ("trace", None), ("empty", b""))
    pairs = [(b"key", b"value"), (None, b"v"), (b"k", None), (None, None), (b"", b"")]
    assert await publisher.publish([Copy(topic, 1, key, value, headers) for key, value in pairs]) == [None] * 5
    records = await raw_kafka.records(topic)
    assert {(record.partition, record.key, record.value, tuple(record.headers)) for record in records} == {
        (1, *each, headers) for each in pairs
    }


async def test_a_copy_for_a_partition_that_is_not_there_is_folded_into_those_that_are(
    raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher
) -> None:
    assert await publisher.publish([Copy(topic, 5, b"k", b"v", ())]) == [None]
    assert [record.partition for record in await raw_kafka.records(topic)] == [1]


async def test_a_copy_that_is_too_large_is_refused_for_good_and_its_neighbours_arrive_though_large(
    raw_kafka: RawKafka, topic: str, publisher: KafkaPublisher
) -> None:
    sizes = [1, 300_000, *[150_000] * 8]
    answers = await publisher.publish([Copy(topic, 0, b"k", bytes([number]) * size, ()) for number, size in enumerate(sizes)])
    assert isinstance(answers[1], PublishRefused)
    assert [*answers[:1], *answers[2:]] == [None] * 9
    assert {(record.value or b"")[:1] for record in await raw_kafka.records(topic)} == {
        bytes([number]) for number in range(10) if number != 1
    }


async def test_a_cancelled_publish_is_cancelled(topic: str, publisher: KafkaPublisher) -> None:
    task = asyncio.create_task(publisher.publish([Copy(topic, 0, b"k", b"v", ())]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await publisher.publish([Copy(topic, 0, b"k", b"w", ())]) == [None]


@pytest.mark.embedded
async def test_a_broker_that_is_gone_is_not_a_refusal_since_it_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._TIMEOUT", 0.5)
    with embedded_broker() as broker:
        publisher = KafkaPublisher(HostSettings(broker.bootstrap, "billing"))
        await publisher.start()
    (answer,) = await publisher.publish([Copy("billing.retry", 0, b"k", b"v", ())])
    assert isinstance(answer, PublishUnavailable)
    await publisher.stop()
