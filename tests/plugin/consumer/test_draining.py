"""What a drain, a commit and a cancellation of one partition or task do to the others: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.plugin.consumer.test_member import Client
from tests.waiting import turns, until

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.message.disposition import Delayed
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Busy, Column
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.stores.memory import MemoryStore

READY, HUNG = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Handler:
    """A pipeline whose batches hang on the partition `HUNG` until the test lets them go."""

    agent = SimpleNamespace(name="bill", max_batch=200, max_wait=0.0, overlaps=False, room=400)

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = False
        self.fate = Stage.SETTLED  #: of what ends after the cut-off

    async def __call__(self, entries: list[Run], lane: Any) -> None:
        if self.cancelled:
            raise asyncio.CancelledError
        if lane.partition == HUNG.partition:
            await self.go.wait()
        for entry in entries:
            entry.stage = self.fate if lane.cut_off else Stage.SETTLED


class Scene:
    """A member with two lanes, each of which was given one message."""

    def __init__(self) -> None:
        settings = HostSettings(brokers="nowhere:1", group="billing", commit_interval=3600)
        self.member = Member(settings, [], Parts(ConsumeLater(), DeadLetter()))
        self.member.leases, self.member.pipelines = None, {}
        self.client, self.handler = Client(), Handler()

    def assign(self, partition: TopicPartition) -> Any:
        pipeline: Any = self.handler
        lane = self.member.lane(*partition, "source", 0, make=lambda _, records: [Run.of(record, pipeline) for record in records])
        self.member.add_lanes(partition, (lane,), from_commit=0)
        about = {"topic": partition.topic, "partition": partition.partition, "timestamp": 0, "key": None, "value": b"", "headers": ()}
        self.member.offer(partition, [SimpleNamespace(offset=0, **about)])
        return lane


@pytest.fixture(autouse=True)
def control_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no broker that could say what is paused."""
    monkeypatch.setattr("ackwise.plugin.topics.controltopic.KNOWN_WITHIN", 0.0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    async with made.member.working(made.client):
        yield made
        made.handler.go.set()


async def test_what_is_ready_of_a_revoke_is_committed_at_once_whatever_hangs_beside_it(scene: Scene) -> None:
    scene.assign(READY)
    hung = scene.assign(HUNG)
    await until(lambda: hung.running)
    draining = asyncio.create_task(scene.member.drain([READY, HUNG], 3600))
    await until(lambda: scene.client.committed == {READY: 1})
    assert not draining.done()
    scene.handler.go.set()
    await draining
    assert scene.client.committed == {READY: 1, HUNG: 1}


async def test_a_commit_that_is_never_answered_holds_up_no_revoke_of_another_partition(scene: Scene) -> None:
    scene.handler.go.set()
    scene.assign(READY)
    silent = scene.assign(HUNG)
    await until(lambda: silent.watermark.commit == 1)
    scene.client.silent = {HUNG}
    committing = asyncio.create_task(scene.member.commit([HUNG]))
    await until(lambda: scene.client.asked)
    await scene.member.drain([READY], 3600)
    assert scene.client.committed == {READY: 1}
    assert not committing.done()
    committing.cancel()


async def test_two_drains_of_one_partition_go_on_side_by_side_and_the_first_cut_off_is_that_of_both(scene: Scene) -> None:
    hung = scene.assign(HUNG)
    await until(lambda: hung.running)
    stopping = asyncio.create_task(scene.member.drain([HUNG], 3600))
    await scene.member.drain([HUNG], 0.0)
    assert hung.cut_off
    scene.handler.go.set()
    await stopping
    await until(lambda: hung.watermark.commit == 1)
    await scene.member.commit()
    assert scene.client.committed == {}, "though the handler succeeded later"


async def test_a_lane_that_is_replaced_is_cut(scene: Scene) -> None:
    old = scene.assign(HUNG)
    await until(lambda: old.running)
    new = scene.assign(HUNG)
    assert (old.cut_off, new.cut_off) == (True, False)


@pytest.mark.parametrize("ends_by", ["a drain", "another assignment"])
async def test_claims_of_a_lane_whose_last_step_fails_after_its_cut_off_are_given_back_at_once_and_not_renewed(ends_by: str) -> None:
    for fate in (Stage.RULED, Stage.PUBLISHED, Stage.RECORDED):  # no copy, no event log, no store
        scene = Scene()
        async with scene.member.working(scene.client):
            store = MemoryStore()
            scene.member.leases = leases = Leases(store)
            hung = scene.assign(HUNG)
            await until(lambda: hung.running)  # noqa: B023
            entry = hung.running[0]
            entry.claims.ids, entry.claims.tokens, entry.disposition = [bytes(16)], [7], Delayed()
            await leases.claim([entry.column()])
            leases.add([entry], leases.now())
            if ends_by == "a drain":
                await scene.member.drain([HUNG], 0.0)
            else:
                scene.assign(HUNG)
            assert len(leases) == 1, "it still runs"
            scene.handler.fate = fate
            scene.handler.go.set()
            await until(lambda: hung.task is not None and hung.task.done() and not leases)  # noqa: B023
            await turns(20)  # the store is told at once, not with the next trip
            (answers,) = await Leases(store).claim([Column([bytes(16)], None, 1, [8])])
            assert not isinstance(answers.get(0), Busy), fate


async def test_a_lane_that_something_else_cancels_stops_the_worker_with_a_sentence(scene: Scene) -> None:
    scene.handler.cancelled = True
    scene.assign(READY)
    await until(scene.member.stop.is_set)
    assert isinstance(scene.member.fatal, AckwiseError)
    assert "something else than Ackwise has cancelled" in str(scene.member.fatal)


async def test_a_task_that_a_client_cancels_from_inside_begins_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.tasks._BEGIN_ANEW", 0.0)
    begun: list[int] = []

    async def cancelled_twice() -> None:
        begun.append(1)
        if len(begun) < 3:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    scene.member.keep(cancelled_twice, "leases")
    await until(lambda: len(begun) == 3)
    assert scene.member.fatal is None


async def test_what_the_store_has_to_be_told_is_delivered_beside_the_renewal_of_claims(scene: Scene) -> None:
    scene.member.leases = leases = Leases(MemoryStore(), lease=0.03)
    leases.mark_later(Column([bytes(16)], None, 1, [7]))
    async with scene.member.working(scene.client):
        await until(lambda: not leases._marks.keys)
