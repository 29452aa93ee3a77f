"""What a host gives is enough: a whole consumer, with retries, delays and dead letters, over a client that is no aiokafka.

A later host takes the place of `ListClient` here, and passes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from tests import fakes
from tests.plugin.consumer.lists import ListClient, Lists
from tests.waiting import until

from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.delaytopic import CANCELLATIONS, Ladder
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import MAX_DELAY, ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.consumer.workerstate import DelayCounts
from ackwise.plugin.delays.delaymember import DelayMember
from ackwise.plugin.delays.nexthop import Bounds
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing.app import VirtualClock

WIDTH = 4
ORDERS = [TopicPartition("orders", number) for number in range(WIDTH)]


class _Publisher:
    """Writes copies into the lists, as a host starts and stops it."""

    def __init__(self, lists: Lists) -> None:
        self.publish = lists.publish

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class _Control:
    """Nobody pauses anything."""

    is_there = False

    def __init__(self, *_: Any) -> None: ...

    async def follow(self) -> None:
        await asyncio.get_running_loop().create_future()


class _NoCancellations:
    keys: frozenset[bytes] = frozenset()

    async def read(self) -> None: ...

    async def close(self) -> None: ...


class Worker:
    """A worker on lists: this is all that its host does."""

    def __init__(self, member: Member, client: ListClient, *, ignored: frozenset[TopicPartition] = frozenset()) -> None:
        self.member = member
        self.client = client
        self.opening = Opening(member, client)
        self.opening.ignored = ignored
        self._ends = AsyncExitStack()
        self._running: asyncio.Task[None] | None = None

    async def start(self, *topics: str) -> None:
        await self._ends.enter_async_context(self.member.opened(with_topics=False))
        await self._ends.enter_async_context(self.member.working(self.client))
        self._running = asyncio.create_task(Polling(self.member, self.client, self.opening).run())
        await self.client.join(topics, self.opening)

    async def stop(self) -> None:
        """Drain, commit and leave."""
        assert self._running is not None
        self.member.stop.set()
        await self._running
        await self._ends.aclose()
        await self.client.leave()

    async def kill(self) -> None:
        """Nothing of it is drained or committed any more, and the group misses it."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        await self._ends.aclose()
        await self.client.leave()


