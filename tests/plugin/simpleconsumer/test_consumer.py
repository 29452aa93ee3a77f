"""`SimpleConsumer` on a Kafka in memory: what receivers get, and what comes of what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes import FULL_DISK, Sink
from tests.plugin.simpleconsumer.conftest import TOPIC, World, nothing_comes, receive
from tests.waiting import until

from ackwise import Answer, ConsumeLater, Dedup, EventCode, Events, SimpleConsumer, Transactional
from ackwise.errors import AckwiseError, ConfigurationError, InvalidRuling


async def test_an_earlier_message_that_is_not_acknowledged_holds_the_offset(world: World) -> None:
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        assert await consumer.ack_all(received[1:]) == [Answer.ACKED] * 2
        await until(lambda: world.finished_above() == 2)
        assert world.committed() == 0
        assert await consumer.ack(received[0]) is Answer.ACKED
        await until(lambda: world.committed() == 3)


async def test_any_number_of_receivers_get_each_message_once(world: World) -> None:
    world.kafka.create_topic("wide", 3)
    for partition in range(3):
        world.kafka.produce("wide", *(f"{partition}/{number}".encode() for number in range(50)), partition=partition)
    seen: list[bytes] = []

    async def work(consumer: SimpleConsumer[bytes], most: int) -> None:
        while len(seen) < 150:
            received = await consumer.receive(most, invisible=10, wait=0.2)
            seen.extend(each.value for each in received)
            assert set(await consumer.ack_all(received)) <= {Answer.ACKED}

    async with world.consumer(topics="wide") as consumer, asyncio.TaskGroup() as receivers:
        for number in range(20):
            receivers.create_task(work(consumer, 1 + number % 4))
    assert sorted(seen) == sorted(f"{partition}/{number}".encode() for partition in range(3) for number in range(50))
    assert world.count(EventCode.CLAIMED) == world.count(EventCode.SUCCEEDED) == 150


async def test_nothing_is_claimed_that_nobody_has_asked_for(world: World) -> None:
    world.kafka.produce(TOPIC, *(b"m" for _ in range(100)))
    async with world.consumer() as consumer:
        assert len(await receive(consumer, 3)) == 3
        assert await nothing_comes(consumer) is False
    assert sum(len(exchange.claims) for exchange in world.store.exchanges) == 13


async def test_a_receiver_has_nothing_that_is_not_marked_in_the_event_log(world: World) -> None:
    sink = Sink()
    sink.mark_error = FULL_DISK
    world.kafka.produce(TOPIC, b"a", b"b")
    async with world.consumer(Events(sink)) as consumer:
        assert await nothing_comes(consumer) is True
        sink.mark_error = None
        received = await receive(consumer, 2)
        assert {each.offset for each in received} <= sink.marked()
        assert await consumer.ack_all(received) == [Answer.ACKED] * 2


async def test_a_receiver_gets_what_several_partitions_have(world: World) -> None:
    world.kafka.create_topic("wide", 4)
    async with world.consumer(topics="wide") as consumer:
        await until(lambda: len(world.kafka.committed("billing")) == 8)
        for partition in range(4):
            world.kafka.produce("wide", b"m", partition=partition)
        await until(lambda: world.count(EventCode.RECEIVED_RANGE) == 4)
        received = await consumer.receive(10, invisible=10)
        assert sorted(each.partition for each in received) == [0, 1, 2, 3]


@pytest.mark.slow  # waits twice to see that nothing comes
async def test_the_key_of_what_is_received_is_kept_from_others(world: World) -> None:
    world.kafka.produce(TOPIC, b"same", b"same")
    async with world.consumer(Dedup(world.store, key=lambda message: message.value)) as consumer:
        (received,) = await receive(consumer, 1)
        assert await nothing_comes(consumer)
        assert await consumer.ack(received) is Answer.ACKED
        assert await nothing_comes(consumer)
        await until(lambda: world.committed() == 2)
    assert [world.count(code) for code in (EventCode.SUCCEEDED, EventCode.DUP_SUPPRESSED)] == [1, 1]


async def test_what_can_not_be_decoded_is_a_dead_letter_though_nobody_receives(world: World) -> None:
    world.kafka.produce(TOPIC, b"7", b"seven", b"8")
    async with world.consumer(model=int) as consumer:
        await until(lambda: world.committed() is not None)
        await until(lambda: world.reasons() == [b"undecodable"])
        received = await receive(consumer, 2)
        assert [(each.value, each.raw) for each in received] == [(7, b"7"), (8, b"8")]  # type: ignore[comparison-overlap]  # by the model
        await consumer.ack_all(received)
        await until(lambda: world.committed() == 3)


async def test_what_expires_is_delivered_again_as_its_next_attempt_and_as_another_execution_to_those_who_judge(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (first,) = await receive(consumer, 1)
        world.clock.advance(10)
        (again,) = await receive(consumer, 1)
        assert (first.reconsume_times, again.reconsume_times, again.attempt) == (0, 1, 2)
        assert (again.topic, again.partition, again.offset) == (TOPIC, 0, 0)
        assert [await consumer.ack(each) for each in (first, again)] == [Answer.INVALID_RECEIPT, Answer.ACKED]
        await until(lambda: world.committed() == 1)
    told = [(event.code, event.attempt, event.error) for event in world.events if event.attempt is not None]
    assert told == [
        (EventCode.CLAIMED, 1, None),
        (EventCode.FAILED, 1, "ReceiptExpired"),
        (EventCode.SENT_BACK, 1, "ReceiptExpired"),
        (EventCode.CLAIMED, 2, None),
        (EventCode.SUCCEEDED, 2, None),
    ]


async def test_a_receipt_that_was_shortened_expires_in_its_new_time_though_nobody_asks(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer(min_invisible="50ms") as consumer:
        (received,) = await receive(consumer, 1, invisible="1h")
        assert await nothing_comes(consumer)  # the end of the hour is waited for by now
        await consumer.change_invisible(received, "50ms")
        world.clock.advance("50ms")
        await until(lambda: world.count(EventCode.SENT_BACK) == 1)


async def test_what_nobody_ever_acknowledges_is_a_dead_letter_in_the_end(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer(ConsumeLater(2)) as consumer:
        for attempt in range(3):
            assert (await receive(consumer, 1))[0].reconsume_times == attempt
            world.clock.advance(10)
        assert await nothing_comes(consumer)
        await until(lambda: world.committed() == 1)
    assert world.reasons() == [b"max-reconsume-times"]


async def test_a_second_acknowledgement_is_an_invalid_receipt(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        answers = await asyncio.gather(consumer.ack(received), consumer.ack(received))
        assert sorted(answer.value for answer in answers) == ["acked", "invalid receipt"]


async def test_nothing_is_received_before_it_is_open_or_after_it_was_closed(world: World) -> None:
    consumer = world.consumer()
    with pytest.raises(ConfigurationError, match="is not open"):
        await consumer.receive(1, invisible=10)
    async with consumer:
        with pytest.raises(ConfigurationError, match="entered before"):
            await consumer.__aenter__()
        with pytest.raises(ConfigurationError, match="asked for 0 messages"):
            await consumer.receive(0, invisible=10)
    with pytest.raises(AckwiseError, match="was closed"):
        await consumer.receive(1, invisible=10)


async def test_a_receiver_that_waits_is_answered_when_the_consumer_is_closed(world: World) -> None:
    async with world.consumer() as consumer:
        waiting = asyncio.create_task(consumer.receive(1, invisible=10, wait=60))
        await until(lambda: world.committed() is not None)
    assert await waiting == []


async def test_what_ends_the_consuming_is_raised_where_somebody_waits(world: World) -> None:
    consumer = world.consumer(create_topics="never")
    with pytest.raises(AckwiseError, match=r"billing\.retry"):
        async with consumer:
            await consumer.receive(1, invisible=10, wait=20)


async def test_a_delay_and_a_level_together_are_refused(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        with pytest.raises(InvalidRuling, match="give one of them"):
            await consumer.later(received, delay=1, delay_level=1)
        assert await consumer.ack(received) is Answer.ACKED


def test_what_can_not_work_is_refused() -> None:
    store = "memory://"
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((TOPIC,), {}, "give it a store="),
        ((TOPIC,), {"store": store, "drain_timout": 1}, r"has no setting 'drain_timout'; did you mean drain_timeout\?"),
        ((TOPIC, Dedup(store)), {"store": store}, "Dedup was used twice"),
        ((TOPIC, Transactional("sqlite:///a.db")), {"store": store}, "Dedup and Transactional are both on"),
        (("billing.retry",), {"store": store}, "a topic that group 'billing' writes itself"),
    ]
    for given, settings, sentence in refused:
        with pytest.raises(ConfigurationError, match=sentence):
            SimpleConsumer("billing", *given, **settings)
