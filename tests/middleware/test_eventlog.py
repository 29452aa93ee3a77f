"""The event log's bytes: what goes in comes out, and of a broken file everything before the break."""

from __future__ import annotations

import dataclasses
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
    AnyBlock,
    Block,
    EventBuffer,
    EventLog,
    EventRow,
    LogHeader,
    OutcomeBlock,
    StartBlock,
    Unreadable,
    encoded,
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
        numbers = [values[place] for values in struct.iter_unpack("<" + "".join(f.format for f in FIELDS) + "3x", made.records)]
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
    assert start == 141
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
        order_hashes=st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31), min_size=size, max_size=size),
    )


@st.composite
def runs_and_outcomes(draw: st.DrawFn) -> list[RunEvents]:
    """The start of a run, and what became of its messages: of all, of some, or of others that have their exec ids."""
    size, first = draw(st.integers(10, 20)), draw(st.integers(0, 50))
    started = dataclasses.replace(draw(runs(size)), code=EventCode.CLAIMED, exec_ids=range(first, first + size), attempt=1, dedup_epoch=0)
    found = [started]
    for code in draw(st.lists(st.sampled_from([EventCode.SUCCEEDED, EventCode.FAILED, EventCode.RELEASED]), max_size=3)):
        places = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))) if draw(st.booleans()) else range(size)
        about: dict[str, Any] = {
            name: [column[place] for place in places] for name in EACH if (column := getattr(started, name)) is not None
        }
        if len(places) == size:
            about = {name: getattr(started, name) for name in about}
        if draw(st.booleans()):
            about[draw(st.sampled_from(sorted(about)))] = draw(numbers(len(places)))
        found.append(dataclasses.replace(started, code=code, order_hashes=None, duration_us=draw(st.integers(0, 9)), **about))
    return found


EACH = ("offsets", "record_ts_ms", "exec_ids", "dedup_hashes")


@pytest.mark.slow  # records a hundred lists of events twice
@given(
    st.lists(st.lists(EVENTS | st.integers(1, 14).flatmap(runs), max_size=3) | runs_and_outcomes(), min_size=1, max_size=4),
    st.sampled_from([0, 5, 12, 10**6]),
)
def test_the_events_of_a_run_are_read_as_if_each_had_been_recorded(parts: list[list[Event | RunEvents]], first_seq: int) -> None:
    """Also where outcomes stand in another file than their start, as those below `first_seq` do."""
    events = [event for part in parts for event in part]
    made, one_by_one = buffer([]), buffer([])
    for one in events:
        if isinstance(one, RunEvents):
            made.record_run(one)
            for event in explode(one):
                one_by_one.record(event)
        else:
            made.record(one)
            one_by_one.record(one)
    blocks = made.seal()
    before, behind = [block for block in blocks if block.first_seq < first_seq], [block for block in blocks if block.first_seq >= first_seq]
    expected = HEADER.encode() + encoded(one_by_one.seal(), 0)
    files = [HEADER.encode() + encoded(before, 0)]
    if behind:
        files.append(dataclasses.replace(HEADER, first_seq=behind[0].first_seq).encode() + encoded(behind, behind[0].first_seq))
    found = [row for file in files for row in rows(file)]
    assert [(row.seq, row.event) for row in found] == [(row.seq, row.event) for row in rows(expected)]
    assert (made.next_seq, read(files[-1]).next_seq) == (one_by_one.next_seq, one_by_one.next_seq)


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


@each(("count", "which"), [(13, 15), (0, 0), (2**31, 15), (12, 31)])
def test_a_run_with_columns_of_another_length_is_damage(count: int, which: int) -> None:
    made = buffer([])
    made.record_run(RUN)
    (whole,) = made.seal()
    payload = struct.pack("<I", which) + whole.encode()[28:]
    head = struct.pack("<4sIQI", b"AWST", len(payload), 0, count)
    log = read(HEADER.encode() + head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload)
    assert (log.blocks, log.is_damaged) == ([], True)


def test_a_run_whose_offsets_grow_beyond_their_width_is_damage() -> None:
    first = block([Event(EventCode.SUCCEEDED, "orders", 3, 2**63 - 2)])
    log = read(HEADER.encode() + StartBlock(0, 12, first.records, first.strings, {}).encode())
    assert (log.blocks, log.is_damaged) == ([], True)


STARTED = dataclasses.replace(RUN, code=EventCode.CLAIMED, order_hashes=[*range(12)])
DONE = dataclasses.replace(RUN, duration_us=7)


