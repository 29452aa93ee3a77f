"""What a sender answers for each message, what it does with a client that can't go on, and what is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.errors import (
    BrokerResponseError,
    CorruptRecordException,
    InvalidProducerEpoch,
    InvalidTopicError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumber,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownProducerId,
)
from tests.fakes import Clock
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.message.refusals import REFUSED_AFTER
from ackwise.plugin.producer.sender import Sender
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import hostile_client
from ackwise.testing.kafka.partition import Batch


@dataclass
class Settings:
    brokers: str
    client_id: str = "orders"
    client_options: dict[str, object] = field(default_factory=dict)


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=3)
        kafka.create_topic("one")
        kafka.create_topic("small", max_message_bytes=500)
        kafka.create_topic("compacted", cleanup_policy="compact")
        yield kafka


@pytest.fixture
async def sender(kafka: MemoryKafka) -> AsyncIterator[Sender]:
    sender = Sender(Settings(kafka.bootstrap), timeout=5)
    await sender.start()
    yield sender
    await sender.stop()


def acked(answers: list[SendAnswer]) -> list[bool]:
    return [isinstance(answer, Acked) for answer in answers]


def may_pass(answer: SendAnswer) -> bool:
    """Whether it failed, and may be sent again."""
    return isinstance(answer, SendFailed) and answer.retriable


async def given(sender: Sender) -> Any:
    """The client, once a batch was given to it."""
    client: Any = sender._client
    while not client._under_way:  # noqa: ASYNC110  # it is a task beside this that gives it
        await asyncio.sleep(0)
    return client


@asynccontextmanager
async def sending(kafka: MemoryKafka, clock: Clock) -> AsyncIterator[Sender]:
    sender = Sender(Settings(kafka.bootstrap), timeout=5, clock=clock)
    await sender.start()
    yield sender
    await sender.stop()


def poison(kafka: MemoryKafka, error: type[BrokerResponseError]) -> None:
    """Let the broker refuse each batch in which a record has the value `poison`."""
    cluster: Any = kafka._cluster
    append = cluster.append

    def refuse(topic: str, partition: int, batch: Batch) -> int:
        if any(record.value == b"poison" for record in batch.records()):
            raise error
        return int(append(topic, partition, batch))

    cluster.append = refuse


def values(kafka: MemoryKafka, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic)]


async def test_each_message_is_answered_with_where_it_was_written(kafka: MemoryKafka, sender: Sender) -> None:
    messages = [Outgoing("orders", b"%d" % number, b"k%d" % (number % 5)) for number in range(50)]
    for message, answer in zip(messages, await sender.send_many(messages), strict=True):
        assert isinstance(answer, Acked)
        record = next(record for record in kafka.records("orders", answer.partition) if record.offset == answer.offset)
        assert (record.value, record.key, record.timestamp) == (message.value, message.key, answer.timestamp)
        assert dict(record.headers) == {"message-id": message.message_id.encode()}


async def test_a_key_has_the_partition_that_kafka_s_clients_choose(sender: Sender) -> None:
    # Of org.apache.kafka.clients.producer.internals.BuiltInPartitioner, over three partitions.
    answers = await sender.send_many([Outgoing("orders", b"v", key) for key in (b"21", b"foobar", b"a-little-bit-long-string")])
    assert [answer.partition for answer in answers if isinstance(answer, Acked)] == [
        (hashed & 0x7FFFFFFF) % 3 for hashed in (-973932308, -790332482, -985981536)
    ]


async def test_a_list_of_many_batches_is_written_in_order(kafka: MemoryKafka, sender: Sender) -> None:
    messages = [Outgoing("one", b"%04d" % number + bytes(5_000)) for number in range(100)]
    answers = await sender.send_many(messages)
    assert [answer.offset for answer in answers if isinstance(answer, Acked)] == list(range(100))
    assert values(kafka, "one") == [message.value for message in messages]


async def test_what_is_refused_for_good_says_so_and_what_to_do(kafka: MemoryKafka, sender: Sender) -> None:
    errors: dict[Any, str] = {InvalidTopicError: "", TopicAuthorizationFailedError: "; give this user the right to write to it"}
    for error, advice in errors.items():
        kafka.faults.refuse("Produce", error)
        (answer,) = await sender.send_many([Outgoing("one", b"v")])
        cause = f"topic 'one' refuses the message for good ({error.__name__}){advice}"
        assert answer == SendFailed(cause, retriable=False, error=error.__name__)


async def test_only_the_message_that_is_too_large_is_refused_for_good(kafka: MemoryKafka, sender: Sender) -> None:
    sizes = [100, 100, 900, 100, 100]
    answers = await sender.send_many([Outgoing("small", bytes(size)) for size in sizes])
    assert acked(answers) == [True, True, False, True, True]
    assert isinstance(answers[2], SendFailed)
    assert not answers[2].retriable
    assert answers[2].error == "MessageSizeTooLargeError"
    assert answers[2].cause.endswith("; send less, or raise max.message.bytes of the topic")
    assert [len(value or b"") for value in values(kafka, "small")] == [100] * 4
    beside = await asyncio.gather(*(sender.send_many([Outgoing("small", bytes(size))]) for size in [100, 900, 100, 100]))
    assert [isinstance(answer, SendFailed) and not answer.retriable for (answer,) in beside] == [False, True, False, False]
    assert acked(await sender.send_many([Outgoing("small", None)])) == [True], "the partition takes messages again, also without a value"


async def test_a_record_without_key_for_a_compacted_topic_takes_no_neighbour_with_it(kafka: MemoryKafka, sender: Sender) -> None:
    answers = await sender.send_many([Outgoing("compacted", b"1", b"k", partition=0), Outgoing("compacted", b"2", partition=0)])
    assert acked(answers) == [True, False]


async def test_a_record_that_its_topic_takes_never_gets_an_answer_after_a_while(kafka: MemoryKafka) -> None:
    clock = Clock()
    async with sending(kafka, clock) as sender:
        keyless = Outgoing("compacted", b"v")
        (waiting,) = await sender.send_many([keyless])
        assert may_pass(waiting)
        clock.now += REFUSED_AFTER
        (refused,) = await sender.send_many([keyless])
    assert isinstance(refused, SendFailed)
    assert (refused.retriable, refused.error) == (False, "InvalidRecordError")
    assert refused.cause.endswith("; send what the topic takes: a compacted one takes nothing without a key")


async def test_behind_a_record_that_fails_by_itself_other_keys_are_written_and_its_own_waits(kafka: MemoryKafka) -> None:
    poison(kafka, CorruptRecordException)
    async with sending(kafka, Clock()) as sender:
        messages = [Outgoing("one", value, key) for value, key in ((b"poison", b"a"), (b"1", b"b"), (b"2", b"a"), (b"3", None))]
        answers = await sender.send_many(messages)
    assert acked(answers) == [False, True, False, True]
    assert all(map(may_pass, (answers[0], answers[2])))
    assert values(kafka, "one") == [b"1", b"3"]


@pytest.mark.parametrize("error", [CorruptRecordException, UnknownError])
async def test_a_record_is_refused_while_its_own_partition_takes_others_and_not_while_that_takes_nothing(
    kafka: MemoryKafka, error: type[BrokerResponseError]
) -> None:
    poison(kafka, error)
    clock = Clock()
    bad, good, elsewhere = (Outgoing("orders", value, partition=at) for value, at in ((b"poison", 1), (b"good", 1), (b"good", 2)))
    async with sending(kafka, clock) as sender:
        for _ in range(3):
            assert list(map(may_pass, await sender.send_many([bad, elsewhere]))) == [True, False]
            clock.now += REFUSED_AFTER
        assert acked(await sender.send_many([bad, good])) == [False, True]
        (refused,) = await sender.send_many([bad])
    assert isinstance(refused, SendFailed)
    assert (refused.retriable, refused.error) == (False, error.__name__)


async def test_a_partition_that_takes_nothing_costs_few_clients(kafka: MemoryKafka) -> None:
    refusing = kafka.faults.refuse("Produce", UnknownError, times=None, topic="one")
    async with sending(kafka, Clock()) as sender:
        answers = await sender.send_many([Outgoing("one", b"%d" % number, b"%d" % number) for number in range(500)])
        assert all(map(may_pass, answers))
        refusing.end()
        assert refusing.met <= 12
        assert all(acked(await sender.send_many([Outgoing("one", b"v")])))


@pytest.mark.parametrize("name", ["\udc80\ud800", None, 7])
async def test_a_message_that_can_t_be_written_is_refused_and_its_neighbours_are_sent(sender: Sender, name: Any) -> None:
    unwritable = Outgoing("one", b"bad", b"k")
    object.__setattr__(unwritable, "headers", ((name, b""),))
    answers = await sender.send_many([*(Outgoing("one", b"%d" % each, b"k") for each in range(7)), unwritable, Outgoing("one", b"2", b"l")])
    assert acked(answers) == [True] * 7 + [False, True]
    assert not may_pass(answers[7])


async def test_a_client_that_can_t_go_on_is_replaced_and_all_is_written_once(kafka: MemoryKafka, sender: Sender) -> None:
    written: list[bytes | None] = []
    for error in (OutOfOrderSequenceNumber, InvalidProducerEpoch, UnknownProducerId, CorruptRecordException):
        kafka.faults.refuse("Produce", error)
        messages = [Outgoing("one", b"%04d" % number + bytes(5_000)) for number in range(30)]
        assert all(acked(await sender.send_many(messages))), error
        written += [message.value for message in messages]
        assert values(kafka, "one") == written


async def test_a_client_that_can_t_go_on_twice_is_an_answer_that_may_pass(kafka: MemoryKafka, sender: Sender) -> None:
    kafka.faults.refuse("Produce", OutOfOrderSequenceNumber, times=2)
    (answer,) = await sender.send_many([Outgoing("one", b"v")])
    assert may_pass(answer)
    assert isinstance(answer, SendFailed)
    assert answer.error == "OutOfOrderSequenceNumber"


async def test_an_answer_that_is_lost_writes_nothing_twice(kafka: MemoryKafka, sender: Sender) -> None:
    kafka.faults.lose_answer("Produce", times=2)
    assert all(acked(await sender.send_many([Outgoing("one", b"1"), Outgoing("one", b"2")])))
    kafka.faults.refuse("Produce", NotEnoughReplicasError, times=2)
    assert all(acked(await sender.send_many([Outgoing("one", b"3")])))
    assert values(kafka, "one") == [b"1", b"2", b"3"]


async def test_a_message_without_answer_that_is_sent_again_is_not_written_twice(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.3)
    await sender.start()
    messages = [Outgoing("one", b"%d" % number) for number in range(2)]
    assert all(acked(await sender.send_many([Outgoing("one", b"before")])))
    holding = kafka.faults.hold("Produce")
    assert all(map(may_pass, await sender.send_many(messages)))
    holding.end()
    after = Outgoing("one", b"after")
    for message in [*reversed(messages), after]:
        while not all(acked(await sender.send_many([message]))):
            pass
    assert not sender._unanswered
    assert values(kafka, "one") == [b"before", *(message.value for message in messages), b"after"]
    await sender.stop()


async def test_short_calls_for_one_message_without_answer_cost_no_client(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=5)
    await sender.start()
    client, message = sender._client, Outgoing("one", b"v")
    holding = kafka.faults.hold("Produce")
    for _ in range(3):
        assert all(map(may_pass, await sender.send_many([message], within=0.05)))
    holding.end()
    assert all(acked(await sender.send_many([message])))
    assert sender._client is client
    assert values(kafka, "one") == [b"v"]
    await sender.stop()


async def test_a_message_without_answer_twice_goes_alone_through_another_client_at_once(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.4)
    await sender.start()
    client, messages = sender._client, [Outgoing("one", b"%d" % number) for number in range(3)]
    await sender.send_many([Outgoing("one", b"before")])
    holding = kafka.faults.hold("Produce")
    assert all(map(may_pass, await sender.send_many(messages)))
    alone = asyncio.create_task(sender.send_many(messages[:1]))
    await until(lambda: sender._client is not client)
    holding.end()
    assert acked(await alone) == [True]
    assert values(kafka, "one")[:2] == [b"before", b"0"]
    await sender.stop()


async def test_another_message_under_the_id_of_one_without_answer_is_sent(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.3)
    await sender.start()
    holding = kafka.faults.hold("Produce")
    await sender.send_many([Outgoing("one", b"1", message_id="same")])
    holding.end()
    while not all(acked(await sender.send_many([Outgoing("one", b"2", message_id="same")]))):
        pass
    assert values(kafka, "one")[:2] == [b"1", b"2"]
    await sender.stop()


async def test_behind_a_message_without_answer_nothing_of_its_partition_is_sent(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.3)
    await sender.start()
    holding = kafka.faults.hold("Produce", topic="one")
    first, behind, elsewhere = await sender.send_many(
        [Outgoing("one", bytes(70_000)), Outgoing("one", bytes(70_000)), Outgoing("orders", b"v")]
    )
    assert isinstance(first, SendFailed)
    assert first.error == "KafkaTimeoutError"
    assert isinstance(behind, SendFailed)
    assert behind.retriable
    assert "earlier message" in behind.cause
    del elsewhere  # the broker serves one request of a connection after the other
    holding.end()
    await sender.stop()
    assert len(kafka.records("one")) <= 1


async def test_a_topic_that_is_missing_may_come_and_its_neighbours_are_sent(kafka: MemoryKafka, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with sending(kafka, clock) as sender:
        missing, there = await sender.send_many([Outgoing("later", b"v"), Outgoing("one", b"v")])
        assert isinstance(missing, SendFailed)
        assert missing.retriable
        assert missing.error == "UnknownTopicOrPartitionError"
        assert missing.cause.endswith("; create the topic, or correct its name")
        assert isinstance(there, Acked)
        kafka.create_topic("later")
        clock.now += 2.0
        assert acked(await sender.send_many([Outgoing("later", b"v")])) == [True]
    assert caplog.text == ""


async def test_a_broker_is_asked_once_in_two_seconds_for_a_topic_that_is_missing(kafka: MemoryKafka) -> None:
    clock = Clock()
    async with sending(kafka, clock) as sender:
        assert may_pass((await sender.send_many([Outgoing("later", b"v")]))[0])
        kafka.create_topic("later")
        asked = kafka.faults.lose_request("Metadata", topic="later")
        assert may_pass((await sender.send_many([Outgoing("later", b"v")]))[0])
        assert asked.met == 0
        asked.end()
        clock.now += 2.0
        assert acked(await sender.send_many([Outgoing("later", b"v")])) == [True]


async def test_what_is_not_known_of_one_topic_holds_up_no_other(kafka: MemoryKafka, sender: Sender) -> None:
    client: Any = await sender._current(5.0)
    ask, told = client.partitions, asyncio.Event()

    async def partitions(topic: str) -> Any:
        if topic == "orders":
            await told.wait()
        return await ask(topic)

    client.partitions = partitions
    both = asyncio.create_task(sender.send_many([Outgoing("orders", b"held"), Outgoing("one", b"at once")]))
    await until(lambda: values(kafka, "one") == [b"at once"])
    assert not both.done()
    told.set()
    assert acked(await both) == [True, True]


async def test_a_topic_is_not_said_to_be_missing_while_no_broker_answers(sender: Sender, kafka: MemoryKafka) -> None:
    kafka.faults.lose_request("Metadata", times=None)
    (answer,) = await sender.send_many([Outgoing("later", b"v")])
    assert isinstance(answer, SendFailed)
    assert (answer.retriable, answer.error) == (True, "KafkaConnectionError")


async def test_a_partition_that_the_topic_has_not_is_refused_with_a_sentence(sender: Sender) -> None:
    (answer,) = await sender.send_many([Outgoing("orders", b"v", partition=3)])
    assert answer == SendFailed("topic 'orders' has 3 partitions, and no partition 3", retriable=False, error="UnknownPartition")


async def test_a_client_whose_own_task_has_stopped_is_replaced(kafka: MemoryKafka, sender: Sender) -> None:
    await sender.send_many([Outgoing("one", b"1")])
    for task, value in (("sender", b"2"), ("metadata", b"3")):
        client: Any = sender._client
        stopped = client._producer._sender.sender_task if task == "sender" else client._producer.client._sync_task
        stopped.cancel()
        await asyncio.wait({stopped})
        assert acked(await sender.send_many([Outgoing("one", value)])) == [True], task
    assert values(kafka, "one") == [b"1", b"2", b"3"]


async def test_a_cancellation_from_inside_of_the_client_is_no_acknowledgement(kafka: MemoryKafka, sender: Sender) -> None:
    holding = kafka.faults.hold("Produce")
    sending = asyncio.create_task(sender.send_many([Outgoing("one", b"1"), Outgoing("one", b"2")]))
    client = await given(sender)
    for future in list(client._under_way):
        future.cancel()
    answers = await sending
    assert acked(answers) == [False, False]
    assert all(isinstance(each, SendFailed) and each.retriable for each in answers)
    holding.end()


async def test_who_cancels_a_send_gets_the_cancellation(kafka: MemoryKafka, sender: Sender) -> None:
    holding = kafka.faults.hold("Produce")
    sending = asyncio.create_task(sender.send_many([Outgoing("one", b"1")]))
    await given(sender)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    holding.end()
    assert acked(await sender.send_many([Outgoing("one", b"2")])) == [True]


async def test_a_stop_waits_for_what_is_being_sent_also_if_the_client_was_not_given_it_yet(kafka: MemoryKafka) -> None:
    for request in ("Produce", "Metadata"):
        sender = Sender(Settings(kafka.bootstrap), timeout=5)
        await sender.start()
        holding = kafka.faults.hold(request)
        sending = asyncio.create_task(sender.send_many([Outgoing("one", b"1")]))
        if request == "Produce":
            await given(sender)
        await until(lambda: sender._running)  # noqa: B023
        stopping = asyncio.create_task(sender.stop())
        await asyncio.sleep(0)
        (late,) = await sender.send_many([Outgoing("one", b"late")])
        assert may_pass(late)
        holding.end()
        assert acked(await sending) == [True], request
        await stopping
    assert values(kafka, "one") == [b"1", b"1"]


async def test_a_stop_says_what_nobody_acknowledged(kafka: MemoryKafka, caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.2)
    await sender.start()
    holding = kafka.faults.hold("Produce")
    await sender.send_many([Outgoing("one", b"1")])
    await sender.stop()
    holding.end()
    assert "producer closed with messages in flight" in caplog.text


async def test_a_sender_that_finds_no_broker_says_so() -> None:
    with pytest.raises(PublishUnavailable, match=r"brokers '127\.0\.0\.1:1' do not answer"):
        await Sender(Settings("127.0.0.1:1")).start()


async def test_a_sender_that_was_never_started_is_stopped_and_takes_no_more() -> None:
    sender = Sender(Settings("127.0.0.1:1"))
    await sender.stop()
    (answer,) = await sender.send_many([Outgoing("one", b"v")])
    assert answer == SendFailed("the producer is stopped", retriable=True)


async def test_behind_a_refusal_its_key_goes_on_only_if_asked_to_and_what_stands_before_it_does(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=5)  # the first message connects it
    for stop_keys in (True, False):
        messages = [Outgoing("small", bytes(size), key) for size, key in [(9, b"a"), (900, b"a"), (9, b"b"), (9, b"a")]]
        assert acked(await sender.send_many(messages, stop_keys=stop_keys)) == [True, False, True, not stop_keys]
        nowhere = [Outgoing("orders", b"v", b"c", partition=partition) for partition in (0, 9, 1)]
        assert acked(await sender.send_many(nowhere, stop_keys=stop_keys)) == [True, False, not stop_keys]
    await sender.stop()


async def test_a_broker_that_is_away_and_comes_back_gets_everything(kafka: MemoryKafka) -> None:
    sender = Sender(Settings(kafka.bootstrap), timeout=0.3)
    await sender.start()
    client: Any = sender._client
    client.spoil()
    await kafka.stop()
    (answer,) = await sender.send_many([Outgoing("one", b"v")])
    assert may_pass(answer)
    await kafka.start()
    while not all(acked(await sender.send_many([Outgoing("one", b"v")]))):
        pass
    await sender.stop()


HARMS = (
    "raises", "raises-after", "raises-oddly", "cancelled", "cancelled-after", "times-out", "never", "twice", "short", "empty",
    "unknown", "no-leader", "not-leader", "few-replicas", "broken-disk", "corrupt", "no-topic",
)  # fmt: skip


@pytest.mark.parametrize("count", [3, pytest.param(1, marks=pytest.mark.nightly)])
async def test_whatever_becomes_of_a_produce_request_only_what_is_there_is_acknowledged_and_all_is_in_the_end(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for number, harm in enumerate(HARMS):
        kafka.create_topic(f"harm{number}")
        await all_are_there(kafka, monkeypatch, f"harm{number}", harm, count)


async def all_are_there(kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch, topic: str, harm: str, count: int) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.idempotentproducer._CLOSE_TIMEOUT", 0.1)
    sender = Sender(Settings(kafka.bootstrap), timeout=0.2)
    await sender.start()
    left = messages = [Outgoing(topic, b"%d" % number) for number in range(count)]
    with hostile_client(f"worker.Produce:{harm}@1x2"):
        async with asyncio.timeout(PATIENCE):
            while left:
                answers = await sender.send_many(left)
                there = values(kafka, topic)
                for message, answer in zip(left, answers, strict=True):
                    assert not isinstance(answer, Acked) or message.value in there
                left = [message for message, answer in zip(left, answers, strict=True) if isinstance(answer, SendFailed)]
        await sender.stop()
    ids = [dict(record.headers)["message-id"] for record in kafka.records(topic)]
    assert set(ids) == {message.message_id.encode() for message in messages}, harm
