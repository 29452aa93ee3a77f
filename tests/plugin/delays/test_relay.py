"""The relay on a real Kafka: copies come back when they are due, once, whatever becomes of relays and brokers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.fakes import Sink
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import Copy, retry_copy
from ackwise.middleware.policies.delaytopic import CANCELLATIONS
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.plugin.delays.delayrelay import DelayRelay
from ackwise.plugin.local.localkafka import LocalKafka
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import ensure_topics, set_append_time
from ackwise.plugin.topics.topicnames import TopicNames

#: The partitions of the rungs of 1 s, 2 s and 10 s.
ONE, TWO, TEN = 3, 11, 1


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is killed here."""
    return own_kafka


class Group:
    """A group with its own topics on a real broker, a publisher, and a look past the code that is tested."""

    def __init__(self, raw_kafka: RawKafka) -> None:
        self.raw = raw_kafka
        self.settings = HostSettings(
            raw_kafka.bootstrap, raw_kafka.new_group(), session_timeout=6.0, commit_interval=0.2,
            client_options={"metadata_max_age_ms": 5000},
        )  # fmt: skip
        self.names = TopicNames(self.settings.group)
        self.publisher = KafkaPublisher(self.settings)
        self.sink = Sink()

    async def send(self, *values: int, delay: float, partition: int = 0) -> None:
        """Copies that are due `delay` seconds from now."""
        due = int((time.time() + delay) * 1000)
        for value in values:
            origin = Origin("orders", partition, value, 0)
            copy = retry_copy(
                Delivery(*origin, b"k", b"%d" % value, (("due", b"%d" % due),), origin),
                topic=self.names.delay, partition=partition, group=self.settings.group, handler="bill",
                due=due, now_ms=0, reason="", waits=True,
            )  # fmt: skip
            assert await self.publisher.publish([copy]) == [None]

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        relay = DelayRelay(self.settings, self.names, sink=self.sink)
        task = asyncio.create_task(relay.run(stop))
        try:
            yield task
        finally:
            stop.set()
            await task

    async def read(self, topic: str, count: int) -> list[Any]:
        """Everything in `topic`, once that is at least `count` records with different values."""
        async with asyncio.timeout(PATIENCE):
            while True:
                records = await self.raw.records(topic)
                if len({record.value for record in records}) >= count:
                    return records
                await asyncio.sleep(0.05)


@pytest.fixture
async def group(raw_kafka: RawKafka) -> AsyncIterator[Group]:
    group = Group(raw_kafka)
    source = await raw_kafka.new_topic(2)
    await ensure_topics(group.settings, group.names, [source], levels=DelayLevels("1s 10s"))
    await set_append_time(group.settings, [group.names.retry])  # when a copy came is for the broker to say
    await group.publisher.start()
    yield group
    await group.publisher.stop()


async def test_copies_come_back_when_they_are_due_and_not_before(group: Group) -> None:
    await group.send(*range(20), delay=0.3)
    await group.send(*range(20, 30), delay=1.5, partition=1)
    async with group.relay():
        await group.send(30, delay=0.9)
        records = await group.read(group.names.retry, 31)
    assert sorted(int(record.value) for record in records) == list(range(31))
    assert all(record.timestamp >= int(dict(record.headers)["due"]) for record in records)
    assert sorted(int(record.value) for record in records if record.partition == 1) == list(range(20, 30))


async def test_a_relay_that_comes_later_moves_what_was_sent_before_and_nothing_twice(group: Group) -> None:
    await group.send(1, 2, 3, delay=0)
    await group.publisher.publish([Copy(group.names.delay, ONE, None, b"what am I", ())])
    async with group.relay():
        await group.read(group.names.retry, 3)
        (letter,) = await group.read(group.names.dead_letter, 1)
        assert (letter.value, dict(letter.headers)["ackwise-reason"]) == (b"what am I", b"foreign-copy")
    assert (await group.raw.committed(group.names.relay_group))[TopicPartition(group.names.delay, ONE)] == 4
    await group.send(4, delay=0)
    async with group.relay():
        records = await group.read(group.names.retry, 4)
    assert [record.value for record in records] == [b"1", b"2", b"3", b"4"]


async def test_two_relays_share_the_partitions_and_lose_nothing_when_one_leaves(group: Group) -> None:
    async with group.relay():
        async with group.relay():
            for number in range(20):
                await group.send(number, delay=0.1, partition=number % 2)
        for number in range(20, 30):
            await group.send(number, delay=0.1, partition=number % 2)
        assert {int(record.value) for record in await group.read(group.names.retry, 30)} == set(range(30))


async def test_the_ends_of_the_logs_are_told_with_what_is_committed(group: Group) -> None:
    await group.send(1, 2, delay=0)
    async with group.relay():
        await group.read(group.names.retry, 2)
    last = {(event.topic, event.partition): event for event in group.sink.events}
    assert {event.code for event in group.sink.events} == {EventCode.BROKER_OFFSETS}
    assert {event.role for event in group.sink.events} == {"delay"}
    assert sorted(last) == [(group.names.delay, partition) for partition in range(1, 14)], "nobody reads the cancellations in a group"
    ends = {at: (event.offset, event.range_end, json.loads(event.attrs or "")) for at, event in last.items()}
    assert ends[(group.names.delay, ONE)] == (0, 2, {"committed": 2})
    assert ends[(group.names.delay, TWO)] == (0, 0, {"committed": 0})
    assert TopicPartition(group.names.delay, CANCELLATIONS) not in await group.raw.committed(group.names.relay_group)


@pytest.mark.nightly
@pytest.mark.slow  # it waits for a broker to start again
async def test_a_broker_that_is_killed_and_comes_back_costs_time_and_no_copy(group: Group, kafka: LocalKafka) -> None:
    async with group.relay() as task:
        await group.send(*range(10), delay=0)
        await group.read(group.names.retry, 10)
        await group.send(*range(10, 20), delay=2)
        await asyncio.to_thread(kafka.kill)
        await asyncio.to_thread(kafka.start)
        await group.send(*range(20, 30), delay=0)
        assert {int(record.value) for record in await group.read(group.names.retry, 30)} == set(range(30))
        assert not task.done()
