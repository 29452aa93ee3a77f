"""Portions: what is finished of a batch of single messages is settled while the rest goes on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.runs.redelivery import Dropping
from ackwise.middleware.runs.run import Run, Stage, count


class Desk:
    """A handler of single messages, each of which ends when the test says so, and the spine around it."""

    def __init__(self, make_spine: Any, number: int, *, interval: float = 0.0, **options: Any) -> None:
        self.started: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.spine = make_spine(self._handle, **({"kind": "message", "dedup": True} | options))
        object.__setattr__(self.spine.worker, "settle_interval", interval)
        self.runs: list[Run] = [self.spine.together(number)]
        self.task: asyncio.Task[Any] | None = None

    async def _handle(self, argument: Any) -> None:
        for message in [argument] if isinstance(argument, Message) else argument:
            self.started.append(message.offset)
            self.ends[message.offset] = asyncio.get_running_loop().create_future()
            await self.ends[message.offset]

    async def begin(self) -> None:
        self.task = asyncio.create_task(self.spine.run(self.runs))
        await turns()

    async def finish(self, number: int) -> None:
        for _ in range(number):
            self.ends[self.started[-1]].set_result(None)
            await turns()

    async def all(self) -> None:
        """Until everything is settled, pass after pass."""
        assert self.task is not None
        while True:
            while not self.task.done():
                if not (end := self.ends[self.started[-1]]).done():
                    end.set_result(None)
                await asyncio.sleep(0)
            if all(run.stage is Stage.SETTLED for run in self.runs):
                return
            self.spine.clock.now += 10.0
            await self.begin()

    @property
    def settled(self) -> int:
        return count(run for run in self.runs if run.stage is Stage.SETTLED)

    def completed(self) -> Counter[int]:
        """How often each claim was to be completed."""
        return Counter(complete.token for trip in self.spine.store.trips for complete in trip.completes)

    def succeeded(self) -> list[int]:
        return sorted(event.offset for event in self.spine.sink.events if event.code is EventCode.SUCCEEDED)


async def test_what_is_finished_is_settled_while_the_rest_of_its_batch_goes_on(make_spine: Any) -> None:
    desk = Desk(make_spine, 6)
    await desk.begin()
    await desk.finish(3)
    assert (desk.settled, desk.spine.watermark.commit, desk.started[-1]) == (3, 103, 103)
    assert [event.offset for event in desk.spine.sink.durable if event.code is EventCode.SUCCEEDED] == [100, 101, 102]
    assert len(desk.spine.leases) == 3
    await desk.all()
    assert (desk.settled, desk.started, desk.succeeded()) == (6, [*range(100, 106)], [*range(100, 106)])
    assert [*desk.completed().values()] == [1] * 6


async def test_a_batch_that_is_shorter_than_the_interval_has_two_trips(make_spine: Any) -> None:
    desk = Desk(make_spine, 6, interval=60.0)
    await desk.begin()
    await desk.all()
    assert (desk.settled, len(desk.spine.store.trips)) == (6, 2)


@each("options", [{"kind": "batch"}, {"is_broadcasting": True, "dedup": False}])
async def test_batches_and_instances_that_broadcast_are_settled_as_a_whole(make_spine: Any, options: dict[str, Any]) -> None:
    is_broadcasting = options.pop("is_broadcasting", False)
    desk = Desk(make_spine, 4, **options)
    if is_broadcasting:
        object.__setattr__(desk.spine.worker, "dropping", Dropping())
        desk.spine.pipeline = Pipeline(desk.spine.agent, desk.spine.worker)
    await desk.begin()
    await desk.finish(3)
    assert desk.settled == 0
    await desk.all()
    assert desk.settled == 4


@each("what", ["store", "event log"])
async def test_a_portion_that_can_not_be_settled_stops_the_starts_of_its_batch_and_is_repeated(make_spine: Any, what: str) -> None:
    desk = Desk(make_spine, 6)
    await desk.begin()
    await desk.finish(1)
    if what == "store":
        desk.spine.store.fail = lambda exchange: bool(exchange.completes)
    else:
        desk.spine.sink.error = FULL_DISK
    await desk.finish(1)
    assert (desk.settled, desk.started) == (1, [100, 101, 102])  # what ran goes on
    await desk.finish(1)
    await turns()
    assert desk.task is not None
    assert desk.task.done()
    assert (desk.settled, len(desk.started)) == (1, 3)
    assert desk.spine.watermark.commit == 101
    desk.spine.store.fail = lambda exchange: False
    desk.spine.sink.error = None
    await desk.all()
    assert (desk.settled, desk.started, desk.succeeded()) == (6, [*range(100, 106)], [*range(100, 106)])


async def test_a_portion_is_repeated_while_a_call_of_its_batch_still_runs(make_spine: Any) -> None:
    desk = Desk(make_spine, 6)
    await desk.begin()
    desk.spine.store.fail = lambda exchange: bool(exchange.completes)
    await desk.finish(1)
    assert (desk.settled, desk.started) == (0, [100, 101])
    desk.spine.store.fail = lambda exchange: False
    desk.spine.clock.now += 10.0
    await turns()
    assert (desk.settled, desk.started) == (1, [100, 101])
    await desk.all()


@each("seed", range(30))
async def test_nothing_is_settled_twice_or_run_twice_whatever_fails_and_when(make_spine: Any, seed: int) -> None:
    draw = random.Random(seed)
    desk = Desk(make_spine, 12, interval=draw.choice([0.0, 0.0, 0.001]))
    store, sink = desk.spine.store, desk.spine.sink

    def fails(is_on: bool) -> Callable[[Any], bool]:
        return lambda exchange: is_on and bool(exchange.completes)

    await desk.begin()
    for _ in range(40):
        store.fail = fails(draw.random() < 0.3)
        sink.error = FULL_DISK if draw.random() < 0.2 else None
        assert desk.task is not None
        if desk.task.done():
            desk.spine.clock.now += 10.0
            if any(run.stage is not Stage.SETTLED for run in desk.runs):
                await desk.begin()
        elif not desk.ends[desk.started[-1]].done():
            desk.ends[desk.started[-1]].set_result(None)
        for _ in range(draw.choice([0, 1, 2, 5, 40])):
            await asyncio.sleep(0)
    store.fail, sink.error = fails(is_on=False), None
    desk.spine.clock.now += 10.0
    await desk.all()
    assert desk.started == [*range(100, 112)]
    assert desk.succeeded() == [*range(100, 112)]
    assert desk.spine.watermark.commit == 112


async def test_what_fails_in_a_portion_is_told_once_and_its_copy_is_sent_once(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(message: Message[bytes]) -> None:
        await turns(20)
        if message.offset % 2:
            raise ValueError

    spine = make_spine(handler, kind="message", dedup=True)
    object.__setattr__(spine.worker, "settle_interval", 0.0)
    await spine.run([spine.together(6)])
    assert sorted(value for _, value in spine.sent()) == [b"v101", b"v103", b"v105"]
    lines = [record for record in caplog.records if record.message.startswith("messages come back later")]
    assert sum(int(record.message.split("messages=")[1].split()[0]) for record in lines) == 3
