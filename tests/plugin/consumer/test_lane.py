"""One assigned partition: how batches are cut, what is held, when it is full, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.fakes import Clock
from tests.plugin.lines import Line, deliveries, end, lane_of
from tests.waiting import PATIENCE, until

from ackwise.middleware.message.disposition import DONE
from ackwise.middleware.message.message import Delivery, Message
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.watermark import MAP_SPAN
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.backlog import MAX_MESSAGES
from ackwise.plugin.consumer.lane import Lane


def make_lane(line: Line, clock: Clock | None = None, **options: Any) -> Lane:
    return lane_of(line, position=100, clock=clock or Clock(50.0), **options)


def first_time(line: Line, offset: int, fate: Any) -> None:
    """Let `fate` be that of `offset` in the first batch; everything else is settled."""
    line.fate = lambda run: fate(run) if run.first == offset and len(line.batches) == 1 else Stage.SETTLED


async def test_a_fetch_is_cut_into_batches_of_at_most_max_batch() -> None:
    """A27, A28"""
    for fetched, max_batch, sizes in ((10, 4, [4, 4, 2]), (32, 100, [32])):
        line = Line(max_batch=max_batch)
        lane = make_lane(line)
        lane.offer(deliveries(100, fetched))
        lane.start()
        await line.has_taken(fetched)
        await end(lane)
        assert [len(batch) for batch in line.batches] == sizes
        assert lane.watermark.commit == 100 + fetched


async def test_a25_what_was_not_started_before_the_revoke_is_not_handled() -> None:
    line = Line()
    lane = make_lane(line)
    lane.offer(deliveries(100, 5))
    lane.stop()
    await lane.start()
    assert (line.batches, lane.watermark.commit, len(lane.unsettled())) == ([], 100, 5)


async def test_a_batch_waits_for_max_wait_to_fill() -> None:
    line = Line(max_batch=4, max_wait=60.0)
    lane = make_lane(line)
    lane.offer(deliveries(100, 2))
    lane.start()
    await asyncio.sleep(0)
    assert line.batches == []
    lane.offer(deliveries(102, 2))
    await line.has_taken(4)
    await end(lane)
    assert line.batches == [[100, 101, 102, 103]]


def not_before(when: float) -> Any:
    def fate(run: Run) -> Stage:
        run.postpone(when, "busy")
        return Stage.FETCHED

    return fate


async def test_what_is_held_comes_up_again_when_it_is_due_and_holds_the_commit_until_then() -> None:
    line, clock = Line(), Clock(50.0)
    first_time(line, 101, not_before(60.0))
    lane = make_lane(line, clock)
    lane.offer(deliveries(100, 3))
    lane.start()
    await line.has_taken(3)
    assert (line.batches, lane.watermark.commit) == ([[100, 101, 102]], 101)
    clock.now = 60.0
    lane.look_again()
    await line.has_taken(4)
    await end(lane)
    assert (line.batches[1:], lane.watermark.commit) == ([[101]], 103)


def rule_done(run: Run) -> Stage:
    run.rule(DONE)
    return Stage.RULED


async def test_what_is_decided_is_still_settled_after_the_stop_and_what_is_not_is_left() -> None:
    line = Line(is_open=False)
    line.fate = lambda run: Stage.FETCHED if run.first == 101 else rule_done(run) if len(line.batches) == 1 else Stage.SETTLED
    lane = make_lane(line)
    lane.offer(deliveries(100, 2))
    lane.start()
    await line.has_taken(2)
    lane.stop()
    line.gate.set()
    await end(lane)
    assert (line.batches, lane.watermark.commit) == ([[100, 101], [100]], 101)


async def test_a_message_that_runs_alone_gets_a_batch_of_its_own_though_it_waited_for_its_rate() -> None:
    for stage in (Stage.FETCHED, Stage.WITHHELD):
        line = Line()
        lane = make_lane(line)
        lane.offer(deliveries(100, 3))
        alone = lane.unsettled()[1]

        def fate(run: Run, stage: Stage = stage, alone: Run = alone, line: Line = line) -> Stage:
            if not alone.alone or (run is not alone and len(line.batches) == 1):
                alone.alone = alone.alone or run is alone
                return stage
            return Stage.SETTLED

        line.fate = fate
        lane.start()
        await line.has_taken(6)
        await end(lane)
        assert line.batches == [[100, 101, 102], [101], [100, 102]]


async def test_a_lane_is_full_above_a_thousand_messages() -> None:
    """F01"""
    for count, full in ((MAX_MESSAGES, False), (MAX_MESSAGES + 1, True)):
        lane = make_lane(Line())
        lane.offer(deliveries(100, count))
        assert lane.is_full() is full, count


async def test_a_lane_is_full_above_the_span_of_a_map_and_of_two_thousand_offsets_where_progress_is_not_told() -> None:
    """F03"""
    for generation, span in ((1, 2000), (None, MAP_SPAN)):
        for last, full in ((100 + span, False), (101 + span, True)):
            lane = make_lane(Line(), generation=generation)
            lane.offer([*deliveries(100, 1), *deliveries(last, 1)])
            assert lane.is_full() is full, (generation, last)


async def test_a_jump_in_the_log_is_told_and_what_was_fetched_between_two_is_in_neither() -> None:
    lane = make_lane(Line())
    assert lane.offer(deliveries(100, 1)) == []
    assert lane.offer([*deliveries(101, 1), *deliveries(105, 1)]) == [(102, 105)]
    assert lane.offer([*deliveries(108, 2), *deliveries(112, 1)]) == [(106, 108), (110, 112)]


async def test_offsets_that_are_held_already_are_not_taken_twice() -> None:
    lane = make_lane(Line())
    for _ in range(2):
        lane.offer(deliveries(100, 3))
    assert len(lane.unsettled()) == 3


async def test_a_cut_lane_ends_although_something_is_decided() -> None:
    line = Line(is_open=False)
    line.fate = rule_done
    lane = make_lane(line)
    lane.offer(deliveries(100, 1))
    lane.start()
    await line.has_taken(1)
    lane.cut()
    line.gate.set()
    await end(lane)
    assert lane.watermark.commit == 100


async def test_calling_off_reaches_the_run_of_the_batch() -> None:
    line = Line(is_open=False)
    lane = make_lane(line)
    lane.offer(deliveries(100, 1))
    (run,) = lane.unsettled()
    run.call = call = HandlerCall()
    lane.start()
    await line.has_taken(1)
    lane.call_off()
    assert call.called_off
    line.gate.set()
    lane.cut()
    await end(lane)


async def test_nothing_overtakes_what_is_held_where_offsets_are_kept_in_a_database() -> None:
    line, clock = Line(max_batch=2), Clock(50.0)
    lane = make_lane(line, clock, generation=7)
    first_time(line, 100, not_before(55.0))
    lane.offer(deliveries(100, 6))
    lane.start()
    await line.has_taken(2)
    assert line.batches == [[100, 101]]
    clock.now = 55.0
    lane.offer(deliveries(106, 1))  # wakes it
    await line.has_taken(8)
    await end(lane)
    assert line.took[2:] == [100, 102, 103, 104, 105, 106]
    assert lane.watermark.commit == 107


async def test_a_lane_in_order_that_stops_leaves_what_waits_behind_its_first() -> None:
    line = Line(max_batch=2)
    lane = make_lane(line, generation=7)
    line.fate = lambda run: rule_done(run) if not_before(55.0)(run) and run.first == 101 else run.stage
    lane.offer(deliveries(100, 2))
    lane.start()
    await line.has_taken(2)
    await end(lane)
    assert [run.first for run in lane.unsettled()] == [100, 101]


async def test_copies_share_a_batch_only_as_each_of_them_allows_also_those_that_were_held() -> None:
    limits = {100: 3, 101: 3, 102: 25, 103: 1, 104: 25, 105: 25}
    for is_held, number, batches in ((False, 6, [[100, 101, 102], [103], [104, 105]]), (True, 12, None)):
        line = Line(max_batch=200)

        def make(_: Any, records: Sequence[Delivery], line: Any = line) -> list[Run]:
            runs = [Run.of(record, line) for record in records]
            for run in runs:
                run.batch_limit = limits[run.first]
            return runs

        seen = set[int]()

        def fate(run: Run, is_held: bool = is_held, seen: set[int] = seen) -> Stage:
            if is_held and run.first not in seen:
                seen.add(run.first)
                return Stage.FETCHED
            return Stage.SETTLED

        line.fate = fate
        lane = lane_of(position=100, role="retry", make=make, clock=Clock(50.0))
        lane.offer(deliveries(100, 6))
        lane.start()
        await line.has_taken(number)
        await end(lane)
        assert batches is None or line.batches == batches
        assert all(len(batch) <= min(limits[offset] for offset in batch) for batch in line.batches)


async def test_a_message_handler_is_settled_after_each_message_while_it_drains_and_begins_nothing_after_the_cut_off() -> None:
    began, steps = list[int](), asyncio.Queue[None]()

    async def slow(message: Message[bytes]) -> None:
        began.append(message.offset)
        await steps.get()

    agent = Agent("bill", ("orders",), "message", slow, lambda value: value)
    worker = Worker("billing", ConsumeLater(16), None, "billing.retry", "billing.dlq", ())  # type: ignore[arg-type]  # nothing is published
    lane = lane_of(Pipeline(agent, worker), position=100)
    lane.offer(deliveries(100, 5))
    task = lane.start()
    steps.put_nowait(None)
    await until(lambda: began[-1:] == [101])
    assert lane.watermark.commit == 100
    lane.stop()
    await until(lambda: lane.watermark.commit == 101)  # what was done when the revoke came need not wait for what still runs
    assert began == [100, 101]
    steps.put_nowait(None)
    await until(lambda: lane.watermark.commit == 102)
    lane.cut()
    steps.put_nowait(None)
    async with asyncio.timeout(PATIENCE):
        await task
    assert (began, [run.first for run in lane.unsettled()]) == ([100, 101, 102], [103, 104])
