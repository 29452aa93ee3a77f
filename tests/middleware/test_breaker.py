"""The breaker: its first sample, its window, its rest and its one batch. Time is passed in."""

from __future__ import annotations

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.breaker import FIRST, GRACE, TRIAL, WINDOW, Breaker, Circuit, Position
from ackwise.middleware.message.raising import Later, Reject

BAD, GOOD = True, False


def circuit(*, withholds: bool = True) -> Circuit:
    return Circuit(Breaker(), withholds=withholds)


def closed() -> Circuit:
    made = circuit()
    made.count_good(1, 0.0)
    return made


def tripped() -> Circuit:
    made = circuit()
    assert made.count([(BAD, FIRST)], 0.0)
    assert made.position is Position.OPEN
    return made


def test_the_letters_of_the_first_sample_are_withheld_for_ten_seconds() -> None:
    made = circuit()
    assert not made.count([(BAD, 1)], 5.0)
    assert not made.count([(BAD, 1)], 9.0)  # which does not start again what the first one started
    assert (made.withheld_until(9.0), made.withheld_until(14.9)) == (15.0, 15.0)
    assert made.withheld_until(15.0) is None
    assert made.position is Position.CLOSED


def test_the_first_good_value_closes_the_sample_and_that_is_news_where_letters_wait() -> None:
    made = circuit()
    made.count([(BAD, FIRST - 1)], 0.0)
    assert made.count_good(1, 1.0)
    assert (made.position, made.withheld_until(1.0)) == (Position.CLOSED, None)


def test_a_good_first_value_is_no_news() -> None:
    assert not circuit().count_good(1, 0.0)


def test_a_good_value_in_the_same_batch_closes_the_sample_too() -> None:
    made = circuit()
    assert not made.count([(BAD, FIRST), (GOOD, 1)], 0.0)
    assert made.position is Position.CLOSED


@each("batches", [[FIRST], [FIRST - 1, 1], [1] * FIRST])
def test_twenty_bad_first_values_trip(batches: list[int]) -> None:
    made = circuit()
    assert [made.count([(BAD, size)], 0.0) for size in batches] == [False] * (len(batches) - 1) + [True]
    assert made.position is Position.OPEN


def test_nineteen_bad_first_values_do_not_trip() -> None:
    made = circuit()
    made.count([(BAD, FIRST - 1)], 0.0)
    assert made.position is Position.SAMPLING


def test_what_the_sample_has_seen_counts_on() -> None:
    made = circuit()
    made.count([(BAD, 19)], 0.0)
    assert not made.count([(BAD, 0)], 0.5)
    assert made.count([(GOOD, 1), (BAD, 160)], 1.0)
    assert made.withheld_until(1.0) is None
    assert made.count([(BAD, 20)], 2.0)
    assert made.position is Position.OPEN


@each(("bad", "position"), [(179, Position.CLOSED), (180, Position.OPEN)])
def test_nine_bad_in_ten_of_the_last_two_hundred_trip(bad: int, position: Position) -> None:
    made = closed()
    made.count_good(10_000, 0.0)
    made.count([(GOOD, WINDOW - bad), (BAD, bad)], 1.0)
    assert made.position is position


def test_fewer_than_two_hundred_never_trip_once_the_sample_is_closed() -> None:
    made = closed()
    made.count([(BAD, WINDOW - 2)], 1.0)
    assert made.position is Position.CLOSED
    assert made.withheld_until(1.0) is None


def test_the_window_forgets_what_is_older() -> None:
    made = closed()
    made.count([(BAD, 170)], 1.0)
    made.count([(GOOD, WINDOW)], 1.0)
    assert not made.count([(BAD, 170)], 1.0)
    assert made.count([(BAD, 10)], 1.0)
    assert made.position is Position.OPEN


def test_while_it_is_open_nothing_begins_and_nothing_is_fetched_until_its_rest_is_over() -> None:
    made = tripped()
    assert (made.held_until(59.9), made.is_shut(59.9), made.withheld_until(59.9)) == (60.0, True, 60.0 + GRACE)
    assert (made.is_shut(60.0), made.held_until(60.0), made.position) == (False, None, Position.HALF_OPEN)


def test_one_batch_tries_and_the_others_wait_for_it() -> None:
    made = tripped()
    assert made.held_until(60.0) is None
    assert (made.held_until(60.0), made.is_shut(60.0)) == (60.0 + TRIAL, True)


def test_a_try_of_which_nobody_hears_is_made_again() -> None:
    made = tripped()
    made.held_until(60.0)
    assert made.held_until(60.0 + TRIAL) is None


def test_a_good_batch_closes_and_begins_a_new_window() -> None:
    made = tripped()
    made.held_until(60.0)
    assert made.count([(BAD, 8), (GOOD, 2)], 61.0)
    assert (made.position, made.withheld_until(61.0)) == (Position.CLOSED, None)
    made.count([(BAD, WINDOW - 1)], 62.0)
    assert made.position is Position.CLOSED


def test_a_bad_batch_opens_for_another_rest() -> None:
    made = tripped()
    made.held_until(60.0)
    assert made.count([(BAD, 9), (GOOD, 1)], 61.0)
    assert (made.position, made.held_until(61.0)) == (Position.OPEN, 121.0)


def test_a_value_that_is_good_now_and_was_bad_before_closes() -> None:
    made = tripped()
    made.held_until(60.0)
    made.count([(GOOD, 1), (BAD, 199)], 61.0, recovered=True)
    assert made.position is Position.CLOSED


def test_what_ends_late_changes_nothing_while_it_is_open() -> None:
    made = tripped()
    assert not made.count([(GOOD, 500)], 10.0)
    assert made.position is Position.OPEN


def test_somebody_may_have_it_tried_at_once() -> None:
    made = tripped()
    assert made.try_now(5.0)
    assert made.held_until(5.0) is None
    assert not closed().try_now(5.0)


def test_letters_that_were_let_go_go_until_something_is_good() -> None:
    made = tripped()
    assert made.let_go()
    assert not made.count([(BAD, 10 * WINDOW)], 5.0)
    assert (made.position, made.withheld_until(5.0)) == (Position.CLOSED, None)
    made.count([(GOOD, 1)], 6.0)
    made.count([(BAD, WINDOW)], 7.0)
    assert made.position is Position.OPEN


def test_errors_of_handlers_withhold_nothing_in_their_first_sample() -> None:
    made = circuit(withholds=False)
    made.count([(BAD, 1)], 0.0)
    assert made.withheld_until(0.0) is None


@each(
    ("given", "sentence"),
    [
        ({"errors": ConnectionError}, "give a tuple of exception classes"),
        ({"errors": ("ConnectionError",)}, "give a tuple of exception classes"),
        ({"errors": (Reject,)}, "Reject, which a handler rules with"),
        ({"errors": (Later,)}, "Later, which a handler rules with"),
        ({"rest": "soon"}, "rest of Breaker is 'soon'"),
        ({"first_wait": -1}, "first_wait of Breaker is -1"),
        ({"undecodable": "yes"}, "it must be true or false"),
    ],
)
def test_a_breaker_that_could_not_work_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Breaker(**given)  # type: ignore[arg-type]  # what a user may write
