"""The event log's bytes: what goes in comes out, and of a broken file everything before the break."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import each

from ackwise.middleware.eventlog import (
    FIELDS,
    LAYOUT_VERSION,
    NONE,
    RECORD_SIZE,
    Block,
    EventBuffer,
    EventLog,
    EventRow,
    LogHeader,
    RunBlock,
    Unreadable,
    parse_log,
)
from ackwise.middleware.events import COLUMNS, Event, EventCode, Kind, RunEvents, explode

HEADER = LogHeader(writer_id=2**63 - 1, first_seq=0, cluster="main", group_id="billing", client=None)
KIND_OF_FIELD = {"q": Kind.INT64, "i": Kind.INT32, "h": Kind.INT16, "b": Kind.INT8}


def values(name: str, field_format: Any, is_text: bool) -> st.SearchStrategy[Any]:
    if name == "code":
        return st.sampled_from(EventCode)
    if is_text:
        return st.none() | st.text(st.characters(exclude_categories=["Cs"]))
    if name in ("took_unreleased", "from_commit", "proved"):
        return st.none() | st.booleans()
    lowest = NONE[field_format]
    return st.none() | st.integers(lowest + 1, -lowest - 1) | st.sampled_from([lowest + 1, -1, 0, -lowest - 1])


EVENTS = st.builds(Event, **{field.name: values(*field) for field in FIELDS if field.name not in ("at_ns", "mono_ns")})


def buffer(events: Iterable[Event], first_seq: int = 0) -> EventBuffer:
    times = iter(range(10**18, 2 * 10**18, 1000))
    made = EventBuffer(first_seq, now_ns=lambda: next(times), mono_ns=count(7).__next__)
    for event in events:
        made.record(event)
    return made


def block(events: Iterable[Event], first_seq: int = 0) -> Block:
    (sealed,) = buffer(events, first_seq).seal()
    assert isinstance(sealed, Block)
    return sealed


def read(data: bytes) -> EventLog:
    log = parse_log(data)
    assert isinstance(log, EventLog)
    return log


def rows(data: bytes) -> list[EventRow]:
    return [row for each in read(data).blocks for row in each.rows()]


def three_blocks() -> list[bytes]:
    first = [Event(EventCode.CLAIMED, "orders", 3, offset, "bill") for offset in range(3)]
    second = [Event(EventCode.FAILED, "orders", 3, 1, "bill", error="ValueError", dedup_key="größe")]
    third = [Event(EventCode.COMMITTED, "payments", 0, range_end=7)] * 2
    return [block(first).encode(), block(second, 3).encode(), block(third, 4).encode()]


@pytest.mark.slow  # encodes a hundred lists of made-up events
@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_every_field_of_every_event_survives_also_being_none(events: list[Event]) -> None:
    found = rows(HEADER.encode() + block(events).encode())
    assert [row.event for row in found] == events
    assert [row.seq for row in found] == list(range(len(events)))
    assert [row.at_ns for row in found] == sorted({row.at_ns for row in found})
    assert all(type(row.event.took_unreleased) is type(event.took_unreleased) for row, event in zip(found, events, strict=True))


@pytest.mark.slow  # compares a hundred blocks, column by column
@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_a_column_is_the_same_numbers_side_by_side(events: list[Event]) -> None:
    made = block(events)
    for place, field in enumerate(FIELDS):
        numbers = [values[place] for values in struct.iter_unpack("<" + "".join(f.format for f in FIELDS) + "7x", made.records)]
        assert list(memoryview(made.column(field.name)).cast(cast(Any, field.format))) == numbers


def test_the_header_survives() -> None:
    assert read(LogHeader(5, 77, "main", "billing", "worker-1").encode()).header == LogHeader(5, 77, "main", "billing", "worker-1")


def test_every_field_of_an_event_has_a_place_in_the_record_and_a_column_of_its_width() -> None:
    assert {field.name for field in FIELDS} == {"at_ns", "mono_ns", *Event._fields}
    kinds = {column.name: column.kind for column in COLUMNS}
    column_of = {"at_ns": "event_ts", "code": "event_type", "record_ts_ms": "record_ts", "due_ms": "due_ts"}
    for field in FIELDS:
        kind = kinds[column_of.get(field.name, field.name)]
        if kind not in (Kind.STRING, Kind.BOOL, Kind.TIMESTAMP):
            assert kind is KIND_OF_FIELD[field.format]
        assert (kind is Kind.STRING) == field.is_text


def test_fields_are_aligned_so_that_a_column_can_be_cut_out() -> None:
    start = 0
    for field in FIELDS:
        width = struct.calcsize(field.format)
        assert start % width == 0
        start += width
    assert start == 137
    assert RECORD_SIZE == 144, "the whole is filled up, so that every record is aligned"


def test_of_a_file_cut_at_any_byte_all_whole_blocks_survive() -> None:
    blocks = three_blocks()
    data = HEADER.encode() + b"".join(blocks)
    ends = [len(HEADER.encode()) + sum(map(len, blocks[:count])) for count in range(4)]
    for cut in range(len(data) + 1):
        log = parse_log(data[:cut])
        if cut < ends[0]:
            assert isinstance(log, Unreadable)
        else:
            assert isinstance(log, EventLog)
            assert len(log.blocks) == sum(end <= cut for end in ends[1:])
            assert log.next_seq == [0, 3, 4, 6][len(log.blocks)]
            assert not log.is_damaged


def test_a_flipped_bit_anywhere_ends_reading_before_its_block() -> None:
    blocks = three_blocks()
    data = HEADER.encode() + b"".join(blocks)
    start = len(HEADER.encode()) + len(blocks[0])
    for place in range(start, start + len(blocks[1])):
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        log = read(bytes(flipped))
        assert len(log.blocks) == 1
        assert log.is_damaged, "a whole block follows, so this is no torn tail"


def test_a_last_block_that_fails_its_checksum_is_a_torn_tail_and_no_damage() -> None:
    data = bytearray(HEADER.encode() + b"".join(three_blocks()))
    data[-1] ^= 1
    log = read(bytes(data))
    assert (len(log.blocks), log.is_damaged) == (2, False)


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    log = read(HEADER.encode() + b"".join(three_blocks()) + bytes(4096))
    assert (len(log.blocks), log.is_damaged) == (3, False)


def test_a_block_out_of_sequence_ends_reading() -> None:
    first, _, third = three_blocks()
    log = read(HEADER.encode() + first + third)
    assert (len(log.blocks), log.is_damaged) == (1, True)


@pytest.mark.parametrize("version", [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1])
def test_a_log_of_another_layout_is_unreadable_and_says_both_versions(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    with monkeypatch.context() as other:
        other.setattr("ackwise.middleware.eventlog.LAYOUT_VERSION", version)
        written = HEADER.encode()
    sentence = f"its layout is version {version}, and this Ackwise reads version {LAYOUT_VERSION} alone"
    assert parse_log(written) == Unreadable(f"{sentence}; reconcile it with the Ackwise that wrote it")


RUN = RunEvents(EventCode.SUCCEEDED, "orders", 3, range(5, 17), "bill", 1, [*range(1000, 1012)], range(40, 52), [*range(12)], 0)


def numbers(size: int) -> st.SearchStrategy[Sequence[int]]:
    """Ascending by one as a range, or any."""
    edges = [-(2**63), -(2**63) + 1, 2**63 - 1, 2**63]
    some = st.lists(st.integers(-(2**63), 2**63) | st.sampled_from(edges), min_size=size, max_size=size)
    return some | st.integers(-(2**63) - 1, 2**63 - size + 1).map(lambda first: range(first, first + size))


def runs(size: int) -> st.SearchStrategy[RunEvents]:
    return st.builds(
        RunEvents,
        code=st.sampled_from(EventCode),
        topic=st.text(st.characters(exclude_categories=["Cs"])),
        partition=st.integers(0, 2**31 - 1),
        offsets=numbers(size),
        handler=st.text(st.characters(exclude_categories=["Cs"])),
        attempt=st.integers(1, 2**17),
        record_ts_ms=numbers(size),
        exec_ids=st.none() | numbers(size),
        dedup_hashes=st.none() | numbers(size),
        dedup_epoch=st.none() | st.integers(0, 2**40),
        lost=st.none() | st.integers(0, 9),
        took_unreleased=st.none() | st.booleans(),
        duration_us=st.none() | st.integers(0, 2**33),
        error=st.none() | st.just("ValueError"),
    )


@pytest.mark.slow  # records a hundred lists of events twice
@given(st.lists(EVENTS | st.integers(1, 14).flatmap(runs), min_size=1, max_size=6))
def test_the_events_of_a_run_are_read_as_if_each_had_been_recorded(events: list[Event | RunEvents]) -> None:
    made, one_by_one = buffer([]), buffer([])
    for one in events:
        if isinstance(one, RunEvents):
            made.record_run(one)
            for event in explode(one):
                one_by_one.record(event)
        else:
            made.record(one)
            one_by_one.record(one)
    found, expected = [HEADER.encode() + b"".join(block.encode() for block in way.seal()) for way in (made, one_by_one)]
    assert [(row.seq, row.event) for row in rows(found)] == [(row.seq, row.event) for row in rows(expected)]
    assert (made.next_seq, read(found).next_seq) == (one_by_one.next_seq, one_by_one.next_seq)


def test_a_run_is_one_block_and_its_events_share_their_time() -> None:
    made = buffer([Event(EventCode.HEARTBEAT)])
    made.record_run(RUN)
    made.record(Event(EventCode.HEARTBEAT))
    before, whole, behind = made.seal()
    assert (before.next_seq, whole.first_seq, whole.next_seq, behind.first_seq, made.next_seq) == (1, 1, 13, 13, 14)
    assert whole.codes() == {EventCode.SUCCEEDED: 12}
    found = rows(HEADER.encode() + b"".join(block.encode() for block in (before, whole, behind)))
    assert [row.event for row in found[1:13]] == [*explode(RUN)]
    assert len({(row.at_ns, row.mono_ns) for row in found[1:13]}) == 1


def test_a_run_takes_half_the_bytes_of_its_events_or_less() -> None:
    whole, singles = buffer([]), buffer(explode(RUN))
    whole.record_run(RUN)
    assert len(whole.seal()[0].encode()) * 2 < len(singles.seal()[0].encode())


def test_a_run_that_is_torn_or_flipped_anywhere_ends_reading_before_it() -> None:
    made = buffer([Event(EventCode.HEARTBEAT)])
    made.record_run(RUN)
    first, whole = (block.encode() for block in made.seal())
    start = HEADER.encode() + first
    behind = block([Event(EventCode.HEARTBEAT)], 13).encode()
    for place in range(len(whole)):
        torn = read(start + whole[:place])
        assert (len(torn.blocks), torn.next_seq, torn.is_damaged) == (1, 1, False)
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        log = read(start + bytes(flipped) + behind)
        assert (len(log.blocks), log.next_seq, log.is_damaged) == (1, 1, True)


def test_a_whole_run_behind_a_destroyed_block_is_damage() -> None:
    made = buffer([Event(EventCode.HEARTBEAT)])
    made.record_run(RUN)
    first, whole = (block.encode() for block in made.seal())
    assert read(HEADER.encode() + bytes(len(first)) + whole).is_damaged


@each(("count", "which"), [(13, 15), (0, 0), (2**31, 15)])
def test_a_run_with_columns_of_another_length_is_damage(count: int, which: int) -> None:
    made = buffer([])
    made.record_run(RUN)
    (whole,) = made.seal()
    payload = struct.pack("<I", which) + whole.encode()[28:]
    head = struct.pack("<4sIQI", b"AWRN", len(payload), 0, count)
    log = read(HEADER.encode() + head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload)
    assert (log.blocks, log.is_damaged) == ([], True)


def test_a_run_whose_offsets_grow_beyond_their_width_is_damage() -> None:
    first = block([Event(EventCode.SUCCEEDED, "orders", 3, 2**63 - 2)])
    log = read(HEADER.encode() + RunBlock(0, 12, first.records, first.strings, {}).encode())
    assert (log.blocks, log.is_damaged) == ([], True)


def test_events_carry_the_time_of_a_clock_that_nobody_sets() -> None:
    times = [row.mono_ns for row in rows(HEADER.encode() + three_blocks()[0])]
    assert times == sorted({time for time in times if time is not None})


def test_a_header_says_how_many_events_of_each_code_came_before() -> None:
    header = LogHeader(5, 9, counts={int(EventCode.SESSION_START): 1, int(EventCode.CLAIMED): 8})
    assert read(header.encode()).header == header
    assert json.loads(header.encode()[24:])["counts"] == {"30": 1, "2": 8}


@each("data", [b"", b"AWHD", bytes(100), b"not a log at all, but long enough for a header"])
def test_what_is_no_log_is_unreadable(data: bytes) -> None:
    assert isinstance(parse_log(data), Unreadable)


def test_sequence_numbers_go_on_from_block_to_block() -> None:
    made = buffer([Event(EventCode.HEARTBEAT)] * 3, first_seq=40)
    (first,) = made.seal()
    made.record(Event(EventCode.HEARTBEAT))
    (second,) = made.seal()
    assert (first.first_seq, first.next_seq, second.first_seq, made.next_seq) == (40, 43, 43, 44)
    assert made.seal() == []


def test_each_block_carries_its_own_strings() -> None:
    made = buffer([Event(EventCode.CLAIMED, "orders")])
    made.seal()
    made.record(Event(EventCode.CLAIMED, "payments"))
    (second,) = made.seal()
    assert second.strings == (None, "payments")


def test_a_string_that_comes_again_is_stored_once() -> None:
    assert block([Event(EventCode.CLAIMED, "orders", handler="orders", error="orders")] * 5).strings == (None, "orders")


def test_numbers_beyond_their_width_become_the_nearest_that_fits() -> None:
    event = Event(EventCode.SUCCEEDED, offset=2**70, partition=-(2**40), attempt=40_000, level=-128, duration_us=2**31)
    (row,) = block([event]).rows()
    assert row.event == Event(
        EventCode.SUCCEEDED, offset=2**63 - 1, partition=-(2**31) + 1, attempt=32_767, level=-127, duration_us=2**31 - 1
    )


def test_values_of_a_wrong_type_do_not_make_recording_raise() -> None:
    wrong: Any = {"topic": 7, "offset": "12", "attrs": {"a": 1}, "error": ["x"], "exec_id": 1.5}
    (row,) = block([Event(EventCode.FAILED, **wrong, partition=3)]).rows()
    assert row.event == Event(EventCode.FAILED, "7", 3, attrs="{'a': 1}", error="['x']")


def test_a_lone_surrogate_is_written_as_an_escape() -> None:
    (row,) = rows(HEADER.encode() + block([Event(EventCode.FAILED, dedup_key="a\udc80")]).encode())
    assert row.event.dedup_key == "a\\udc80"


def test_the_header_is_json_that_anybody_can_read() -> None:
    data = HEADER.encode()
    assert json.loads(data[24:])["group_id"] == "billing"
