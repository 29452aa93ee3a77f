"""When a message comes back: RocketMQ's levels, the policies beside them, and what beats what."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import raising
from ackwise.middleware.message.disposition import Dead, Delayed, Failure, Reason
from ackwise.middleware.policies.retry import (
    DEFAULT_LEVELS,
    ConsumeLater,
    DelayLevels,
    DelayRefused,
    Exponential,
    Fixed,
    RetryPolicy,
    Schedule,
    SendBack,
)


class BadInput(ValueError):
    pass


class Answers:
    """A policy of a user's that answers whatever it was given."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def delay(self, attempt: int) -> float:
        return self.answer  # type: ignore[return-value]  # what a policy may answer all the same


# The levels


def test_the_default_table_is_rocketmqs() -> None:
    assert str(DelayLevels()) == DEFAULT_LEVELS == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@each(
    ("level", "seconds"),
    [
        pytest.param(1, 1.0, id="D01-1"),
        pytest.param(3, 10.0, id="D01-3"),
        pytest.param(18, 7200.0, id="D01-18"),
        pytest.param(999, 7200.0, id="D03"),
    ],
)
def test_a_level_is_a_delay_and_one_above_the_table_is_the_last(level: int, seconds: float) -> None:
    assert DelayLevels().delay(level) == seconds


@each(
    ("table", "delays"),
    [
        ("1s 10s 1m", [1, 10, 60, 60]),
        (["500ms"], [0.5, 0.5]),
        ("1s 5s 10s", [1, 5, 10, 10]),
        (DEFAULT_LEVELS, [10, 30, 60, 120]),
        (None, [10, 30, 60, 120]),
    ],
)
def test_the_retries_start_at_the_first_level_of_ones_own_table_and_at_the_third_of_the_default_one(
    table: Any, delays: list[float]
) -> None:
    later = ConsumeLater(levels=table)
    assert [later.by_level(times).delay for times in range(len(delays))] == delays


@each("levels", [None, "1s 5s 10s 30s"])
def test_a_level_that_is_asked_for_is_that_entry_of_any_table(levels: str | None) -> None:
    assert ConsumeLater(levels=levels).decide(Delayed(3), 0) == SendBack(10.0, 3)


@each("level", [0, -1])
def test_a_level_is_at_least_the_first(level: int) -> None:
    assert DelayLevels().clamp(level) == 1


@each(
    "later", [pytest.param(Delayed(delay=0.0), id="D02-no-delay"), pytest.param(Delayed(delay=0.999), id="D02-less-than-the-first-level")]
)
def test_a_delay_below_the_first_level_has_no_level(later: Delayed) -> None:
    assert ConsumeLater().decide(later, 0) == SendBack(later.delay or 0.0, 0)


@given(st.floats(0, 1e6))
def test_the_fitting_level_is_the_largest_that_is_not_longer(seconds: float) -> None:
    levels = DelayLevels()
    level = levels.fitting(seconds)
    if level is None:
        assert seconds < levels.delay(1)
    else:
        assert levels.delay(level) <= seconds
        assert level == len(levels) or levels.delay(level + 1) > seconds


@given(st.lists(st.floats(0.0001, 1e6), min_size=1, max_size=30, unique=True))
def test_every_level_has_a_name_of_its_own_that_is_read_back(delays: list[float]) -> None:
    levels = DelayLevels(sorted(delays))
    assert DelayLevels(str(levels)) == levels
    assert len(set(levels.names())) == len(levels)


@each("table", ["", "0s 1s", "1s 1s", "5s 1s", "1s nan", "1s,5s", [], [1, 60, "1m"], [-1]])
def test_a_table_that_does_not_rise_is_refused(table: str | list[float | str]) -> None:
    with pytest.raises(ConfigurationError, match="delay level"):
        DelayLevels(table)


# What becomes of a message


