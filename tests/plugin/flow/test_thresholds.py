"""What a partition and an agent may have in hand before fetching pauses, and what a paused lane does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from ackwise import ConfigurationError, ConsumeLater, DeadLetter
from ackwise.middleware.agent import Agent
from ackwise.middleware.breaker import Breaker
from ackwise.middleware.decoding import CODEC_AWAY
from ackwise.middleware.fate import put_off
from ackwise.middleware.flowcontrol import FlowControl
from ackwise.middleware.limits import Thresholds
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.message import TopicPartition as Place
from ackwise.middleware.pausing import Target
from ackwise.middleware.run import Run, Stage
from ackwise.plugin.group.lane import Lane
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.parking import MOST_COPIES
from ackwise.plugin.settings.hostsettings import HostSettings

MIB = 2**20


class Line:
    """A pipeline that settles everything, and remembers what it had."""

    def __init__(self, name: str = "bill") -> None:
        self.agent = Agent(name, ("orders",), "batch", _handle, lambda value: value, max_batch=4)
        self.took: list[int] = []

    async def __call__(self, runs: list[Run], assignment: Any) -> None:
        for run in runs:
            self.took += run.offsets
            run.stage = Stage.SETTLED


async def _handle(batch: Any) -> None: ...


def records(first: int, number: int, size: int = 0) -> list[Delivery]:
    value = b"x" * size
    return [Delivery("orders", 0, offset, 0, None, value, (), Origin("orders", 0, offset, 0)) for offset in range(first, first + number)]


def lane_of(
    *lines: Line,
    flow: FlowControl | None = None,
    thresholds: Thresholds | None = None,
    role: Any = "source",
    in_order: bool = False,
    put_off: Callable[[Run], None] | None = None,
) -> Lane:
    lines = lines or (Line(),)

    def make(_: Place, fetched: Any) -> list[Run]:
        return [Run.of(delivery, lines[delivery.offset % len(lines)]) for delivery in fetched]

    handler = lines[0].agent.name
    lane = Lane(
        "orders", 0, role, 0, make=make, progressed=lambda lane: None, flow=flow, handler=handler, in_order=in_order, put_off=put_off
    )  # fmt: skip
    lane.thresholds = thresholds or Thresholds()
    return lane


@pytest.mark.parametrize(("messages", "is_full"), [(1000, False), (1001, True)])
def test_f01_fetching_pauses_above_a_thousand_messages(messages: int, is_full: bool) -> None:
    lane = lane_of()
    lane.offer(records(0, messages))
    assert lane.is_full() is is_full


@pytest.mark.parametrize(("messages", "is_full"), [(10, False), (11, True)])
def test_fetching_pauses_above_the_messages_that_were_set(messages: int, is_full: bool) -> None:
    lane = lane_of(thresholds=Thresholds(messages=10))
    lane.offer(records(0, messages))
    assert lane.is_full() is is_full


@pytest.mark.parametrize(("messages", "is_full"), [(1500, False), (1501, True)])
def test_more_than_a_thousand_may_be_set(messages: int, is_full: bool) -> None:
    lane = lane_of(thresholds=Thresholds(messages=1500))
    lane.offer(records(0, messages))
    assert lane.is_full() is is_full


@pytest.mark.parametrize(("size", "is_full"), [(MIB // 4, False), (MIB // 4 + 1, True)])
def test_f02_bytes_are_compared_exactly(size: int, is_full: bool) -> None:
    lane = lane_of(thresholds=Thresholds(bytes=MIB))
    lane.offer(records(0, 4, size))
    assert lane.is_full() is is_full


@pytest.mark.parametrize(("span", "is_full"), [(2000, False), (2001, True)])
def test_f03_fetching_pauses_above_the_span_that_was_set(span: int, is_full: bool) -> None:
    lane = lane_of(thresholds=Thresholds(span=2000))
    lane.offer(records(0, 1))
    lane.offer(records(span, 1))
    assert lane.is_full() is is_full


def test_f04_nobody_counts_the_span_of_what_is_in_order() -> None:
    lane = lane_of(thresholds=Thresholds(span=2000), in_order=True)
    lane.offer(records(0, 1))
    lane.offer(records(5000, 1))
    assert not lane.is_full()


async def test_below_half_of_a_threshold_it_is_fetched_again() -> None:
    flow, line = FlowControl(), Line()
    lane = lane_of(line, flow=flow, thresholds=Thresholds(messages=10))
    lane.offer(records(0, 11))
    assert lane.is_full()
    lane.start()
    await until(lambda: lane.in_hand <= 5)
    assert not lane.is_full()
    await end(lane)


def member_of(*agents: Agent, **settings: Any) -> Member:
    member = Member(HostSettings("nowhere:1", "billing", **settings), agents, later=ConsumeLater(), dead_letter=DeadLetter())
    member.leases, member._client = None, cast(Any, _Client())
    return member


class _Client:
    async def commit(self, offsets: object) -> None: ...


def add(member: Member, topic: str, partition: int) -> Lane:
    lane = member.lane(topic, partition, "source", 0, make=lambda place, fetched: [])
    member.add_lanes(TopicPartition(topic, partition), (lane,), from_commit=None)
    return lane


class TestShares:
    """Of an agent's thresholds, in the lanes of a member."""

    @pytest.fixture
    def bill(self) -> Agent:
        return Agent("bill", ("orders",), "batch", _handle, lambda value: value, max_messages=100, max_bytes=10)

    async def test_partitions_share_what_their_agent_may_have_and_those_that_stay_have_more(self, bill: Agent) -> None:
        other = Agent("ship", ("parcels",), "batch", _handle, lambda value: value)
        member = member_of(bill, other)
        member.pipelines = {agent.name: _Pipeline(agent) for agent in (bill, other)}  # type: ignore[misc]  # reduced to what is asked
        lanes = [add(member, "orders", number) for number in range(4)]
        parcels = add(member, "parcels", 0)
        assert [lane.thresholds[:2] for lane in lanes] == [(25, 2)] * 4
        assert parcels.thresholds == Thresholds()
        await member.drain([TopicPartition("orders", number) for number in (1, 2, 3)], 1.0)
        assert lanes[0].thresholds[:2] == (100, 10)
        member.abandon_lanes()

    async def test_what_the_settings_say_is_that_of_each_partition(self) -> None:
        member = member_of(partition_messages=7, partition_bytes=70, partition_span=700)
        lanes = [add(member, "orders", number) for number in range(3)]
        assert {lane.thresholds for lane in lanes} == {Thresholds(7, 70, 700)}
        member.abandon_lanes()


