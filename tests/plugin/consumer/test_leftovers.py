"""Copies from before a handler had an order: its start is refused while they wait, and one that comes all the same is flagged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import TopicAlreadyExistsError
from tests.waiting import PATIENCE

from ackwise import App, Message, RetryInPlace
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import retry_copy
from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, group_hash
from ackwise.plugin.aiokafkahost import host_of
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.leftovers import REPAIR, find_leftovers
from ackwise.testing import Place, TestApp
from ackwise.testing.kafka.broker import MemoryKafka

RETRY, DELAY = "billing.retry", "billing.delay"

#: Where copies are put there.
PLACE = {RETRY: 0, DELAY: 1}


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as running:
        running.create_topic("orders")
        yield running


def app(kafka: MemoryKafka | None = None, order: Any = "key") -> App:
    made = App("billing", config=Config(), brokers="localhost:9092" if kafka is None else kafka.bootstrap)

    @made.agent("orders", order=order, in_place=None if order is None else RetryInPlace(3, delay="10ms"))
    async def bill(message: Message[bytes]) -> None:
        if message.value == b"fails" and not message.in_place:
            raise TimeoutError

    return made


def wait(
    kafka: MemoryKafka, topic: str, *, handler: str = "bill", replay: bytes | None = None, reason: str = "E", value: bytes = b"v"
) -> None:
    """Put a copy of `orders`/0/7 there, as a worker without an order writes it."""
    origin = Origin("orders", 0, 7, 1000)
    message = Delivery(*origin, b"ann", value, (), origin, replay_id=replay)
    copy = retry_copy(message, topic=topic, partition=0, group="billing", handler=handler, due=1, now_ms=0, reason=reason)
    with suppress(TopicAlreadyExistsError):
        kafka.create_topic(topic, 14 if topic == DELAY else 1, max_message_bytes=2_000_000)
    kafka.produce(topic, copy.value, key=copy.key, partition=PLACE[topic], headers=copy.headers)


async def found(group: Group, **limits: Any) -> list[tuple[str, str, int]]:
    leftovers = await find_leftovers(group.settings, group.names, group.agents, **limits)
    assert leftovers.unread is None
    return [(each.handler, each.topic, each.offset) for each in leftovers.found]


async def test_a_start_is_refused_while_a_copy_waits_for_a_handler_with_an_order() -> None:
    for topic, order in ((RETRY, "key"), (DELAY, "partition")):
        async with MemoryKafka() as kafka:
            kafka.create_topic("orders")
            wait(kafka, topic, handler="ship")
            wait(kafka, topic)
            group = app(kafka, order).group()
            with pytest.raises(ConfigurationError) as refused:
                await asyncio.wait_for(host_of(group.slots, group.settings, group.agents).run(asyncio.Event()), PATIENCE)
        assert str(refused.value) == (
            f"topic {topic!r} has a copy for agent 'bill' from before it had order={order!r} (partition {PLACE[topic]}, offset 1), and it "
            "would run out of order; let workers without the order run the delay and retry topics dry, or cancel what waits (ackwise "
            "cancel), and switch the order on then"
        )


async def test_a_replay_a_repair_and_copies_of_others_do_not_count(kafka: MemoryKafka) -> None:
    wait(kafka, RETRY, replay=b"redrive-1")
    wait(kafka, RETRY, reason=f"{REPAIR}LOST")
    wait(kafka, RETRY, handler="ship")
    kafka.produce(RETRY, b"foreign")
    assert await found(app(kafka).group()) == []
    wait(kafka, RETRY)
    assert await found(app(kafka, None).group()) == [], "without an order nobody looks"


async def test_what_relay_and_group_have_committed_or_finished_does_not_count(kafka: MemoryKafka) -> None:
    for topic in (RETRY, RETRY, RETRY, DELAY):
        wait(kafka, topic)
    group = app(kafka).group()
    await _commit(kafka, group.names.relay_group, DELAY, 1, "")
    await _commit(kafka, "billing", RETRY, 1, map_of(1, 0b10))
    assert await found(group) == [("bill", RETRY, 1)]
    await _commit(kafka, "billing", RETRY, 2, map_of(2, 0b1))
    assert await found(group) == []
    await _commit(kafka, "billing", RETRY, 2, map_of(2, 0b1, "another"))
    assert await found(group) == [("bill", RETRY, 2)], "a map that was copied from another group says nothing"


def map_of(base: int, bits: int, group: str = "billing") -> str:
    return CommitMetadata(finished=FinishedMap(base, 0, 0, "a", bits), group=group_hash(group)).encode()


async def _commit(kafka: MemoryKafka, group: str, topic: str, offset: int, metadata: str) -> None:
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(topic, PLACE[topic])
        consumer.assign([partition])
        await consumer.commit({partition: (offset, metadata)})
    finally:
        await consumer.stop()


async def test_what_can_not_be_read_in_time_is_said_and_refuses_nothing(kafka: MemoryKafka) -> None:
    wait(kafka, RETRY)
    group = app(kafka).group()
    leftovers = await find_leftovers(group.settings, group.names, group.agents, within=0.0)
    assert leftovers == ([], "not everything could be read within 0 s")


async def test_a_copy_that_comes_all_the_same_runs_and_is_flagged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ackwise")
    async with TestApp(app()) as worker:
        await worker.deliver("orders", b"v", key="ann")
        wait(worker.kafka, RETRY, value=b"fails")
        fate = await worker.fate(Place("orders", 0, 7), attempt=2)
        assert fate.kind == "done"
    told = [event for event in worker.events if event.offset == 7 and event.code in (EventCode.FAILED, EventCode.SUCCEEDED)]
    assert [json.loads(event.attrs or "{}").get("out_of_order") for event in told] == [True, True]
    plain = [event for event in worker.events if event.offset == 0 and event.code is EventCode.SUCCEEDED]
    assert [event.attrs for event in plain] == [None]
    lines = [record.getMessage() for record in caplog.records if "copy runs out of order" in record.getMessage()]
    assert len(lines) == 1
