"""Messages that are sent later: by a handler or a producer, through a relay, never early, to the topic that they name."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from tests.leaderless import Leaderless
from tests.waiting import until

from ackwise import App, Message, Producer
from ackwise.errors import ConfigurationError
from ackwise.middleware.errors import PublishRefused
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import Acked, Outgoing
from ackwise.middleware.message.wire import ForeignCopy, OtherWire
from ackwise.middleware.policies.delaytopic import is_for_sends, send_later, to_send, wait_of
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.producer.idempotentproducer import Partitions
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing import MemoryKafka, TestApp


def later(message: Outgoing, due: int, *, now_ms: int = 0, clock_skew: float = 0.5) -> Outgoing:
    return send_later(message, due, now_ms=now_ms, group="billing", topic="billing.delay", clock_skew=clock_skew)


def test_a_message_survives_the_way_through_its_headers() -> None:
    message = Outgoing("orders", b"v", b"k", (("trace", b"t"), ("ackwise-version", b"9")), 3, "mine")
    waiting = later(message, 20_000)
    assert (waiting.topic, waiting.value, waiting.key, waiting.partition) == ("billing.delay", b"v", b"k", None)
    assert dict(waiting.sent_headers)["ackwise-due"] == b"20500"
    assert to_send(waiting.key, waiting.value, waiting.sent_headers, "billing") == message


def test_what_is_due_already_does_not_wait() -> None:
    for delay, topic in ((0, "orders"), (1, "billing.delay")):
        assert later(Outgoing("orders", b"v"), delay).topic == topic, delay


def test_it_waits_on_a_rung_of_its_own_kind_by_its_due_time_whatever_its_key() -> None:
    known = Partitions(range(27), range(27))
    for delay, wait in ((1, 1), (999, 1), (9_499, 5), (9_500, 10), (3_600_000, 3600)):
        partition = known.of(later(Outgoing("orders", b"v", b"k"), delay, clock_skew=0.0), 0.0)
        assert partition is not None
        assert (wait_of(partition), is_for_sends(partition)) == (wait, True), delay
    few = Partitions(range(4), range(4))
    assert few.of(later(Outgoing("orders", b"v"), 3_600_000), 0.0) == 2, "that of the other kind"
    assert Partitions([0], [0]).of(later(Outgoing("orders", b"v"), 1_000), 0.0) is None


async def test_a_delay_that_would_take_more_than_a_hundred_hops_is_refused() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("billing.delay", partitions=2)
        async with Producer(kafka.bootstrap, group="billing") as producer:
            await producer.send("orders", b"v", delay=900)
            with pytest.raises(PublishRefused, match="has 2 partitions, so a message would be written 110 times, and 100 are the most"):
                await producer.send("orders", b"v", delay=1100)


@pytest.mark.slow  # waits for rungs that do not acknowledge
async def test_where_a_rung_does_not_acknowledge_a_delayed_send_takes_the_next_shorter_one_until_it_does() -> None:
    ten, five = 14, 23

    async def send(sender: Sender, number: int) -> list[int]:
        now = round(time.time() * 1000)
        messages = [later(Outgoing("orders", b"v", message_id=f"{number}-{each}"), now + 10_000, now_ms=now) for each in range(3)]
        return [answer.partition for answer in await sender.send_many(messages) if isinstance(answer, Acked)]

    async with MemoryKafka() as kafka:
        kafka.create_topic("billing.delay", partitions=27)
        leaderless = Leaderless(kafka, ("billing.delay", ten))
        sender = Sender(HostSettings(kafka.bootstrap, "billing"), timeout=2.0)
        try:
            assert await send(sender, 0) == [five] * 3
            assert await asyncio.gather(*(send(sender, number) for number in range(1, 4))) == [[five] * 3] * 3
            leaderless.places.clear()
            numbers = itertools.count(4)
            await until(lambda: send(sender, next(numbers)), lambda found: found == [ten] * 3)
        finally:
            await sender.stop()


def test_what_is_no_such_message_is_told_from_one() -> None:
    for changed, value, error in (
        ("ackwise-send-topic", None, ForeignCopy),
        ("ackwise-send-topic", b"a b", ForeignCopy),
        ("ackwise-group", b"other", ForeignCopy),
        ("ackwise-version", b"99", OtherWire),
        ("message-id", None, ForeignCopy),
    ):
        sent = later(Outgoing("orders", b"v"), 20_000).sent_headers
        with pytest.raises(error):
            to_send(None, b"v", tuple((name, value if name == changed else kept) for name, kept in sent), "billing")


def make_app(**settings: Any) -> tuple[App, list[float]]:
    app, got = App("billing", brokers="127.0.0.1:1", **settings), list[float]()
    app.use(ConsumeLater(3))

    @app.agent("orders")
    async def remind(message: Message[bytes]) -> None:
        await app.publish("reminders", message.value, key=message.key, delay="30m")

    @app.agent("reminders")
    async def call(message: Message[bytes]) -> None:
        got.append(message.delivery.timestamp_ms / 1000)

    return app, got


async def test_a_handler_s_message_for_later_comes_when_it_is_due_and_not_before() -> None:
    app, got = make_app(delayed_sends=True)
    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1", key=b"k")).kind == "done"
        (waiting,) = worker.kafka.records("billing.delay", 22)
        assert worker.kafka._cluster.topics["billing.delay"].config("message.timestamp.type") == "LogAppendTime"
        worker.clock.advance("29m")
        await worker.deliver("orders", b"2")
        assert worker.kafka.records("reminders") == []
        worker.clock.advance("61s")
        await until(lambda: got)
        (record,) = worker.kafka.records("reminders")
    assert (record.key, record.value) == (b"k", b"1")
    assert record.headers == [("message-id", dict(waiting.headers)["message-id"])]
    assert len(got) == 1


async def test_without_the_topics_a_delay_is_refused_with_a_sentence() -> None:
    app, said = App("billing", brokers="127.0.0.1:1"), list[str]()

    @app.agent("orders")
    async def remind(message: Message[bytes]) -> None:
        for delay in ("30m", "4d"):
            try:
                await app.publish("reminders", message.value, delay=delay)
            except ConfigurationError as error:
                said.append(str(error))

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"1")
    assert "set delayed_sends=True" in said[0]
    assert "3 days are the most" in said[1]


async def test_what_its_topic_refuses_when_due_or_somebody_else_wrote_is_a_dead_letter_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no_target: Headers = tuple(header for header in later(Outgoing("reminders", b"v"), 1).sent_headers if header[0] != "ackwise-send-topic")
    app, got = make_app(delayed_sends=True)
    async with TestApp(app) as worker:
        worker.kafka.create_topic("small", max_message_bytes=200)
        await until(lambda: "billing.delay" in worker.kafka._cluster.topics)
        for headers in ((), no_target):
            worker.kafka.produce("billing.delay", b"odd", partition=16, headers=headers)
        async with Producer(worker.kafka.bootstrap, group="billing", wall=worker.clock) as producer:
            await producer.send("small", bytes(1000), delay=1)
            sent = await producer.send("reminders", b"behind it", delay=0.9)
            assert isinstance(sent, Acked)
            assert sent.partition == 16
        worker.clock.advance("3s")
        await until(lambda: len(worker.kafka.records("billing.dlq")) == 3)
        await until(lambda: got)
        letters = {letter.value: dict(letter.headers) for letter in worker.kafka.records("billing.dlq")}
    assert letters[b"odd"]["ackwise-reason"] == b"foreign-copy"
    assert letters[bytes(1000)]["ackwise-reason"] == b"send-refused"
    assert letters[bytes(1000)]["ackwise-send-topic"] == b"small"
    assert "delayed message became a dead letter" in caplog.text


@pytest.mark.slow  # waits until the relay gives up a topic that is missing
async def test_a_topic_that_is_missing_when_a_message_is_due_holds_no_neighbour_and_gives_it_up_when_it_is_overdue_by_max_delay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackwise.plugin.delays.delaypipeline._HELD", 0.5)
    app, got = make_app(delayed_sends=True)
    async with TestApp(app) as worker:
        await until(lambda: "billing.delay" in worker.kafka._cluster.topics)
        async with Producer(worker.kafka.bootstrap, group="billing", wall=worker.clock) as producer:
            await producer.send("nowhere", b"lost?", delay=1)
            await producer.send("reminders", b"behind it", delay=1)
        worker.clock.advance("3s")
        await until(lambda: got)
        assert worker.kafka.records("billing.dlq") == []
        await until(lambda: len(worker.kafka.records("billing.delay")) == 3)
        worker.clock.advance("73h")
        await until(lambda: worker.kafka.records("billing.dlq"))
        (letter,) = worker.kafka.records("billing.dlq")
    assert dict(letter.headers)["ackwise-send-topic"] == b"nowhere"
    assert letter.value == b"lost?"
    assert dict(letter.headers)["ackwise-reason"] == b"no-target"
    assert "target=nowhere" in caplog.text


def test_an_instance_that_broadcasts_has_no_topics_for_it() -> None:
    with pytest.raises(ConfigurationError, match="use a Producer"):
        HostSettings("127.0.0.1:1", "billing", instance="a", delayed_sends=True)