@each(
    ("reconsume_times", "level", "limit", "decision"),
    [
        pytest.param(0, 0, 16, SendBack(10.0, 3), id="S01"),
        pytest.param(1, 0, 16, SendBack(30.0, 4), id="S02"),
        pytest.param(15, 0, 16, SendBack(7200.0, 18), id="S04"),
        pytest.param(16, 0, 16, Dead(Reason.MAX_RECONSUME_TIMES), id="S05"),
        pytest.param(0, -1, 16, Dead(Reason.NEGATIVE_DELAY_LEVEL), id="S06"),
        pytest.param(3, 2, 16, SendBack(5.0, 2), id="S07"),
        pytest.param(0, 99, 16, SendBack(7200.0, 18), id="S09"),
        pytest.param(0, 0, 0, Dead(Reason.MAX_RECONSUME_TIMES), id="S11"),
        pytest.param(16, 5, 16, Dead(Reason.MAX_RECONSUME_TIMES), id="S15-the-limit-beats-the-level"),
        pytest.param(17, 0, 16, Dead(Reason.MAX_RECONSUME_TIMES), id="S15-above-the-limit"),
    ],
)
def test_the_level_the_limit_and_the_count_decide(reconsume_times: int, level: int, limit: int, decision: SendBack | Dead) -> None:
    assert ConsumeLater(limit).decide(Delayed(level), reconsume_times) == decision


@each(("limit", "deliveries", "waits"), [pytest.param(16, 17, 17140.0, id="S17")])
def test_a_message_that_always_fails_is_delivered_once_more_than_the_limit(limit: int, deliveries: int, waits: float) -> None:
    later, delivered, waited = ConsumeLater(limit), 1, 0.0
    while isinstance(decision := later.decide(Delayed(), delivered - 1), SendBack):
        delivered, waited = delivered + 1, waited + decision.delay
    assert decision == Dead(Reason.MAX_RECONSUME_TIMES)
    assert (delivered, waited) == (deliveries, waits)


def test_a_delay_of_its_own_is_kept_to_the_second_and_knows_its_level() -> None:
    assert ConsumeLater().decide(Delayed(delay=45.0), 0) == SendBack(45.0, 4)


def test_the_limit_beats_a_delay_too() -> None:
    assert ConsumeLater(0).decide(Delayed(delay=45.0), 0) == Dead(Reason.MAX_RECONSUME_TIMES)


def test_an_exception_in_unless_is_a_dead_letter_at_once_and_keeps_its_failure() -> None:
    failure = Failure("BadInput", "no amount")
    decision = ConsumeLater(no_retry=ValueError).decide(Delayed(failure=failure), 0, BadInput())
    assert decision == Dead(Reason.NOT_RETRIED, failure)


def test_the_nearest_class_in_on_picks_the_policy() -> None:
    later = ConsumeLater(retry=Fixed(1), retry_by_error={Exception: Fixed(5), ValueError: Fixed(10)})
    assert [
        decided.delay for error in (BadInput(), KeyError(), None) if isinstance(decided := later.decide(Delayed(), 0, error), SendBack)
    ] == [10, 5, 1]


def test_a_policy_is_asked_for_the_attempt_that_failed() -> None:
    later = ConsumeLater(retry=Schedule(1, 2, 3))
    assert [later.decide(Delayed(), reconsume_times) for reconsume_times in (0, 1, 5)] == [SendBack(1, 1), SendBack(2, 1), SendBack(3, 1)]


def test_a_level_that_was_asked_for_beats_the_policy() -> None:
    assert ConsumeLater(retry=Fixed(1)).decide(Delayed(delay_level=4), 0) == SendBack(30.0, 4)


@each("answer", [math.nan, math.inf, -1, None, 1e300, "soon"])
def test_what_a_policy_answers_must_be_a_duration(answer: object) -> None:
    with pytest.raises(ConfigurationError, match="the delay of"):
        ConsumeLater(retry=Answers(answer)).decide(Delayed(), 0)


# The policies


@each(
    ("reconsume_times", "seconds"),
    [(-1, 10), (0, 10), (1, 30), (10, 540), (14, 3600), (15, 7200), (16, 7200), (100, 7200)],
    ids=lambda value: f"P01-{value}",
)
def test_without_a_policy_the_level_rises_with_each_retry(reconsume_times: int, seconds: float) -> None:
    assert DelayLevels().delay(DelayLevels().after(reconsume_times)) == seconds