class World:
    """Lists, with workers of group `billing` whose handler is `call`; `ran` counts the values that it was given."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_700_000_000.0)  # whole seconds: due times are milliseconds
        self.lists = Lists(self.clock, orders=WIDTH, billing_retry=WIDTH, billing_delay=14, billing_dlq=1)
        self.settings = HostSettings("nowhere:1", "billing", commit_interval=0.05, clock_skew=0.0, drain_timeout=10.0)
        self.ran: Counter[bytes] = Counter()
        self.call: Callable[[Message[bytes]], Awaitable[object]] = self._succeed
        self._workers: list[Worker] = []

    async def _succeed(self, message: Message[bytes]) -> None: ...

    async def _handle(self, message: Message[bytes]) -> object:
        self.ran[message.value] += 1
        return await self.call(message)

    async def worker(self) -> Worker:
        agent = Agent("bill", ("orders",), "message", self._handle, lambda value: value)
        later = ConsumeLater(2, levels="1s")
        member = Member(self.settings, [agent], Parts(later, DeadLetter()), clock=self.clock)
        return await self._started(Worker(member, ListClient(self.lists, "billing")), "orders", "billing.retry")

    async def relay(self) -> Worker:
        names = Member(self.settings, [], Parts(ConsumeLater(), DeadLetter())).names
        member = DelayMember(
            self.settings,
            names,
            self.lists,
            fakes.Sender(),
            _NoCancellations(),
            bounds=Bounds(MAX_DELAY, 0.0),
            counts=DelayCounts(),
            sink=None,
            clock=self.clock,
            longest_rest=0.01,
        )
        member.find_ladder = lambda: Ladder(14)
        ignored = frozenset({TopicPartition(names.delay, CANCELLATIONS)})
        return await self._started(Worker(member, ListClient(self.lists, names.relay_group), ignored=ignored), names.delay)

    async def _started(self, worker: Worker, *topics: str) -> Worker:
        await worker.start(*topics)
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        for worker in self._workers:
            if worker.client in self.lists.groups[worker.client.group]:
                await worker.stop()

    def write(self, first: int, count: int) -> list[bytes]:
        values = [b"%d" % number for number in range(first, first + count)]
        for number, value in enumerate(values):
            self.lists.write("orders", number % WIDTH, value, key=value)
        return values

    def committed(self) -> int:
        """How many messages of the sources are committed."""
        return sum(found.offset for place, found in self.lists.commits["billing"].items() if place.topic == "orders")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    monkeypatch.setattr("ackwise.plugin.consumer.startup.KafkaPublisher", lambda *_, **__: _Publisher(made.lists))
    monkeypatch.setattr("ackwise.plugin.consumer.member.Control", _Control)
    try:
        yield made
    finally:
        await made.close()


async def test_each_message_runs_once_and_is_committed_while_the_worker_runs_and_as_it_stops(world: World) -> None:
    values = world.write(0, 1000)
    worker = await world.worker()
    await until(lambda: world.committed() == 1000)
    values += world.write(1000, 100)
    await until(lambda: len(world.ran) == 1100)
    await worker.stop()
    assert world.committed() == 1100
    assert world.ran == Counter(values)


async def test_what_fails_comes_back_when_it_is_due_and_is_a_dead_letter_in_the_end(world: World) -> None:
    async def fail(message: Message[bytes]) -> None:
        if message.value == b"bad" or (message.value == b"once" and message.reconsume_times == 0):
            raise ValueError("no")

    world.call = fail
    for value in (b"bad", b"once", b"good"):
        world.lists.write("orders", 0, value)
    await world.worker()
    await world.relay()
    await until(lambda: world.committed() == 3)
    assert world.ran == {b"bad": 1, b"once": 1, b"good": 1}
    for times, copies in ((2, 2), (3, 3)):
        await until(lambda: len(world.lists.values("billing.delay")) == copies)  # noqa: B023
        assert world.ran[b"bad"] == times - 1
        world.clock.advance("1s")
        await until(lambda: world.ran[b"bad"] == times)  # noqa: B023
    await until(lambda: world.lists.values("billing.dlq") == [b"bad"])
    assert world.ran == {b"bad": 3, b"once": 2, b"good": 1}


async def test_a_worker_that_joins_and_one_that_leaves_cost_nothing_and_repeat_nothing(world: World) -> None:
    values = world.write(0, 400)
    first = await world.worker()
    second = await world.worker()
    assert not first.client.assignment() & second.client.assignment()
    values += world.write(400, 400)
    await until(lambda: len(world.ran) == 800)
    await first.stop()
    values += world.write(800, 400)
    await until(lambda: len(world.ran) == 1200)
    await second.stop()
    assert (world.ran, world.committed()) == (Counter(values), 1200)


async def test_what_a_fetch_drained_before_it_raised_is_fetched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.fetching._FETCH_AGAIN", 0.0)
    worker = await world.worker()
    await until(lambda: {*ORDERS} <= worker.member.lanes.keys())
    worker.client.harms = [KafkaConnectionError("lost"), asyncio.CancelledError(), ValueError("odd")]
    values = world.write(0, 400)
    await until(lambda: world.committed() == 400)
    assert (world.ran, worker.client.harms) == (Counter(values), [])


async def test_a_worker_that_is_killed_loses_nothing_and_repeats_what_was_not_committed(world: World) -> None:
    gate = asyncio.Event()

    async def wait(message: Message[bytes]) -> None:
        if message.value == b"5":
            await gate.wait()

    world.call = wait
    values = world.write(0, 100)
    killed = await world.worker()
    await until(lambda: len(world.ran) > 5)
    await killed.kill()
    gate.set()
    await world.worker()
    await until(lambda: world.committed() == 100)
    assert world.ran.keys() == {*values}


async def test_what_runs_as_the_worker_stops_is_settled_and_committed(world: World) -> None:
    gate = asyncio.Event()

    async def wait(message: Message[bytes]) -> None:
        await gate.wait()

    world.call = wait
    world.write(0, 4)
    worker = await world.worker()
    await until(lambda: len(world.ran) == 4)
    stopping = asyncio.create_task(worker.stop())
    await until(lambda: worker.member.lanes[ORDERS[0]][0].is_stopping)
    assert world.committed() == 0
    gate.set()
    await stopping
    assert world.committed() == 4
