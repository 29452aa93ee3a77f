"""What a partition and an agent may have in flight before fetching pauses, and what a paused lane does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from tests.plugin.lines import Line, deliveries, end
from tests.plugin.lines import lane_of as lane_over
from tests.waiting import turns, until

from ackwise import ConsumeLater, DeadLetter
from ackwise.errors import ConfigurationError
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.limits import Share, Thresholds
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.message import TopicPartition as Place
from ackwise.middleware.pipeline.decoding import CODEC_AWAY
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.redelivery import put_off
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.backlog import MOST_COPIES
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings

MIB = 2**20


def lane_of(*lines: Line, thresholds: Thresholds | None = None, **options: Any) -> Lane:
    lines = lines or (Line(max_batch=4),)
    lane = lane_over(*lines, **{"handler": lines[0].agent.name, **options})
    lane.share = Share(lambda _: thresholds or Thresholds())
    return lane


async def _handle(batch: Any) -> None: ...


def test_f01_f02_f03_f04_fetching_pauses_above_each_threshold_and_nobody_counts_the_span_of_what_is_in_order() -> None:
    quarter = b"x" * (MIB // 4)
    for thresholds, options, offered, is_full in (
        (None, {}, deliveries(0, 1000), False),
        (None, {}, deliveries(0, 1001), True),
        (Thresholds(messages=10), {}, deliveries(0, 10), False),
        (Thresholds(messages=10), {}, deliveries(0, 11), True),
        (Thresholds(messages=1500), {}, deliveries(0, 1500), False),
        (Thresholds(messages=1500), {}, deliveries(0, 1501), True),
        (Thresholds(bytes=MIB), {}, deliveries(0, 4, quarter), False),
        (Thresholds(bytes=MIB), {}, deliveries(0, 4, quarter + b"x"), True),
        (Thresholds(span=2000), {}, [*deliveries(0, 1), *deliveries(2000, 1)], False),
        (Thresholds(span=2000), {}, [*deliveries(0, 1), *deliveries(2001, 1)], True),
        (Thresholds(span=2000), {"in_order": True}, [*deliveries(0, 1), *deliveries(5000, 1)], False),
    ):
        lane = lane_of(thresholds=thresholds, **options)
        lane.offer(offered)
        assert lane.is_full() is is_full, (thresholds, options, len(offered))


async def test_below_half_of_a_threshold_it_is_fetched_again() -> None:
    flow, line = FlowControl(), Line(max_batch=4)
    lane = lane_of(line, flow=flow, thresholds=Thresholds(messages=10))
    lane.offer(deliveries(0, 11))
    assert lane.is_full()
    lane.start()
    await until(lambda: lane.in_hand <= 5)
    assert not lane.is_full()
    await end(lane)


def member_of(*agents: Agent, **settings: Any) -> Member:
    member = Member(HostSettings("nowhere:1", "billing", **settings), agents, Parts(ConsumeLater(), DeadLetter()))
    member.leases, member._client = None, cast(Any, _Client())
    return member


class _Client:
    async def commit(self, offsets: object) -> None: ...


def add(member: Member, topic: str, partition: int) -> Lane:
    lane = member.lane(topic, partition, "source", 0, make=lambda place, fetched: [])
    member.add_lanes(TopicPartition(topic, partition), (lane,), from_commit=None)
    return lane


async def test_partitions_share_what_their_agent_may_have_and_those_that_stay_have_more() -> None:
    bill = Agent("bill", ("orders",), "batch", _handle, lambda value: value, max_messages=100, max_bytes=10)
    other = Agent("ship", ("parcels",), "batch", _handle, lambda value: value)
    member = member_of(bill, other)
    member.pipelines = {agent.name: _Pipeline(agent) for agent in (bill, other)}  # type: ignore[misc]  # reduced to what is asked
    lanes = [add(member, "orders", number) for number in range(4)]
    parcels = add(member, "parcels", 0)
    assert [lane.share.thresholds[:2] for lane in lanes] == [(25, 2)] * 4
    assert parcels.share.thresholds == Thresholds()
    await member.drain([TopicPartition("orders", number) for number in (1, 2, 3)], 1.0)
    assert lanes[0].share.thresholds[:2] == (100, 10)
    member.abandon_lanes()


async def test_what_the_settings_say_is_that_of_each_partition() -> None:
    member = member_of(partition_messages=7, partition_bytes=70, partition_span=700)
    lanes = [add(member, "orders", number) for number in range(3)]
    assert {lane.share.thresholds for lane in lanes} == {Thresholds(7, 70, 700)}
    member.abandon_lanes()


async def test_what_a_thousand_partitions_cost_is_linear_in_their_number() -> None:
    few, many = calls_of_assigning(100), calls_of_assigning(1000)
    assert many <= 11 * few


def calls_of_assigning(partitions: int) -> int:
    """The calls of functions until so many partitions have a lane and share what their agent may have."""
    bill = Agent("bill", ("orders",), "batch", _handle, lambda value: value, max_messages=100)
    member = member_of(bill)
    member.pipelines = {"bill": _Pipeline(bill)}  # type: ignore[dict-item]  # reduced to what is asked
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for number in range(partitions):
            add(member, "orders", number)
    finally:
        sys.setprofile(None)
    member.abandon_lanes()
    return calls


class _Pipeline:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent


def test_a_threshold_that_nothing_could_be_counted_by_is_refused() -> None:
    for name in ("partition_messages", "partition_bytes", "partition_span"):
        for value in (0, -1, True, 1.5, "10"):
            with pytest.raises(ConfigurationError, match=f"{name} is .*; it must be a whole number, 1 or more"):
                member_of(**{name: value})


async def test_a_paused_lane_offers_nothing_and_is_not_fetched_until_it_is_resumed() -> None:
    flow, line = FlowControl(), Line(max_batch=4)
    lane = lane_of(line, flow=flow)
    flow.listen(lane.look_again)
    flow.pausing.pause(Target("bill"), "code")
    lane.start()
    lane.offer(deliveries(0, 5))
    await turns()
    assert (line.took, lane.is_full(), lane.in_hand) == ([], True, 5)
    flow.pausing.resume(Target("bill"), "code")
    await line.has_taken(5)
    assert (line.took, lane.is_full(), lane.watermark.commit) == ([0, 1, 2, 3, 4], False, 5)
    await end(lane)


async def test_what_is_decided_is_settled_while_its_handler_is_paused() -> None:
    flow, line = FlowControl(), Line(max_batch=4)
    lane = lane_of(line, flow=flow)
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(deliveries(0, 3))
    lane.queued[1].stage = Stage.RULED
    lane.start()
    await until(lambda: line.took == [1])
    await end(lane)
    assert [run.first for run in lane.unsettled()] == [0, 2]


async def test_in_the_retry_topic_the_copies_of_other_handlers_go_on() -> None:
    flow, bill, ship = FlowControl(), Line("bill", max_batch=4), Line("ship", max_batch=4)
    lane = lane_of(bill, ship, flow=flow, role="retry")
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(deliveries(0, 10))
    lane.start()
    await until(lambda: len(ship.took) == 5)
    assert (bill.took, ship.took, lane.is_full()) == ([], [1, 3, 5, 7, 9], False)
    await end(lane)


def sending_back(back: list[Run]) -> Callable[[Run], None]:
    """Sends runs back, and notes them in `back`."""

    def put_off_and_note(run: Run) -> None:
        put_off(run, ConsumeLater())
        back.append(run)

    return put_off_and_note


async def test_copies_for_a_paused_handler_above_two_hundred_go_back_to_a_delay_topic_at_no_attempt() -> None:
    flow, bill, back = FlowControl(), Line("bill", max_batch=4), list[Run]()

    lane = lane_of(bill, flow=flow, role="retry", put_off=sending_back(back))
    flow.pausing.pause(Target("bill"), "code")
    lane.offer(deliveries(0, 230))
    lane.start()
    await until(lambda: len(bill.took) == 30)
    assert [run.first for run in back] == bill.took == list(range(200, 230))
    assert {(run.send_back.delay, run.send_back.charged) for run in back if run.send_back is not None} == {(10.0, False)}
    assert len(lane.held) == MOST_COPIES
    await end(lane)


class CodecAway(Line):
    """The codec of its messages is unavailable."""

    def __init__(self, name: str) -> None:
        super().__init__(name, max_batch=4)
        self.fate = self._postpone

    def _postpone(self, run: Run) -> Stage:
        if run.stage is Stage.RULED:
            return Stage.SETTLED
        run.tries += 1
        run.postpone(0.0, CODEC_AWAY)
        return Stage.WITHHELD


async def test_copies_that_wait_for_their_codec_go_back_to_a_delay_topic_and_those_of_other_handlers_are_read() -> None:
    bill, ship, back = CodecAway("bill"), Line("ship", max_batch=4), list[Run]()

    lane = lane_of(bill, ship, flow=FlowControl(), role="retry", put_off=sending_back(back))
    lane.offer(deliveries(0, 1001))
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
    lane.offer(deliveries(0, 3))
    lane.start()
    await until(lambda: bill.took.count(0) > 20)
    await end(lane)
    assert (back, lane.watermark.commit) == ([], 0)


async def test_what_is_paused_is_given_up_by_a_stop_and_the_offset_stays_before_it() -> None:
    flow, line = FlowControl(), Line(max_batch=4)
    lane = lane_of(line, flow=flow)
    flow.pausing.pause(Target(None, Place("orders", 0)), "command")
    lane.offer(deliveries(0, 3))
    lane.start()
    await turns()
    await end(lane)
    assert (line.took, [run.first for run in lane.unsettled()], lane.watermark.commit) == ([], [0, 1, 2], 0)


async def test_nothing_begins_before_it_is_known_what_a_command_has_paused() -> None:
    flow, line = FlowControl(), Line(max_batch=4)
    lane = lane_of(line, flow=flow)
    flow.listen(lane.look_again)
    flow.await_control()
    lane.offer(deliveries(0, 3))
    lane.start()
    await turns()
    assert line.took == []
    flow.know_control()
    await line.has_taken(3)
    await end(lane)