@each(
    ("policy", "attempts", "seconds"),
    [
        pytest.param(Exponential(), [1, 2, 11, 12, 101], [5, 10, 5120, 7200, 7200], id="P02"),
        pytest.param(Exponential(multiplier=3), [33, 1000, 10**9], [7200, 7200, 7200], id="P03-saturates"),
        pytest.param(Schedule("1s", "2s"), [1, 2, 3, 4], [1, 2, 2, 2], id="P06"),
        pytest.param(Exponential(0.005, 5, 1), [1, 2, 3, 4, 5], [0.005, 0.025, 0.125, 0.625, 1], id="P08"),
        pytest.param(Fixed("30s"), [1, 2, 100], [30, 30, 30], id="fixed"),
    ],
)
def test_a_policy_gives_the_delay_after_each_attempt(policy: RetryPolicy, attempts: list[int], seconds: list[float]) -> None:
    assert [policy.delay(attempt) for attempt in attempts] == pytest.approx(seconds)


@each(("later", "delay"), [pytest.param(ConsumeLater(retry=None), 10.0, id="P05"), pytest.param(ConsumeLater(), 10.0, id="P09")])
def test_no_policy_means_the_one_level_table(later: ConsumeLater, delay: float) -> None:
    assert later.decide(Delayed(), 0) == SendBack(delay, 3)


@each("policy", [Exponential(), Schedule(1, 2), Fixed(1)], ids=["P07-exponential", "P07-schedule", "P07-fixed"])
@each("attempt", [0, -1])
def test_an_attempt_below_the_first_is_an_error(policy: RetryPolicy, attempt: int) -> None:
    with pytest.raises(ValueError, match="the first one is 1"):
        policy.delay(attempt)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 0.99), st.floats(1, 1e9), st.floats(0.001, 10))
def test_jitter_stays_within_its_share_and_below_the_maximum(
    attempt: int, drawn: float, jitter: float, multiplier: float, initial: float
) -> None:
    plain = Exponential(initial, multiplier, 100.0).delay(attempt)
    spread = Exponential(initial, multiplier, 100.0, jitter, draw=lambda: drawn).delay(attempt)
    assert 0 < plain * (1 - jitter) * 0.999 <= spread <= min(100.0, plain * (1 + jitter) * 1.001)


@each(
    "settings",
    [
        {"initial": 0},
        {"initial": math.nan},
        {"maximum": 1},
        {"maximum": math.inf},
        {"maximum": math.nan},
        {"multiplier": 0.5},
        {"jitter": 1},
        {"jitter": -0.1},
    ],
    ids=str,
)
def test_an_exponential_that_cannot_work_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"of Exponential|needs initial"):
        Exponential(**settings)  # type: ignore[arg-type]  # the mapping holds numbers only


def test_the_delays_of_an_exponential_are_seconds_or_texts() -> None:
    assert Exponential("500ms", maximum="10m") == Exponential(0.5, maximum=600)


def test_a_schedule_needs_a_delay() -> None:
    with pytest.raises(ConfigurationError, match="at least one delay"):
        Schedule()


# The settings


@each("limit", [-1, 1.5, True, "16"])
def test_a_limit_that_is_no_count_is_refused(limit: object) -> None:
    with pytest.raises(ConfigurationError, match="max_reconsume_times is"):
        ConsumeLater(limit)  # type: ignore[arg-type]  # what a user may give all the same


@each(
    "settings",
    [{"no_retry": ("BadInput",)}, {"no_retry": (BadInput(),)}, {"no_retry": int}, {"retry_by_error": {"BadInput": Fixed(1)}}],
    ids=str,
)
def test_what_is_no_exception_class_is_refused_at_start(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="is not an exception class"):
        ConsumeLater(**settings)  # type: ignore[arg-type]  # what a user may give all the same


def test_what_has_no_delay_method_is_not_a_policy() -> None:
    with pytest.raises(ConfigurationError, match="is not a retry policy"):
        ConsumeLater(retry=30)  # type: ignore[arg-type]  # what a user may give all the same


