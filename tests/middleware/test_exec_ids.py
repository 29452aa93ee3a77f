"""Ids of executions."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ackwise.middleware.pipeline.worker import ExecIds


@given(st.lists(st.tuples(st.sampled_from(["orders/0", "orders/1", "bills/0"]), st.integers(1, 5_000)), max_size=40))
def test_ids_of_executions_are_unique_and_those_of_a_lane_follow_each_other(takes: list[tuple[str, int]]) -> None:
    ids, taken, of_lane = ExecIds(), set[int](), dict[str, list[int]]()
    for lane, number in takes:
        found = ids.take(lane, number)
        assert len(found) == number
        assert taken.isdisjoint(found)
        taken.update(found)
        of_lane.setdefault(lane, []).extend(found)
    for each_one in of_lane.values():
        leaps = sum(after != before + 1 for before, after in pairwise(each_one))
        assert leaps <= len(each_one) // 2048
        assert each_one == sorted(each_one)
