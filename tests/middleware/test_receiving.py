"""Receipts: which count, until when, and what replaces them. And the bounds of invisible times."""

from __future__ import annotations

import pytest
from tests.tables import each

from ackwise.middleware.claims.receipts import Invisibility, Receipts
from ackwise.middleware.errors import ConfigurationError


def test_a_receipt_counts_until_its_end_and_not_at_it() -> None:
    """V10: RocketMQ's proxy refuses a receipt from popTime + invisible on."""
    receipts = Receipts[str]()
    early, late = receipts.give("a", until=10.0), receipts.give("b", until=10.0)
    assert receipts.use(early, now=9.999) == "a"
    assert receipts.use(late, now=10.0) is None


def test_a_receipt_counts_once() -> None:
    receipts = Receipts[str]()
    receipt = receipts.give("a", until=10.0)
    assert (receipts.use(receipt, now=1.0), receipts.use(receipt, now=1.0)) == ("a", None)


def test_a_newer_receipt_takes_the_place_of_an_older_one() -> None:
    """V12: the time is changed from now on, the old receipt stops counting."""
    receipts = Receipts[str]()
    older = receipts.give("a", until=10.0)
    newer = receipts.replace(older, until=25.0, now=5.0)
    assert newer is not None
    assert newer != older
    assert receipts.use(older, now=6.0) is None
    assert receipts.expire(10.0) == []
    assert receipts.use(newer, now=24.0) == "a"


def test_a_receipt_that_does_not_count_is_not_replaced() -> None:
    receipts = Receipts[str]()
    receipt = receipts.give("a", until=10.0)
    assert receipts.replace(receipt, until=25.0, now=10.0) is None
    assert receipts.replace("forged", until=25.0, now=1.0) is None
    assert receipts.expire(10.0) == ["a"]


def test_what_expires_comes_in_the_order_of_its_ends_and_once() -> None:
    receipts = Receipts[str]()
    receipts.give("late", until=30.0)
    receipts.give("early", until=10.0)
    used = receipts.give("used", until=20.0)
    receipts.use(used, now=1.0)
    assert (receipts.next_end, receipts.expire(9.0)) == (10.0, [])
    assert receipts.expire(30.0) == ["early", "late"]
    assert (receipts.expire(99.0), receipts.next_end, len(receipts)) == ([], None, 0)


def test_receipts_of_two_consumers_never_count_in_each_other() -> None:
    one, other = Receipts[str](), Receipts[str]()
    given = {one.give("a", until=10.0) for _ in range(100)} | {other.give("b", until=10.0) for _ in range(100)}
    assert len(given) == 200


def test_no_receipt_counts_after_all_were_withdrawn() -> None:
    receipts = Receipts[str]()
    receipt = receipts.give("a", until=10.0)
    assert receipts.withdraw() == ["a"]
    assert receipts.use(receipt, now=1.0) is None
    assert receipts.expire(99.0) == []


def test_ends_of_used_receipts_are_forgotten() -> None:
    receipts = Receipts[str]()
    for _ in range(5000):
        receipts.use(receipts.give("a", until=43200.0), now=1.0)
    assert len(receipts._ends) <= 1001


@each(("asked", "seconds"), [(9, None), (9.999, None), (10, 10.0), ("12h", 43200.0), (43200.001, None), ("soon", None)])
def test_invisible_times_have_bounds(asked: float | str, seconds: float | None) -> None:
    """V13: 10 s to 12 h, which the consumer may be given others for."""
    if seconds is None:
        with pytest.raises(ConfigurationError, match="invisible is"):
            Invisibility().seconds(asked)
    else:
        assert Invisibility().seconds(asked) == seconds


@each(("asked", "seconds"), [(0.05, None), (0.1, 0.1), (60, 60.0), (60.5, None)])
def test_the_bounds_may_be_others(asked: float, seconds: float | None) -> None:
    bounds = Invisibility(shortest=0.1, longest=60.0)
    if seconds is None:
        with pytest.raises(ConfigurationError, match="it must be from 100ms to 1m"):
            bounds.seconds(asked)
    else:
        assert bounds.seconds(asked) == seconds


@each(("shortest", "longest"), [(0.0, 1.0), (2.0, 1.0)])
def test_bounds_that_nothing_fits_are_refused(shortest: float, longest: float) -> None:
    with pytest.raises(ConfigurationError, match="give a shortest time above 0"):
        Invisibility(shortest, longest)
