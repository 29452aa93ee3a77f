"""Start marks in the log: a killed process leaves behind what it wrote, whether it was flushed or not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.eventlog import EventLog
from ackwise.middleware.events import Event, EventCode, MarkSink
from ackwise.plugin import registry
from ackwise.stores.journal import Journal, from_url, read_log
from ackwise.stores.journal.layout import boot_id

KILLED = """
import asyncio, os, signal, sys
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal

async def main():
    journal = Journal(sys.argv[1], group_id="billing")
    await journal.open()
    os.fsync = None  # whatever comes now is not synced
    journal.record(Event(EventCode.STARTED, "orders", 3, 7, "bill"))
    journal.mark()
    journal.record(Event(EventCode.SUCCEEDED, "orders", 3, 7, "bill"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def claimed(offset: int) -> Event:
    return Event(EventCode.CLAIMED, "orders", 3, offset, "bill")


def events(root: Path) -> list[tuple[int, Event]]:
    found = [read_log(path) for path in sorted((root / "wal").glob("*.wal"))]
    return [(row.seq, row.event) for log in found if isinstance(log, EventLog) for block in log.blocks for row in block.rows()]


def offsets(root: Path) -> list[int]:
    """Those of each event once, in the order of their numbers."""
    return [event.offset for _, event in sorted(dict(events(root)).items()) if event.offset is not None]


def session(root: Path) -> dict[str, Any]:
    (_, first), *_ = events(root)
    assert first.attrs is not None
    return dict(json.loads(first.attrs))


def test_a_killed_process_leaves_its_marks_behind_and_not_what_it_recorded_after_them(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert [event.code for _, event in events(tmp_path)] == [EventCode.SESSION_START, EventCode.STARTED]


async def test_a_mark_is_in_the_log_and_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    with monkeypatch.context() as other:
        other.setattr("os.fsync", None)
        journal.record(claimed(0))
        journal.mark()
        journal.mark()
        assert (offsets(tmp_path), journal.durable.last_seq) == ([0], 0)
    journal.record(claimed(1))
    await journal.flush()
    assert (offsets(tmp_path), journal.durable.last_seq) == ([0, 1], 2)
    await journal.close()


async def test_a_mark_is_written_while_a_flush_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    goes_on, waits, real = threading.Event(), threading.Event(), os.fsync

    def fsync(descriptor: int) -> None:
        waits.set()
        goes_on.wait(60)
        real(descriptor)

    with monkeypatch.context() as other:
        other.setattr("os.fsync", fsync)
        journal.record(claimed(0))
        flush = asyncio.ensure_future(journal.flush())
        await asyncio.to_thread(waits.wait, 60)
        journal.record(claimed(1))
        journal.mark()
        assert (offsets(tmp_path), flush.done()) == ([0, 1], False)
        goes_on.set()
        await flush
    assert journal.durable.last_seq == 1, "what was written after the flush began may not be on the disk"
    await journal.close()


async def test_a_mark_that_can_t_be_written_says_so_and_the_next_flush_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal.record(claimed(0))
    with monkeypatch.context() as other:
        other.setattr("os.pwrite", pwrite)
        with pytest.raises(EventLogUnavailable, match=r"No space left on device; free some space \(1 events wait, none is dropped"):
            journal.mark()
    with pytest.raises(EventLogUnavailable, match="a write failed before; the next flush tries again"):
        journal.mark()
    assert offsets(tmp_path) == []
    await journal.flush()
    journal.record(claimed(1))
    journal.mark()
    assert offsets(tmp_path) == [0, 1]
    await journal.close()


async def test_a_mark_in_a_log_that_was_deleted_counts_as_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    shutil.rmtree(tmp_path / "wal")
    journal.record(claimed(0))
    with pytest.raises(EventLogUnavailable, match="deleted or moved while it was open"):
        journal.mark()
    await journal.flush()
    assert [seq for seq, _ in events(tmp_path)] == [0, 1]
    await journal.close()


async def test_marks_that_a_failed_fsync_left_stay_until_they_stand_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    journal.record(claimed(0))
    journal.mark()

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as other:
        other.setattr("os.fsync", fsync)
        for _ in range(3):
            with pytest.raises(EventLogUnavailable):
                await journal.flush()
            assert offsets(tmp_path) == [0]
    await journal.flush()
    assert [seq for seq, _ in events(tmp_path)] == [0, 1]
    assert len(list((tmp_path / "wal").glob("*.wal"))) == 2
    await journal.close()


async def test_marks_go_on_after_a_log_is_full(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing", roll_events=1)
    await journal.open()
    for offset in range(3):
        journal.record(claimed(offset))
        journal.mark()
        assert offsets(tmp_path)[-1] == offset
        await journal.flush()
    await journal.close()
    assert list((tmp_path / "wal").iterdir()) == []


async def test_async_has_no_marks_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing", mode="async", marks=True)
    await journal.open()
    journal.record(claimed(0))
    journal.mark()
    assert offsets(tmp_path) == []
    assert session(tmp_path)["marks"] is False
    await journal.close()


class Wrapping:
    """A sink of a user's around a journal, without marks of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.journal = from_url(url.replace("wrapped", "file"), **options)

    def record(self, event: Event) -> None:
        self.journal.record(event)

    async def flush(self) -> None:
        await self.journal.flush()

    async def open(self) -> None:
        await self.journal.open()

    async def close(self) -> None:
        await self.journal.close()


async def test_a_sink_around_a_journal_claims_no_marks_that_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("wrapped", f"{__name__}:Wrapping", "ackwise.events")
    monkeypatch.setattr(registry, "announced", lambda _: EntryPoints([point]))
    sink = registry.open_sink(f"wrapped://{tmp_path}", group="billing", mode="before_settle", permissions=0o640, facts={})
    assert not isinstance(sink, MarkSink)
    await sink.open()
    assert session(tmp_path)["marks"] is False
    await sink.close()


async def test_a_session_says_that_it_has_marks_and_where_the_host_was_started(tmp_path: Path) -> None:
    journal = registry.open_sink(str(tmp_path), group="billing", mode="before_settle", permissions=0o640, facts={})
    await journal.open()
    assert (session(tmp_path)["marks"], session(tmp_path).get("boot_id")) == (True, boot_id())
    await journal.close()


async def test_a_host_without_a_boot_id_leaves_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.stores.journal.layout._BOOT_ID", tmp_path / "none")
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    assert "boot_id" not in session(tmp_path)
    await journal.close()
