"""Each finding is told once, in time, and is gone only if it was mended."""

from __future__ import annotations

from ackwise.spark.follow.alarms import Patience, Red, Told
from ackwise.spark.follow.ranges import Findings, Kind

LOST = Kind("LOST", "g", "bill", "orders/0")
STUCK = Kind("STUCK", "g", "bill", "orders/0")
ABSENT = Kind("NEVER_SEEN", "g", "", "orders/0")
PLACE = Kind("", "g", "", "orders/0")


def test_a_finding_is_told_once_and_its_end_once() -> None:
    told, steps = Told(), []
    for red in (Red({LOST: [(1, 3)]}), Red({LOST: [(1, 3)]}), Red({LOST: [(1, 4)]}), Red({LOST: [(2, 4)]}), Red()):
        change = told.change(red, red.present)
        told.take(change)
        steps.append((change.new, change.gone))
    assert steps == [({LOST: [(1, 3)]}, {}), ({}, {}), ({LOST: [(3, 4)]}, {}), ({}, {LOST: [(1, 2)]}), ({}, {LOST: [(2, 4)]})]


def test_what_was_not_taken_is_told_again() -> None:
    told, red = Told(), Red({LOST: [(1, 3)]})
    assert told.change(red, red.present) == told.change(red, red.present)


def test_as_many_findings_as_before_are_new_if_they_are_others() -> None:
    told = Told({LOST: [(1, 2)]})
    change = told.change(Red({LOST: [(2, 3)]}), {LOST: [(2, 3)]})
    assert (change.new, change.gone) == ({LOST: [(2, 3)]}, {LOST: [(1, 2)]})


def test_another_verdict_on_the_same_message_is_new() -> None:
    told = Told({STUCK: [(1, 2)]})
    assert told.change(Red({LOST: [(1, 2)]}), {LOST: [(1, 2)]}).new == {LOST: [(1, 2)]}


def test_what_is_unknown_since_events_are_missing_is_not_gone() -> None:
    told = Told({LOST: [(1, 4)], ABSENT: [(7, 9)]})
    change = told.change(Red(unknown={PLACE: [(2, 3), (7, 9)]}), {})
    assert (change.new, change.gone) == ({}, {LOST: [(1, 2), (3, 4)]})


def dues(lateness: float, *books: tuple[float, Red]) -> list[Findings]:
    patience = Patience(lateness)
    return [patience.due(red, now) for now, red in books]


def test_without_lateness_all_is_due_at_once() -> None:
    assert dues(0.0, (5.0, Red({LOST: [(1, 2)]}, {ABSENT: [(3, 4)]}))) == [{LOST: [(1, 2)], ABSENT: [(3, 4)]}]


def test_young_findings_are_due_once_they_were_in_the_books_for_the_lateness() -> None:
    young, grown = Red(young={ABSENT: [(3, 5)]}), Red(young={ABSENT: [(3, 6)]})
    found = dues(60.0, (0.0, young), (30.0, grown), (59.0, grown), (60.0, grown), (90.0, grown))
    assert found == [{}, {}, {}, {ABSENT: [(3, 5)]}, {ABSENT: [(3, 6)]}]


def test_a_young_finding_that_late_events_mend_is_never_due() -> None:
    young = Red(young={LOST: [(3, 4)]})
    assert dues(60.0, (0.0, young), (30.0, Red()), (61.0, Red()), (90.0, young), (149.0, young)) == [{}, {}, {}, {}, {}]


def test_a_message_that_late_events_can_not_mend_is_due_though_it_came_now() -> None:
    assert dues(60.0, (0.0, Red({LOST: [(3, 4)]}))) == [{LOST: [(3, 4)]}]


def test_a_young_finding_comes_due_by_the_clock_of_who_follows_though_the_events_stand_still() -> None:
    provisional = Red(young={LOST: [(3, 4)]})  # PROVISIONAL for ever: no worker lives that would move the time of the books
    assert dues(60.0, (0.0, provisional), (61.0, provisional))[1] == {LOST: [(3, 4)]}
