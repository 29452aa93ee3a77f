"""Log files become Parquet files, once and whole; those that somebody holds are left alone and can be read."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.eventfiles import events_in

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.eventlog import FIELDS, LAYOUT_VERSION, NONE, EventBuffer, EventLog, LogHeader
from ackwise.middleware.events import COLUMNS, Event, EventCode, Kind, RunEvents, explode
from ackwise.stores.journal import Journal, Recovery, UnreadableLog, read_log, recover, snapshot
from ackwise.stores.journal.log import LogWriter
from ackwise.stores.journal.recovery import roll

WRITER = 0xABCDEF
START_NS = 1_767_225_600_000_000_000 + 13 * 3_600_000_000_000  # 2026-01-01 13:00 UTC
STEM = "0000000000abcdef-000000000000"


def claimed(offset: int) -> Event:
    return Event(EventCode.CLAIMED, "orders", 3, offset, "bill")


def write_log(root: Path, blocks: Sequence[Sequence[Event | RunEvents]], *, now_ns: Callable[[], int] = lambda: START_NS) -> Path:
    """A log file whose writer has let go of it."""
    (root / "wal").mkdir(parents=True, exist_ok=True)
    header = LogHeader(WRITER, 0, "main", "billing", "worker-1")
    writer = LogWriter(root, header, roll_events=10**9, roll_seconds=10**9)
    buffer = EventBuffer(now_ns=now_ns, mono_ns=lambda: 77)
    for events in blocks:
        for event in events:
            if isinstance(event, RunEvents):
                buffer.record_run(event)
            else:
                buffer.record(event)
        for block in buffer.seal():
            writer.put(block)
        writer.write()
    writer.finish()
    (path,) = writer.take_finished()
    return path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """As its writer would."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(path: Path) -> list[dict[str, Any]]:
    """The events in a file, in order."""
    return events_in(path)


def seqs(path: Path) -> list[int]:
    return [row["seq"] for row in read(path)]


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_log_that_nobody_holds_becomes_a_parquet_file_named_after_its_events(tmp_path: Path) -> None:
    write_log(tmp_path, [[claimed(0), claimed(1)], [claimed(2)]])
    recovery = recover(tmp_path)
    expected = "events/dt=2026-01-01/hr=13/events-0000000000abcdef-000000000000-000000000002.parquet"
    assert recovery == Recovery(rolled=[tmp_path / expected])
    assert files(tmp_path) == [expected]
    assert seqs(tmp_path / expected) == [0, 1, 2]


def test_a_row_says_everything_that_the_event_and_its_writer_said(tmp_path: Path) -> None:
    event = Event(
        EventCode.SENT_BACK, "orders", 3, 17, "bill", 2, exec_id=5, dedup_hash=-7, dedup_epoch=1, record_ts_ms=1_767_225_600_001,
        phys_topic="billing.retry", phys_partition=4, phys_offset=90, level=3, due_ms=1_767_225_660_000, took_unreleased=False,
        error="ValueError", dedup_key="größe", attrs="{}", topic_id="abc",
    )  # fmt: skip
    write_log(tmp_path, [[event]])
    (row,) = read(recover(tmp_path).rolled[0])
    assert {name: value for name, value in row.items() if value is not None} == {
        "schema_version": 3, "writer_id": WRITER, "seq": 0, "mono_ns": 77,
        "event_type": 5, "event_ts": dt.datetime(2026, 1, 1, 13, tzinfo=dt.UTC),
        "cluster": "main", "group_id": "billing", "client": "worker-1", "handler": "bill", "topic": "orders", "topic_id": "abc",
        "partition": 3, "offset": 17, "record_ts": dt.datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC),
        "phys_topic": "billing.retry", "phys_partition": 4, "phys_offset": 90, "attempt": 2, "level": 3,
        "due_ts": dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC), "exec_id": 5, "dedup_hash": -7, "dedup_key": "größe",
        "dedup_epoch": 1, "took_unreleased": False, "error": "ValueError", "attrs": "{}",
    }  # fmt: skip


def test_times_are_microseconds_in_utc_and_numbers_have_the_widths_of_the_schema(tmp_path: Path) -> None:
    write_log(tmp_path, [[claimed(0)]])
    (path,) = recover(tmp_path).rolled
    schema = pq.read_schema(path)
    assert schema.names == [column.name for column in COLUMNS]
    assert {name: str(schema.field(name).type) for name in ("event_ts", "record_ts", "due_ts")} == dict.fromkeys(
        ("event_ts", "record_ts", "due_ts"), "timestamp[us, tz=UTC]"
    )
    for column in COLUMNS:
        found = schema.field(column.name)
        assert found.nullable == column.nullable
        if column.kind is not Kind.TIMESTAMP:
            assert str(found.type).replace("element: ", "") == column.kind.value
    assert schema.field("offset").type == pa.int64()


