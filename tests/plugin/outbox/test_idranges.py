"""Ids kept as ranges are those that were added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackwise.plugin.outbox.idranges import IdRanges


@given(st.lists(st.integers(1, 60), max_size=80))
def test_what_was_added_is_there_and_nothing_else_in_as_few_ranges_as_there_are(ids: list[int]) -> None:
    ranges, known = IdRanges(), set(ids)
    for id in ids:
        ranges.add(id)
    assert [id for id in range(62) if id in ranges] == sorted(known)
    assert len(ranges) == sum(id - 1 not in known for id in known)


def test_a_million_ids_in_a_row_are_one_range_and_what_is_no_id_is_not_there() -> None:
    ranges = IdRanges()
    for id in range(1_000_000):
        ranges.add(id)
    assert len(ranges) == 1
    assert None not in ranges


def test_the_lowest_range_goes_first() -> None:
    ranges = IdRanges(2)
    for id in (1, 3, 5):
        ranges.add(id)
    assert [id in ranges for id in (1, 3, 5)] == [False, True, True]