@each(
    ("settings", "sentence"),
    [
        ({"levels": "1s 4d"}, "the longest delay level is 96h, and max_delay of ConsumeLater is 72h; ask for less, or raise max_delay"),
        ({"retry": Schedule(1, "4d")}, "the longest delay of Schedule"),
        ({"retry_by_error": {KeyError: Exponential(maximum=10**6)}}, "maximum of Exponential"),
        ({"max_delay": "1h"}, "the longest delay level is 2h, and max_delay of ConsumeLater is 1h"),
        ({"max_delay": "soon"}, "max_delay of ConsumeLater is 'soon'"),
    ],
)
def test_a_policy_with_a_longer_delay_than_max_delay_is_refused_at_start(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ConsumeLater(**settings)


@each("seconds", [pytest.param(3 * 86400 + 20, id="D10"), pytest.param(10**9, id="a-millennium")])
def test_a_longer_delay_than_max_delay_is_refused_when_it_is_asked_for(seconds: float) -> None:
    asking = [(ConsumeLater(), Delayed(delay=seconds)), (ConsumeLater(retry=Answers(seconds)), Delayed())]
    for policy, later in asking:
        with pytest.raises(DelayRefused, match="and max_delay of ConsumeLater is 72h; ask for less, or raise max_delay in all workers"):
            policy.decide(later, 0)
    assert ConsumeLater(max_delay=10**9).decide(Delayed(delay=seconds), 0) == SendBack(seconds, 18)
    assert ConsumeLater().decide(Delayed(delay=3 * 86400), 0) == SendBack(3 * 86400, 18)


@each(
    ("arguments", "sentence"),
    [
        ({"delay": 1, "level": 1}, "was given a delay and a level"),
        ({"delay": "soon"}, "delay of Later is 'soon'"),
        ({"level": "3"}, "level of Later is '3'; it must be a whole number"),
        ({"level": True}, "level of Later is True"),
    ],
    ids=str,
)
def test_what_no_later_can_mean_is_refused_where_it_is_made(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        raising.Later(**arguments)


def test_a_delay_given_to_the_policy_is_refused_with_what_a_handler_raises() -> None:
    with pytest.raises(ConfigurationError, match=r"To ask for a delay, a handler raises Later\('30s'\)"):
        ConsumeLater("30s")  # type: ignore[arg-type]  # what a user may give all the same


def test_a_later_that_a_handler_raises_comes_back_even_if_no_exception_is_retried() -> None:
    policy = ConsumeLater(16, no_retry=Exception)
    assert policy.decide(Delayed(), 0, raising.Later()) == SendBack(10.0, 3)
    assert policy.decide(Delayed(), 0, ValueError()) == Dead(Reason.NOT_RETRIED)


def test_a_group_is_what_all_in_it_are_for_unless_and_on() -> None:
    policy = ConsumeLater(16, no_retry=KeyError, retry_by_error={TimeoutError: Fixed("5m")}, retry=Fixed("1m"))

    def decided(*errors: Exception) -> SendBack | Dead:
        return policy.decide(Delayed(), 0, ExceptionGroup("several", [*errors]))

    assert decided(KeyError(), KeyError()) == Dead(Reason.NOT_RETRIED)
    assert decided(KeyError(), ValueError()) == SendBack(60.0, 5)
    assert decided(TimeoutError(), ConnectionError()) == SendBack(60.0, 5)
    assert decided(TimeoutError(), TimeoutError()) == SendBack(300.0, 9)


def test_a_group_that_does_not_agree_has_the_policy_of_its_own_class() -> None:
    policy = ConsumeLater(16, retry_by_error={Exception: Fixed("1m"), TimeoutError: Fixed("5m")})
    assert policy.decide(Delayed(), 0, ExceptionGroup("several", [KeyError(), TimeoutError()])) == SendBack(60.0, 5)


def test_a_class_of_groups_that_is_named_itself_comes_first() -> None:
    group = ExceptionGroup("several", [KeyError(), TimeoutError()])
    assert ConsumeLater(16, no_retry=ExceptionGroup).decide(Delayed(), 0, group) == Dead(Reason.NOT_RETRIED)
    assert ConsumeLater(16, retry_by_error={ExceptionGroup: Fixed("5m"), KeyError: Fixed("1m")}).decide(Delayed(), 0, group) == SendBack(
        300.0, 9
    )