def test_run_rows_are_before_single_rows_and_columns_have_the_encodings_and_statistics_that_they_need(tmp_path: Path) -> None:
    write_log(tmp_path, [[Event(EventCode.HEARTBEAT), *(claimed(offset) for offset in range(100))]])
    (path,) = recover(tmp_path).rolled
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)] == [1, 1]
    assert pq.ParquetFile(path).read()["n"].to_pylist() == [100, None]
    group = metadata.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for name in ("seq", "offset", "event_ts", "exec_id", "dedup_hash"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    assert {name for name, column in columns.items() if column.is_stats_set} == {"partition", "offset", "last_offset", "event_ts", "n"}
    assert {name for name, column in columns.items() if column.has_dictionary_page} == {
        "cluster", "group_id", "client", "handler", "topic", "topic_id", "phys_topic", "error", "role",
    }  # fmt: skip


def values(name: str, field_format: Any, is_text: bool) -> st.SearchStrategy[Any]:
    if name == "code":
        return st.sampled_from(EventCode)
    if is_text:
        return st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if name in ("took_unreleased", "from_commit", "proved"):
        return st.none() | st.booleans()
    if name in ("record_ts_ms", "due_ms"):
        return st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999)
    return st.none() | st.integers(NONE[field_format] + 1, -NONE[field_format] - 1)


