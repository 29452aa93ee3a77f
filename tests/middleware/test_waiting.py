"""Names, keys and commands of messages that wait in place."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import (
    Do,
    MessageAt,
    MessageCommand,
    UnreadableControl,
    decode_command,
    encode_command,
    is_command,
    key_text,
    message_at,
)
from ackwise.middleware.flow.controlrecords import decode as decode_control

AT = MessageAt("a.b-c_d", 3, 17)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@each("do", ["retry", "bury", None])
def test_a_command_is_read_as_it_was_written(do: Do | None) -> None:
    command = MessageCommand(AT, do, 1_700_000_000_000, 5) if do else MessageCommand(AT, None)
    key, value = encode_command(command)
    assert is_command(key)
    assert decode_command(key, value) == command


def test_a_worker_that_knows_no_such_command_passes_over_it() -> None:
    with pytest.raises(UnreadableControl):
        decode_control(*encode_command(MessageCommand(AT, "bury", 1, 1)))


@each(
    ("key", "value"),
    [
        (b"message/", b"{}"),
        (b"message/orders/3", b"{}"),
        (b"message/orders/3/x", b"{}"),
        (b"message/orders/-3/1", b"{}"),
        (b"message/orders/3/1/2", b"{}"),
        (b"message//3/1", b"{}"),
        (b"message/\xff/3/" + b"9" * 30, None),
        (b"message/orders/3/1", b""),
        (b"message/orders/3/1", b"[]"),
        (b"message/orders/3/1", b'{"do": "burn", "timestamp": 1, "at_ms": 1}'),
        (b"message/orders/3/1", b'{"do": "bury", "timestamp": "1", "at_ms": 1}'),
        (b"message/orders/3/1", b'{"do": "bury", "timestamp": true, "at_ms": 1}'),
        (b"message/orders/3/1", b'{"do": ["bury"], "timestamp": 1, "at_ms": 1}'),
        (b"message/orders/3/1", b"[" * 100_000),
    ],
)
def test_what_is_no_command_is_said_to_be_none(key: bytes, value: bytes | None) -> None:
    with pytest.raises(UnreadableControl):
        decode_command(key, value)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_whatever_is_written_there_nothing_else_is_raised(tail: bytes, value: bytes | None) -> None:
    with suppress(UnreadableControl):
        decode_command(b"message/" + tail, value)


def test_a_message_is_named_by_topic_partition_and_offset() -> None:
    assert message_at("a.b-c_d/3/17", ["a.b-c_d"]) == AT
    assert str(AT) == "a.b-c_d/3/17"


@each("text", ["", "orders", "orders/3", "orders/3/", "orders/3/-1", "orders/3/1-2", "or ders/3/1", "orders/٣/1", "/3/1"])
def test_what_names_no_message_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names no message"):
        message_at(text, ["orders"])


@each(
    ("key", "shown"),
    [
        (None, None),
        (b"ann", "ann"),
        ("ann", "ann"),
        (b"\xff\x00", "0xff00"),
        (("a", 1), "('a', 1)"),
        ("a\n\x1b[31m", "a��[31m"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        (Unprintable(), "<Unprintable>"),
    ],
)
def test_a_key_is_shown_as_text_and_shortened(key: object, shown: str | None) -> None:
    assert key_text(key) == shown
