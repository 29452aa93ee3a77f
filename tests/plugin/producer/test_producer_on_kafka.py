"""A producer and a publishing worker on a real Kafka."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes import Clock
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise import Acked, App, ConsumeLater, Message, Outgoing, Producer, SendFailed
from ackwise.errors import PublishRefused
from ackwise.middleware.message.refusals import REFUSED_AFTER
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.hostsettings import HostSettings

pytestmark = pytest.mark.kafka


async def test_a_message_that_is_too_large_is_refused_and_its_neighbours_are_written(raw_kafka: RawKafka) -> None:
    topic = await raw_kafka.new_topic(2, max_message_bytes=2_000)
    sizes = [10, 10, 5_000, 10, 10]
    async with Producer(raw_kafka.bootstrap) as producer:
        answers = await producer.send_batch([Outgoing(topic, bytes(size), b"k") for size in sizes])
        after = await producer.send(topic, b"after", key="k")
        with pytest.raises(PublishRefused, match="MessageSizeTooLargeError"):
            await producer.send(topic, bytes(5_000))
    refused = [answer for answer in answers if isinstance(answer, SendFailed)]
    assert [answer.error for answer in refused] == ["MessageSizeTooLargeError"]
    written = [answer for answer in [*answers, after] if isinstance(answer, Acked)]
    records = {(record.partition, record.offset): record for record in await raw_kafka.records(topic)}
    assert len(records) == len(written) == 5
    for answer in written:
        record = records[answer.partition, answer.offset]
        assert dict(record.headers)["message-id"] == answer.message_id.encode()
        assert record.timestamp == answer.timestamp
    assert [answer.offset for answer in written] == sorted(answer.offset for answer in written)


async def test_kafka_s_judgement_of_a_record_is_known_and_its_neighbours_are_written(raw_kafka: RawKafka) -> None:
    topic, clock = await raw_kafka.new_topic(1, cleanup_policy="compact"), Clock()
    sender = Sender(HostSettings(raw_kafka.bootstrap, "producing"), clock=clock)
    messages = [Outgoing(topic, b"1", b"k"), Outgoing(topic, b"2"), Outgoing(topic, b"3", b"l")]
    answers = await sender.send_many(messages)
    assert [answer.error for answer in answers if isinstance(answer, SendFailed)] == ["InvalidRecordError"]
    clock.now += REFUSED_AFTER
    (refused,) = await sender.send_many([messages[1]])
    await sender.stop()
    assert isinstance(refused, SendFailed)
    assert not refused.retriable
    assert [record.value for record in await raw_kafka.records(topic)] == [b"1", b"3"]


async def test_thousands_side_by_side_are_each_there_once(raw_kafka: RawKafka) -> None:
    topic = await raw_kafka.new_topic(3)
    async with Producer(raw_kafka.bootstrap, compression="gzip", linger="5ms") as producer:
        one_by_one = asyncio.gather(*(producer.send(topic, b"%d" % number, key=b"%d" % (number % 7)) for number in range(500)))
        batches = asyncio.gather(*(producer.send_batch([Outgoing(topic, b"b") for _ in range(500)]) for _ in range(3)))
        sent = [*await one_by_one, *(answer for answers in await batches for answer in answers)]
    assert all(isinstance(answer, Acked) for answer in sent)
    records = await raw_kafka.records(topic)
    assert len({dict(record.headers)["message-id"] for record in records}) == len(records) == 2_000


async def test_a_publish_to_a_topic_that_is_missing_fails_its_message_and_holds_nobody_up(
    raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.middleware.pipeline.publishing._PATIENCE", 0.0)
    source, target = await raw_kafka.new_topic(), await raw_kafka.new_topic()
    app, stop = App(f"publishing-{source}", brokers=raw_kafka.bootstrap), asyncio.Event()
    app.use(ConsumeLater(levels="1s"))

    @app.agent(source)
    async def pass_on(message: Message[int]) -> None:
        await app.publish(f"{target}-missing" if message.value == 1 and message.reconsume_times == 0 else target, message.value * 2)
        if message.reconsume_times:
            stop.set()

    await raw_kafka.produce(source, b"1", b"2")
    async with asyncio.timeout(PATIENCE):
        await app.serve(stop)
    assert sorted(record.value or b"" for record in await raw_kafka.records(target)) == [b"2", b"4"]