class _Pipeline:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent


@pytest.mark.parametrize("name", ["partition_messages", "partition_bytes", "partition_span"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "10"])
def test_a_threshold_that_nothing_could_be_counted_by_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is .*; it must be a whole number, 1 or more"):
        member_of(**{name: value})


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110  # what it waits for tells nobody
            await asyncio.sleep(0)


async def end(lane: Lane) -> None:
    lane.stop()
    assert lane.task is not None
    await lane.task


async def test_a_paused_lane_offers_nothing_and_is_not_fetched_until_it_is_resumed() -> None:
    flow, line = FlowControl(), Line()
    lane = lane_of(line, flow=flow)
    flow.listen(lane.look_again)
    flow.pausing.pause(Target("bill"), "code")
    lane.start()
    lane.offer(records(0, 5))
    await asyncio.sleep(0.01)
    assert (line.took, lane.is_full(), lane.in_hand) == ([], True, 5)
    flow.pausing.resume(Target("bill"), "code")
    await until(lambda: len(line.took) == 5)
    assert (line.took, lane.is_full(), lane.watermark.commit) == ([0, 1, 2, 3, 4], False, 5)
    await end(lane)


async def test_what_is_decided_is_settled_while_its_handler_is_paused() -> None:
    flow, line = FlowControl(), Line()
    lane = lane_of(line, flow=flow)
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(records(0, 3))
    lane.queued[1].stage = Stage.RULED
    lane.start()
    await until(lambda: line.took == [1])
    await end(lane)
    assert [run.first for run in lane.unsettled()] == [0, 2]


