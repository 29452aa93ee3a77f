"""What the assertions of the kit accept, and what they name."""

from __future__ import annotations

import pytest
from tests.tables import each

from ackwise.middleware.events import Event, EventCode
from ackwise.testing import assert_no_loss, assert_order, assert_run_once


def event(code: EventCode, offset: int, exec_id: int | None = None, partition: int = 0) -> Event:
    return Event(code, "orders", partition, offset, "bill", 1, exec_id)


def succeeded(*offsets: int, partition: int = 0) -> list[Event]:
    return [event(EventCode.SUCCEEDED, offset, number, partition) for number, offset in enumerate(offsets)]


@each("code", [EventCode.SUCCEEDED, EventCode.DUP_SUPPRESSED, EventCode.STALE, EventCode.DEAD_LETTERED])
def test_a_message_with_an_end_is_not_lost(code: EventCode) -> None:
    assert_no_loss([("orders", 0, 1)], [event(code, 1)])


@each("code", [EventCode.CLAIMED, EventCode.FAILED, EventCode.SENT_BACK])
def test_a_message_without_an_end_is_lost_and_it_is_said_how_far_it_came(code: EventCode) -> None:
    with pytest.raises(AssertionError, match=rf"1 messages have no end: orders/0/1 \({code.name}\)"):
        assert_no_loss([("orders", 0, 1)], [event(code, 1)])


def test_a_commit_is_no_end_of_a_message() -> None:
    committed = Event(EventCode.COMMITTED, "orders", 0, 1, range_end=2)
    with pytest.raises(AssertionError, match=r"orders/0/1$"):
        assert_no_loss([("orders", 0, 1)], [committed])


def test_of_many_lost_messages_ten_are_named() -> None:
    with pytest.raises(AssertionError, match=r"^12 messages have no end: .*orders/0/9 and 2 more$"):
        assert_no_loss([("orders", 0, offset) for offset in range(12)], [])


def test_two_executions_of_a_message_are_named_and_one_that_is_told_twice_is_one() -> None:
    assert_run_once([event(EventCode.SUCCEEDED, 1, 7), event(EventCode.SUCCEEDED, 1, 7)])
    with pytest.raises(AssertionError, match="1 messages succeeded more than once: orders/0/1"):
        assert_run_once([event(EventCode.SUCCEEDED, 1, 7), event(EventCode.SUCCEEDED, 1, 8)])


def test_order_is_that_of_each_partition() -> None:
    assert_order([*succeeded(1, 2), *succeeded(0, 5, partition=1), *succeeded(2, 7)])
    with pytest.raises(AssertionError, match=r"the order of 1 partitions is broken: orders/0/1 after orders/0/2$"):
        assert_order(succeeded(2, 1, 0))


def test_order_can_be_that_of_a_key() -> None:
    assert_order(succeeded(2, 1), key_of=lambda place: place.offset % 2)
    with pytest.raises(AssertionError, match="orders/0/1 after orders/0/3"):
        assert_order(succeeded(3, 2, 1), key_of=lambda place: place.offset % 2)
