"""`SimpleConsumer` on a Kafka in memory: what receivers get, and what comes of what they say."""

from __future__ import annotations

import asyncio

from tests.plugin.simple.conftest import TOPIC, World, eventually, receive

from ackwise import Answer, EventCode


async def test_what_is_acknowledged_is_committed_and_not_delivered_again(world: World) -> None:
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        assert [each.value for each in received] == [b"a", b"b", b"c"]
        assert await consumer.ack_all(received) == [Answer.ACKED] * 3
        await eventually(lambda: world.committed() == 3)
        assert await consumer.receive(3, invisible=10, wait=0.2) == []
    assert world.count(EventCode.SUCCEEDED) == 3


async def test_an_earlier_message_that_is_not_acknowledged_holds_the_offset(world: World) -> None:
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        assert await consumer.ack_all(received[1:]) == [Answer.ACKED] * 2
        await asyncio.sleep(0.2)
        assert world.committed() == 0
        assert await consumer.ack(received[0]) is Answer.ACKED
        await eventually(lambda: world.committed() == 3)


async def test_what_expires_is_delivered_again_as_its_next_attempt(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (first,) = await receive(consumer, 1)
        world.clock.advance(10)
        (second,) = await receive(consumer, 1)
        assert (first.reconsume_times, second.reconsume_times, second.delivery_attempt) == (0, 1, 2)
        assert (second.topic, second.partition, second.offset) == (TOPIC, 0, 0)
        assert await consumer.ack(first) is Answer.INVALID_RECEIPT
        assert await consumer.ack(second) is Answer.ACKED
        await eventually(lambda: world.committed() == 1)
    assert world.dead_letters == []
    assert [world.count(code) for code in (EventCode.CLAIMED, EventCode.FAILED, EventCode.SENT_BACK, EventCode.SUCCEEDED)] == [2, 1, 1, 1]
