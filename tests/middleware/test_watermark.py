"""The watermark: the smallest unfinished offset, otherwise the last one seen + 1; it never decreases."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.progress.watermark import Watermark


def holding(*offsets: int, position: int | None = None) -> Watermark:
    watermark = Watermark(position)
    for offset in offsets:
        watermark.track(offset)
    return watermark


@each(
    ("finished", "commit"),
    [
        pytest.param([105], 100, id="W01-a-later-one-alone-moves-nothing"),
        pytest.param([105, 100, 101, 102, 103], 104, id="W02-up-to-the-smallest-unfinished"),
        pytest.param([105, 100, 101, 102, 103, 104, 106, 107, 108, 109], 110, id="W04-past-the-last"),
        pytest.param([105, 100, 101, 102, 103, 104, 106, 107, 108, 109, 109, 100], 110, id="W05-finished-again"),
    ],
)
def test_the_commit_is_the_smallest_unfinished_offset(finished: list[int], commit: int) -> None:
    watermark = holding(*range(100, 110))
    for offset in finished:
        watermark.finish(offset)
    assert watermark.commit == commit


@each("unknown", [5, 199, 201, 10_000], ids=lambda offset: f"W06-{offset}")
def test_an_offset_that_is_not_held_finishes_nothing(unknown: int) -> None:
    watermark = holding(200)
    watermark.finish(unknown)
    assert (watermark.commit, watermark.count) == (200, 1)


@each(("offsets", "count", "span"), [pytest.param((10, 11, 12), 3, 2, id="W07")])
def test_an_offset_that_comes_twice_is_held_once(offsets: tuple[int, ...], count: int, span: int) -> None:
    watermark = holding(*offsets)
    assert not any(watermark.track(offset) for offset in offsets)
    assert (watermark.count, watermark.span) == (count, span)


@each(
    ("offsets", "commit"),
    [
        pytest.param([7], 8, id="W08-the-only-one"),
        pytest.param([100, 101, 102, 103, 104], 105, id="W14-a-control-record-at-105-is-never-fetched-and-not-passed"),
    ],
)
def test_everything_finished_commits_the_offset_after_the_last_one_fetched(offsets: list[int], commit: int) -> None:
    watermark = holding(*offsets)
    for offset in offsets:
        watermark.finish(offset)
    assert (watermark.commit, watermark.count, watermark.span) == (commit, 0, 0)


@given(
    position=st.none() | st.integers(0, 20),
    steps=st.lists(st.tuples(st.sampled_from(["hold", "finish"]), st.integers(0, 40)), max_size=200),
)
def test_it_equals_a_naive_oracle_and_never_passes_an_unfinished_offset(position: int | None, steps: list[tuple[str, int]]) -> None:
    watermark, seen, unfinished = Watermark(position), [-1], set[int]()
    before = position
    for step, offset in steps:
        if step == "hold":
            fresh = offset > seen[-1] and (position is None or offset >= position)
            assert watermark.track(offset) == fresh
            if fresh:
                seen.append(offset)
                unfinished.add(offset)
        else:
            watermark.finish(offset)
            unfinished.discard(offset)
        expected = min(unfinished) if unfinished else position if len(seen) == 1 else seen[-1] + 1
        assert watermark.commit == expected
        assert watermark.count == len(unfinished)
        assert watermark.span == (seen[-1] - min(unfinished) if unfinished else 0)
        assert before is None or (watermark.commit is not None and watermark.commit >= before)
        before = watermark.commit


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8), st.randoms(use_true_random=False)
)
def test_ranges_are_finished_in_whatever_pieces_and_order(sizes: list[int], holes: list[bool], draw: random.Random) -> None:
    watermark, offset, unfinished = Watermark(0), 0, set[int]()
    for size, has_hole in zip(sizes, holes, strict=False):
        offset += has_hole
        assert watermark.track(offset, offset + size)
        assert not watermark.track(offset, offset + size), "taken before"
        unfinished |= {*range(offset, offset + size)}
        offset += size
    while unfinished:
        first = draw.randrange(offset)
        end = first + draw.randrange(1, 9)
        watermark.finish(first, end)
        unfinished -= {*range(first, end)}
        assert watermark.commit == min(unfinished, default=offset)
        assert watermark.count == len(unfinished)


def test_a_tail_without_records_is_passed_once_what_is_before_it_is_finished() -> None:
    watermark = Watermark(5)
    watermark.skip(9)
    assert watermark.commit == 9
    watermark.track(9)
    watermark.skip(12)
    assert (watermark.commit, watermark.next, watermark.count) == (9, 12, 1)
    watermark.skip(10)
    watermark.finish(9)
    assert watermark.commit == 12
