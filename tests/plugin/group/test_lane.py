"""One assigned partition: how batches are cut, what is held, when it is full, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import DONE
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.message import Delivery, Message, Origin, TopicPartition
from ackwise.middleware.pipeline import Pipeline
from ackwise.middleware.progress import MAP_SPAN
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.run import Run, Stage
from ackwise.middleware.worker import Worker
from ackwise.plugin.group.lane import MAX_MESSAGES, Lane


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A pipeline that settles everything, or what `fate` says."""

    def __init__(self, max_batch: int = 200, within: float = 0.0) -> None:
        self.agent = Agent("bill", ("orders",), "batch", _handle, lambda value: value, max_batch=max_batch, within=within)
        self.batches: list[list[int]] = []
        self.arrived = asyncio.Event()
        self.fate: Any = lambda entry: Stage.SETTLED

    async def __call__(self, entries: Sequence[Run], assignment: Any) -> None:
        self.batches.append([entry.delivery.offset for entry in entries])
        self.arrived.set()
        await asyncio.sleep(0)
        for entry in entries:
            entry.stage = self.fate(entry)


async def _handle(batch: Any) -> None: ...


def deliveries(start: int, count: int) -> Iterator[Delivery]:
    for offset in range(start, start + count):
        yield Delivery("orders", 0, offset, 0, None, b"", (), Origin("orders", 0, offset, 0))


def make_lane(line: Line, clock: Clock | None = None, position: int = 100, **options: Any) -> Lane:
    def make(_: TopicPartition, records: Sequence[Delivery]) -> list[Run]:
        return [Run.of(delivery, line) for delivery in records]  # a line is a pipeline reduced to what a lane asks of it

    return Lane("orders", 0, "source", position, make=make, progressed=lambda lane: None, clock=clock or Clock(), **options)


def limited(delivery: Delivery, line: Line, batch_limit: int) -> Run:
    run = Run.of(delivery, line)  # as above
    run.batch_limit = batch_limit
    return run


async def finish(lane: Lane) -> None:
    lane.stop()
    assert lane.task is not None
    await lane.task


@pytest.mark.parametrize(
    ("fetched", "max_batch", "sizes"),
    [pytest.param(10, 4, [4, 4, 2], id="A27"), pytest.param(32, 100, [32], id="A28")],
)
async def test_a_fetch_is_cut_into_batches_of_at_most_max_batch(fetched: Any, max_batch: Any, sizes: Any) -> None:
    line = Line(max_batch)
    lane = make_lane(line)
    lane.offer([*deliveries(100, fetched)])
    lane.start()
    while sum(map(len, line.batches)) < fetched:
        line.arrived.clear()
        await line.arrived.wait()
    await finish(lane)
    assert [len(batch) for batch in line.batches] == sizes
    assert lane.watermark.commit == 100 + fetched


async def test_a25_what_was_not_started_before_the_revoke_is_not_handled() -> None:
    line = Line()
    lane = make_lane(line)
    lane.offer([*deliveries(100, 5)])
    lane.stop()
    await lane.start()
    assert (line.batches, lane.watermark.commit, len(lane.unsettled())) == ([], 100, 5)


async def test_a_batch_waits_for_within_to_fill() -> None:
    line, clock = Line(max_batch=4, within=60.0), Clock()
    lane = make_lane(line, clock)
    lane.offer([*deliveries(100, 2)])
    lane.start()
    await asyncio.sleep(0)
    assert line.batches == []
    lane.offer([*deliveries(102, 2)])
    await line.arrived.wait()
    await finish(lane)
    assert line.batches == [[100, 101, 102, 103]]


@pytest.mark.slow
async def test_what_is_held_comes_up_again_when_it_is_due_and_holds_the_commit_until_then() -> None:
    line, clock = Line(), Clock()

    def fate(entry: Run) -> Stage:
        if entry.delivery.offset == 101 and clock.now == 50.0:
            entry.postpone(60.0, "busy")
            return Stage.FETCHED
        return Stage.SETTLED

    line.fate = fate
    lane = make_lane(line, clock)
    lane.offer([*deliveries(100, 3)])
    lane.start()
    await line.arrived.wait()
    await asyncio.sleep(0)
    assert lane.watermark.commit == 101
    clock.now = 60.0
    line.arrived.clear()
    lane.offer([])
    await line.arrived.wait()
    await finish(lane)
    assert line.batches == [[100, 101, 102], [101]]
    assert lane.watermark.commit == 103


async def test_what_is_decided_is_still_settled_after_the_stop_and_what_is_not_is_left() -> None:
    line = Line()

    def fate(entry: Run) -> Stage:
        if entry.delivery.offset == 100 and len(line.batches) == 1:
            entry.rule(DONE)
            return Stage.RULED
        return Stage.SETTLED if entry.delivery.offset == 100 else Stage.FETCHED

    line.fate = fate
    lane = make_lane(line)
    lane.offer([*deliveries(100, 2)])
    lane.start()
    await line.arrived.wait()
    await finish(lane)
    assert line.batches == [[100, 101], [100]]
    assert lane.watermark.commit == 101


