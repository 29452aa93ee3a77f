"""What becomes of an assignment: lanes where the brokers say, whatever changes hands while they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError
from tests.waiting import until

from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.fetching import _named
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Standing
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)


class Consumer:
    """A client that was assigned partitions; it keeps where each was sought, and what is paused."""

    def __init__(self) -> None:
        self.ours: set[TopicPartition] = set()
        self.sought: list[tuple[TopicPartition, int]] = []
        self.stopped: set[TopicPartition] = set()
        self.commits: list[Any] = []
        self.commit_waits: asyncio.Event | None = None

    def assignment(self) -> set[TopicPartition]:
        return set(self.ours)

    def paused(self) -> set[TopicPartition]:
        return set(self.stopped)

    def pause(self, partition: TopicPartition) -> None:
        self.stopped.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self.stopped.discard(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append((partition, offset))

    async def commit(self, offsets: Any) -> None:
        self.commits.append(offsets)

    async def beginning_offsets(self, partitions: Any) -> Any:
        return {}

    async def end_offsets(self, partitions: Any) -> Any:
        return {}

    def missing_topics(self) -> Sequence[str]:
        return ()

    def is_gone(self, topic: str) -> bool:
        return False


class Scene:
    """A member with an assignment, whose brokers answer when the test lets them."""

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.member = Member(HostSettings(brokers="nowhere:1", group="billing"), [], Parts(ConsumeLater(), DeadLetter()))
        self.member.leases, self.member.pipelines = None, {}
        self.member.routes = SimpleNamespace(from_source=lambda _: None, from_retry=lambda _: None)  # type: ignore[assignment]
        self.known: dict[TopicPartition, Standing] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[set[TopicPartition]] = []
        client: Any = self.consumer
        client.ask = self._ask
        self.opening = Opening(self.member, client)

    async def _ask(self, partitions: Collection[TopicPartition]) -> Asked:
        self.asked.append(set(partitions))
        known = {partition: self.known[partition] for partition in partitions if partition in self.known}
        await self.answers.wait()
        return Asked(known, {partition: KafkaConnectionError() for partition in partitions if partition not in known})

    def assign(self, *partitions: TopicPartition) -> None:
        self.consumer.ours = set(partitions)
        self.opening.note(partitions)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("ackwise.plugin.consumer.assignment.ASK_AGAIN", 0.01)
    monkeypatch.setattr("ackwise.plugin.consumer.startpositions._LOOKS_AT_END", 1)
    made = Scene()
    client: Any = made.consumer
    async with made.member.working(client):
        made.member.keep(made.opening.keep, "assignment")
        yield made


def at(committed: int, start: int = 0, end: int = 100) -> Standing:
    return Standing(Committed(committed, ""), start, end)


async def test_a_callback_asks_nobody_and_its_partitions_fetch_nothing_until_they_have_a_lane(scene: Scene) -> None:
    scene.answers.clear()
    scene.known = {ORDERS: at(5)}
    scene.assign(ORDERS)
    assert (scene.asked, scene.consumer.stopped, scene.member.lanes) == ([], {ORDERS}, {})
    scene.answers.set()
    await until(lambda: ORDERS in scene.member.lanes)
    assert (scene.consumer.stopped, scene.consumer.sought[-1]) == (set(), (ORDERS, 5))
    assert scene.member.lanes[ORDERS][0].position == 5


async def test_a_thousand_partitions_are_opened_by_one_question(scene: Scene) -> None:
    partitions = [TopicPartition("orders", number) for number in range(1000)]
    scene.known = {partition: at(partition.partition, end=1000) for partition in partitions}
    scene.assign(*partitions)
    await until(lambda: len(scene.member.lanes) == 1000)
    assert scene.asked == [set(partitions)]


async def test_a_partition_that_nobody_can_say_anything_of_is_asked_for_again_and_the_others_begin(scene: Scene) -> None:
    scene.known = {ORDERS: at(5)}
    scene.assign(ORDERS, OTHERS)
    await until(lambda: ORDERS in scene.member.lanes)
    assert OTHERS not in scene.member.lanes
    assert scene.consumer.stopped == {OTHERS}
    scene.known = {OTHERS: at(7)}
    await until(lambda: OTHERS in scene.member.lanes)


async def test_an_answer_to_a_question_from_before_a_rebalance_opens_nothing(scene: Scene) -> None:
    scene.known = {ORDERS: at(5)}
    scene.answers.clear()
    scene.assign(ORDERS)
    await until(lambda: scene.asked)
    await scene.opening.give_up([ORDERS])
    scene.known = {ORDERS: at(9)}  # its other owner went on meanwhile
    scene.assign(ORDERS)
    scene.answers.set()
    await until(lambda: ORDERS in scene.member.lanes)
    assert scene.member.lanes[ORDERS][0].position == 9
    assert (ORDERS, 5) not in scene.consumer.sought


async def test_a_stop_opens_nothing_more(scene: Scene) -> None:
    scene.member.stop.set()
    scene.assign(ORDERS)
    await asyncio.sleep(0)
    assert (scene.asked, scene.member.lanes) == ([], {})


async def opened(scene: Scene, committed: int = 5) -> Any:
    scene.known = {ORDERS: at(committed)}
    scene.assign(ORDERS)
    await until(lambda: ORDERS in scene.member.lanes)
    return scene.member.lanes[ORDERS][0]


async def test_a_partition_whose_position_was_lost_is_taken_up_anew_and_nothing_below_it_is_passed_over(scene: Scene) -> None:
    """Its old lane would take what the log has below its position for what it had before."""
    old = await opened(scene)
    for start, end, begins in ((0, 9, None), (7, 9, 7), (0, 3, 0)):
        scene.known = {ORDERS: at(5, start, end)}
        scene.opening.lost([ORDERS])
        assert scene.opening.is_halted(ORDERS)
        await until(lambda: not scene.opening.is_halted(ORDERS))
        (lane,) = scene.member.lanes[ORDERS]
        assert ((lane is old), old.cut_off) == (begins is None, begins is not None)
        assert scene.consumer.sought[-1] == (ORDERS, 5 if begins is None else begins)
        old = lane


async def test_a_position_that_is_lost_again_while_it_is_looked_after_is_looked_after_once(scene: Scene) -> None:
    await opened(scene)
    scene.answers.clear()
    asked = len(scene.asked)
    for _ in range(3):
        scene.opening.lost([ORDERS])
        await asyncio.sleep(0)
    assert len(scene.asked) == asked + 1
    scene.answers.set()
    await until(lambda: not scene.opening.is_halted(ORDERS))


async def test_what_is_to_begin_anew_does_so_though_its_position_is_looked_after_just_then_and_found(scene: Scene) -> None:
    """Another agent reads it from now on, or its topic was recreated."""
    old = await opened(scene)
    scene.answers.clear()
    scene.opening.lost([ORDERS])
    await asyncio.sleep(0)
    scene.opening.begin_again([ORDERS])
    scene.answers.set()
    await until(lambda: ORDERS in scene.member.lanes and not scene.opening.is_halted(ORDERS))
    (lane,) = scene.member.lanes[ORDERS]
    assert (lane is old, old.cut_off) == (False, True)
    scene.opening.lost([ORDERS])
    await until(lambda: not scene.opening.is_halted(ORDERS))
    assert scene.member.lanes[ORDERS] == (lane,), "that was once"


async def test_a_position_that_is_looked_after_when_its_partition_is_revoked_makes_no_second_lane(scene: Scene) -> None:
    old = await opened(scene)
    scene.answers.clear()
    scene.known = {ORDERS: at(5, 0, 3)}
    scene.opening.lost([ORDERS])
    await asyncio.sleep(0)
    await scene.opening.give_up([ORDERS])
    assert old.cut_off
    scene.answers.set()
    scene.known = {ORDERS: at(6)}
    scene.assign(ORDERS)
    await until(lambda: ORDERS in scene.member.lanes and not scene.opening.is_halted(ORDERS))
    assert [lane.position for lane in scene.member.lanes[ORDERS]] == [6]
    assert scene.consumer.sought[-1] == (ORDERS, 6)


async def test_a_position_is_looked_after_without_the_one_who_fetches_and_a_broker_that_is_away_ends_nobody(scene: Scene) -> None:
    await opened(scene)
    scene.known = {}
    scene.opening.lost(_named(OffsetOutOfRangeError({ORDERS: 5})))
    await until(lambda: len(scene.asked) > 3)
    scene.known = {ORDERS: at(5)}
    await until(lambda: not scene.opening.is_halted(ORDERS))
    scene.known = {}
    scene.opening.lost([ORDERS])
    await until(lambda: scene.opening.is_halted(ORDERS))
    scene.consumer.ours = set()
    await scene.opening.give_up([ORDERS])
    await until(lambda: not scene.opening.is_halted(ORDERS))  # nobody goes on asking for what is no longer ours
    assert scene.member.fatal is None


async def test_partitions_are_opened_though_something_else_has_cancelled_the_task_that_opens_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.tasks._BEGIN_ANEW", 0.0)
    find, leaks = scene.opening._positions.find, [asyncio.CancelledError()]

    async def leaking(partitions: Collection[TopicPartition]) -> Any:
        if leaks:
            raise leaks.pop()
        return await find(partitions)

    monkeypatch.setattr(scene.opening._positions, "find", leaking)
    await opened(scene)
    assert (leaks, scene.consumer.stopped) == ([], set())