EVENTS = st.builds(Event, **{field.name: values(*field) for field in FIELDS if field.name not in ("at_ns", "mono_ns")})
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_field_of_every_event_reaches_its_column(tmp_path: Path, blocks: list[list[Event]]) -> None:
    write_log(tmp_path, blocks)
    (path,) = recover(tmp_path).rolled
    events = [event for block in blocks for event in block]
    for row, event in zip(read(path), events, strict=True):
        for name, value in event._asdict().items():
            if name in ("record_ts_ms", "due_ms"):
                when = row["record_ts" if name == "record_ts_ms" else "due_ts"]
                assert (None if when is None else (when - EPOCH) // dt.timedelta(milliseconds=1)) == value
            else:
                assert row[{"code": "event_type"}.get(name, name)] == value


def test_rolling_twice_writes_the_same_file_whatever_the_hour_is(tmp_path: Path) -> None:
    log = write_log(tmp_path, [[claimed(0)], [claimed(1)]])
    copy = log.read_bytes()
    (path,) = recover(tmp_path).rolled
    first = path.read_bytes()
    log.write_bytes(copy)
    assert recover(tmp_path).rolled == [path]
    assert path.read_bytes() == first
    assert len(files(tmp_path)) == 1


def test_the_directory_is_the_hour_of_the_last_event(tmp_path: Path) -> None:
    times = iter([START_NS, START_NS, START_NS + 3_600_000_000_000])
    write_log(tmp_path, [[claimed(0), claimed(1), claimed(2)]], now_ns=lambda: next(times, START_NS + 3_600_000_000_000))
    (path,) = recover(tmp_path).rolled
    assert path.parent == tmp_path / "events/dt=2026-01-01/hr=14"


def test_a_log_that_is_held_is_read_and_never_rolled(tmp_path: Path) -> None:
    log = write_log(tmp_path, [[claimed(0)], [claimed(1)]])
    with held(log):
        recovery = recover(tmp_path)
        assert recovery == Recovery(live=[log])
        (copy,) = snapshot(recovery.live, tmp_path / "mine")
    assert seqs(copy) == [0, 1]
    assert copy.name == "events-0000000000abcdef-000000000000-000000000001.parquet"
    assert (copy.parent.parent.parent, log.exists()) == (tmp_path / "mine" / "events", True)
    assert seqs(recover(tmp_path).rolled[0]) == [0, 1]


async def test_a_running_journal_keeps_its_log_from_being_rolled(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    recovery = recover(tmp_path)
    assert (recovery.rolled, len(recovery.live)) == ([], 1)
    await journal.close()
    assert recover(tmp_path) == Recovery()


def rolled_on(root: Path) -> dict[str, str | None]:
    """By file, the boot id of the machine that rolled the last log of its writer."""
    found = {path.stem: (pq.read_schema(path).metadata or {}).get(b"ackwise.rolled_on") for path in root.rglob("*.parquet")}
    return {name: None if boot is None else boot.decode() for name, boot in found.items()}


def test_the_file_of_a_log_that_was_left_says_on_which_start_of_the_machine_it_was_rolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.stores.journal.recovery.boot_id", lambda: "b1")
    path = write_log(tmp_path, [[claimed(0)]])
    with held(path):
        assert snapshot(recover(tmp_path).live, tmp_path / "copy")
    recover(tmp_path)
    assert rolled_on(tmp_path / "copy") == rolled_on(tmp_path / "events") == {f"events-{STEM}-000000000000": "b1"}


def test_a_log_that_goes_on_in_another_says_nothing_of_the_machine_nor_does_one_that_its_own_writer_rolls(tmp_path: Path) -> None:
    left, own = tmp_path / "left", tmp_path / "own"
    write_log(left, [[claimed(0)]])
    (left / "wal" / "0000000000abcdef-000000000001.wal").write_bytes(LogHeader(WRITER, 1).encode())
    recover(left)
    roll(write_log(own, [[claimed(0)]]), own, Recovery())
    assert rolled_on(left) == rolled_on(own) == {f"events-{STEM}-000000000000": None}


async def test_opening_a_journal_rolls_what_crashed_writers_left(tmp_path: Path) -> None:
    write_log(tmp_path, [[claimed(0)]])
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    await journal.close()
    assert len(list((tmp_path / "events").rglob(f"events-{WRITER:016x}-*.parquet"))) == 1


def test_a_log_that_was_rolled_meanwhile_is_left_out_of_a_snapshot(tmp_path: Path) -> None:
    assert snapshot([tmp_path / "wal" / f"{STEM}.wal"], tmp_path / "mine") == []


def test_a_log_without_events_is_only_removed(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / f"{STEM}.wal").write_bytes(LogHeader(WRITER, 0).encode())
    assert recover(tmp_path) == Recovery()
    assert files(tmp_path) == []


def test_a_torn_tail_is_discarded_without_a_word(tmp_path: Path) -> None:
    log = write_log(tmp_path, [[claimed(0)], [claimed(1), claimed(2)]])
    os.truncate(log, log.stat().st_size - 1)
    recovery = recover(tmp_path)
    assert [seqs(path) for path in recovery.rolled] == [[0]]
    assert recovery.unreadable == []
    assert len(files(tmp_path)) == 1


def test_a_log_destroyed_in_the_middle_is_rolled_up_to_there_kept_and_reported_every_time(tmp_path: Path) -> None:
    log = write_log(tmp_path, [[claimed(0), claimed(1)], [claimed(2)], [claimed(3)]])
    data = bytearray(log.read_bytes())
    data[data.index(b"AWEV", data.index(b"AWEV") + 1) + 30] ^= 1
    log.write_bytes(data)
    first = recover(tmp_path)
    kept = log.with_name(f"{STEM}.wal.damaged")
    assert [seqs(path) for path in first.rolled] == [[0, 1]]
    assert kept.read_bytes() == data
    for recovery in (first, recover(tmp_path)):
        (found,) = recovery.unreadable
        assert (found.writer_id, found.from_seq, found.reason) == (WRITER, 2, "a block in the middle is destroyed")


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_a_log_that_can_t_be_read_stays_and_is_reported_with_its_writer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wal" / f"{STEM}.wal"
    path.parent.mkdir()
    path.write_bytes(content)
    reason = "it does not start with a whole header block"
    assert recover(tmp_path) == Recovery(unreadable=[UnreadableLog(path, reason, WRITER, 0)])
    assert path.read_bytes() == content


def test_a_log_that_can_t_be_opened_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "wal" / f"{STEM}.wal"
    path.mkdir(parents=True)
    assert recover(tmp_path) == Recovery(unreadable=[UnreadableLog(path, "it is no regular file", WRITER, 0)])


def test_a_file_of_another_name_has_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "wal" / "copy.wal"
    path.parent.mkdir()
    path.write_bytes(b"")
    assert recover(tmp_path).unreadable[0].writer_id is None


def test_an_unfinished_log_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / f".{STEM}.wal.tmp").write_bytes(b"")
    assert recover(tmp_path) == Recovery()


def test_a_log_that_can_t_be_exported_stays_and_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = write_log(tmp_path, [[claimed(0)]])
    (tmp_path / "events").write_text("not a folder")
    recovery = recover(tmp_path)
    assert recovery == Recovery(live=[log])
    assert "its events stay in it" in caplog.text
    assert "a file stands where a folder belongs, move it away" in caplog.text
    assert seqs(snapshot(recovery.live, tmp_path / "mine")[0]) == [0]


def test_reading_a_log_gives_its_whole_blocks(tmp_path: Path) -> None:
    log = write_log(tmp_path, [[claimed(0)], [claimed(1)]])
    os.truncate(log, log.stat().st_size - 1)
    found = read_log(log)
    assert isinstance(found, EventLog)
    assert [row.event for block in found.blocks for row in block.rows()] == [claimed(0)]


def test_recovering_without_pyarrow_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, [[claimed(0)]])
    monkeypatch.setitem(sys.modules, "ackwise.stores.journal.parquet", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ackwise\[events\]'"):
        recover(tmp_path)
    assert files(tmp_path) == [f"wal/{STEM}.wal"]


def counted_before(file: Path) -> dict[int, int] | None:
    said = (pq.read_schema(file).metadata or {}).get(b"ackwise.counts")
    return None if said is None else {int(code): number for code, number in json.loads(said).items()}


def test_each_file_says_how_many_events_of_each_code_its_writer_had_recorded_before(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir(parents=True)
    writer = LogWriter(tmp_path, LogHeader(WRITER, 0), roll_events=2, roll_seconds=10**9)
    buffer = EventBuffer(now_ns=lambda: START_NS)
    for events in ([claimed(0), claimed(1)], [Event(EventCode.HEARTBEAT), claimed(2)], [claimed(3)]):
        for event in events:
            buffer.record(event)
        (block,) = buffer.seal()
        writer.put(block)
        writer.write()
    writer.finish()
    logs = [read_log(path) for path in writer.take_finished()]
    expected: list[Any] = [{}, {EventCode.CLAIMED: 2}, {EventCode.CLAIMED: 3, EventCode.HEARTBEAT: 1}]
    assert [log.header.counts for log in logs if isinstance(log, EventLog)] == expected
    assert all(sum(log.header.counts.values()) == log.header.first_seq for log in logs if isinstance(log, EventLog) and log.header.counts)
    assert [counted_before(path) for path in recover(tmp_path).rolled] == expected


@pytest.mark.parametrize("version", [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1])
def test_a_log_of_another_layout_stays_as_it_is_and_its_writer_is_unknown_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with monkeypatch.context() as other:
        other.setattr("ackwise.middleware.eventlog.LAYOUT_VERSION", version)
        path = write_log(tmp_path, [[claimed(0)]])
    before = path.read_bytes()
    recovery = recover(tmp_path)
    (unread,) = recovery.unreadable
    assert (unread.writer_id, unread.from_seq, recovery.rolled) == (WRITER, 0, [])
    assert unread.reason.startswith(f"its layout is version {version}, and this Ackwise reads version {LAYOUT_VERSION} alone")
    assert path.read_bytes() == before


def test_the_events_of_a_run_are_rows_of_their_own_in_a_log_that_is_held_and_in_one_that_is_rolled(tmp_path: Path) -> None:
    run = RunEvents(EventCode.CLAIMED, "orders", 3, [*range(9), 12], "bill", 1, [7] * 10, range(40, 50), [*range(10)], 0, lost=0)
    events: list[Event | RunEvents] = [claimed(9), run, claimed(10), run, run]
    singles = [one for event in events for one in (explode(event) if isinstance(event, RunEvents) else [event])]
    log, expected = write_log(tmp_path / "runs", [events]), write_log(tmp_path / "singles", [singles])
    assert log.stat().st_size < expected.stat().st_size
    with held(log):
        (copy,) = snapshot(recover(tmp_path / "runs").live, tmp_path / "mine")
    (rolled,), (golden,) = recover(tmp_path / "runs").rolled, recover(tmp_path / "singles").rolled
    assert (rolled.name, read(rolled), counted_before(rolled)) == (golden.name, read(golden), counted_before(golden))
    assert pq.ParquetFile(rolled).metadata.num_rows < 32
    assert read(copy) == read(golden)
    assert len(read(golden)) == 32


def test_a_log_is_removed_only_after_its_parquet_file_was_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, fsync, synced = write_log(tmp_path, [[claimed(0)]]), os.fsync, list[tuple[str, bool]]()

    def noting(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, log.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    (path,) = recover(tmp_path).rolled
    assert (f".{path.name}.tmp", True) in synced
    assert not log.exists()


def test_what_a_writer_wrote_just_before_it_let_go_of_its_log_is_rolled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, flock = write_log(tmp_path / "shorter", [[claimed(0)]]), fcntl.flock
    whole = write_log(tmp_path, [[claimed(0)], [claimed(1)]])
    written = whole.read_bytes()
    whole.write_bytes(log.read_bytes())

    def lock_once_it_wrote(descriptor: int, operation: int) -> None:
        whole.write_bytes(written)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_once_it_wrote)
    assert [seqs(path) for path in recover(tmp_path).rolled] == [[0, 1]]