@pytest.mark.parametrize("stage", [Stage.FETCHED, Stage.WITHHELD])
async def test_a_message_that_runs_alone_gets_a_batch_of_its_own_though_it_waited_for_its_rate(stage: Stage) -> None:
    line = Line()
    lane = make_lane(line)
    lane.offer([*deliveries(100, 3)])
    alone = lane.unsettled()[1]

    def fate(entry: Run) -> Stage:
        if not alone.alone or (entry is not alone and len(line.batches) == 1):
            alone.alone = alone.alone or entry is alone
            return stage
        return Stage.SETTLED

    line.fate = fate
    lane.start()
    async with asyncio.timeout(5):
        while len(line.batches) < 3:
            line.arrived.clear()
            await line.arrived.wait()
    await finish(lane)
    assert line.batches == [[100, 101, 102], [101], [100, 102]]


@pytest.mark.parametrize(
    ("count", "full"), [pytest.param(MAX_MESSAGES, False, id="F01"), pytest.param(MAX_MESSAGES + 1, True, id="F01-more")]
)
async def test_a_lane_is_full_above_a_thousand_messages(count: Any, full: Any) -> None:
    lane = make_lane(Line())
    lane.offer([*deliveries(100, count)])
    assert lane.is_full() is full


@pytest.mark.parametrize(("last", "full"), [pytest.param(2100, False, id="F03"), pytest.param(2101, True, id="F03-more")])
async def test_a_lane_whose_progress_is_not_told_is_full_above_a_span_of_two_thousand_offsets(last: Any, full: Any) -> None:
    lane = make_lane(Line(), generation=1)
    lane.offer([*deliveries(100, 1), *deliveries(last, 1)])
    assert lane.is_full() is full


@pytest.mark.parametrize(("last", "full"), [(100 + MAP_SPAN, False), (101 + MAP_SPAN, True)])
async def test_a_lane_is_full_above_the_span_that_a_map_holds(last: int, full: bool) -> None:
    lane = make_lane(Line())
    lane.offer([*deliveries(100, 1), *deliveries(last, 1)])
    assert lane.is_full() is full


async def test_a_jump_in_the_log_is_told_and_passed_with_the_offset_behind_it() -> None:
    lane = make_lane(Line())
    assert lane.offer([*deliveries(100, 1)]) == []
    assert lane.offer([*deliveries(101, 1), *deliveries(105, 1)]) == [(102, 105)]


async def test_what_was_fetched_between_two_jumps_is_in_neither() -> None:
    lane = make_lane(Line())
    assert lane.offer([*deliveries(100, 1), *deliveries(103, 2), *deliveries(106, 1)]) == [(101, 103), (105, 106)]


async def test_offsets_that_are_held_already_are_not_taken_twice() -> None:
    lane = make_lane(Line())
    lane.offer([*deliveries(100, 3)])
    lane.offer([*deliveries(100, 3)])
    assert len(lane.unsettled()) == 3


async def test_a_cut_lane_ends_although_something_is_decided() -> None:
    line = Line()
    lane = make_lane(line)

    def fate(entry: Run) -> Stage:
        entry.rule(DONE)
        return Stage.RULED

    line.fate = fate
    lane.offer([*deliveries(100, 1)])
    lane.start()
    await line.arrived.wait()
    lane.cut()
    assert lane.task is not None
    await lane.task
    assert lane.watermark.commit == 100


async def test_calling_off_reaches_the_run_of_the_batch() -> None:
    line = Line()
    lane = make_lane(line)
    runs: list[HandlerCall] = []

    def fate(entry: Run) -> Stage:
        return Stage.SETTLED

    async def hang(entries: Sequence[Run], assignment: Any) -> None:
        run = HandlerCall()
        runs.append(run)
        for entry in entries:
            entry.call = run
        line.arrived.set()
        await hanging.wait()

    hanging = asyncio.Event()
    line.fate = fate
    lane = Lane(
        "orders",
        0,
        "source",
        100,
        make=lambda _, records: [Run.of(record, pipeline) for record in records],
        progressed=lambda lane: None,
        clock=Clock(),
    )
    pipeline: Any = type("Hanging", (), {"agent": line.agent, "__call__": lambda self, entries, assignment: hang(entries, assignment)})()
    lane.offer([*deliveries(100, 1)])
    lane.start()
    await line.arrived.wait()
    lane.call_off()
    assert runs[0].called_off
    hanging.set()
    lane.cut()
    assert lane.task is not None
    await lane.task


def held_in_order(line: Line, clock: Clock) -> Lane:
    """A lane of a partition whose offset is kept in a database."""

    def make(_: TopicPartition, records: Sequence[Delivery]) -> list[Run]:
        return [Run.of(delivery, line) for delivery in records]  # as above

    return Lane("orders", 0, "source", 100, make=make, progressed=lambda lane: None, generation=7, clock=clock)


