"""Sequence numbers as runs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ackwise.spark.events.numbers import joined, runs_in, without


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([None], []),
        ([7], [(7, 8)]),
        ([0, 1, 2], [(0, 3)]),
        ([2, 0, 1, 1, 0], [(0, 3)]),
        ([0, 1, 4, 5, 9], [(0, 2), (4, 6), (9, 10)]),
        ([9, None, 4, 0, 5, 1, 4], [(0, 2), (4, 6), (9, 10)]),
    ],
)
def test_numbers_are_runs_whatever_their_order_and_repetition(numbers: list[int | None], runs: list[tuple[int, int]]) -> None:
    column = pa.array(numbers, pa.int64())
    assert runs_in(column) == runs
    assert runs_in(pa.chunked_array([column[:2], column[2:]])) == runs


def test_runs_that_touch_or_overlap_are_one() -> None:
    assert joined([(5, 7), (0, 2), (2, 4), (6, 9)]) == [(0, 4), (5, 9)]


def test_some_numbers_are_left_out_of_runs() -> None:
    assert without([(0, 10), (12, 20)], [(3, 4), (8, 14), (19, 30)]) == [(0, 3), (4, 8), (14, 19)]
    assert without([(0, 2)], [(0, 2)]) == []
