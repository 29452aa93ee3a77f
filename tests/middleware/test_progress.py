"""Progress above the watermark: what is told of several lanes, and when the next owner believes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, decode
from ackwise.middleware.progress.watermark import MAP_SPAN, Finished, Watermark, agents_hash, holds, is_of, measure


def watermark(seen: int, *finished: int, start: int = 100) -> Watermark:
    """`seen` offsets from `start` on, of which these are finished."""
    made = Watermark(start)
    made.track(start, start + seen)
    for offset in finished:
        made.finish(offset)
    return made


def record(offset: int, timestamp: int) -> Any:
    return SimpleNamespace(offset=offset, timestamp=timestamp)


def found(*finished: int, base: int = 100, base_ts: int = 7, last_ts: int = 9) -> FinishedMap:
    return FinishedMap(base, base_ts, last_ts, "agents", sum(1 << offset - base for offset in finished))


def test_what_is_finished_above_the_base_is_told_up_to_the_last_one_whose_time_is_known() -> None:
    told = measure([watermark(6, 102, 103, 105)], 100, 7, {102: 20, 103: 21})
    assert told == Finished(7, 21, 0b1100)


def test_an_offset_that_one_of_two_lanes_has_not_finished_is_not_told() -> None:
    lanes = [watermark(4, 101, 102), watermark(4, 102, 103)]
    assert measure(lanes, 100, 7, {101: 1, 102: 2, 103: 3}) == Finished(7, 2, 0b100)


def test_what_one_of_two_lanes_has_not_seen_is_not_told() -> None:
    assert measure([watermark(4, 101, 103), watermark(2, 101)], 100, 7, {101: 1, 103: 3}) == Finished(7, 1, 0b10)


def test_offsets_that_the_log_does_not_have_count_as_finished() -> None:
    made = Watermark(100)
    made.track(100)
    made.track(104)
    made.finish(104)
    assert measure([made], 100, 7, {104: 4}) == Finished(7, 4, 0b11110)


def test_nothing_finished_is_an_empty_map() -> None:
    assert measure([watermark(3)], 100, 7, {}) == Finished(7, 7, 0)


def test_a_map_ends_where_metadata_has_no_more_room_and_is_the_largest_that_fits() -> None:
    every_second = range(101, 100 + 2 * MAP_SPAN, 2)
    told = measure([watermark(2 * MAP_SPAN, *every_second)], 100, 7, {offset: offset for offset in every_second})
    assert (told.bits.bit_length(), told.last_ts) == (MAP_SPAN, 100 + MAP_SPAN - 1)
    metadata = CommitMetadata(2**64 - 1, 2**63, FinishedMap(2**62, 2**42, 2**42, agents_hash(["bill"]), told.bits))
    assert decode(metadata.encode()) == metadata


@given(st.lists(st.sets(st.integers(101, 160)), min_size=1, max_size=3), st.sets(st.integers(101, 160)))
def test_a_map_never_holds_what_a_lane_has_not_finished(lanes: list[set[int]], timed: set[int]) -> None:
    told = measure([watermark(60, *sorted(done)) for done in lanes], 100, 7, dict.fromkeys(timed, 1))
    finished = {offset for offset in range(100, 170) if told.bits >> offset - 100 & 1}
    assert finished <= set.intersection(*lanes)


@each(
    ("records", "is_hole_proved", "believed"),
    [
        ([record(100, 7)], False, True),
        ([record(100, 8), record(103, 9)], True, False),
        ([record(101, 7), record(103, 9)], True, True),
        ([record(101, 7), record(103, 9)], False, False),
        ([record(101, 7), record(103, 8)], True, False),
        ([record(101, 7), record(102, 9)], True, False),
    ],
    ids=["the base", "another base", "a hole", "a hole without proof", "a hole, another last one", "a hole, the last one is gone"],
)
def test_a_map_is_believed_where_the_log_is_the_same(records: list[Any], is_hole_proved: bool, believed: bool) -> None:
    assert is_of(found(101, 103), records, is_hole_proved=is_hole_proved) is believed


def test_a_map_holds_what_was_told() -> None:
    assert [offset for offset in range(90, 120) if holds(found(101, 103), offset)] == [101, 103]


def test_the_hash_of_agents_knows_their_names_in_any_order() -> None:
    assert agents_hash(["a", "b"]) == agents_hash(["b", "a"])
    assert len({agents_hash(names) for names in ([], ["a"], ["b"], ["a", "b"], ["a,b"], ["a", "a"])}) == 6
