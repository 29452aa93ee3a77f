"""Buckets of time that a person can count in. Needs no Spark."""

from __future__ import annotations

import itertools

from ackwise.spark.report.delays import Delays
from ackwise.spark.report.timeline import Buckets, buckets, timeline
from ackwise.spark.vocabulary import Verdict

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND


def test_buckets_are_round_never_more_than_asked_for_and_all_moments_lie_within() -> None:
    day, first = 86_400 * SECOND, NOON + 123_456
    widths = {0: 0.1, 5: 0.1, 6: 0.2, 59: 1, 60: 2, 3599: 60, 86_400: 1800, 29 * 86_400: 43_200, 3 * 365 * 86_400: 3 * 604_800}
    for seconds, width in widths.items():
        assert buckets(NOON, NOON + seconds * SECOND, 60).width == width * SECOND, seconds
    for span, most in itertools.product((0, 1, 999_999, day - 1, 400 * day, 40 * 365 * day), (1, 2, 12, 60)):
        found = buckets(first, first + span, most)
        assert found.number <= max(most, 2), "a border may lie between two moments, however near they are"
        assert found.begin <= first <= first + span < found.begin + found.number * found.width, (span, most)
    assert buckets(NOON + 7 * SECOND, NOON + 600 * SECOND, 60) == Buckets(NOON, 15 * SECOND, 41)
    assert buckets(NOON, NOON + 600 * SECOND, 60, narrowest=3600) == Buckets(NOON, 3600 * SECOND, 1)


def test_messages_of_one_verdict_and_bucket_add_up_and_the_worst_verdict_comes_first() -> None:
    found = timeline(Buckets(NOON, SECOND, 3), [(Verdict.EXACTLY_ONCE, 2, 5), (Verdict.LOST, 0, 1), (Verdict.EXACTLY_ONCE, 2, 1)])
    assert list(found.counts.items()) == [(Verdict.LOST, [1, 0, 0]), (Verdict.EXACTLY_ONCE, [0, 0, 6])]


def test_a_percentile_is_the_lateness_that_so_many_did_not_exceed() -> None:
    delays = Delays("g", "bill", {-40: 1, 500: 8, 9000: 1})
    assert [delays.percentile(share) for share in (0.0, 0.1, 0.5, 0.9, 0.91, 1.0)] == [-40, -40, 500, 500, 9000, 9000]
    assert (delays.messages, delays.early) == (10, 1)
