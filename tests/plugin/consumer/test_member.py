"""A member with several lanes for one partition, each of which reads all of it: what is committed, and what is told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    OffsetMetadataTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import OffsetAndMetadata
from tests import fakes
from tests.waiting import turns

from ackwise.middleware.events import Durable, Event, EventCode
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.commitmetadata import CommitMetadata, decode, group_hash
from ackwise.middleware.runs.run import Run
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)


class Sink(fakes.Sink):
    """Says what of it is durable, as a sink of somebody else does, or nothing."""

    is_durable: Durable | None = None

    @property
    def durable(self) -> Any:
        return self.is_durable

    def told(self, code: EventCode) -> list[tuple[int | None, int | None]]:
        return [(event.offset, event.range_end) for event in self.events if event.code is code]


class Client:
    """Keeps commits; `refuse` is raised instead, and a commit of `silent` partitions is never answered."""

    def __init__(self) -> None:
        self.commits: list[Mapping[TopicPartition, int]] = []
        self.metadata: list[str] = []  #: of all that was committed
        self.most = 4096  #: characters of metadata that the broker allows
        self.refuse: Exception | None = None
        self.silent: set[TopicPartition] = set()
        self.asked: list[set[TopicPartition]] = []

    @property
    def committed(self) -> dict[TopicPartition, int]:
        return {partition: offset for commit in self.commits for partition, offset in commit.items()}

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        self.asked.append(set(offsets))
        if self.refuse is not None:
            raise self.refuse
        if self.silent & offsets.keys():
            await asyncio.Event().wait()
        if any(len(each.metadata) > self.most for each in offsets.values()):
            raise OffsetMetadataTooLargeError
        self.commits.append({partition: each.offset for partition, each in offsets.items()})
        self.metadata += [each.metadata for each in offsets.values()]
        return None

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 110)

    def missing_topics(self) -> Sequence[str]:
        return ()

    def is_gone(self, topic: str, /) -> bool:
        return False


class World:
    """A member of group `billing` with two lanes over the same partition, whose offsets the test finishes."""

    def __init__(self, *, commit_interval: float = 60.0) -> None:
        self.sink, self.client = Sink(), Client()
        settings = HostSettings(brokers="nowhere:1", group="billing", commit_interval=commit_interval)
        self.member = Member(settings, [], Parts(ConsumeLater(), DeadLetter(), sink=self.sink))
        self.member.leases, self.member.pipelines = None, {}
        self.lanes: tuple[Lane, ...] = ()

    def assign(self, from_commit: int | None = 100, metadata: str = "") -> None:
        self.lanes = tuple(self.member.lane(*ORDERS, "source", 100, make=keep, overlapping=True) for _ in range(2))
        self.member.add_lanes(ORDERS, self.lanes, from_commit=from_commit, metadata=metadata)

    def offer(self, *offsets: int) -> None:
        about = {"topic": "orders", "partition": 0, "timestamp": 0, "key": None, "value": b"", "headers": ()}
        self.member.offer(ORDERS, [SimpleNamespace(offset=offset, **about) for offset in offsets])

    def finish(self, *offsets: int, lanes: Sequence[int] = (0, 1)) -> None:
        for lane in lanes:
            for offset in offsets:
                self.lanes[lane].watermark.finish(offset)
            self.lanes[lane].pass_settled(())


def keep(place: Any, records: Any) -> Any:
    """Runs that only the test finishes."""
    return [Run(place, [record], _Idle()) for record in records]  # type: ignore[arg-type]  # a pipeline reduced to what a lane asks of it


class _Idle:
    """A pipeline that never ends."""

    agent = SimpleNamespace(name="bill", max_batch=200, max_wait=0.0, overlaps=False, room=400)

    async def __call__(self, entries: Any, assignment: Any) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def world() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as worlds:

        async def make(**options: Any) -> World:
            made = World(**options)
            await worlds.enter_async_context(made.member.working(made.client))
            made.assign()
            return made

        yield make


async def test_only_what_every_lane_has_passed_is_committed_and_told_once_and_nothing_once_one_is_cut(world: Any) -> None:
    here = await world()
    here.offer(100, 101, 102, 103)
    here.finish(100, 101, 102, lanes=[0])
    await here.member.commit()
    assert here.client.commits == []
    here.finish(100, 101, lanes=[1])
    for _ in range(2):
        await here.member.commit()
        assert here.client.commits == [{ORDERS: 102}]
    assert here.sink.told(EventCode.COMMITTED) == [(None, 102)]
    here.finish(102, lanes=[1])
    here.lanes[1].cut()
    await here.member.commit()
    assert len(here.client.commits) == 1


async def test_the_commit_of_a_cut_off_waits_for_the_answer_of_the_one_before(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await world()
    here.offer(100, 101)
    here.finish(100)
    asked, heard = list[int](), asyncio.Event()

    async def commit(offsets: dict[TopicPartition, OffsetAndMetadata], /) -> None:
        asked.append(offsets[ORDERS].offset)
        await heard.wait()

    monkeypatch.setattr(here.client, "commit", commit)
    earlier = asyncio.create_task(here.member.commit())
    await asyncio.sleep(0)
    here.finish(101)
    here.offer(102)
    draining = asyncio.create_task(here.member.drain([ORDERS], 0.0))
    await turns(50)
    assert asked == [101]
    heard.set()
    await asyncio.gather(earlier, draining)
    assert asked == [101, 102]


async def test_what_was_received_and_the_gaps_in_it_are_told_once_for_all_lanes(world: Any) -> None:
    here = await world()
    here.offer(100, 101, 105, 107)
    assert here.sink.told(EventCode.RECEIVED_RANGE) == [(100, 108)]
    assert here.sink.told(EventCode.GAP) == [(102, 105), (106, 107)]
    assert [lane.watermark.count for lane in here.lanes] == [4, 4]


async def test_a_commit_that_fails_is_made_good_by_the_next_one(world: Any) -> None:
    here = await world()
    here.offer(100)
    here.finish(100)
    for here.client.refuse in (CommitFailedError(), KafkaConnectionError(), OffsetMetadataTooLargeError()):
        await here.member.commit()
        assert here.sink.told(EventCode.COMMITTED) == []
    here.client.refuse = None
    await here.member.commit()
    assert here.client.commits == [{ORDERS: 101}]


async def test_commits_that_kafka_refuses_are_an_alarm_once_a_minute_and_are_made_good(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = await world()
    here.offer(100)
    here.finish(100)
    for error in (GroupAuthorizationFailedError("billing"), TopicAuthorizationFailedError("orders")):
        here.client.refuse = error
        await here.member.commit()
    assert caplog.text.count("Kafka refused a commit") == 1
    assert "commit failed" not in caplog.text
    here.client.refuse = None
    await here.member.commit()
    assert here.client.commits == [{ORDERS: 101}]


async def test_of_a_topic_that_is_gone_nothing_is_committed_and_the_others_go_on(world: Any) -> None:
    """Its commit would be refused for as long as it is tried, and keep that of the others waiting."""
    here = await world()
    here.offer(100, 101)
    here.finish(100, 101)
    here.member.is_gone = lambda topic: topic == "orders"
    await here.member.commit()
    assert here.client.commits == []
    here.member.is_gone = lambda topic: False
    await here.member.commit()
    assert here.client.commits == [{ORDERS: 102}]


async def test_a_group_that_never_committed_commits_where_it_begins(world: Any) -> None:
    here = await world()
    here.assign(from_commit=None)
    await here.member.begin()
    assert here.client.commits == [{ORDERS: 100}]


async def test_with_a_commit_interval_of_zero_each_lane_that_moves_brings_a_commit(world: Any) -> None:
    here = await world(commit_interval=0)
    here.offer(100)
    here.finish(100)
    await turns(10)
    assert here.client.commits == [{ORDERS: 101}]


async def test_a_drain_commits_what_all_lanes_passed_and_tells_where_it_ended_once(world: Any) -> None:
    here = await world()
    here.offer(100, 101)
    await turns(5)
    here.finish(100, 101, lanes=[0])
    here.finish(100, lanes=[1])
    await here.member.drain([ORDERS], 0.01)
    assert here.client.commits == [{ORDERS: 101}]
    assert here.sink.told(EventCode.REVOKED) == [(101, None)]
    assert (all(lane.cut_off for lane in here.lanes), here.member.lanes) == (True, {})


async def test_what_is_fetched_of_a_partition_that_is_gone_is_forgotten(world: Any) -> None:
    here = await world()
    await here.member.drain([ORDERS], 0.01)
    here.offer(100)
    assert [lane.watermark.count for lane in here.lanes] == [0, 0]
    assert here.sink.told(EventCode.RECEIVED_RANGE) == []


async def _commit_one(here: Any, offset: int = 100) -> str:
    """Settle one offset, commit, and return what was left beside the commit."""
    here.offer(offset)
    here.finish(offset)
    await here.member.commit()
    return str(here.client.metadata[-1])


async def test_a_commit_says_who_made_it_and_up_to_where_its_events_are_durable(world: Any) -> None:
    here = await world()
    here.sink.is_durable = Durable(5, 77)
    assert decode(await _commit_one(here)) == CommitMetadata(5, 77, group=group_hash("billing"), is_open=True)


async def test_a_broker_that_allows_less_metadata_gets_commits_without(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    here = await world()
    here.sink.is_durable, here.client.most = Durable(5, 77), 10
    assert (await _commit_one(here), await _commit_one(here, 101)) == ("", "")
    assert here.client.commits == [{ORDERS: 101}, {ORDERS: 102}]
    assert here.sink.told(EventCode.COMMITTED) == [(None, 101), (None, 102)]
    assert caplog.text.count("refused the metadata") == 2  # first the map is left out, then everything


def _assigned(here: World) -> Event:
    return next(event for event in reversed(here.sink.events) if event.code is EventCode.ASSIGNED)


async def test_an_assignment_tells_who_committed_before_and_what_of_it_was_durable(world: Any) -> None:
    here = await world()
    here.assign(metadata=CommitMetadata(5, 77, group=group_hash("billing")).encode())
    assert json.loads(_assigned(here).attrs or "") == {"writer": 5, "seq": 77}


async def test_metadata_that_says_no_writer_is_told_of_nobody_and_never_carried_along(world: Any) -> None:
    for metadata in (
        "",
        "somebody else's",
        CommitMetadata(5, 77).encode()[:-1],
        CommitMetadata(5, 77, group=group_hash("shipping")).encode(),
    ):
        here = await world()
        here.assign(metadata=metadata)
        assert _assigned(here).attrs is None, metadata
        assert decode(await _commit_one(here)) == CommitMetadata(group=group_hash("billing"), is_open=True)


async def test_foreign_metadata_is_counted_in_one_line(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    here = await world()
    here.assign(metadata="somebody else's")
    with caplog.at_level("INFO"):
        await here.member.begin()
        await here.member.begin()
    assert caplog.text.count("foreign commit metadata overwritten") == 1
