"""Buckets of time that a person can count in. Needs no Spark."""

from __future__ import annotations

import pytest

from ackwise.spark.report.delays import Delays
from ackwise.spark.report.timeline import Buckets, buckets, timeline
from ackwise.spark.vocabulary import Verdict

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND


@pytest.mark.parametrize(
    ("seconds", "width"),
    [
        (0, 0.1),
        (5, 0.1),
        (6, 0.2),
        (59, 1),
        (60, 2),
        (3599, 60),
        (86_400, 1800),
        (29 * 86_400, 43_200),
        (30 * 86_400, 86_400),
        (3 * 365 * 86_400, 3 * 604_800),
    ],
)
def test_the_width_is_the_smallest_round_one_that_is_wide_enough(seconds: float, width: float) -> None:
    found = buckets(NOON, NOON + round(seconds * SECOND), 60)
    assert found.width == width * SECOND
    assert found.number <= 60


@pytest.mark.parametrize("most", [1, 2, 12, 60])
@pytest.mark.parametrize("span", [0, 1, 999_999, 86_400 * SECOND - 1, 400 * 86_400 * SECOND, 40 * 365 * 86_400 * SECOND])
def test_there_are_never_more_than_asked_for_and_all_moments_lie_within(span: int, most: int) -> None:
    first, last = NOON + 123_456, NOON + 123_456 + span
    found = buckets(first, last, most)
    # A border may lie between two moments, however near they are.
    assert found.number <= max(most, 2)
    assert found.begin <= first
    assert last < found.begin + found.number * found.width


def test_buckets_begin_at_a_multiple_of_their_width() -> None:
    assert buckets(NOON + 7 * SECOND, NOON + 600 * SECOND, 60) == Buckets(NOON, 15 * SECOND, 41)


def test_buckets_are_no_narrower_than_asked_for() -> None:
    assert buckets(NOON, NOON + 600 * SECOND, 60, narrowest=3600) == Buckets(NOON, 3600 * SECOND, 1)
    assert buckets(NOON, NOON + 86_400 * SECOND, 60, narrowest=3600) == Buckets(NOON, 3600 * SECOND, 25)


def test_messages_of_one_verdict_and_bucket_add_up_and_the_worst_verdict_comes_first() -> None:
    found = timeline(Buckets(NOON, SECOND, 3), [(Verdict.EXACTLY_ONCE, 2, 5), (Verdict.LOST, 0, 1), (Verdict.EXACTLY_ONCE, 2, 1)])
    assert list(found.counts.items()) == [(Verdict.LOST, [1, 0, 0]), (Verdict.EXACTLY_ONCE, [0, 0, 6])]


def test_a_percentile_is_the_lateness_that_so_many_did_not_exceed() -> None:
    delays = Delays("g", "bill", {-40: 1, 500: 8, 9000: 1})
    assert [delays.percentile(share) for share in (0.0, 0.1, 0.5, 0.9, 0.91, 1.0)] == [-40, -40, 500, 500, 9000, 9000]
    assert (delays.messages, delays.early) == (10, 1)
