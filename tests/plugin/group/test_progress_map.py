"""What is finished above the watermark: told with each commit, and not run again by the next owner of the partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetMetadataTooLargeError

from ackwise.middleware.commitmetadata import CommitMetadata, FinishedMap, InPlace, decode
from ackwise.middleware.policies import DeadLetter
from ackwise.middleware.progress import MAP_SPAN, agents_hash
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.run import Run, Stage
from ackwise.plugin.group.lane import MAX_SPAN, Lane
from ackwise.plugin.group.member import Member
from ackwise.plugin.settings.hostsettings import HostSettings

ORDERS = TopicPartition("orders", 0)


class Client:
    """Keeps what was committed; `most` characters of metadata are allowed."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, str]] = []
        self.most = 4096

    async def commit(self, offsets: Any, /) -> object:
        if any(len(each.metadata) > self.most for each in offsets.values()):
            raise OffsetMetadataTooLargeError
        self.commits += [(each.offset, each.metadata) for each in offsets.values()]
        return None

    async def beginning_offsets(self, partitions: Any, /) -> Any:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Any, /) -> Any:
        return dict.fromkeys(partitions, 110)


class Owner:
    """A member with lanes for `orders`/0, whose messages the test settles."""

    def __init__(self, cluster: str | None = "cluster") -> None:
        self.client = Client()
        self.member = Member(
            HostSettings(brokers="nowhere:1", group="billing", commit_interval=60.0), [], later=ConsumeLater(), dead_letter=DeadLetter()
        )
        self.member.leases, self.member.pipelines = None, {}
        self.member._commits.cluster = cluster  # as the look at the topics finds it
        self.lanes: tuple[Lane, ...] = ()

    def assign(self, committed: int = 100, metadata: str = "", *, agents: tuple[str, ...] = ("bill",), **options: Any) -> None:
        self.lanes = tuple(
            self.member.lane(*ORDERS, "source", committed, make=_keep, overlapping=True, agent=agent, **options) for agent in agents
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
        return self.client.commits[-1]


def _keep(place: Any, records: Any) -> Any:
    return [Run(place, [record], _Idle()) for record in records]  # type: ignore[arg-type]  # a pipeline reduced to what a lane asks of it


class _Idle:
    """A pipeline that never comes to an end."""

    agent = SimpleNamespace(name="bill", max_batch=200, within=0.0, overlaps=True, room=400)

    async def __call__(self, entries: Any, assignment: Any) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def owner() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as owners:

        async def make(**options: Any) -> Owner:
            made = Owner(**options)
            await owners.enter_async_context(made.member.working(made.client))
            return made

        yield make


async def died(owner: Any, **options: Any) -> tuple[int, str]:
    """What the broker has of an owner that finished 101 and 103 of 100 to 105."""
    first = await owner()
    first.assign(**options)
    first.offer(*range(100, 106))
    first.settle(101, 103)
    offset, metadata = await first.commit()
    return offset, metadata


async def test_what_an_acknowledged_map_holds_does_not_run_again(owner: Any) -> None:
    offset, metadata = await died(owner)
    following = await owner()
    following.assign(offset, metadata)
    following.offer(*range(100, 107))
    assert following.offsets() == [100, 102, 104, 105, 106]
    following.settle(100, 102)
    assert (await following.commit())[0] == 104


async def test_the_next_owner_tells_on_what_it_was_told(owner: Any) -> None:
    offset, metadata = await died(owner)
    following = await owner()
    following.assign(offset, metadata)
    following.offer(*range(100, 106))
    following.settle(105)
    offset, metadata = await following.commit()
    found = decode(metadata)
    assert found is not None
    assert found.finished == FinishedMap("cluster", 100, 1100, 1105, agents_hash(["bill"]), 0b101010)


async def test_what_an_owner_was_told_is_told_on_where_it_finishes_less_itself(owner: Any) -> None:
    offset, metadata = await died(owner)
    following = await owner()
    following.assign(offset, metadata)
    following.offer(*range(100, 106))
    following.settle(102)
    third = await owner()
    third.assign(*(await following.commit()))
    third.offer(*range(100, 106))
    assert third.offsets() == [100, 104, 105]


@pytest.mark.parametrize("finishes", [(), (100,), (102,), (100, 102)])
async def test_what_an_owner_was_told_and_has_not_fetched_yet_is_told_on(owner: Any, finishes: tuple[int, ...]) -> None:
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
    third.assign(*(following.client.commits or first.client.commits)[-1])
    assert third.lanes[0].position >= 100 + (100 in finishes)
    third.offer(*range(third.lanes[0].position, 110))
    assert third.offsets() == [offset for offset in (100, 102, 103, 104, 106, 108, 109) if offset not in finishes]
    assert third.lanes[0].in_place == [InPlace(108, 3, 99)]


async def test_what_is_finished_above_the_watermark_is_committed_though_no_offset_moved_and_told_once(owner: Any) -> None:
    here = await owner()
    here.assign()
    here.offer(*range(100, 106))
    await here.member.commit()
    assert here.client.commits == []
    here.settle(102)
    await here.commit()
    await here.commit()
    assert [offset for offset, _ in here.client.commits] == [100]
    here.settle(103)
    await here.commit()
    assert [offset for offset, _ in here.client.commits] == [100, 100]


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


async def test_a_map_over_several_fetches_is_believed_from_the_first_one_on(owner: Any) -> None:
    offset, metadata = await died(owner)
    following = await owner()
    following.assign(offset, metadata)
    for at in range(100, 106):
        following.offer(at)
    assert following.offsets() == [100, 102, 104, 105]


async def test_a_map_about_a_base_that_was_compacted_is_believed_where_the_hole_is_proved(owner: Any) -> None:
    offset, metadata = await died(owner)
    following = await owner()
    following.assign(offset, metadata)
    following.offer(102, 103, 104, proved="compacted")
    assert following.offsets() == [102, 104]


@pytest.mark.parametrize(
    ("cluster", "agents", "timestamp", "committed", "options"),
    [
        ("another", ("bill",), 1000, 100, {}),
        (None, ("bill",), 1000, 100, {}),
        ("cluster", ("ship",), 1000, 100, {}),
        ("cluster", ("bill", "ship"), 1000, 100, {}),
        ("cluster", ("bill",), 1001, 100, {}),
        ("cluster", ("bill",), 1000, 99, {}),
        ("cluster", ("bill",), 1000, 100, {"generation": 3}),
    ],
    ids=["cluster", "no cluster", "agent renamed", "agent added", "topic made anew", "committed by others", "offset in a database"],
)
async def test_a_map_is_void_for_another(owner: Any, cluster: Any, agents: Any, timestamp: int, committed: int, options: Any) -> None:
    _, metadata = await died(owner)
    following = await owner(cluster=cluster)
    following.assign(committed, metadata, agents=agents, **options)
    following.offer(*range(committed, 106), timestamp=timestamp)
    assert following.offsets() == [*range(committed, 106)]


async def test_a_void_map_of_another_log_is_said_with_what_runs_again(owner: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, metadata = await died(owner)
    following = await owner()
    following.assign(100, metadata)
    following.offer(100, 101, timestamp=5)
    following.offer(102, 103, timestamp=5)
    assert caplog.text.count("the log is another one than the last owner of this partition saw") == 1
    assert following.offsets() == [100, 101, 102, 103]


async def test_a_void_map_is_overwritten_by_the_next_commit(owner: Any) -> None:
    _, metadata = await died(owner)
    following = await owner()
    following.assign(100, metadata)
    following.offer(*range(100, 106), timestamp=5)
    following.settle(102)
    found = decode((await following.commit())[1])
    assert found is not None
    assert found.finished is not None
    assert (found.finished.bits, found.finished.base_ts) == (0b100, 105)


@pytest.mark.parametrize("metadata", ["", "somebody else's", CommitMetadata(5, 77).encode()], ids=["none", "foreign", "an older worker's"])
async def test_without_a_map_everything_runs(owner: Any, metadata: str) -> None:
    here = await owner()
    here.assign(100, metadata)
    here.offer(*range(100, 104))
    assert here.offsets() == [100, 101, 102, 103]


@pytest.mark.slow
async def test_without_the_id_of_the_cluster_no_map_is_told(owner: Any) -> None:
    here = await owner(cluster=None)
    here.assign()
    here.offer(*range(100, 104))
    here.settle(100, 102)
    assert await here.commit() == (101, CommitMetadata().encode())


async def test_an_owner_that_keeps_its_offset_in_a_database_tells_no_map(owner: Any) -> None:
    here = await owner()
    here.assign(generation=3)
    here.offer(*range(100, 104))
    here.settle(100, 102)
    assert await here.commit() == (101, CommitMetadata().encode())
    assert here.lanes[0].max_span == MAX_SPAN


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
    assert (here.client.commits, here.lanes[0].max_span) == ([(100, "")], MAX_SPAN)
    here.assign(100)
    assert here.lanes[0].max_span == MAX_SPAN


async def test_what_waited_in_place_comes_back_with_its_attempts_and_its_time(owner: Any) -> None:
    first = await owner()
    first.assign()
    first.offer(*range(100, 104))
    waiting = next(run for run in first.runs() if run.first == 101)
    waiting.in_place, waiting.due_ms = 3, 99
    offset, metadata = await first.commit()
    following = await owner()
    following.assign(offset, metadata)
    following.offer(*range(100, 104))
    assert following.lanes[0].in_place == [InPlace(101, 3, 99)]
    assert following.offsets() == [100, 101, 102, 103]


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
