"""What a worker was given is opened once it is known where it goes on, while the group goes on seeing signs of life."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from faust.types import TP
from tests.faust.desk import desk, reading
from tests.waiting import PATIENCE, turns

from ackwise.middleware.progress.commitmetadata import CommitMetadata, Tried, group_hash
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Standing, Topic

MANY = [TopicPartition(topic, number) for topic in ("orders", "billing.retry") for number in range(10, 210)]


class Coordinator:
    """Says where partitions go on when it is let; `asked` is what it was asked for, one after the other."""

    def __init__(self, here: Any) -> None:
        self.asked: list[Collection[TopicPartition]] = []
        self.answers: list[asyncio.Future[Asked]] = []
        here.broker.say_where = self._say_where

    async def _say_where(self, partitions: Collection[TopicPartition]) -> Asked:
        self.asked.append(list(partitions))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def say(self, offset: int, *partitions: TopicPartition, number: int = -1) -> None:
        unknown = set(self.asked[number]) - set(partitions)
        error = KafkaConnectionError("it is loading")
        self.answers[number].set_result(Asked(dict.fromkeys(partitions, Standing(None, offset, offset)), dict.fromkeys(unknown, error)))


async def test_hundreds_of_partitions_are_asked_for_at_once_and_the_callback_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, reading()) as here:
        coordinator = Coordinator(here)
        await here.assign_all([TP(*partition) for partition in MANY])
        await here.until(lambda: bool(coordinator.asked))
        assert here.host.is_full(TP(*MANY[0])), "nothing is fetched before it is known from where"
        coordinator.say(7, *MANY)
        await here.until(lambda: all(map(here.is_read, MANY)))
        assert len(coordinator.asked) == 1
        assert not here.host.is_full(TP(*MANY[0]))
        assert here.resume(MANY[0]) == 7


async def test_what_nobody_can_say_waits_and_keeps_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.assignment.ASK_AGAIN", 0.0)
    first, second = MANY[:2]
    async with desk(monkeypatch, reading()) as here:
        coordinator = Coordinator(here)
        await here.assign_all([TP(*first), TP(*second)])
        await here.until(lambda: bool(coordinator.asked))
        coordinator.say(7, first)
        await here.until(lambda: here.is_read(first))
        assert not here.is_read(second)
        await here.until(lambda: len(coordinator.asked) == 2)
        assert coordinator.asked[1] == [second]
        coordinator.say(9, second)
        await here.until(lambda: here.is_read(second))


async def test_an_answer_to_what_was_asked_before_a_rebalance_opens_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.assignment.ASK_AGAIN", 0.0)
    partition = MANY[0]
    async with desk(monkeypatch, reading()) as here:
        coordinator = Coordinator(here)
        await here.assign_all([TP(*partition)])
        await here.until(lambda: bool(coordinator.asked))
        await here.host.revoked([TP(*partition)])
        await here.assign_all([TP(*partition)])
        coordinator.say(7, partition)
        await here.until(lambda: len(coordinator.asked) == 2)
        assert not here.is_read(partition)
        coordinator.say(9, partition)
        await here.until(lambda: here.is_read(partition))
        assert here.resume(partition) == 9


async def test_what_is_not_ours_any_more_is_opened_by_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = MANY[0]
    async with desk(monkeypatch, reading()) as here:
        coordinator = Coordinator(here)
        await here.assign_all([TP(*partition)])
        await here.until(lambda: bool(coordinator.asked))
        await here.host.revoked([TP(*partition)])
        coordinator.say(7, partition)
        await turns(20)
        assert not here.is_read(partition)
        assert not here.host.is_full(TP(*partition))


async def test_what_opens_begins_anew_with_what_waits_when_something_else_has_cancelled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.tasks._BEGIN_ANEW", 0.0)
    partition = MANY[0]
    async with desk(monkeypatch, reading()) as here:
        coordinator = Coordinator(here)
        await here.assign_all([TP(*partition)])
        await here.until(lambda: bool(coordinator.asked))
        coordinator.answers[-1].cancel()
        await here.until(lambda: len(coordinator.asked) == 2)
        coordinator.say(7, partition)
        await here.until(lambda: here.is_read(partition))


async def test_what_was_fetched_before_its_partition_moved_is_forgotten_and_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, reading()) as here:
        before = here.fetched(b"a", b"b", start=105)
        await here.revoke()
        await here.assign("orders")
        here.host.take(before)
        assert (here.resume(here.orders), here.lanes()[0].watermark.commit) == (100, 100)
        here.fetch(*[b"v"] * 7)
        await here.until_passed(107)


def from_the_end(app: Any) -> object:
    app._default_options[1]["consumer_auto_offset_reset"] = "latest"
    return reading()(app)


async def test_a_topic_that_is_made_again_is_read_from_its_start_though_nothing_of_it_was_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.deletedtopics._EVERY", 0.01)
    places = [TopicPartition("orders", 3), TopicPartition("billing.retry", 3)]
    async with desk(monkeypatch, from_the_end) as here:

        async def say(partitions: Collection[TopicPartition]) -> Asked:
            return Asked(dict.fromkeys(partitions, Standing(None, 0, 150, here.broker.topic)), {})

        here.broker.topic, here.broker.say_where = Topic("old", 4), say
        cast(Any, here.host)._opening.begin_again(places)
        await here.until(lambda: [here.resume(place) for place in places if here.is_read(place)] == [150, 0])
        here.broker.topic = Topic("new", 4)
        await here.until(lambda: [here.resume(place) for place in places if here.is_read(place)] == [0, 0])


async def test_where_a_partition_begins_is_committed_before_anything_of_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, from_the_end) as here:
        assert here.broker.commits == [{TopicPartition("orders", 3): 100, TopicPartition("billing.retry", 3): 100}]


async def test_what_a_fetch_has_proved_to_be_empty_behind_the_last_record_is_committed_past(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, reading()) as here:
        fetched = here.fetched(b"v")
        fetched.left_at = {here.orders: 108}
        assert here.host.take(fetched) == {}
        await here.until_passed(108)
        assert await here.committed() == 108


async def test_what_the_last_owner_may_have_ended_at_is_tried_alone_by_the_loop_of_each_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    left = CommitMetadata(is_open=True, group=group_hash("billing"), tried=Tried(100, 103, 0)).encode()
    async with desk(monkeypatch, reading()) as here:

        async def say(partitions: Collection[TopicPartition]) -> Asked:
            return Asked({partition: Standing(Committed(100, left), 100, 103) for partition in partitions}, {})

        here.broker.say_where = say
        lanes = here.lanes()
        cast(Any, here.host)._opening.begin_again([here.orders])
        await here.until(lambda: here.orders in here.host.lanes and here.lanes() is not lanes)
        async with asyncio.timeout(PATIENCE):
            here.fetch(b"a", b"b", b"c")
            await here.until_passed(103)
        await here.until(lambda: here.lanes()[0].tried is None)  # once its commit is acknowledged
