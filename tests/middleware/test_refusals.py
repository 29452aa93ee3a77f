"""When a record that fails by itself is refused: after a while, and only where the partition is not at fault."""

from __future__ import annotations

from tests.fakes import Clock

from ackwise.middleware.message.refusals import REFUSED_AFTER, RecordRefusals

HERE, ELSEWHERE = ("invoices", 0), ("invoices", 1)


def test_a_record_is_refused_once_it_fails_for_so_long_while_its_own_partition_takes_others() -> None:
    clock = Clock()
    refusals = RecordRefusals(clock)
    assert not refusals.is_refused("bad", HERE)
    clock.now += 1
    refusals.take("good", HERE)
    clock.now += REFUSED_AFTER - 1.1
    assert not refusals.is_refused("bad", HERE)
    clock.now += 0.2
    assert refusals.is_refused("bad", HERE)
    assert not refusals.is_refused("bad", HERE), "what is sent again starts again"


def test_a_partition_that_takes_nothing_refuses_nothing_whatever_others_take() -> None:
    clock = Clock()
    refusals = RecordRefusals(clock)
    for _ in range(100):
        assert not refusals.is_refused("bad", HERE)
        assert not refusals.is_refused("worse", HERE)
        refusals.take("good", ELSEWHERE)
        clock.now += REFUSED_AFTER


def test_what_was_taken_before_the_first_failure_proves_nothing() -> None:
    clock = Clock()
    refusals = RecordRefusals(clock)
    refusals.is_refused("another", ELSEWHERE)
    refusals.take("good", HERE)
    clock.now += 1
    assert not refusals.is_refused("bad", HERE)
    clock.now += REFUSED_AFTER
    assert not refusals.is_refused("bad", HERE)


def test_a_broker_that_has_judged_the_record_needs_no_other_proof_than_time() -> None:
    clock = Clock()
    refusals = RecordRefusals(clock)
    assert not refusals.is_refused("bad", HERE, certain=True)
    clock.now += REFUSED_AFTER
    assert refusals.is_refused("bad", HERE, certain=True)


def test_a_record_that_was_taken_after_all_or_not_tried_for_long_begins_anew() -> None:
    clock = Clock()
    refusals = RecordRefusals(clock)
    assert not refusals.is_refused("bad", HERE, certain=True)
    refusals.take("bad", HERE)
    clock.now += REFUSED_AFTER
    assert not refusals.is_refused("bad", HERE, certain=True)
    clock.now += 3600
    assert not refusals.is_refused("bad", HERE, certain=True)


def test_only_so_many_are_remembered() -> None:
    refusals = RecordRefusals(Clock())
    for number in range(10_002):
        refusals.is_refused(number, HERE)
    assert len(refusals._failing) == 10_000
