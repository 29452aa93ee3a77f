"""A producer: what is tried again and for how long, what is saved, what is said of messages that nobody acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import Sink

from ackwise import Acked, Outgoing, Producer, Saved, SendFailed
from ackwise.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import SendAnswer
from ackwise.middleware.storage.outbox import OutboxRow
from ackwise.plugin.registry import open_outbox
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.testing import MemoryKafka

AWAY = SendFailed("the broker is unavailable", retriable=True, error="KafkaConnectionError")
REFUSED = SendFailed("it is too large", retriable=False, error="MessageSizeTooLargeError")


MISSING = SendFailed("no such topic", retriable=True, error="UnknownTopicOrPartitionError")


class Desk:
    """A sender that answers from a script, and time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.tried: list[list[str]] = []
        self.answers: list[dict[str, SendFailed]] = []  #: of each call, what fails, by message id
        self.always: SendFailed | None = None
        self.takes = 0.0  #: seconds of each call

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        failing = self.answers.pop(0) if self.answers else {}
        self.tried.append([message.message_id for message in messages])
        self.now += self.takes
        return [failing.get(m.message_id) or self.always or Acked(m.topic, 0, 7, 1_000, m.message_id) for m in messages]

    async def sleep(self, seconds: float) -> None:
        if seconds == 30.0:  # what a close waits
            await asyncio.Event().wait()
        self.slept.append(seconds)
        self.now += seconds

    def producer(self, **settings: Any) -> Producer:
        return Producer(
            "127.0.0.1:1", sender=self, clock=lambda: self.now, wall=lambda: 1_000_000.0, sleep=self.sleep, rng=random.Random(1), **settings
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_headers_that_only_ackwise_sets_are_refused_with_a_sentence(desk: Desk) -> None:
    async with desk.producer() as producer:
        for name in ("ackwise-version", "ackwise-due", "ackwise-"):
            with pytest.raises(ConfigurationError, match=rf"'orders' has the header '{name}', and names that start with 'ackwise-'"):
                await producer.send("orders", b"v", headers={name: "1"})
            with pytest.raises(ConfigurationError, match="leave such headers out"):
                await producer.send_batch([Outgoing("orders", b"v"), Outgoing("orders", b"v", headers=((name, b"1"),))])
        await producer.send("orders", b"v", headers={"acknowledged": "1"}, delay=10.0)
    assert len(desk.tried) == 1


async def test_who_sends_to_a_missing_topic_learns_it_within_ten_seconds_and_its_neighbours_are_tried_longer(desk: Desk) -> None:
    desk.answers = [{"a": MISSING, "b": AWAY}] * 6
    async with desk.producer() as producer:
        answers = await producer.send_batch([Outgoing("nowhere", b"v", message_id="a"), Outgoing("orders", b"v", message_id="b")])
        assert (answers[0], type(answers[1])) == (MISSING, Acked)
        assert [len(tried) for tried in desk.tried] == [2, 2, 2, 2, 2, 1, 1]
        began, desk.always = desk.now, MISSING
        with pytest.raises(PublishUnavailable, match="no such topic"):
            await producer.send("nowhere", b"v")
        assert 2.0 < desk.now - began < 10.0


async def test_what_may_pass_is_tried_again_at_once_and_then_ever_later_under_its_id(desk: Desk) -> None:
    desk.answers = [{"a": AWAY}] * 6
    async with desk.producer() as producer:
        assert await producer.send("orders", {"n": 1}, message_id="a") == Acked("orders", 0, 7, 1_000, "a")
    assert desk.tried == [["a"]] * 7
    for waited, expected in zip(desk.slept, [1, 1.6, 2.56, 4.096, 6.5536], strict=True):
        assert 0.8 * expected <= waited <= 1.2 * expected


async def test_all_tries_together_take_no_longer_than_the_timeout(desk: Desk) -> None:
    desk.always = AWAY
    async with desk.producer(timeout="20s") as producer:
        with pytest.raises(PublishUnavailable, match="message 'a': the broker is unavailable"):
            await producer.send("orders", b"v", message_id="a")
    assert sum(desk.slept) <= 20
    assert len(desk.tried) == len(desk.slept) + 2 > 3


@pytest.mark.parametrize("attempts", [1, 2, 3, 6])
async def test_there_are_no_more_tries_than_attempts(desk: Desk, attempts: int) -> None:
    desk.always = AWAY
    async with desk.producer(attempts=attempts, timeout="1h") as producer:
        with pytest.raises(PublishUnavailable, match="message 'a': the broker is unavailable"):
            await producer.send("orders", b"v", message_id="a")
        assert desk.tried == [["a"]] * attempts
        assert len(desk.slept) == max(0, attempts - 2)
        assert [type(answer) for answer in await producer.send_batch([Outgoing("orders", b"v")])] == [SendFailed]
    assert len(desk.tried) == 2 * attempts


async def test_without_a_number_of_attempts_the_timeout_alone_ends_the_tries(desk: Desk) -> None:
    desk.always = AWAY
    async with desk.producer(timeout="1h") as producer:
        with pytest.raises(PublishUnavailable):
            await producer.send("orders", b"v")
    assert len(desk.tried) > 30
    assert 100 < max(desk.slept) <= 1.2 * 120
    assert sum(desk.slept) <= 3600


async def test_a_try_that_has_used_the_time_up_is_the_last_one(desk: Desk) -> None:
    desk.always, desk.takes = AWAY, 3.0
    async with desk.producer(timeout="3s") as producer:
        with pytest.raises(PublishUnavailable):
            await producer.send("orders", b"v")
    assert len(desk.tried) == 1


@pytest.mark.parametrize("silent", ["Produce", "Metadata"])
async def test_a_send_waits_no_longer_than_its_timeout_for_brokers_that_do_not_answer(kafka: MemoryKafka, silent: str) -> None:
    async with Producer(kafka.bootstrap, timeout="300ms", close_timeout=0) as producer:
        if silent == "Produce":
            await producer.send("orders", b"first")
        holding, began = kafka.faults.hold(silent), asyncio.get_running_loop().time()
        with pytest.raises(PublishUnavailable, match="did not acknowledge the message"):
            await producer.send("orders", b"v")
        assert asyncio.get_running_loop().time() - began < 3.0
        holding.end()


async def test_what_is_refused_for_good_is_not_tried_again(desk: Desk) -> None:
    desk.always = REFUSED
    async with desk.producer() as producer:
        with pytest.raises(PublishRefused, match="message 'a': it is too large"):
            await producer.send("orders", b"v", message_id="a")
    assert desk.tried == [["a"]]


async def test_a_batch_has_an_answer_for_each_and_tries_again_only_what_failed(desk: Desk) -> None:
    desk.answers = [{"b": AWAY, "c": REFUSED}]
    async with desk.producer() as producer:
        answers = await producer.send_batch([Outgoing("orders", b"v", message_id=name) for name in "abc"])
    assert [type(answer) for answer in answers] == [Acked, Acked, SendFailed]
    assert desk.tried == [["a", "b", "c"], ["b"]]


async def test_what_has_no_answer_in_time_is_saved_to_the_outbox_and_the_answer_says_so(desk: Desk) -> None:
    desk.always, outbox = AWAY, MemoryOutbox()
    await outbox.open()
    async with desk.producer(outbox=outbox, timeout=5) as producer:
        assert await producer.send("orders", b"v", key="k", message_id="a") == Saved("orders", "a")
        desk.always = REFUSED
        with pytest.raises(PublishRefused):
            await producer.send("orders", b"v", message_id="b")
    (row,) = await _rows(outbox)
    assert (row.message.topic, row.message.value, row.message.key, row.message.message_id) == ("orders", b"v", b"k", "a")
    await outbox.close()


async def _rows(outbox: MemoryOutbox) -> list[OutboxRow]:
    await outbox.claim_relay("table")
    return await outbox.pending(await outbox.own("test", lease=15, share=64), limit=10)


async def test_an_outbox_that_is_away_too_leaves_the_failure(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryOutbox):
        async def decide(self, *arguments: Any, **options: Any) -> int:
            from ackwise.errors import StoreUnavailable

            raise StoreUnavailable("no answer")

    desk.always = AWAY
    async with desk.producer(outbox=Away(), timeout=1) as producer:
        with pytest.raises(PublishUnavailable):
            await producer.send("orders", b"v")
    assert "messages neither acknowledged nor saved" in caplog.text


async def test_events_say_what_was_produced_and_what_was_not(desk: Desk) -> None:
    sink, outbox = Sink(), MemoryOutbox()
    await outbox.open()
    desk.answers = [{"b": REFUSED}, {}, {"d": AWAY}, {"d": AWAY}]
    async with desk.producer(events=sink, outbox=outbox, timeout=0.1) as producer:
        await producer.send_batch([Outgoing("orders", b"v", message_id=name) for name in "ab"])
        await producer.send("orders", b"v", message_id="c")
        assert isinstance(await producer.send("orders", b"v", message_id="d"), Saved)
    assert [(event.code, event.dedup_key, event.offset, event.error) for event in sink.events] == [
        (EventCode.PRODUCED, "a", 7, None),
        (EventCode.PRODUCE_FAILED, "b", None, "MessageSizeTooLargeError"),
        (EventCode.PRODUCED, "c", 7, None),
    ]
    assert len(sink.durable) == 3
    await outbox.close()


async def test_a_closing_producer_waits_for_what_is_in_flight(desk: Desk) -> None:
    desk.answers = [{"a": AWAY}] * 3
    async with desk.producer() as producer:
        sending = asyncio.create_task(producer.send("orders", b"v", message_id="a"))
        await asyncio.sleep(0)
    assert isinstance(sending.result(), Acked)


async def test_what_is_given_up_at_the_end_is_saved_before_the_outbox_is_closed(desk: Desk, tmp_path: Path) -> None:
    desk.always, url = AWAY, f"sqlite:///{tmp_path}/outbox.db"
    resting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds == 30.0:
            await resting.wait()
        else:
            resting.set()
            await asyncio.Event().wait()

    desk.sleep = sleep  # type: ignore[method-assign]
    async with desk.producer(outbox=url) as producer:
        sending = asyncio.create_task(producer.send("orders", b"v", message_id="a"))
        await resting.wait()
    assert await sending == Saved("orders", "a")
    outbox = open_outbox(url)
    await outbox.open()
    assert (await outbox.status()).waiting == 1
    await outbox.close()


async def test_what_is_not_acknowledged_at_the_end_is_named_and_raised(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.always, sending = AWAY, list[asyncio.Task[object]]()

    async def sleep(seconds: float) -> None:
        if seconds == 30.0:
            await asyncio.sleep(0)
        else:
            await asyncio.Event().wait()

    desk.sleep = sleep  # type: ignore[method-assign]

    async def leave() -> None:
        async with desk.producer() as producer:
            for name in "ab":
                sending.append(asyncio.create_task(producer.send("orders", b"v", message_id=name)))
            await asyncio.sleep(0)

    with pytest.raises(PublishUnavailable, match="2 messages were not acknowledged when the producer was closed: a, b"):
        await leave()
    for task in sending:
        with pytest.raises(PublishUnavailable):
            await task
    assert "the producer is closed before messages were acknowledged" in caplog.text
    assert 'messages=2 topics=orders ids="a, b"' in caplog.text


async def test_outside_of_its_block_a_producer_sends_nothing(desk: Desk) -> None:
    producer = desk.producer()
    with pytest.raises(ConfigurationError, match="is not open"):
        await producer.send("orders", b"v")
    async with producer:
        pass
    with pytest.raises(ConfigurationError, match="is not open"):
        await producer.send("orders", b"v")
    with pytest.raises(ConfigurationError, match="entered before"):
        await producer.__aenter__()


async def test_a_batch_of_something_else_is_refused_and_a_generator_is_sent_whole(desk: Desk) -> None:
    wrong: list[tuple[Any, str]] = [
        (Outgoing("orders", b"v"), "messages are of type Outgoing; give a list of Outgoing(topic, value)"),
        ("orders", "messages are of type str; give a list"),
        (7, "messages are of type int; give a list"),
        ([Outgoing("orders", b"v"), ("orders", b"v")], "message 1 of the list is of type tuple; give Outgoing(topic, value)"),
    ]
    async with desk.producer() as producer:
        for messages, sentence in wrong:
            with pytest.raises(ConfigurationError) as error:
                await producer.send_batch(messages)
            assert sentence in str(error.value)
        assert desk.tried == []
        await producer.send_batch(Outgoing("orders", b"v", message_id=name) for name in "ab")  # type: ignore[arg-type]
    assert desk.tried == [["a", "b"]]


async def test_what_can_t_be_sent_is_refused_with_a_sentence(desk: Desk) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"value": object()}, "the value of a message to 'orders' is of type object, which can't be encoded"),
        ({"key": 7}, "the key of a message to 'orders' is of type int; give str, bytes or None"),
        ({"headers": {"a": 1}}, "a header of a message to 'orders' is of type int"),
        ({"headers": [1]}, "headers of a message to 'orders' are list; give a dict or pairs"),
        ({"delay": 1, "at": 2}, "delay= and at= were both given"),
        ({"at": datetime(2026, 1, 1)}, "without a time zone"),  # noqa: DTZ001  # what is refused
        ({"at": "noon"}, "at is 'noon'; give an aware datetime"),
        ({"delay": "4d"}, "is to be sent in 4.0 days; 3 days are the most"),
        ({"message_id": ""}, "message_id of a message to 'orders' is ''"),
    ]
    async with desk.producer() as producer:
        for arguments, sentence in wrong:
            with pytest.raises(ConfigurationError) as error:
                await producer.send("orders", **{"value": b"v", **arguments})
            assert sentence in str(error.value)
    assert desk.tried == []