async def test_nothing_overtakes_what_is_held_where_offsets_are_kept_in_order() -> None:
    line, clock = Line(max_batch=2), Clock()
    lane = held_in_order(line, clock)

    def hold_first(entry: Run) -> Stage:
        if entry.delivery.offset == 100 and len(line.batches) == 1:
            entry.postpone(clock.now + 5, "not yet")
            return Stage.FETCHED
        return Stage.SETTLED

    line.fate = hold_first
    lane.offer([*deliveries(100, 6)])
    lane.start()
    for _ in range(50):
        await asyncio.sleep(0)
    assert line.batches == [[100, 101]]
    clock.now += 5
    lane.offer([*deliveries(106, 1)])  # wakes it
    while sum(map(len, line.batches)) < 8:
        line.arrived.clear()
        await line.arrived.wait()
    await finish(lane)
    assert [offset for batch in line.batches[1:] for offset in batch] == [100, 102, 103, 104, 105, 106]
    assert lane.watermark.commit == 107


async def test_a_lane_in_order_that_stops_leaves_what_waits_behind_its_first() -> None:
    line, clock = Line(max_batch=2), Clock()
    lane = held_in_order(line, clock)

    def hold(entry: Run) -> Stage:
        entry.postpone(clock.now + 5, "not yet")
        if entry.delivery.offset == 101:
            entry.rule(DONE)
        return entry.stage

    line.fate = hold
    lane.offer([*deliveries(100, 2)])
    lane.start()
    await line.arrived.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await finish(lane)
    assert [entry.delivery.offset for entry in lane.unsettled()] == [100, 101]


async def test_copies_share_a_batch_only_as_each_of_them_allows() -> None:
    line, limits = Line(max_batch=200), {100: 3, 101: 3, 102: 25, 103: 1, 104: 25, 105: 25}

    def make(_: TopicPartition, records: Sequence[Delivery]) -> list[Run]:
        return [limited(delivery, line, limits[delivery.offset]) for delivery in records]

    lane = Lane("billing.retry", 0, "retry", 100, make=make, progressed=lambda lane: None, clock=Clock())
    lane.offer([*deliveries(100, 6)])
    lane.start()
    while sum(map(len, line.batches)) < 6:
        line.arrived.clear()
        await line.arrived.wait()
    await finish(lane)
    assert line.batches == [[100, 101, 102], [103], [104, 105]]


async def test_held_copies_share_a_batch_only_as_each_of_them_allows() -> None:
    line, clock = Line(max_batch=200), Clock()
    line.fate = lambda entry: Stage.SETTLED if len(line.batches) > 1 else Stage.FETCHED

    def make(_: TopicPartition, records: Sequence[Delivery]) -> list[Run]:
        return [limited(delivery, line, 2) for delivery in records]

    lane = Lane("billing.retry", 0, "retry", 100, make=make, progressed=lambda lane: None, clock=clock)
    lane.offer([*deliveries(100, 5)])
    lane.start()
    while sum(map(len, line.batches)) < 7:
        line.arrived.clear()
        await line.arrived.wait()
    await finish(lane)
    assert all(len(batch) <= 2 for batch in line.batches)


class Slow:
    """A handler of messages that waits at each of them until it may go on."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.steps: asyncio.Queue[None] = asyncio.Queue()
        self.at: asyncio.Queue[int] = asyncio.Queue()

    async def __call__(self, message: Message[bytes]) -> None:
        self.began.append(message.offset)
        self.at.put_nowait(message.offset)
        await self.steps.get()

    async def reaches(self, offset: int) -> None:
        async with asyncio.timeout(10):
            while await self.at.get() != offset:
                pass


async def test_a_message_handler_is_settled_after_each_message_while_it_drains_and_begins_nothing_after_the_cut_off() -> None:
    slow = Slow()
    agent = Agent("bill", ("orders",), "message", slow, lambda value: value)
    worker = Worker("billing", ConsumeLater(16), None, "billing.retry", "billing.dlq", ())  # type: ignore[arg-type]  # nothing is published
    pipeline = Pipeline(agent, worker)
    passed = asyncio.Event()
    lane = Lane(
        "orders",
        0,
        "source",
        100,
        make=lambda _, records: [Run.of(record, pipeline) for record in records],
        progressed=lambda lane: passed.set(),
    )
    lane.offer([*deliveries(100, 5)])
    task = lane.start()
    slow.steps.put_nowait(None)
    await slow.reaches(101)
    assert lane.watermark.commit == 100
    lane.stop()
    await passed.wait()
    assert lane.watermark.commit == 101, "what was done when the revoke came need not wait for what still runs"
    slow.steps.put_nowait(None)
    await slow.reaches(102)
    while lane.watermark.commit != 102:
        passed.clear()
        await passed.wait()
    lane.cut()
    slow.steps.put_nowait(None)
    async with asyncio.timeout(10):
        await task
    assert slow.began == [100, 101, 102]
    assert [entry.delivery.offset for entry in lane.unsettled()] == [103, 104]
