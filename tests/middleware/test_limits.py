"""Rates and thresholds. Time is passed in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.limits import Bucket, Limiter, RateLimit, share_of
from ackwise.middleware.message.message import Delivery, Origin, TopicPartition
from ackwise.middleware.runs.run import Run, Stage, apart, count, pick

ORDERS = TopicPartition("orders", 0)


def fetched(first: int, number: int) -> Run:
    records = [Delivery("orders", 0, offset, 0, None, b"", (), Origin("orders", 0, offset, 0)) for offset in range(first, first + number)]
    run = Run(ORDERS, records)
    run.values, run.prepared = [record.offset for record in records], True
    return run


def admitted(runs: list[Run]) -> list[int]:
    return sorted(offset for run in runs if run.stage is Stage.FETCHED for offset in run.offsets)


def come_up(runs: list[Run], now: float) -> None:
    for run in runs:
        if run.stage is Stage.WITHHELD and run.not_before <= now:
            run.stage = Stage.FETCHED


def start(limiter: Limiter, runs: list[Run], now: float) -> list[int]:
    """Start what is admitted of `runs` as far as its rate lets it, one by one; returns the offsets."""
    for run in [run for run in runs if run.stage is Stage.FETCHED]:
        apart(runs, run)
    started = []
    for run in sorted((run for run in runs if run.stage is Stage.FETCHED), key=lambda run: run.first):
        if limiter.wait([run], now) <= 0:
            limiter.start([run], now)
            run.stage = Stage.SETTLED
            started.append(run.first)
    return started


def test_a_bucket_begins_full_and_fills_at_its_rate() -> None:
    bucket = Bucket(10.0, 5, 0.0)
    assert (bucket.available(0.0), bucket.available(0.0, 2.0), bucket.wait(5, 0.0)) == (5, 25, 0.0)
    bucket.spend(5, 0.0)
    assert bucket.available(0.0) == 0
    assert bucket.wait(1, 0.0) == pytest.approx(0.1)
    assert (bucket.available(0.1), Bucket(10.0, 5, 0.0).available(100.0)) == (1, 5)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(10.0, 5, 10.0)
    bucket.spend(5, 10.0)
    assert bucket.available(0.0) == 0


def test_what_was_not_spent_is_kept_for_who_waits_and_for_nobody_else() -> None:
    for waits, kept in ((True, 50), (False, 1)):
        bucket = Bucket(100.0, 1, 0.0)
        bucket.spend(1, 0.0)
        if waits:
            bucket.wait(1, 0.0)
        assert bucket.available(0.5) == kept


def test_who_waited_and_went_leaves_no_tokens_for_the_next_one() -> None:
    bucket = Bucket(100.0, 1, 0.0)
    bucket.spend(1, 0.0)
    bucket.wait(1, 0.0)
    assert bucket.available(3.0) == 1


def test_more_than_a_bucket_holds_may_be_spent_once_it_is_full() -> None:
    bucket = Bucket(0.5, 1, 0.0)
    assert bucket.wait(7, 0.0) == 0.0


def test_what_the_rate_lets_begin_is_admitted_in_order_and_the_rest_waits() -> None:
    runs = [fetched(0, 7), fetched(7, 3)]
    Limiter(RateLimit("10/s", burst=4), "bill").admit(runs, 0.0)
    assert admitted(runs) == [0, 1, 2, 3]
    waiting = [run for run in runs if run.stage is Stage.WITHHELD]
    assert count(waiting) == 6
    assert sorted(run.not_before for run in waiting) == pytest.approx([0.1, 0.2])


def test_admission_takes_no_more_than_may_begin_within_its_time_whoever_asks() -> None:
    limiter = Limiter(RateLimit("10/s", burst=4), "bill")
    here, there = [fetched(0, 20)], [fetched(100, 20)]
    limiter.admit(here, 0.0, ahead=2.0)
    limiter.admit(there, 0.0, ahead=2.0)
    assert (len(admitted(here)), len(admitted(there))) == (20, 4)


def test_what_is_admitted_and_does_not_begin_takes_nothing_from_others() -> None:
    limiter = Limiter(RateLimit("10/s", burst=4), "bill")
    for _ in range(5):
        runs = [fetched(0, 4)]
        limiter.admit(runs, 0.0)
        assert admitted(runs) == [0, 1, 2, 3]
        limiter.forget(runs)
        limiter.forget(runs)


def test_what_falls_out_of_a_run_is_counted_once() -> None:
    limiter, runs = Limiter(RateLimit("10/s", burst=4), "bill"), [fetched(0, 4)]
    limiter.admit(runs, 0.0)
    (single,) = pick(runs, runs[0], [1])
    limiter.start([single], 0.0)
    limiter.forget(runs)
    others = [fetched(10, 4)]
    limiter.admit(others, 0.0)
    assert admitted(others) == [10, 11, 12]


@each(("burst", "every"), [(1, 0.03), (1, 0.25), (3, 0.1), (5, 0.1), (None, 0.1), (200, 0.1)])
@pytest.mark.slow  # starts hundreds of messages, a step at a time
def test_over_a_minute_no_more_begin_than_the_rate_and_one_burst_and_none_is_forgotten(burst: int | None, every: float) -> None:
    policy = RateLimit("5/s", burst=burst)
    limiter, runs, started, now = Limiter(policy, "bill"), [fetched(0, 600)], list[int](), 0.0
    while now < 60.0:
        come_up(runs, now)
        limiter.admit(runs, now, ahead=2.0)
        started += start(limiter, runs, now)
        now += every
    assert started == [*range(len(started))]
    assert 290 + policy.most <= len(started) <= 300 + policy.most
    assert count(runs) == 600


@settings(max_examples=30)
@given(
    burst=st.integers(1, 150) | st.none(),
    pauses=st.lists(st.floats(0.0, 0.7) | st.floats(0.0, 0.02), min_size=10, max_size=60),
    halts=st.sets(st.integers(0, 59), max_size=20),
)
def test_in_no_second_more_begin_than_the_rate_and_the_burst_however_late_they_look(
    burst: int | None, pauses: list[float], halts: set[int]
) -> None:
    policy = RateLimit("100/s", burst=burst)
    limiter, runs, now, starts = Limiter(policy, "bill"), [fetched(0, 300), fetched(300, 900)], 0.0, list[float]()
    for number, pause in enumerate(pauses):
        come_up(runs, now)
        limiter.admit(runs, now, ahead=2.0)
        starts += [] if number in halts else [now] * len(start(limiter, runs, now))  # those halted wait for a slot
        now += pause
    for begin in {*starts}:
        assert sum(begin <= at < begin + 1.0 - 1e-6 for at in starts) <= 100 + policy.most


def test_what_is_admitted_already_is_not_counted_twice() -> None:
    runs = [fetched(0, 2)]
    limiter = Limiter(RateLimit("1/s", burst=2), "bill")
    limiter.admit(runs, 0.0)
    limiter.admit(runs, 0.0)
    assert admitted(runs) == [0, 1]


def test_what_is_not_decoded_or_decided_or_never_begins_is_not_counted() -> None:
    undecoded, decided, buried, last = fetched(0, 1), fetched(1, 1), fetched(2, 1), fetched(3, 1)
    undecoded.prepared, decided.stage = False, Stage.RULED
    runs = [undecoded, decided, buried, last]
    Limiter(RateLimit("1/s"), "bill").admit(runs, 0.0, but={buried})
    assert [run.is_expected for run in runs] == [False, False, False, True]
    assert (buried.stage, last.stage) == (Stage.FETCHED, Stage.FETCHED)


def test_each_key_has_a_rate_of_its_own() -> None:
    runs = [fetched(0, 6)]
    limiter = Limiter(RateLimit("1/s", key=lambda message: message.value % 2), "bill")
    limiter.admit(runs, 0.0)
    assert admitted(runs) == [0, 1]
    assert start(limiter, runs, 0.0) == [0, 1]
    come_up(runs, 2.0)
    limiter.admit(runs, 2.0)
    assert start(limiter, runs, 2.0) == [2, 3]


@each("key", [lambda message: 1 / 0, lambda message: []])
def test_a_key_function_that_fails_costs_no_attempt_and_its_messages_share_one_rate(key: Callable[[Any], Any]) -> None:
    runs = [fetched(0, 3)]
    Limiter(RateLimit("1/s", key=key), "bill").admit(runs, 0.0)
    assert admitted(runs) == [0]
    assert count(runs) == 3


def test_buckets_of_keys_that_rest_are_forgotten_and_that_of_a_busy_key_is_not() -> None:
    limiter = Limiter(RateLimit("1/s", key=lambda message: message.value), "bill")
    limiter.admit([fetched(0, 10_000)], 0.0)
    again = [fetched(7, 1)]
    limiter.admit(again, 0.5)
    assert admitted(again) == []
    for second in range(10, 20):
        limiter.admit([fetched(20_000, 1000)], float(second))
    assert len(limiter._buckets) <= 1001


def test_a_batch_looks_at_its_own_keys_and_few_others_however_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(RateLimit("1/h", key=lambda message: message.value), "bill")
    limiter.admit([fetched(0, 50_000)], 0.0)
    looks: list[float] = []
    is_full = Bucket.is_full

    def counted(bucket: Bucket, now: float) -> bool:
        looks.append(now)
        return is_full(bucket, now)

    monkeypatch.setattr(Bucket, "is_full", counted)
    for now in (1.0, 60.0, 3599.0, 3700.0, 7300.0):
        looks.clear()
        limiter.admit([fetched(100_000 + int(now), 10)], now)
        assert len(looks) <= 20, now


def test_what_is_forgotten_of_keys_changes_nothing_about_what_begins() -> None:
    chance = random.Random(4)
    for rate, burst in (("1/s", 1), ("3/s", 5), ("30/m", 4), ("2/h", 2)):
        policy, now = RateLimit(rate, burst=burst, key=lambda message: message.value % 5), 0.0
        limiter, model = Limiter(policy, "bill"), {key: Bucket(policy.per_second, policy.most, 0.0) for key in range(5)}
        for offset in range(500):
            now += chance.choice([0.0, 0.1, 0.5, 1.0, 3.0]) / policy.per_second
            runs = [fetched(offset * chance.choice([1, 5]), 1)]
            bucket = model[runs[0].first % 5]
            if expected := bucket.wait(1, now) <= 0:
                bucket.spend(1, now)
            limiter.admit(runs, now)
            assert len(start(limiter, runs, now)) == expected, (rate, offset)


@each(("rate", "per_second", "most"), [("500/s", 500.0, 500), ("30/m", 0.5, 1), ("1000 / h", 1000 / 3600, 1), ("2.5/s", 2.5, 3)])
def test_a_rate_is_a_number_and_its_time(rate: str, per_second: float, most: int) -> None:
    policy = RateLimit(rate)
    assert policy.per_second == pytest.approx(per_second)
    assert policy.most == most


@each(
    ("options", "sentence"),
    [
        ({"rate": "fast"}, "rate of RateLimit is 'fast'; write a number above 0 and its time"),
        ({"rate": "0/s"}, "write a number above 0"),
        ({"rate": "5/d"}, "write a number above 0 and its time"),
        ({"rate": 500}, "rate of RateLimit is 500"),
        ({"rate": "5/s", "burst": 0}, "burst of RateLimit is 0"),
        ({"rate": "5/s", "burst": True}, "burst of RateLimit is True"),
        ({"rate": "5/s", "key": "id"}, "key of RateLimit is 'id'"),
    ],
)
def test_a_rate_that_could_not_work_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        RateLimit(**options)


@each(("limit", "partitions", "share"), [(None, 4, None), (1000, 4, 250), (1, 10, 1), (10, 3, 3), (5, 0, 5)])
def test_f06_partitions_share_what_an_agent_may_have_and_each_has_one(limit: int | None, partitions: int, share: int | None) -> None:
    assert share_of(limit, partitions) == share