async def test_in_the_retry_topic_the_copies_of_other_handlers_go_on() -> None:
    flow, bill, ship = FlowControl(), Line("bill"), Line("ship")
    lane = lane_of(bill, ship, flow=flow, role="retry")
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(records(0, 10))
    lane.start()
    await until(lambda: len(ship.took) == 5)
    assert (bill.took, ship.took, lane.is_full()) == ([], [1, 3, 5, 7, 9], False)
    await end(lane)


async def test_copies_for_a_paused_handler_above_two_hundred_go_back_to_a_delay_topic_at_no_attempt() -> None:
    flow, bill, back = FlowControl(), Line("bill"), list[Run]()

    def put_off_and_note(run: Run) -> None:
        put_off(run, ConsumeLater())
        back.append(run)

    lane = lane_of(bill, flow=flow, role="retry", put_off=put_off_and_note)
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(records(0, 230))
    lane.start()
    await until(lambda: len(bill.took) == 30)
    assert [run.first for run in back] == bill.took == list(range(200, 230))
    assert {(run.send_back.delay, run.send_back.charged) for run in back if run.send_back is not None} == {(10.0, False)}
    assert len(lane.held) == MOST_COPIES
    await end(lane)


class CodecAway(Line):
    """The codec of its messages is away."""

    async def __call__(self, runs: list[Run], assignment: Any) -> None:
        await asyncio.sleep(0)
        for run in runs:
            self.took += run.offsets
            if run.stage is Stage.RULED:
                run.stage = Stage.SETTLED
            else:
                run.stage = Stage.WITHHELD
                run.tries += 1
                run.postpone(0.0, CODEC_AWAY)


async def test_copies_that_wait_for_their_codec_go_back_to_a_delay_topic_and_those_of_other_handlers_are_read() -> None:
    bill, ship, back = CodecAway("bill"), Line("ship"), list[Run]()

    def put_off_and_note(run: Run) -> None:
        put_off(run, ConsumeLater())
        back.append(run)

    lane = lane_of(bill, ship, flow=FlowControl(), role="retry", put_off=put_off_and_note)
    lane.offer(records(0, 1001))
    assert lane.is_full()
    lane.start()
    await until(lambda: not lane.in_hand)
    assert {(run.send_back.delay, run.send_back.charged, run.error) for run in back if run.send_back is not None} == {
        (10.0, False, "CodecUnavailable")
    }
    assert min(bill.took.count(offset) for offset in range(0, 1001, 2)) == 9, "eight times in vain, and once to be sent back"
    assert (len(back), len(ship.took), lane.is_full()) == (501, 500, False)
    await end(lane)


async def test_what_waits_for_its_codec_in_a_source_stays_there() -> None:
    bill, back = CodecAway("bill"), list[Run]()
    lane = lane_of(bill, flow=FlowControl(), put_off=back.append)
    lane.offer(records(0, 3))
    lane.start()
    await until(lambda: bill.took.count(0) > 20)
    await end(lane)
    assert (back, lane.watermark.commit) == ([], 0)


async def test_what_is_paused_is_given_up_by_a_stop_and_the_offset_stays_before_it() -> None:
    flow, line = FlowControl(), Line()
    lane = lane_of(line, flow=flow)
    flow.pausing.pause(Target(None, Place("orders", 0)), "command")
    lane.offer(records(0, 3))
    lane.start()
    await asyncio.sleep(0.01)
    await end(lane)
    assert (line.took, [run.first for run in lane.unsettled()], lane.watermark.commit) == ([], [0, 1, 2], 0)


async def test_nothing_begins_before_it_is_known_what_a_command_has_paused() -> None:
    flow, line = FlowControl(), Line()
    lane = lane_of(line, flow=flow)
    flow.listen(lane.look_again)
    flow.await_control()
    lane.offer(records(0, 3))
    lane.start()
    await asyncio.sleep(0.01)
    assert line.took == []
    flow.know_control()
    await until(lambda: len(line.took) == 3)
    await end(lane)


def test_a_breaker_that_is_on_changes_nothing_about_a_lane_that_goes_well() -> None:
    flow = FlowControl(breaker=Breaker())
    assert flow.held_until("bill", Place("orders", 0)) is None
    assert not flow.is_shut("bill", Place("orders", 0))
