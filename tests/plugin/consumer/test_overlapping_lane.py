"""A lane whose batches overlap, as a loop that takes messages one by one needs it: how many, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.plugin.lines import deliveries, end, lane_of
from tests.waiting import turns

from ackwise.middleware.message.disposition import DONE
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.lane import Lane


async def handle(batch: Any) -> None: ...


class Line:
    """A pipeline whose batches end when the test says so."""

    def __init__(self, max_batch: int = 2) -> None:
        self.agent = Agent("bill", ("orders",), "stream", handle, lambda value: value, max_batch=max_batch)
        self.batches: list[list[int]] = []
        self.ends: list[asyncio.Future[BaseException | None]] = []
        self.recalled: list[int] = []
        self.cancelled: list[int] = []
        self.undone: set[int] = set()  #: what is decided at its first end, and settled at its second

    async def __call__(self, entries: Sequence[Run], assignment: Any) -> None:
        first = entries[0].delivery.offset
        end: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.batches.append([entry.delivery.offset for entry in entries])
        self.ends.append(end)
        for entry in entries:
            entry.call = Recalled(self.recalled, entry.delivery.offset)
        try:
            if (error := await end) is not None:
                raise error
        except asyncio.CancelledError:
            self.cancelled.append(first)
            raise
        for entry in entries:
            entry.call = None
            if entry.delivery.offset in self.undone:
                self.undone.remove(entry.delivery.offset)
                entry.rule(DONE)
            else:
                entry.stage = Stage.SETTLED


class Recalled(HandlerCall):
    """Remembers that it was recalled."""

    def __init__(self, recalled: list[int], offset: int) -> None:
        super().__init__()
        self._recalled, self._offset = recalled, offset

    def recall(self) -> None:
        self._recalled.append(self._offset)


def begin(line: Line, count: int) -> Lane:
    lane = lane_of(line, position=100, overlapping=True, clock=lambda: 50.0)
    lane.offer(deliveries(100, count))
    lane.start()
    return lane


async def test_a_batch_begins_while_the_one_before_it_is_at_work_and_a_third_does_not() -> None:
    line = Line()
    lane = begin(line, 6)
    await turns()
    assert line.batches == [[100, 101], [102, 103]]
    line.ends[0].set_result(None)
    await turns()
    assert line.batches == [[100, 101], [102, 103], [104, 105]]
    for one in line.ends[1:]:
        one.set_result(None)
    await end(lane)
    assert lane.watermark.commit == 106


async def test_a_later_batch_that_ends_first_moves_no_commit_and_what_is_settled_of_one_at_work_does() -> None:
    line = Line()
    lane = begin(line, 4)
    await turns()
    line.ends[1].set_result(None)
    await turns()
    assert lane.watermark.commit == 100
    first = next(run for batch in lane._running for run in batch)
    first.stage = Stage.SETTLED
    lane.pass_settled([first])
    assert lane.watermark.commit == 101
    line.ends[0].set_result(None)
    await turns()
    assert lane.watermark.commit == 104
    await end(lane)


async def test_what_is_at_work_counts_to_what_makes_a_lane_full() -> None:
    line = Line()
    lane = begin(line, 4)
    lane.capacity = 3
    await turns()
    assert lane.is_full()
    line.ends[0].set_result(None)
    line.ends[1].set_result(None)
    await turns()
    assert not lane.is_full()
    await end(lane)


async def test_a_stop_recalls_all_batches_begins_none_and_waits_for_those_at_work() -> None:
    line = Line()
    lane = begin(line, 6)
    await turns()
    lane.stop()
    await turns()
    assert lane.task is not None
    assert (line.recalled, lane.task.done()) == ([100, 101, 102, 103], False)
    for one in line.ends:
        one.set_result(None)
    await end(lane)
    assert (len(line.batches), lane.watermark.commit) == (2, 104)
    assert [entry.delivery.offset for entry in lane.unsettled()] == [104, 105]


async def test_what_is_decided_when_the_lane_stops_is_taken_up_again_until_it_is_settled() -> None:
    line = Line()
    lane = begin(line, 2)
    await turns()
    line.undone.add(101)
    lane.stop()
    line.ends[0].set_result(None)
    await turns()
    assert (line.batches, lane.watermark.commit) == ([[100, 101], [101]], 101)
    line.ends[1].set_result(None)
    await end(lane)
    assert lane.watermark.commit == 102


async def test_a_cut_lane_ends_with_what_is_at_work_and_takes_nothing_up_again() -> None:
    line = Line()
    lane = begin(line, 6)
    await turns()
    lane.cut()
    for one in line.ends:
        one.set_result(None)
    await end(lane)
    assert len(line.batches) == 2


async def test_an_error_in_a_batch_ends_the_lane_and_cancels_the_others() -> None:
    line = Line()
    lane = begin(line, 6)
    await turns()
    error = RuntimeError("our own")
    line.ends[0].set_result(error)
    with pytest.raises(RuntimeError) as raised:
        await end(lane)
    await turns()
    assert raised.value is error
    assert (line.cancelled, len(line.batches), lane.watermark.commit) == ([102], 2, 100)
    assert [entry.delivery.offset for entry in lane.unsettled()] == [100, 101, 102, 103, 104, 105]
