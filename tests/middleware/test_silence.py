"""Who may write to a partition that does not acknowledge."""

from __future__ import annotations

from ackwise.middleware.message.refusals import Silence

PLACE = ("billing.delay", 1)


def test_one_record_at_a_time_tries_a_silent_partition_until_it_answers() -> None:
    silence = Silence()
    assert [silence.may_try(PLACE) for _ in range(3)] == [True] * 3
    silence.tell(PLACE, is_silent=True)
    assert [silence.may_try(PLACE) for _ in range(3)] == [True, False, False]
    assert silence.may_try(("billing.delay", 2)), "others are not concerned"
    silence.tell(PLACE, is_silent=True)
    assert [silence.may_try(PLACE) for _ in range(2)] == [True, False]
    silence.tell(PLACE, is_silent=False)
    assert [silence.may_try(PLACE) for _ in range(3)] == [True] * 3


def test_a_try_of_which_nobody_knows_how_it_ended_lets_the_next_one_begin() -> None:
    silence = Silence()
    silence.tell(PLACE, is_silent=True)
    assert silence.may_try(PLACE)
    silence.end_try(PLACE)
    assert (silence.may_try(PLACE), PLACE in silence) == (True, True)
