"""What the host polls while a lane is full: the others, and nothing that the client has fetched is thrown away for a moment's sake."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.plugin.lines import Line, deliveries, end
from tests.waiting import PATIENCE, turns

from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Run
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.backlog import MAX_MESSAGES
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings

FULL, ROOMY = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Consumer:
    """What the host asks of aiokafka's consumer, and what it asked."""

    def __init__(self) -> None:
        self.stopped: set[TopicPartition] = set()
        self.polls: list[tuple[tuple[TopicPartition, ...], int]] = []
        self.records: dict[TopicPartition, Any] = {}
        self._fetcher = SimpleNamespace(_fetch_task=asyncio.get_running_loop().create_future(), _records={})
        self._subscription = SimpleNamespace(subscription=None)
        self._coordinator = SimpleNamespace(check_errors=lambda: None)
        self._closed = False

    def assignment(self) -> set[TopicPartition]:
        return {FULL, ROOMY}

    def paused(self) -> set[TopicPartition]:
        return set(self.stopped)

    def pause(self, partition: TopicPartition) -> None:
        self.stopped.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self.stopped.discard(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> dict[TopicPartition, Any]:
        self.polls.append((partitions, timeout_ms))
        return self.records


class Desk:
    """A member with a full lane and an empty one; `now` is the lanes' time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.consumer = Consumer()
        self.member = Member(HostSettings(brokers="nowhere:1", group="billing"), [], Parts(ConsumeLater(), DeadLetter()))
        consumer: Any = self.consumer
        client = AiokafkaClient(consumer, "billing")
        self.polling = Polling(self.member, client, Opening(self.member, client))
        self.full, roomy = self._lane(FULL), self._lane(ROOMY)
        self.member.lanes = {FULL: (self.full,), ROOMY: (roomy,)}
        self.full.offer(deliveries(0, MAX_MESSAGES + 1))

    def _lane(self, partition: TopicPartition) -> Lane:
        def make(_: Any, records: Any) -> list[Run]:
            return [Run.of(record, line) for record in records]

        line: Any = Line()
        return Lane(*partition, "source", 0, make=make, progressed=self.member._progressed, clock=lambda: self.now)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_full_lane_is_passed_over_for_a_second_then_paused_and_polled_and_resumed_once_it_has_room(desk: Desk) -> None:
    for _ in range(2):
        assert desk.polling._regulate() == ([ROOMY], True)
        assert desk.consumer.stopped == set(), "what the client has of it is kept"
        desk.now += 0.99
    desk.now = 101.0
    assert desk.polling._regulate() == ([FULL, ROOMY], False), "so that the group sees this member alive"
    assert desk.consumer.stopped == {FULL}
    desk.full.start()
    while desk.consumer.stopped:
        await asyncio.wait_for(desk.member.has_moved.wait(), PATIENCE)
        desk.member.has_moved.clear()
        assert desk.polling._regulate() == ([FULL, ROOMY], False)
    await end(desk.full)


async def test_while_a_lane_is_full_only_the_others_are_polled_and_the_client_waits_for_none_of_them(desk: Desk) -> None:
    desk.consumer.records = {ROOMY: [SimpleNamespace(topic="orders", partition=1, offset=0, timestamp=0, key=None, value=b"", headers=())]}
    await desk.polling._poll_once([ROOMY], True)
    assert (desk.member.lanes[ROOMY][0].in_hand, desk.consumer.polls) == (1, [((ROOMY,), 0)])
    await desk.polling._poll_once([], True)  # a poll for none would be one for all
    assert len(desk.consumer.polls) == 1
    await desk.polling._poll_once([FULL, ROOMY], False)
    assert desk.consumer.polls[1:] == [((), 200)]


async def test_a_poll_that_gave_something_is_followed_by_another_one_once_a_lane_has_moved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.polling._LOOK_AGAIN", 600.0)
    desk.consumer.records = {ROOMY: [SimpleNamespace(topic="orders", partition=1, offset=0, timestamp=0, key=None, value=b"", headers=())]}
    polling = asyncio.create_task(desk.polling.poll())
    await turns()
    assert (desk.member.lanes[ROOMY][0].in_hand, len(desk.consumer.polls)) == (1, 1)
    desk.member.has_moved.set()
    await turns()
    assert len(desk.consumer.polls) == 2
    polling.cancel()


async def test_a_batch_that_ends_ends_the_wait_for_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.polling._LOOK_AGAIN", 600.0)
    fetching = asyncio.create_task(desk.polling._poll_once([], True))
    await asyncio.sleep(0)
    desk.full.start()
    async with asyncio.timeout(PATIENCE):
        await fetching
    await end(desk.full)
