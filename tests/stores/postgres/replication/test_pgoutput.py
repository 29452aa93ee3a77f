"""The decoder of pgoutput: what PostgreSQL writes is read, and any other bytes end in a sentence, never in a row that was not written."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stores.cases import case

from ackwise.stores.postgres.replication.connection import Keepalive, LogData, parse_frame, status_update
from ackwise.stores.postgres.replication.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Deleted,
    Ignored,
    Inserted,
    Message,
    Relation,
    Truncated,
    Unchanged,
    Updated,
    Value,
    parse,
)
from ackwise.stores.postgres.replication.slot import format_lsn, parse_lsn

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
oids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
values: st.SearchStrategy[Value] = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=20))
rows = st.lists(values, max_size=5).map(tuple)
columns = st.builds(Column, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, lsns, times, oids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Relation, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=4).map(tuple)),
    st.builds(Inserted, oids, rows),
    st.builds(Updated, oids, rows, st.none(), st.just(False)),
    st.builds(Updated, oids, rows, rows, st.booleans()),
    st.builds(Deleted, oids, rows, st.booleans()),
    st.builds(Truncated, st.lists(oids, max_size=4).map(tuple)),
)


def row_bytes(row: tuple[Value, ...]) -> bytes:
    def of(value: Value) -> bytes:
        if value is None:
            return b"n"
        return b"u" if isinstance(value, Unchanged) else b"t" + struct.pack("!I", len(value)) + value

    return struct.pack("!H", len(row)) + b"".join(map(of, row))


def as_sent(message: Message) -> bytes:
    """The bytes of a message, written from the manual and not from the decoder."""
    match message:
        case Begin(commit, at, xid):
            return b"B" + struct.pack("!QqI", commit, at, xid)
        case Commit(commit, end, at):
            return b"C\0" + struct.pack("!QQq", commit, end, at)
        case Relation(oid, schema, table, identity, of):
            each = [bytes([c.is_key]) + c.name.encode() + b"\0" + struct.pack("!Ii", c.type_oid, c.modifier) for c in of]
            head = b"R" + struct.pack("!I", oid) + schema.encode() + b"\0" + table.encode() + b"\0" + identity.encode()
            return head + struct.pack("!H", len(of)) + b"".join(each)
        case Inserted(oid, row):
            return b"I" + struct.pack("!I", oid) + b"N" + row_bytes(row)
        case Updated(oid, row, old, is_key):
            before = b"" if old is None else (b"K" if is_key else b"O") + row_bytes(old)
            return b"U" + struct.pack("!I", oid) + before + b"N" + row_bytes(row)
        case Deleted(oid, old, is_key):
            return b"D" + struct.pack("!I", oid) + (b"K" if is_key else b"O") + row_bytes(old)
        case Truncated(of_tables):
            return b"T" + struct.pack("!IB", len(of_tables), 1) + b"".join(struct.pack("!I", oid) for oid in of_tables)
        case Ignored():
            raise AssertionError("is not made here")


@given(messages)
def test_what_was_sent_is_read(message: Message) -> None:
    assert parse(as_sent(message)) == message


@given(messages)
def test_a_message_that_is_cut_anywhere_is_refused(message: Message) -> None:
    sent = as_sent(message)
    for end in range(len(sent)):
        with pytest.raises(ValueError, match=r"message|row|value|name|deletion|relation|column|truncation"):
            parse(sent[:end])


@given(messages, st.binary(min_size=1, max_size=5))
def test_a_message_with_bytes_behind_it_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(ValueError, match="goes on after its end"):
        parse(as_sent(message) + more)


@given(
    st.one_of(
        st.binary(max_size=200), st.tuples(st.sampled_from(b"BCRIUDTYOM"), st.binary(max_size=60)).map(lambda p: bytes([p[0]]) + p[1])
    )
)
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = parse(data)
    except ValueError:
        return
    # What is no message that PostgreSQL would send again as the same bytes changes no row.
    assert isinstance(message, (Ignored, Truncated, Relation, Commit)) or as_sent(message) == data


@given(messages, st.data())
def test_a_changed_byte_never_gives_the_same_row(message: Message, data: st.DataObject) -> None:
    sent = bytearray(as_sent(message))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    try:
        read = parse(bytes(sent))
    except ValueError:
        return
    if isinstance(message, (Inserted, Updated, Deleted)):
        assert read != message


def test_what_changes_no_row_is_ignored_and_must_be_whole() -> None:
    for sent, kind in [
        (b"Y" + struct.pack("!I", 7) + b"public\0mood\0", "type"),
        (b"O" + struct.pack("!Q", 7) + b"elsewhere\0", "origin"),
        (b"M\1" + struct.pack("!Q", 7) + b"prefix\0" + struct.pack("!I", 3) + b"abc", "message"),
    ]:
        with case(sent, kind):
            assert parse(sent) == Ignored(kind)
            for end in range(1, len(sent)):
                with pytest.raises(ValueError, match=r"name|message"):
                    parse(sent[:end])


def test_a_row_that_promises_more_than_there_is_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="65535 columns"):
        parse(b"I\0\0\0\1N\xff\xff")
    with pytest.raises(ValueError, match="4294967295 bytes"):
        parse(b"I\0\0\0\1N\0\1t\xff\xff\xff\xff")


def test_no_sentence_repeats_what_is_in_a_row() -> None:
    with pytest.raises(ValueError, match="kind x") as caught:
        parse(b"I\0\0\0\1N\0\2t\0\0\0\6secretx")
    assert "secret" not in str(caught.value)


@given(st.binary(max_size=60))
def test_any_frame_is_log_data_a_keepalive_or_refused(data: bytes) -> None:
    try:
        frame = parse_frame(data)
    except ValueError:
        assert not (data[:1] == b"w" and len(data) >= 25)
        return
    assert isinstance(frame, LogData) == (data[:1] == b"w")
    assert isinstance(frame, Keepalive) == (data[:1] == b"k")


def test_frames_are_read_as_the_manual_lays_them_out() -> None:
    assert parse_frame(b"w" + struct.pack("!QQq", 5, 9, 0) + b"payload") == LogData(5, b"payload")
    assert parse_frame(b"k" + struct.pack("!QqB", 9, 0, 1)) == Keepalive(9, True)
    kind, written, flushed, applied, _, reply = struct.unpack("!cQQQqB", status_update(77))
    assert (kind, written, flushed, applied, reply) == (b"r", 77, 77, 77, 0)


@given(lsns)
def test_a_position_is_the_text_that_postgresql_writes(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert format_lsn(0x16_B374D848) == "16/B374D848"


def test_what_is_no_position_is_refused() -> None:
    for text in ["", "5", "x/1", "123456789/0"]:
        with case(text), pytest.raises(ValueError, match=r"invalid literal|no log sequence number"):
            parse_lsn(text)
