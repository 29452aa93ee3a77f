"""For how long each partition of a delay topic waits, and which one a copy is written to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackwise.middleware.policies.delaytopic import MOST_HOPS, Ladder, is_for_sends, ladder_of, wait_of, width
from ackwise.middleware.policies.retry import DEFAULT_LEVELS, DelayLevels

THREE_DAYS = 3 * 86_400

WHOLE = Ladder(27)


def test_what_a_partition_waits_for_is_part_of_the_format() -> None:
    """Golden: who edits this strands every copy that waits."""
    once = [10, 60, 1, 600, 3600, 30, 120, 300, 1800, 5, 2, 21_600, 86_400]
    assert [wait_of(partition) for partition in range(1, 53)] == once * 4
    assert [is_for_sends(partition) for partition in range(1, 53)] == ([False] * 13 + [True] * 13) * 2
    with pytest.raises(ValueError, match="partition 0 of a delay topic waits for nothing"):
        wait_of(0)


def test_a_topic_is_made_as_wide_as_its_lanes() -> None:
    assert (width(), width(delayed_sends=True), width(lanes=4), width(lanes=4, delayed_sends=True)) == (14, 27, 105, 105)


def test_a_writer_takes_the_longest_rung_that_is_not_longer_than_what_is_left_and_half_a_second() -> None:
    for left, wait in (
        (0.0, 1), (1.4, 1), (1.5, 2), (9.4, 5), (9.5, 10), (10.5, 10), (29.49, 10), (29.5, 30), (3599.4, 1800), (3599.5, 3600),
        (THREE_DAYS, 86_400), (-5.0, 1),
    ):  # fmt: skip
        assert WHOLE.rung(left).wait == wait, left
        assert WHOLE.rung(left, sends=True).wait == wait, left


@given(partitions=st.integers(2, 200), left=st.floats(0, THREE_DAYS), sends=st.booleans())
def test_a_rung_is_of_its_own_kind_where_that_has_it_and_of_the_other_elsewhere(partitions: int, left: float, sends: bool) -> None:
    wait, found = Ladder(partitions).rung(left, sends=sends)
    all_of_it = [partition for partition in range(1, partitions) if wait_of(partition) == wait]
    own = [partition for partition in all_of_it if is_for_sends(partition) == sends]
    assert list(found) == (own or all_of_it)
    there = {wait_of(partition) for partition in range(1, partitions)}
    assert wait == max((each for each in there if each <= left + 0.5), default=min(there))


def test_a_broker_that_made_few_partitions_leaves_the_most_useful_rungs() -> None:
    few = Ladder(4)
    assert (few.shortest, few.longest, few.missing) == (1, 60, [2, 5, 30, 120, 300, 600, 1800, 3600, 21_600, 86_400])
    assert few.rung(7200).wait == 60
    assert few.rung(7200, sends=True).partitions == (2,)
    assert (bool(Ladder(1)), bool(Ladder(0)), bool(Ladder(2))) == (False, False, True)


def test_lanes_share_the_copies_of_a_rung() -> None:
    four = Ladder(width(lanes=4))
    assert four.rung(10).partitions == (1, 27, 53, 79)
    assert [next(four.ways(10, spread=number)) for number in range(6)] == [1, 27, 53, 79, 1, 27]


def test_where_a_partition_takes_nothing_its_rung_does_then_shorter_ones_then_longer_ones_up_to_ten_seconds() -> None:
    four = Ladder(width(lanes=2))
    assert [wait_of(way) for way in four.ways(10.0, spread=1)][:8] == [10, 10, 5, 5, 2, 2, 1, 1]
    assert [*four.ways(10.0, spread=1)][:2] == [27, 1]
    assert [wait_of(way) for way in WHOLE.ways(0.0)] == [1, 2, 5, 10]
    assert [wait_of(way) for way in WHOLE.ways(2.0)] == [2, 1, 5, 10]
    assert [wait_of(way) for way in WHOLE.ways(60.0)] == [60, 30, 10, 5, 2, 1]
    assert [wait_of(way) for way in Ladder(3).ways(10.0)] == [10, 60], "the next longer than the shortest"


def test_what_can_t_be_moved_waits_as_long_as_it_is_overdue_from_ten_seconds_to_ten_minutes() -> None:
    for overdue, wait in ((0, 10), (10, 10), (29, 10), (30, 30), (599, 300), (600, 600), (86_400, 600), (math.inf, 600)):
        assert WHOLE.fallback(overdue).wait == wait, overdue
    assert Ladder(2).fallback(math.inf).wait == 10


def test_rocketmq_s_levels_take_one_to_three_hops_and_no_delay_takes_more_than_22() -> None:
    assert [WHOLE.hops(delay + 0.5) for delay in DelayLevels(DEFAULT_LEVELS).seconds] == [
        1,
        1,
        1,
        1,
        1,
        1,
        2,
        2,
        1,
        2,
        2,
        3,
        3,
        1,
        2,
        1,
        1,
        2,
    ]
    assert max(WHOLE.hops(delay / 2) for delay in range(0, 2 * 86_400, 7)) <= 20
    assert max(WHOLE.hops(86_400 * 2 + delay / 2) for delay in range(0, 2 * 86_400, 7)) <= 22
    assert WHOLE.hops(0) == 0


def test_a_missing_rung_costs_hops() -> None:
    assert [Ladder(2).hops(delay) for delay in (3, 10, 60, 1000, 1010)] == [1, 1, 6, MOST_HOPS, MOST_HOPS + 1]
    assert Ladder(3).hops(7200) == 120


@given(partitions=st.integers(2, 60), delay=st.floats(0.001, THREE_DAYS))
def test_the_hops_that_are_said_are_those_that_it_takes(partitions: int, delay: float) -> None:
    ladder, left, hops = ladder_of(max(partitions, 4)), delay, 0
    while left >= 1 or (left > 0 and not hops):
        left -= ladder.rung(left).wait
        hops += 1
    assert ladder.hops(delay) == hops
