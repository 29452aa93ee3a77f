"""The journal as the pipeline sees it: record, flush, and what stands in the files then."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.stores.cases import case
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable
from ackwise.middleware.eventlog import EventLog, EventRow
from ackwise.middleware.events import Durable, Event, EventCode, durable_of
from ackwise.stores.journal import Journal, from_url, read_log


class Time:
    """A clock that a test turns; `sleep` waits until it was turned far enough."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleepers = 0
        self._turned = asyncio.Condition()

    def __call__(self) -> float:
        return self.now

    def nanoseconds(self) -> int:
        return int(self.now * 1_000_000_000)

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        async with self._turned:
            self.sleepers += 1
            await self._turned.wait_for(lambda: self.now >= until)
            self.sleepers -= 1

    async def pass_(self, seconds: float) -> None:
        self.now += seconds
        async with self._turned:
            self._turned.notify_all()


@asynccontextmanager
async def journal(root: Path, **settings: Any) -> AsyncIterator[Journal]:
    made = Journal(root, cluster="main", group_id="billing", **settings)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def claimed(offset: int) -> Event:
    return Event(EventCode.CLAIMED, "orders", 3, offset, "bill")


def logs(root: Path) -> list[EventLog]:
    found = [read_log(path) for path in sorted((root / "wal").glob("*.wal"))]
    assert all(isinstance(log, EventLog) for log in found)
    return [log for log in found if isinstance(log, EventLog)]


def rows(root: Path) -> list[EventRow]:
    return [row for log in logs(root) for block in log.blocks for row in block.rows()]


def _rolled(root: Path) -> Path:
    (file,) = root.glob("events/*/*/*.parquet")
    return file