def pair(outcome: RunEvents = DONE) -> list[AnyBlock]:
    made = buffer([])
    made.record_run(STARTED)
    made.record_run(outcome)
    return made.seal()


def of_some(*places: int) -> RunEvents:
    each: dict[str, Any] = {name: [getattr(DONE, name)[place] for place in places] for name in EACH}
    return dataclasses.replace(DONE, **each)


def test_an_outcome_repeats_no_column() -> None:
    start, outcome = pair()
    assert isinstance(outcome, OutcomeBlock)
    assert len(outcome.encode()) < len(block([explode(DONE)[0]]).encode()) + 20
    read_back = rows(HEADER.encode() + start.encode() + outcome.encode())
    assert [row.event for row in read_back] == [*explode(STARTED), *explode(DONE)]


def test_an_outcome_may_be_that_of_some_messages() -> None:
    some = of_some(0, 1, 2, 4, 5, 6, 7, 8, 9, 11)
    start, outcome = pair(some)
    assert isinstance(outcome, OutcomeBlock)
    assert [row.event for row in rows(HEADER.encode() + start.encode() + outcome.encode())[12:]] == explode(some)


@each(
    "changed",
    [
        {"topic": "others"}, {"partition": 4}, {"handler": "ship"}, {"attempt": 2}, {"dedup_epoch": 1}, {"offsets": range(6, 18)},
        {"record_ts_ms": [*range(12)]}, {"dedup_hashes": [*range(1, 13)]}, {"dedup_hashes": None}, {"exec_ids": range(41, 53)},
    ],
)  # fmt: skip
def test_an_outcome_of_other_messages_has_columns_of_its_own(changed: dict[str, Any]) -> None:
    other = dataclasses.replace(DONE, **changed)
    start, outcome = pair(other)
    assert isinstance(outcome, StartBlock)
    assert [row.event for row in rows(HEADER.encode() + start.encode() + outcome.encode())[12:]] == explode(other)


def test_an_outcome_in_a_later_file_than_its_start_has_columns_of_its_own() -> None:
    _, outcome = pair()
    later = dataclasses.replace(HEADER, first_seq=12)
    assert [row.event for row in rows(later.encode() + encoded([outcome], 12))] == explode(DONE)


@each("place", [0, 11, 12, 24, 100])
def test_an_outcome_without_its_start_is_damage(place: int) -> None:
    start, outcome = pair()
    assert isinstance(start, StartBlock)
    assert isinstance(outcome, OutcomeBlock)
    lost = dataclasses.replace(outcome, start=dataclasses.replace(start, first_seq=place))
    log = read(HEADER.encode() + start.encode() + lost.encode())
    assert (len(log.blocks), log.is_damaged) == ((2, False) if place == 0 else (1, True))


@each(("number", "places"), [(11, None), (13, None), (12, (0, 1)), (1, ()), (2, (0, 12)), (1, (90,))])
def test_an_outcome_of_another_number_of_messages_is_damage(number: int, places: tuple[int, ...] | None) -> None:
    start, outcome = pair()
    mask = b"" if places is None else sum(1 << place for place in places).to_bytes(16, "little")
    payload = struct.pack("<QI", 0, len(mask)) + mask + outcome.encode()[40:]
    head = struct.pack("<4sIQI", b"AWOC", len(payload), 12, number)
    log = read(HEADER.encode() + start.encode() + head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload)
    assert (len(log.blocks), log.is_damaged) == (1, True)


def test_the_log_of_a_batch_takes_about_17_bytes_for_each_message() -> None:
    made, hashes = buffer([]), [*range(1000, 1500)]
    times = [*range(1_767_225_600_000, 1_767_225_600_500)]
    started = RunEvents(EventCode.CLAIMED, "orders", 3, range(500), "bill", 1, times, range(500), hashes, 0, lost=0)
    made.record_run(started)
    made.record_run(dataclasses.replace(started, code=EventCode.SUCCEEDED, lost=None, duration_us=9))
    assert len(encoded(made.seal(), 0)) / 500 < 17.2


def test_starts_without_an_outcome_are_forgotten_in_the_end() -> None:
    made = buffer([])
    for first in range(0, 12 * 1000, 12):
        made.record_run(dataclasses.replace(STARTED, exec_ids=range(first, first + 12)))
    made.record_run(DONE)
    made.record_run(dataclasses.replace(DONE, exec_ids=range(12 * 999, 12 * 1000)))
    old, new = made.seal()[-2:]
    assert (type(old), type(new)) == (StartBlock, OutcomeBlock)


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
