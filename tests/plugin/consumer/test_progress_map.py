"""What is finished above the watermark: told with each commit, and not run again by the next owner of the partition."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.plugin.consumer.test_member import Client, keep

from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, InPlace, decode, group_hash
from ackwise.middleware.progress.watermark import MAP_SPAN, agents_hash
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.lane import MAX_SPAN, Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.brokeroffsets import Topic
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)


class Owner:
    """A member with lanes for `orders`/0, whose messages the test settles."""

    def __init__(self, cluster: str | None = "cluster", group: str = "billing") -> None:
        self.client = Client()
        self.member = Member(
            HostSettings(brokers="nowhere:1", group=group, commit_interval=60.0, drain_timeout=0.01),
            [],
            Parts(ConsumeLater(), DeadLetter()),
        )
        self.member.leases, self.member.pipelines = None, {}
        self.member._commits.cluster = cluster  # as the look at the topics finds it
        self.lanes: tuple[Lane, ...] = ()

    def assign(self, committed: int = 100, metadata: str = "", *, agents: tuple[str, ...] = ("bill",), **options: Any) -> None:
        self.lanes = tuple(
            self.member.lane(*ORDERS, "source", committed, make=keep, overlapping=True, agent=agent, **options) for agent in agents
        )
        self.member.add_lanes(ORDERS, self.lanes, from_commit=committed, metadata=metadata)

    def offer(self, *offsets: int, timestamp: int = 1000, proved: Any = None) -> None:
        about = {"topic": "orders", "partition": 0, "key": None, "value": b"", "headers": ()}
        records: Any = [SimpleNamespace(offset=offset, timestamp=timestamp + offset, **about) for offset in offsets]
        self.member.offer(ORDERS, records, proved=proved)

    def settle(self, *offsets: int, lane: int = 0) -> None:
        settled = [run for run in self.runs(lane) if run.first in offsets]
        for run in settled:
            run.stage = Stage.SETTLED
        self.lanes[lane].pass_settled(settled)

    def runs(self, lane: int = 0) -> tuple[Run, ...]:
        return (*self.lanes[lane].held, *self.lanes[lane].running, *self.lanes[lane].queued)

    def offsets(self, lane: int = 0) -> list[int]:
        return [run.first for run in self.runs(lane)]

    async def commit(self) -> tuple[int, str]:
        """Commit, and return what the broker has then."""
        await self.member.commit()
        return self.commits[-1]

    @property
    def commits(self) -> list[tuple[int, str]]:
        """Offset and metadata of each commit."""
        return [(commit[ORDERS], metadata) for commit, metadata in zip(self.client.commits, self.client.metadata, strict=True)]


@pytest.fixture
async def owner() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as owners:

        async def make(**options: Any) -> Owner:
            made = Owner(**options)
            await owners.enter_async_context(made.member.working(made.client))
            return made

        yield make


async def after(owner: Any, *, committed: int | None = None, **options: Any) -> Any:
    """The owner that follows one that finished 101 and 103 of 100 to 105 and died."""
    first = await owner()
    first.assign()
    first.offer(*range(100, 106))
    first.settle(101, 103)
    offset, metadata = await first.commit()
    assigned = {name: options.pop(name) for name in ("agents", "generation") if name in options}
    following = await owner(**options)
    following.assign(offset if committed is None else committed, metadata, **assigned)
    return following


async def test_what_an_acknowledged_map_holds_does_not_run_again(owner: Any) -> None:
    following = await after(owner)
    for at in range(100, 107):  # it is believed from the first fetch on
        following.offer(at)
    assert following.offsets() == [100, 102, 104, 105, 106]
    following.settle(100, 102)
    assert (await following.commit())[0] == 104


async def test_the_next_owner_tells_on_what_it_was_told(owner: Any) -> None:
    following = await after(owner)
    following.offer(*range(100, 106))
    following.settle(105)
    _, metadata = await following.commit()
    found = decode(metadata)
    assert found is not None
    assert found.finished == FinishedMap(100, 1100, 1105, agents_hash(["bill"]), 0b101010)


async def test_what_an_owner_was_told_is_told_on_where_it_finishes_less_itself(owner: Any) -> None:
    following = await after(owner)
    following.offer(*range(100, 106))
    following.settle(102)
    third = await owner()
    third.assign(*(await following.commit()))
    third.offer(*range(100, 106))
    assert third.offsets() == [100, 104, 105]


async def test_what_an_owner_was_told_and_has_not_fetched_yet_is_told_on(owner: Any) -> None:
    for finishes in ((), (100,), (102,), (100, 102)):
        first = await owner()
        first.assign()
        first.offer(*range(100, 110))
        first.settle(101, 105, 107)
        waiting = next(run for run in first.runs() if run.first == 108)
        waiting.in_place, waiting.due_ms = 3, 99
        following = await owner()
        following.assign(*(await first.commit()))
        following.offer(*range(100, 103))
        following.settle(*finishes)
        await following.member.commit()
        third = await owner()
        third.assign(*(following.commits or first.commits)[-1])
        assert third.lanes[0].position >= 100 + (100 in finishes)
        third.offer(*range(third.lanes[0].position, 110))
        assert third.offsets() == [offset for offset in (100, 102, 103, 104, 106, 108, 109) if offset not in finishes]
        assert third.lanes[0].in_place == [InPlace(108, 3, 99)]


async def test_an_owner_that_ends_in_order_before_it_has_fetched_tells_on_what_it_was_told(owner: Any) -> None:
    left = CommitMetadata(finished=FinishedMap(100, 1100, 1103, agents_hash(["bill"]), 0b1010), in_place=(InPlace(100, 2, 9),))
    left = replace(left, group=group_hash("billing"), cluster="cluster")
    for proved_empty in (None, 101):
        here = await owner()
        here.assign(100, left.encode())
        if proved_empty is not None:
            here.lanes[0].skip(proved_empty)
        await here.member.drain({ORDERS}, 0.01)
        offset, metadata = here.commits[-1]
        found = decode(metadata)
        assert found is not None
        assert (offset, found.finished, found.in_place, found.is_open) == (100, left.finished, left.in_place, False)


async def test_what_is_finished_above_the_watermark_is_committed_though_no_offset_moved_and_told_once(owner: Any) -> None:
    here = await owner()
    here.assign()
    here.offer(*range(100, 106))
    await here.member.commit()
    assert here.commits == []
    here.settle(102)
    await here.commit()
    await here.commit()
    assert [offset for offset, _ in here.commits] == [100]
    here.settle(103)
    await here.commit()
    assert [offset for offset, _ in here.commits] == [100, 100]


async def test_an_offset_that_one_of_two_lanes_has_not_finished_runs_again_in_both(owner: Any) -> None:
    first = await owner()
    first.assign(agents=("bill", "ship"))
    first.offer(*range(100, 104))
    first.settle(101, 102)
    first.settle(102, 103, lane=1)
    following = await owner()
    following.assign(*(await first.commit()), agents=("bill", "ship"))
    following.offer(*range(100, 104))
    assert following.offsets(0) == following.offsets(1) == [100, 101, 103]


async def test_a_map_about_a_base_that_was_compacted_is_believed_where_the_hole_is_proved(owner: Any) -> None:
    following = await after(owner)
    following.offer(102, 103, 104, proved="compacted")
    assert following.offsets() == [102, 104]


@pytest.mark.slow  # starts nine owners
async def test_a_map_is_void_for_another(owner: Any) -> None:
    changes: dict[str, dict[str, Any]] = {
        "cluster": {"cluster": "another"},
        "no cluster": {"cluster": None},
        "agent renamed": {"agents": ("ship",)},
        "agent added": {"agents": ("bill", "ship")},
        "topic made again": {},
        "committed by others": {"committed": 99},
        "offset in a database": {"generation": 3},
        "copied to another group": {"group": "shipping"},
    }
    for what, options in changes.items():
        following = await after(owner, **options)
        offsets = range(99 if "committed" in options else 100, 106)
        following.offer(*offsets, timestamp=1001 if what == "topic made again" else 1000)
        assert following.offsets() == [*offsets], what


async def test_a_void_map_of_another_log_is_said_and_overwritten_by_the_next_commit(owner: Any, caplog: pytest.LogCaptureFixture) -> None:
    following = await after(owner)
    following.offer(100, 101, timestamp=5)
    following.offer(102, 103, timestamp=5)
    assert caplog.text.count("log does not match the last commit") == 1
    assert following.offsets() == [100, 101, 102, 103]
    following.settle(102)
    found = decode((await following.commit())[1])
    assert found is not None
    assert found.finished is not None
    assert (found.finished.bits, found.finished.base_ts) == (0b100, 105)


async def test_without_a_map_everything_runs(owner: Any) -> None:
    for metadata in ("", "somebody else's", CommitMetadata(5, 77).encode()):
        here = await owner()
        here.assign(100, metadata)
        here.offer(*range(100, 104))
        assert here.offsets() == [100, 101, 102, 103], metadata


async def test_without_the_id_of_the_cluster_and_of_an_offset_in_a_database_no_map_is_told(owner: Any) -> None:
    for cluster, options in ((None, {}), ("cluster", {"generation": 3})):
        here = await owner(cluster=cluster)
        here.assign(**options)
        here.offer(*range(100, 104))
        here.settle(100, 102)
        nothing = CommitMetadata(group=group_hash("billing"), cluster=cluster, is_open=True)
        assert await here.commit() == (101, nothing.encode())
        assert not options or here.lanes[0].max_span == MAX_SPAN


async def test_the_span_is_what_a_map_holds_and_where_a_broker_refuses_it_two_thousand(owner: Any) -> None:
    here = await owner()
    here.assign()
    here.offer(100, 105, 100 + MAP_SPAN)
    assert not here.lanes[0].is_full()
    here.offer(101 + MAP_SPAN)
    assert here.lanes[0].is_full()
    here.client.most = 50
    here.settle(105)
    await here.commit()
    assert (here.commits, here.lanes[0].max_span) == ([(100, "")], MAX_SPAN)
    here.assign(100)
    assert here.lanes[0].max_span == MAX_SPAN


async def test_entries_without_room_are_left_out_and_the_map_is_told(owner: Any) -> None:
    here = await owner()
    here.assign()
    here.offer(*range(100, 220))
    for run in here.runs():
        if run.first > 110:
            run.in_place, run.due_ms = 1 << 40, 1 << 41
    here.settle(105)
    found = decode((await here.commit())[1])
    assert found is not None
    assert (found.in_place, found.finished and found.finished.bits) == ((), 0b100000)


async def test_a_map_that_has_no_room_is_left_out_and_ends_no_worker(owner: Any) -> None:
    here = await owner(cluster="a cluster with a name of more than four thousand characters" * 80)
    here.assign()
    here.offer(*range(100, 104))
    here.settle(100, 102)
    assert await here.commit() == (101, "")
    packed = FinishedMap(100, 1100, 1100, agents_hash(["bill"]), (1 << 200_000) - 2)
    here = await owner()
    here.assign(metadata=CommitMetadata(finished=packed, group=group_hash("billing"), cluster="cluster").encode())
    here.offer(*range(100, 101), 102, 105)
    here.member._commits._agents = [*map(str, range(10))]
    draw = random.Random(0)
    here.lanes[0]._finished_before = replace(packed, bits=draw.getrandbits(30_000) << 10)
    here.lanes[0]._is_same_log = True
    found = decode((await here.commit())[1])
    assert found is not None
    assert (found.finished, found.group) == (None, group_hash("billing"))


async def test_what_the_last_owner_left_is_told_on_with_its_name_before_anything_is_fetched(owner: Any) -> None:
    finished = FinishedMap(100, 1100, 1103, agents_hash(["bill"]), 0b1010)
    left = CommitMetadata(5, 77, finished, (InPlace(104, 2, 9),), group_hash("billing"), "cluster", "id", 3, is_open=False)
    for base, kept in ((100, left), (101, replace(left, finished=None, in_place=()))):
        here = await owner()
        position = Position(base, base, None, left.encode(), Topic("id", 3), 200)
        assert await here.member.announce({ORDERS: position}) == {ORDERS}
        assert [(offset, decode(metadata)) for offset, metadata in here.commits] == [(base, replace(kept, is_open=True))]