def codes(root: Path) -> list[EventCode]:
    return [row.event.code for row in rows(root)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what it waits for is a file, which tells nobody
            await asyncio.sleep(0)


async def test_what_was_flushed_stands_in_the_log(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        for offset in range(100):
            sink.record(claimed(offset))
        assert codes(tmp_path) == [EventCode.SESSION_START]
        await sink.flush()
        assert [row.event for row in rows(tmp_path)[1:]] == [claimed(offset) for offset in range(100)]
        (log,) = logs(tmp_path)
        assert (log.header.writer_id, log.header.cluster, log.header.group_id) == (sink.writer_id, "main", "billing")


async def test_events_of_the_producer_side_need_no_coordinates(tmp_path: Path) -> None:
    outgoing = [
        Event(EventCode.OUTBOX_STORED, "orders", dedup_key="m-1", attrs='{"row": 7}'),
        Event(EventCode.OUTBOX_SENT, "orders", 3, 40, record_ts_ms=1_000, dedup_key="m-1"),
        Event(EventCode.RELAY_POSITION, attrs='{"position": "0/16B3748"}'),
    ]
    async with journal(tmp_path) as made:
        for event in outgoing:
            made.record(event)
        await made.flush()
        assert [row.event for row in rows(tmp_path)[1:]] == outgoing
    table = pq.ParquetFile(_rolled(tmp_path)).read(columns=["event_type", "partition", "offset", "dedup_key"]).slice(1, 3)
    assert [tuple(row.values()) for row in table.to_pylist()] == [(40, None, None, "m-1"), (41, 3, 40, "m-1"), (45, None, None, None)]


async def test_the_session_starts_with_the_facts_that_the_host_gave_and_the_mode(tmp_path: Path) -> None:
    async with journal(tmp_path, attrs={"lease": 30.0, "levels": [1, 5]}, client="worker-1"):
        start = rows(tmp_path)[0]
        assert (start.seq, start.event.code) == (0, EventCode.SESSION_START)
        facts = json.loads(start.event.attrs or "")
        assert facts["mode"] == "before_settle"
        assert facts["lease"] == 30.0
        assert facts["levels"] == [1, 5]


async def test_the_session_ends_with_the_last_sequence_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
    end = rows(tmp_path)[-1]
    assert (end.seq, end.event) == (2, Event(EventCode.SESSION_END, range_end=3))


async def test_flushes_during_a_write_share_the_next_block(tmp_path: Path) -> None:
    async def settle(sink: Journal, offset: int) -> None:
        sink.record(claimed(offset))
        await sink.flush()

    async with journal(tmp_path) as sink:
        await asyncio.gather(*(settle(sink, offset) for offset in range(200)))
        (log,) = logs(tmp_path)
        assert [block.count for block in log.blocks] == [1, 1, 199]


async def test_what_is_recorded_during_a_write_is_durable_only_after_the_next(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        first = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the block is sealed now
        sink.record(claimed(1))
        await sink.flush()
        assert first.done()
        (log,) = logs(tmp_path)
        assert [block.count for block in log.blocks] == [1, 1, 1]


async def test_a_cancelled_flush_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        given_up = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        given_up.cancel()
        await sink.flush()
        assert [row.seq for row in rows(tmp_path)] == [0, 1]
        with pytest.raises(asyncio.CancelledError):
            await given_up


async def test_a_write_survives_a_loop_that_cancels_every_task(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        for offset in range(50):
            sink.record(claimed(offset))
            flush = asyncio.create_task(sink.flush())
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(flush, return_exceptions=True)
        await sink.flush()
        assert [row.seq for row in rows(tmp_path)] == list(range(51))


async def test_who_flushes_during_a_write_is_told_by_the_next_one_alone(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        first = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        sink.record(claimed(1))
        second = asyncio.create_task(sink.flush())
        given_up = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        given_up.cancel()
        await first
        assert (sink.durable.last_seq, second.done()) == (1, False)
        await second
        assert sink.durable.last_seq == 2


def test_a_write_that_ends_after_its_loop_tells_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on, sync = threading.Event(), os.fsync

    async def leave() -> Journal:
        sink = Journal(tmp_path, group_id="billing")
        await sink.open()
        monkeypatch.setattr("os.fsync", lambda descriptor: goes_on.wait(60) and sync(descriptor))
        sink.record(claimed(0))
        flush = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        assert not flush.done()
        return sink

    sink = asyncio.run(leave())
    goes_on.set()
    sink._log_thread.shutdown()
    sink._roll_thread.shutdown()
    assert (caplog.records, sink.durable.last_seq) == ([], 1)


async def test_a_flush_in_the_moment_between_a_write_and_its_news_starts_another_write(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        first = asyncio.create_task(sink.flush())
        await asyncio.sleep(0)
        writing = sink._writing
        assert writing is not None
        await until(writing.done)
        sink.record(claimed(1))
        await sink.flush()
        assert [row.seq for row in rows(tmp_path)] == [0, 1, 2]
        await first


async def test_the_disk_is_never_touched_on_the_loop_s_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    real = __import__("os").fsync

    def fsync(descriptor: int) -> None:
        threads.add(threading.current_thread().name)
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    async with journal(tmp_path, roll_events=5) as sink:
        for offset in range(20):
            sink.record(claimed(offset))
            await sink.flush()
    assert {name.rpartition("_")[0] for name in threads} == {"ackwise-log"}  # a process of its own rolls


async def test_a_flush_with_nothing_new_writes_nothing(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        await sink.flush()
        await sink.flush()
        assert len(logs(tmp_path)[0].blocks) == 1


async def test_a_file_is_rolled_when_it_has_enough_events(tmp_path: Path) -> None:
    async with journal(tmp_path, roll_events=10, heartbeat_seconds=1e6) as sink:
        for offset in range(9):
            sink.record(claimed(offset))
        await sink.flush()
        parquet = tmp_path / "events"
        await until(lambda: list(parquet.rglob("*.parquet")))
        (file,) = parquet.rglob("*.parquet")
        assert file.name == f"events-{sink.writer_id:016x}-000000000000-000000000009.parquet"
        sink.record(claimed(9))
        await sink.flush()
        await until(lambda: len(list((tmp_path / "wal").iterdir())) == 1)
        assert [row.seq for row in rows(tmp_path)] == [10]


async def test_flushes_end_where_nothing_can_be_rolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    async with journal(tmp_path) as sink:
        with monkeypatch.context() as broken:
            broken.setattr(sink, "_roll_finished", refuse)
            for offset in range(3):  # the second one comes while the first is written
                sink.record(claimed(offset))
                flushes = [asyncio.ensure_future(sink.flush())]
                await asyncio.sleep(0)
                sink.record(claimed(10 + offset))
                flushes.append(asyncio.ensure_future(sink.flush()))
                async with asyncio.timeout(30):
                    await asyncio.gather(*flushes)


async def test_a_flush_without_a_thread_says_so_and_the_next_one_writes_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        with monkeypatch.context() as broken:
            broken.setattr(sink._log_thread, "submit", refuse)
            with pytest.raises(EventLogUnavailable, match="no thread can write it: can't start new thread"):
                await sink.flush()
        await sink.flush()
        assert [row.event.offset for row in rows(tmp_path) if row.event.offset is not None] == [0]


async def test_a_file_is_rolled_at_the_first_flush_after_its_time(tmp_path: Path) -> None:
    time = Time()
    async with journal(tmp_path, clock=time, sleep=time.sleep, now_ns=time.nanoseconds) as sink:
        time.now += 59.0
        sink.record(claimed(0))
        await sink.flush()
        assert len(logs(tmp_path)[0].blocks) == 2
        time.now += 1.0
        sink.record(claimed(1))
        await sink.flush()
        await until(lambda: list((tmp_path / "events").rglob("[!.]*.parquet")))
    first, last = sorted(path.name[24:] for path in (tmp_path / "events").rglob("*.parquet"))
    assert (first, last) == ("000000000000-000000000002.parquet", "000000000003-000000000003.parquet")


async def test_a_heartbeat_is_durable_at_its_interval_without_anybody_asking(tmp_path: Path) -> None:
    time = Time()
    async with journal(tmp_path, clock=time, sleep=time.sleep, heartbeat_seconds=10.0) as sink:
        for beats in (1, 2):
            await until(lambda: time.sleepers == 1)
            await time.pass_(10.0)
            await until(lambda beats=beats: codes(tmp_path).count(EventCode.HEARTBEAT) == beats)
        assert sink.writer_id


async def test_heartbeats_go_on_after_a_write_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time, failed = Time(), list[int]()

    def fail_once(descriptor: int) -> None:
        monkeypatch.undo()
        failed.append(descriptor)
        raise OSError(28, "No space left on device")

    async with journal(tmp_path, clock=time, sleep=time.sleep, heartbeat_seconds=10.0):
        await until(lambda: time.sleepers == 1)
        monkeypatch.setattr("os.fsync", fail_once)
        await time.pass_(10.0)
        await until(lambda: failed != [] and time.sleepers == 1)
        await time.pass_(10.0)
        await until(lambda: len({row.seq for row in rows(tmp_path) if row.event.code is EventCode.HEARTBEAT}) == 2)


async def test_async_flush_returns_before_the_disk_and_the_disk_follows(tmp_path: Path) -> None:
    time = Time()
    async with journal(tmp_path, mode="async", clock=time, sleep=time.sleep, flush_seconds=0.2) as sink:
        sink.record(claimed(0))
        await sink.flush()
        assert codes(tmp_path) == [EventCode.SESSION_START]
        await until(lambda: time.sleepers == 1)
        await time.pass_(0.2)
        await until(lambda: len(rows(tmp_path)) == 2)
        assert json.loads(rows(tmp_path)[0].event.attrs or "")["mode"] == "async"


async def test_async_writes_as_soon_as_there_are_enough_events(tmp_path: Path) -> None:
    time = Time()
    async with journal(tmp_path, mode="async", clock=time, sleep=time.sleep, flush_events=5) as sink:
        for offset in range(5):
            sink.record(claimed(offset))
        await sink.flush()
        await until(lambda: len(rows(tmp_path)) == 6)


async def test_async_waits_for_the_disk_rather_than_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.stores.journal.sink.MOST_BEHIND", 10)
    time = Time()
    async with journal(tmp_path, mode="async", clock=time, sleep=time.sleep) as sink:
        for offset in range(11):
            sink.record(claimed(offset))
        await sink.flush()
        assert len(rows(tmp_path)) == 12


async def test_close_leaves_parquet_only_and_closing_twice_does_nothing(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
    await sink.close()
    assert list((tmp_path / "wal").iterdir()) == []
    assert len(list((tmp_path / "events").rglob("*.parquet"))) == 1


async def test_events_after_close_are_refused_by_the_next_flush(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        pass
    sink.record(claimed(0))
    with pytest.raises(EventLogUnavailable, match="it is closed"):
        await sink.flush()


async def test_without_pyarrow_the_log_stays_and_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with caplog.at_level(logging.WARNING):
        async with journal(tmp_path, roll_events=2) as sink:
            for offset in range(6):
                sink.record(claimed(offset))
                await sink.flush()
    assert [row.seq for row in rows(tmp_path)] == list(range(8))
    assert len(list((tmp_path / "wal").glob("*.wal"))) > 1
    assert [record.message.count("pip install 'ackwise[events]'") for record in caplog.records] == [1]


def test_a_journal_is_found_by_path_and_by_url(tmp_path: Path) -> None:
    for url in ["{}", "file://{}", "file://localhost{}"]:
        with case(url):
            assert from_url(url.format(tmp_path), group="billing").root == tmp_path


def test_an_address_that_is_no_folder_is_refused() -> None:
    for url, sentence in [
        ("s3://bucket", "events can't be written to s3://"),
        ("file://server/share", "file://server/share names no folder on this machine"),
        ("", "has no name"),
    ]:
        with case(url, sentence), pytest.raises(ConfigurationError, match=sentence):
            from_url(url, group="billing")


def test_a_setting_that_can_t_work_is_refused_at_once(tmp_path: Path) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"mode": "later"}, "mode of the event journal is 'later'"),
        ({"roll_events": 0}, "roll_events of the event journal is 0; it must be above zero"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds of the event journal is nan"),
        ({"attrs": {"levels": {1}}}, "can't be written as JSON"),
    ]
    for settings, sentence in table:
        with case(settings, sentence), pytest.raises(ConfigurationError, match=sentence):
            Journal(tmp_path, group_id="billing", **settings)


async def test_a_journal_says_up_to_which_event_all_are_durable(tmp_path: Path) -> None:
    async with journal(tmp_path) as sink:
        sink.record(claimed(0))
        assert sink.durable == Durable(sink.writer_id, 0), "SESSION_START is, and what was recorded since is not"
        await sink.flush()
        assert sink.durable == durable_of(sink) == Durable(sink.writer_id, 1)
