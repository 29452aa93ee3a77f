"""Rows with a time through a relay whose clocks a test moves: what is sent when, and what never."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from tests.plugin.outbox.desk import Desk, Store, fields, lost

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import RowState
from ackwise.middleware.storage.rowtime import AT_ONCE, Timing, timing_of
from ackwise.plugin.consumer.workerstate import OutboxCounts


def add(desk: Desk, value: bytes, key: bytes | None = None, **times: Any) -> int:
    """Commit a row with its times; return its id."""
    row = desk.table._insert(Outgoing("orders", value, key, message_id=value.decode()), RowState.LOCAL_COMMIT, timing_of(**times))
    desk.table.wake()
    return row.id


def values(desk: Desk) -> list[bytes | None]:
    return [message.value for message in desk.log.messages]


class Notifying(Store):
    """A store that is waited for, and not asked again and again."""

    notifies = True


async def test_a_delayed_row_is_sent_when_it_is_due_and_rows_of_its_key_go_before_it() -> None:
    desk = Desk(poll=60.0, lease=600.0)
    add(desk, b"later", b"k", delay=30)
    add(desk, b"now", b"k")
    store = Store(desk.table)
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: values(desk) == [b"now"])
        seen = len(store.waits)
        await desk.until(lambda: len(store.waits) > seen + 2)
        assert (values(desk), max(store.waits[seen + 1 :]) <= 30.0) == ([b"now"], True)
        desk.table.now = 29.9
        await desk.until(lambda: min(store.waits[seen:]) <= 0.1 + 1e-9)
        assert values(desk) == [b"now"]
        desk.table.now = 30.0
        await desk.until(desk.is_empty)
    assert values(desk) == [b"now", b"later"]


async def test_a_delayed_row_that_comes_to_an_idle_relay_is_not_a_poll_late() -> None:
    desk = Desk(poll=60.0, lease=600.0)
    store = Notifying(desk.table)
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: len(store.waits) > 3)
        assert min(store.waits) == 60.0
        add(desk, b"later", delay=5)
        seen = len(store.waits)
        await desk.until(lambda: any(at_most <= 5.0 for at_most in store.waits[seen:]))


async def test_the_age_of_a_delayed_row_is_no_lag() -> None:
    desk, counts = Desk(poll=60.0, lease=3600.0), OutboxCounts()
    add(desk, b"later", delay=1000)
    async with desk.running(desk.relay(counts=counts)):
        desk.table.now = 1000
        await desk.until(lambda: counts.sent == 1)
        assert counts.lag == 0.0


async def test_a_row_whose_time_is_over_is_never_sent_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(lease=600.0), OutboxCounts()
    add(desk, b"late", b"k", expires=5)
    add(desk, b"next", b"k", expires=50)
    desk.table.now = 6.0
    async with desk.running(desk.relay(counts=counts)):
        await desk.until(lambda: len(desk.table.rows) == 1 and counts.sent == 1)
    assert (values(desk), counts.expired, desk.table.rows[1].state) == ([b"next"], 1, RowState.EXPIRED)
    assert [(event.code, event.dedup_key) for event in desk.sink.events if event.dedup_key == "late"] == [
        (EventCode.OUTBOX_EXPIRED, "late")
    ]
    assert fields(caplog, "outbox rows expired unsent") == [{"outbox": "shop", "rows": 1, "row": 1, "topic": "orders"}]


async def test_a_row_that_was_given_to_the_client_once_never_expires() -> None:
    desk, counts = Desk(lease=3600.0), OutboxCounts()
    add(desk, b"1", expires=5)
    failures = iter([lost()] * 3)
    desk.refuse = lambda message: next(failures, None)
    async with desk.running(desk.relay(counts=counts)):
        await desk.until(lambda: counts.failed == 1)
        desk.table.now = 1000.0
        await desk.until(desk.is_empty, step=1.0)
    assert (values(desk), counts.expired) == ([b"1"], 0)


async def test_a_relay_that_dies_after_it_began_a_row_leaves_it_to_be_sent_and_not_to_expire() -> None:
    desk = Desk(lease=600.0)
    add(desk, b"1", expires=5)
    store = Store(desk.table)
    left = [1]

    def harm(call: str, when: str) -> None:
        if (call, when) == ("begin", "after") and left.pop() if left else False:
            desk.table.now = 100.0  # the answer is lost, and the time is over by the next try
            raise StoreUnavailable("gone")

    store.harm = harm
    async with desk.running(desk.relay(store)):
        await desk.until(desk.is_empty, step=0.05)
    assert values(desk) == [b"1"]


async def test_an_expired_row_stays_as_it_is_while_its_event_can_not_be_written() -> None:
    desk = Desk(lease=600.0)
    add(desk, b"late", expires=5)
    desk.table.now = 6.0
    store = Store(desk.table)
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: desk.table.rows[1].state is RowState.EXPIRED)
    assert store.calls["begin"] == 1
    assert [event.code for event in desk.sink.events] == [EventCode.OUTBOX_EXPIRED]


async def test_rows_without_an_expiry_cost_no_statement_more() -> None:
    desk = Desk(lease=600.0)
    store = Store(desk.table)
    add(desk, b"1")
    add(desk, b"2", delay=1)
    async with desk.running(desk.relay(store)):
        await desk.until(desk.is_empty, step=0.05)
    assert (store.calls["begin"], store.calls["expire"]) == (0, 0)


def test_times_are_written_as_those_of_a_producer() -> None:
    there = datetime.datetime(2040, 1, 1, tzinfo=datetime.UTC)
    assert timing_of() is AT_ONCE
    assert timing_of(delay=0) == AT_ONCE
    assert timing_of(delay="5m", expires="1h") == Timing(-300.0, -3600.0)
    assert timing_of(at=there, expires=there + datetime.timedelta(days=1)) == Timing(there.timestamp(), there.timestamp() + 86400)
    assert timing_of(at=5) == Timing(5.0)
    wrong: Any
    for wrong, said in (
        ({"delay": 1, "at": 5}, "both given"),
        ({"delay": True}, "delay is True"),
        ({"at": True}, "at is True"),
        ({"at": -1}, "at is -1"),
        ({"at": float("nan")}, "at is nan"),
        ({"at": datetime.datetime(2040, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"at": 1e12}, "the time until at"),
        ({"expires": "0s"}, "expires is 0 s"),
        ({"expires": datetime.datetime(2040, 1, 1)}, "expires is 2040"),  # noqa: DTZ001
        ({"expires": -5}, "expires is -5"),
        ({"delay": "5m", "expires": "5m"}, "would never be sent"),
        ({"at": there, "expires": there}, "would never be sent"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            timing_of(**wrong)