async def test_a_message_for_later_waits_in_the_delay_topic_and_one_that_is_due_is_sent(desk: Desk) -> None:
    whens: list[dict[str, Any]] = [
        {"delay": "90s"}, {"at": datetime.fromtimestamp(1_000_000, UTC) + timedelta(seconds=90)}, {"at": 1_000_090},
    ]  # fmt: skip
    async with desk.producer(group="billing") as producer:
        for when in whens:
            assert (await producer.send("orders", b"v", **when)).topic == "billing.delay"
        assert (await producer.send("orders", b"v", at=5.0)).topic == "orders"


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=3)
        yield kafka


async def test_values_keys_and_headers_are_written_as_given(kafka: MemoryKafka) -> None:
    async with Producer(kafka.bootstrap, compression="gzip") as producer:
        sent = await producer.send("orders", {"n": 1}, key="k", headers={"trace": "t", "none": None}, partition=2, message_id="mine")
    assert isinstance(sent, Acked)
    (record,) = kafka.records("orders", 2)
    assert (record.value, record.key, sent.offset) == (b'{"n":1}', b"k", 0)
    assert record.headers == [("trace", b"t"), ("none", None), ("message-id", b"mine")]


async def test_a_start_without_brokers_says_so() -> None:
    with pytest.raises(PublishUnavailable, match="do not answer"):
        async with Producer("127.0.0.1:1"):
            raise AssertionError


def test_settings_that_can_t_work_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"brokers": "nowhere"}, "has no port"),
        ({"group": "a b"}, "group is 'a b'"),
        ({"client_options": {"acks": 0}}, "client_options has 'acks'"),
        ({"timeout": -1}, "timeout of Producer is -1"),
        ({"timeout": 0}, "timeout of Producer is 0, in which nothing is sent"),
        *(({"attempts": each}, "attempts of Producer is .*; give a number from 1, or None") for each in (0, -1, 1.5, True, "3")),
        ({"outbox": "oracle://x"}, "oracle"),
        ({"compression": "brotli"}, "compression of Producer is 'brotli'; it is 'gzip', 'snappy', 'lz4', 'zstd', or None"),
    ]
    for settings, sentence in wrong:
        with pytest.raises(ConfigurationError, match=sentence):
            Producer(**{"brokers": "127.0.0.1:1", **settings})
