"""For how long the oldest unfinished record of a partition has been in its log."""

from __future__ import annotations

from tests.fakes import Clock
from tests.plugin.lines import Line, end, lane_of
from tests.waiting import until

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.lane import Lane

NOW = 1_700_000_000.0


class Partition:
    """A lane at offset 100, with clocks of its own."""

    def __init__(self, *lines: Line) -> None:
        self.clock, self.wall = Clock(50.0), Clock(NOW)
        self.lane: Lane = lane_of(*lines or (Line(),), position=100, clock=self.clock, wall=self.wall)

    def fetch(self, *ages: float | None) -> None:
        """Offer the next records, so many seconds old, or without a timestamp."""
        times = [-1 if age is None else round((self.wall.now - age) * 1000) for age in ages]
        offsets = range(self.lane.position, self.lane.position + len(times))
        self.lane.offer(
            [Delivery("orders", 0, n, ms, None, b"", (), Origin("orders", 0, n, ms)) for n, ms in zip(offsets, times, strict=True)]
        )

    def finish(self) -> None:
        """Settle all that is in flight."""
        self.lane.pass_settled([settled(run) for run in self.lane.queued])
        self.lane._backlog.fresh._runs.clear()  # type: ignore[attr-defined]  # what a batch takes out

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds

    def see_end(self, offset: int) -> None:
        self.lane.lag.see_end(offset, self.clock.now)


def settled(run: Run) -> Run:
    run.stage = Stage.SETTLED
    return run


def test_it_is_the_age_of_the_oldest_record_in_flight_whatever_the_end_of_the_log() -> None:
    partition = Partition()
    partition.fetch(600.0, 60.0, 5.0)
    assert partition.lane.lag_seconds(None) == partition.lane.lag_seconds(103) == partition.lane.lag_seconds(10_000) == 600
    partition.wait(30)
    assert partition.lane.lag_seconds(103) == 630


def test_it_is_0_where_everything_is_finished_and_unknown_where_nobody_knows_that() -> None:
    partition = Partition()
    assert partition.lane.lag_seconds(None) is None
    assert partition.lane.lag_seconds(100) == 0
    partition.fetch(600.0)
    partition.finish()
    assert (partition.lane.lag_seconds(None), partition.lane.lag_seconds(101)) == (None, 0)


def test_a_record_of_a_clock_that_is_ahead_is_not_late() -> None:
    partition = Partition()
    partition.fetch(-60.0)
    assert partition.lane.lag_seconds(101) == 0


def test_between_two_fetches_of_a_worker_that_catches_up_it_is_the_age_of_the_last_record() -> None:
    partition = Partition()
    partition.wait(100)
    partition.fetch(3700.0, 3600.0)
    partition.finish()
    assert partition.lane.lag_seconds(5000) == 3600


def test_what_came_since_the_log_had_no_more_is_not_as_old_as_the_last_record() -> None:
    partition = Partition()
    partition.fetch(3600.0)
    partition.finish()
    partition.see_end(101)
    partition.wait(7)
    assert partition.lane.lag_seconds(105) == 7


def test_a_partition_that_can_not_be_read_lags_from_when_it_had_no_more_or_from_its_assignment_on() -> None:
    partition = Partition()
    partition.wait(40)
    partition.see_end(105)  # there is more
    assert partition.lane.lag_seconds(105) == 40
    partition.see_end(100)
    partition.wait(600)
    assert partition.lane.lag_seconds(105) == 600


def test_records_without_a_timestamp_lag_from_when_the_log_had_no_more() -> None:
    partition = Partition()
    partition.see_end(100)
    partition.wait(20)
    partition.fetch(None)
    assert partition.lane.lag_seconds(101) == 20


def test_markers_at_the_end_of_a_log_are_no_lag_even_where_a_database_has_the_offset() -> None:
    partition = Partition()
    partition.lane.generation = 1
    assert not partition.lane.skip(102)
    assert partition.lane.lag_seconds(102) == 0


async def test_what_waits_in_place_counts_until_it_is_done() -> None:
    line = Line()
    line.fate = lambda run: postponed(run, 80.0) if len(line.batches) == 1 else Stage.SETTLED
    partition = Partition(line)
    partition.fetch(60.0)
    partition.lane.start()
    await until(lambda: partition.lane.held)
    partition.wait(20)
    assert partition.lane.lag_seconds(101) == 80
    partition.wait(20)
    partition.lane.look_again()
    await line.has_taken(1)
    await until(lambda: not partition.lane.in_hand)
    assert partition.lane.lag_seconds(101) == 0
    await end(partition.lane)


def postponed(run: Run, until_: float) -> Stage:
    run.postpone(until_, "busy")
    return Stage.FETCHED
