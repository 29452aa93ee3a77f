"""Lanes whose last owner died: what it died of becomes a dead letter alone, and everything else is handled, without a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plugin.consumer.test_member import Client
from tests.waiting import PATIENCE, turns, until

from ackwise.middleware.claims.isolation import LONGEST
from ackwise.middleware.message.disposition import Dead
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.commitmetadata import read_own
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.brokeroffsets import Topic
from ackwise.plugin.settings.hostsettings import HostSettings

#: Deaths until a message that ends every worker is a dead letter: the first, two until it is found, and ten alone.
MOST_DEATHS = 13


class Broker:
    """Partitions of `orders`, with what was committed of them; `killers` end the worker that decodes them."""

    def __init__(self, number: int, killers: Sequence[tuple[int, int]], partitions: int = 1) -> None:
        self.number = number
        self.killers = set(killers)
        self.partitions = [TopicPartition("orders", partition) for partition in range(partitions)]
        self.committed: dict[TopicPartition, tuple[int, str]] = dict.fromkeys(self.partitions, (0, ""))
        self.handled: set[tuple[int, int]] = set()
        self.blocked: set[tuple[int, int]] = set()  #: what can't be started now, as while a store is unavailable
        self.hanging: set[tuple[int, int]] = set()  #: what takes longer than a partition stays here
        self.dead: set[tuple[int, int]] = set()
        self.of_ship: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()  #: dead and handled, of another agent
        self.deaths = 0
        self.commits = 0


class Worker(Client):
    """One worker, which takes all partitions, until it dies or all is handled."""

    def __init__(
        self, broker: Broker, max_batch: int = 200, *, overlaps: bool = False, waits: bool = False, agents: Sequence[str | None] = (None,)
    ) -> None:
        super().__init__()
        self.broker = broker
        self.is_dead = asyncio.Event()
        self.came = asyncio.Event()  #: it came to what is blocked, or hangs
        self.batches: list[list[tuple[int, int]]] = []
        self.working = 0
        self.agents = agents
        self.waits = waits  #: until it is known what is paused
        self.member = Member(
            HostSettings(brokers="nowhere:1", group="billing", instance="a", commit_interval=60.0), [], Parts(ConsumeLater(), DeadLetter())
        )
        self.member.leases, self.member.pipelines = None, {}
        self.agent: Any = SimpleNamespace(name="bill", max_batch=max_batch, max_wait=0.0, overlaps=overlaps, room=400)

    async def commit(self, offsets: Any, /) -> object:
        if self.is_dead.is_set():
            await asyncio.Event().wait()
        self.broker.commits += 1
        self.broker.committed.update({place: (each.offset, each.metadata) for place, each in offsets.items()})
        return None

    async def __call__(self, runs: list[Run], lane: Any) -> None:
        """As a pipeline: what is decoded may end the worker, what is dead has its letter."""
        batch = [(run.place.partition, offset) for run in runs for offset in run.offsets if run.stage is Stage.FETCHED]
        self.batches.append(batch)
        self.working += 1
        await turns(1 + 50 * runs[0].place.partition)  # others than the first partition take their time
        if self.is_dead.is_set() or (lane.agent in (None, "bill") and self.broker.killers & {*batch}):
            if not self.is_dead.is_set():
                self.broker.deaths += 1
                self.is_dead.set()
            await asyncio.Event().wait()
        while self.broker.hanging & {*batch}:
            self.came.set()
            await asyncio.sleep(0.001)
        self.working -= 1
        for run in runs:
            if run.stage is Stage.FETCHED and (run.place.partition, run.first) in self.broker.blocked:
                self.came.set()
                run.postpone(time.monotonic() + 0.002, "the store is unavailable")
                continue
            dead, handled = (self.broker.dead, self.broker.handled) if lane.agent != "ship" else self.broker.of_ship
            into = dead if isinstance(run.disposition, Dead) else handled
            into.update((run.place.partition, offset) for offset in run.offsets)
            run.stage = Stage.SETTLED

    @asynccontextmanager
    async def working_on_all(self) -> AsyncIterator[None]:
        async with self.member.working(self):
            if self.waits:
                self.member.flow.await_control()
                asyncio.get_running_loop().call_later(0.02, self.member.flow.know_control)
            topic = Topic("id", len(self.broker.partitions))
            found = {
                place: Position(offset, offset, None, metadata, topic, self.broker.number)
                for place, (offset, metadata) in self.broker.committed.items()
            }
            assert await self.member.announce(found) == {*found}
            for place, position in found.items():
                lanes = tuple(
                    self.member.lane(*place, "source", position.next, make=lambda at, records: [Run(at, records, self)], agent=agent)
                    for agent in self.agents
                )
                self.member.add_lanes(place, lanes, from_commit=position.next, metadata=position.metadata, topic=topic, end=position.end)
            feeding = asyncio.create_task(self._feed())
            yield
            feeding.cancel()

    async def _feed(self) -> None:
        while not self.is_dead.is_set():
            for place, (lane, *_) in self.member.lanes.items():
                first = lane.position
                if first < self.broker.number and not lane.is_full():
                    about = {"topic": "orders", "partition": place.partition, "key": None, "value": b"", "headers": ()}
                    offsets = range(first, min(first + 500, self.broker.number))
                    self.member.offer(place, [SimpleNamespace(offset=at, timestamp=at, **about) for at in offsets], proved=True)
            await asyncio.sleep(0)

    @property
    def is_done(self) -> bool:
        return all(lane.watermark.commit == self.broker.number for lanes in self.member.lanes.values() for lane in lanes)


async def live(broker: Broker, **options: Any) -> Worker:
    """A worker until it dies or all is done; then it leaves in order."""
    worker = Worker(broker, **options)
    async with asyncio.timeout(PATIENCE), worker.working_on_all():
        await until(lambda: worker.is_dead.is_set() or worker.is_done)
        if not worker.is_dead.is_set():
            await worker.member.drain([*broker.partitions], 1.0)
    return worker


@given(
    st.integers(1, 1500).flatmap(lambda number: st.tuples(st.just(number), st.integers(0, number - 1))),
    st.sampled_from([1, 20, 200]),
    st.booleans(),
)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
async def test_a_message_that_ends_each_worker_is_a_dead_letter_after_ten_tries_alone_and_all_others_are_handled(
    log: tuple[int, int], max_batch: int, overlaps: bool
) -> None:
    number, killer = log
    broker = Broker(number, [(0, killer)])
    for _ in range(MOST_DEATHS + 1):
        await live(broker, max_batch=max_batch, overlaps=overlaps)
    assert broker.deaths <= MOST_DEATHS
    assert broker.dead == {(0, killer)}
    assert broker.handled == {(0, offset) for offset in range(number)} - broker.dead


async def test_what_waits_until_it_is_known_what_is_paused_is_tried_after_that() -> None:
    broker = Broker(300, [(0, 220)])
    for _ in range(MOST_DEATHS + 1):
        await live(broker, waits=True)
    assert (broker.dead, broker.deaths) == (broker.killers, MOST_DEATHS)


async def test_two_killers_in_different_partitions_of_one_worker_die_and_no_neighbour_does() -> None:
    broker = Broker(50, [(0, 7), (2, 30)], partitions=4)
    for _ in range(2 * MOST_DEATHS + 1):
        await live(broker)
    assert broker.dead == broker.killers
    assert len(broker.handled) == 4 * 50 - 2


async def test_of_two_agents_of_one_partition_only_the_one_that_dies_of_it_gets_a_dead_letter() -> None:
    broker = Broker(60, [(0, 20)], partitions=2)
    for _ in range(MOST_DEATHS + 1):
        await live(broker, agents=("bill", "ship"))
    assert (broker.dead, broker.of_ship[0]) == (broker.killers, set())
    assert len(broker.handled) == 2 * 60 - 1
    assert len(broker.of_ship[1]) == 2 * 60


async def tried_alone() -> Broker:
    """A log whose message 7 was tried alone, and that has nothing that ends a worker any more."""
    broker = Broker(20, [(0, 7)])
    for _ in range(4):
        await live(broker)
    broker.killers.clear()
    assert tries(broker) > 0
    return broker


def tries(broker: Broker) -> int:
    left = read_own(broker.committed[broker.partitions[0]][1], "billing@a")
    assert left is not None
    return 0 if left.tried is None else left.tried.tries


async def test_a_message_that_can_not_be_begun_is_not_counted_however_often_its_worker_is_killed() -> None:
    broker = await tried_alone()
    broker.blocked = {(0, 7)}
    before = tries(broker)
    for _ in range(12):
        worker = Worker(broker)
        async with asyncio.timeout(PATIENCE), worker.working_on_all():
            await worker.came.wait()
            ((lane,),) = worker.member.lanes.values()
            await until(lambda: not lane.is_alone and lane.tried is not None, step=0)  # noqa: B023
            await asyncio.sleep(0.001)
            worker.is_dead.set()
    assert tries(broker) == before
    broker.blocked = set()
    await live(broker)
    assert (broker.dead, len(broker.handled)) == (set(), 20)


async def test_a_message_whose_partition_goes_while_it_runs_is_not_counted() -> None:
    broker = await tried_alone()
    broker.hanging = {(0, 7)}
    before = tries(broker)
    for _ in range(12):
        worker = Worker(broker)
        async with asyncio.timeout(PATIENCE), worker.working_on_all():
            await worker.came.wait()
            await worker.member.drain([*broker.partitions], 0.01)
    assert tries(broker) == before
    broker.hanging = set()
    await live(broker)
    assert (broker.dead, len(broker.handled)) == (set(), 20)


async def test_two_that_end_workers_beside_each_other_are_both_dead() -> None:
    broker = Broker(60, [(0, 7), (0, 8), (0, 40)])
    for _ in range(3 * MOST_DEATHS + 1):
        await live(broker)
    assert broker.dead == broker.killers
    assert len(broker.handled) == 60 - 3


async def test_from_then_on_the_message_runs_while_nothing_else_does() -> None:
    broker = Broker(2000, [(0, 7)], partitions=3)
    for _ in range(3):
        await live(broker)
    broker.committed.update(dict.fromkeys(broker.partitions[1:], (0, "")))  # nothing is suspect there
    broker.handled.clear()
    worker = await live(broker)
    assert worker.batches[-1] == [(0, 7)]
    assert worker.working == 1
    assert len(broker.handled) < 3000, "the others had more to do"
    left = read_own(broker.committed[broker.partitions[0]][1], "billing@a")
    assert left is not None
    assert left.tried is not None
    assert left.tried[:2] == (7, 8)


async def test_a_kill_without_a_reason_makes_nothing_a_dead_letter_and_costs_a_commit_for_each_portion() -> None:
    broker = Broker(1000, [(0, 999)])
    await live(broker)
    broker.killers.clear()
    before = broker.commits
    await live(broker)
    assert broker.dead == set()
    assert len(broker.handled) == 1000
    assert broker.commits - before <= 5, "at its start and its end, and one for 200, 400 and the rest"


async def test_where_no_death_tells_which_a_backlog_is_taken_as_ever_after_half_a_minute() -> None:
    broker = Broker(5000, [(0, 4999)])
    await live(broker)
    broker.killers.clear()
    broker.committed[broker.partitions[0]] = (0, broker.committed[broker.partitions[0]][1])
    before, worker = broker.commits, Worker(broker)
    async with asyncio.timeout(PATIENCE), worker.working_on_all():
        ((lane,),) = worker.member.lanes.values()
        lane._clock = lambda: LONGEST + 1e9
        await until(lambda: worker.is_done)
    assert broker.commits - before == 1


async def test_a_lane_whose_owner_left_in_order_pays_no_commit_more() -> None:
    broker = Broker(1000, [])
    await live(broker)
    broker.number = 2000
    before = broker.commits
    worker = await live(broker)
    assert broker.commits - before == 2, "one at its start, one at its end"
    assert len(worker.batches) >= 5


async def test_a_broker_that_refuses_commits_keeps_nobody_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(300, [(0, 299)])
    await live(broker)
    broker.killers.clear()
    worker = Worker(broker)
    async with asyncio.timeout(PATIENCE), worker.working_on_all():
        worker.refuse = GroupAuthorizationFailedError()
        monkeypatch.setattr(worker, "commit", lambda offsets: Client.commit(worker, offsets))
        await until(lambda: worker.is_done)
