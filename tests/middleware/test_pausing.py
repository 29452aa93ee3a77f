"""What is paused, by whom, and how the control topic says it."""

from __future__ import annotations

import json

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import ControlRecord, UnreadableControl, decode, encode
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.pausing import Pausing, Target, target_of
from ackwise.middleware.message.message import TopicPartition

BILL, ORDERS_3 = Target("bill"), Target(None, TopicPartition("orders", 3))
HERE, ELSEWHERE = TopicPartition("orders", 3), TopicPartition("orders", 4)


def test_a_handler_is_paused_on_every_partition_and_a_partition_for_every_handler() -> None:
    pausing = Pausing()
    pausing.pause(BILL, "code")
    assert (pausing.is_paused("bill", HERE), pausing.is_paused("refund", HERE)) == (True, False)
    pausing.resume(BILL, "code")
    pausing.pause(ORDERS_3, "code")
    assert (pausing.is_paused("refund", HERE), pausing.is_paused("bill", ELSEWHERE), pausing.is_paused(None, HERE)) == (True, False, True)


def test_each_takes_back_only_its_own_word() -> None:
    pausing = Pausing()
    assert (pausing.pause(BILL, "code"), pausing.pause(BILL, "command")) == (True, True)
    assert pausing.resume(BILL, "code")
    assert pausing.is_paused("bill", HERE)
    assert pausing.paused == {BILL: frozenset({"command"})}
    assert pausing.resume(BILL, "command")
    assert not pausing.is_paused("bill", HERE)


def test_nothing_begins_before_it_is_known_what_is_paused() -> None:
    flow = FlowControl(clock=lambda: 5.0)
    flow.await_control()
    assert flow.held_until("bill", HERE) == 65.0
    flow.know_control()
    assert flow.held_until("bill", HERE) is None


def test_what_is_no_news_is_told_to_nobody() -> None:
    pausing, told = Pausing(), list[str]()
    end = pausing.listen(lambda: told.append("changed"))
    pausing.pause(BILL, "code")
    assert not pausing.pause(BILL, "code")
    assert not pausing.resume(BILL, "command")
    pausing.resume(BILL, "code")
    end()
    pausing.pause(BILL, "code")
    assert told == ["changed", "changed"]


def test_a_target_is_a_handler_or_a_partition_of_a_topic_that_is_read() -> None:
    known = {"handlers": ["bill", "a/1"], "topics": ["orders", "billing.retry"]}
    assert [str(target_of(text, **known)) for text in ("bill", "a/1", "orders/3", "billing.retry/0")] == [
        "bill",
        "a/1",
        "orders/3",
        "billing.retry/0",
    ]
    assert target_of("a/1", **known).handler == "a/1"
    assert target_of("orders/3", **known) == ORDERS_3


@each(
    ("text", "advice"),
    [("bil", "did you mean 'bill'"), ("order/3", "did you mean 'orders/0'"), ("orders/x", "'orders/0'"), ("", "such as")],
)
def test_what_is_no_target_is_refused_with_the_nearest(text: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        target_of(text, handlers=["bill"], topics=["orders"])


@each(
    "record",
    [
        ControlRecord(BILL, paused=True, at_ms=5),
        ControlRecord(ORDERS_3, paused=False, dead=True, at_ms=7),
        ControlRecord(Target("äöü/1 x"), paused=True),
        ControlRecord(Target(None, TopicPartition("a.b", 0)), paused=True),
    ],
)
def test_a_control_record_is_read_as_it_was_written(record: ControlRecord) -> None:
    assert decode(*encode(record)) == record


def test_a_record_without_a_value_says_that_nothing_is_paused() -> None:
    assert decode(b"handler/bill", None) == ControlRecord(BILL, paused=False)


def test_what_a_newer_version_adds_is_passed_over() -> None:
    value = json.dumps({"version": 9, "paused": True, "until": "tomorrow"}).encode()
    assert decode(b"handler/bill", value) == ControlRecord(BILL, paused=True)


@each(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b"{}"),
        (b"handler/", b'{"paused": true}'),
        (b"partition/orders", b'{"paused": true}'),
        (b"partition/orders/x", b'{"paused": true}'),
        (b"worker/1", b'{"paused": true}'),
        (b"handler/bill", b"no json"),
        (b"handler/bill", b"\xff"),
        (b"handler/bill", b"[]"),
        (b"handler/bill", b'{"paused": "yes"}'),
        (b"handler/bill", b"[" * 100_000),
    ],
)
def test_what_nobody_can_read_raises(key: bytes | None, value: bytes) -> None:
    with pytest.raises(UnreadableControl):
        decode(key, value)
