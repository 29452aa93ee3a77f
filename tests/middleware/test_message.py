"""What a handler can see of a message, and that it can't change any of it."""

from __future__ import annotations

import pytest
from tests.tables import each

from ackwise.middleware.message.message import Delivery, Message, Origin

FIRST = Delivery("orders", 3, 100, 5, b"k", b"{}", (("a", b"1"), ("b", None), ("a", b"2")), Origin("orders", 3, 100, 5))
RETRY = FIRST._replace(topic="billing.retry", partition=0, offset=7, timestamp_ms=9, attempt=4)


def test_a_message_has_the_coordinates_of_its_origin_on_every_attempt() -> None:
    for delivery in (FIRST, RETRY):
        message = Message(delivery, None)
        assert (message.topic, message.partition, message.offset, message.timestamp_ms) == ("orders", 3, 100, 5)


def test_the_copy_that_was_read_is_there_with_its_own_coordinates() -> None:
    assert Message(RETRY, None).delivery[:4] == ("billing.retry", 0, 7, 9)


def test_only_the_producers_own_record_is_at_its_origin() -> None:
    assert FIRST.at_origin
    assert not RETRY.at_origin


def test_reconsume_times_counts_how_often_it_was_sent_back() -> None:
    assert [Message(delivery, None).reconsume_times for delivery in (FIRST, RETRY)] == [0, 3]


def test_the_attempt_counts_from_one_and_with_attempts_in_place() -> None:
    first, retry, in_place = Message(FIRST, None), Message(RETRY, None), Message(FIRST, None)
    in_place.in_place = 2
    assert [message.attempt for message in (first, retry, in_place)] == [1, 4, 3]


def test_the_text_of_a_key_is_its_utf_8() -> None:
    assert [Message(FIRST._replace(key=key), None).key_text for key in (b"caf\xc3\xa9", b"", None)] == ["café", "", None]
    with pytest.raises(UnicodeDecodeError):
        _ = Message(FIRST._replace(key=b"\xff"), None).key_text


def test_the_last_header_of_a_name_wins() -> None:
    message = Message(FIRST, None)
    assert (message.header("a"), message.header("b"), message.header("c")) == (b"2", None, None)


def test_key_value_and_raw_bytes_are_as_the_producer_wrote_them() -> None:
    message = Message(FIRST, {"amount": 1})
    assert (message.key, message.raw, message.value) == (b"k", b"{}", {"amount": 1})
    assert message.headers == FIRST.headers


@each(
    "name",
    [
        "value",
        "key",
        "key_text",
        "raw",
        "headers",
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        "attempt",
        "reconsume_times",
        "delivery",
        "note",
    ],
)
def test_a_message_is_read_only_and_takes_no_new_attributes(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Message(FIRST, None), name, None)


def test_a_message_says_where_it_comes_from_and_nothing_of_its_payload() -> None:
    assert repr(Message(RETRY._replace(value=b"secret"), "secret")) == "<Message orders/3/100 attempt=4>"
