"""When the disk fails, nothing is dropped: the flush says so, and the next one that works writes everything, in order.

The failures are real ones: a full file system, a limit on file sizes, folders that are gone or in the way.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.eventfiles import events_in

from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.eventlog import EventLog
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal, read_log, recover

BEGIN = """
import asyncio, json, resource, subprocess, sys
from pathlib import Path
from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.stores.journal import Journal

folder = Path(sys.argv[1])

def record(journal, first, count):
    for offset in range(first, first + count):
        journal.record(Event(EventCode.CLAIMED, "orders", 3, offset, "bill"))

async def failure(journal):
    try:
        await journal.flush()
    except EventLogUnavailable as error:
        return str(error)
"""

SMALL_DISK = """
async def main():
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
    journal = Journal(folder / "root", group_id="billing", roll_events=100_000)
    await journal.open()
    record(journal, 0, 200)
    await journal.flush()
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    record(journal, 200, 200)
    first = await failure(journal)
    record(journal, 400, 100)
    second = await failure(journal)
    ballast.unlink()
    record(journal, 500, 1)
    await journal.flush()
    await journal.close()
    subprocess.run(["cp", "-r", folder / "root", sys.argv[2]], check=True)
    print(json.dumps([first, second]))

asyncio.run(main())
"""

SMALL_FILES = """
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

async def main():
    journal = Journal(folder, group_id="billing", roll_events=100_000)
    await journal.open()
    record(journal, 0, 200)
    await journal.flush()
    limit(30_000)
    record(journal, 200, 300)
    first = await failure(journal)
    second = await failure(journal)
    limit(10_000_000)
    record(journal, 500, 1)
    await journal.flush()
    await journal.close()
    print(json.dumps([first, second]))

asyncio.run(main())
"""


def run(script: str, *arguments: Path, inside: tuple[str, ...] = ()) -> list[str]:
    """What the script printed; it runs in its own process, since limits and mounts belong to one."""
    command = [*inside, sys.executable, "-c", BEGIN + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [str(sentence) for sentence in json.loads(done.stdout)]


def can_mount(folder: Path) -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def exported(root: Path) -> list[dict[str, Any]]:
    return events_in(*sorted((root / "events").rglob("*.parquet")))


def assert_complete(root: Path, offsets: int) -> None:
    """Every event once, without a hole, and nothing left behind."""
    assert recover(root).unreadable == []
    rows = exported(root)
    assert [row["seq"] for row in rows] == list(range(offsets + 2))
    assert [row["offset"] for row in rows if row["event_type"] == EventCode.CLAIMED] == list(range(offsets))
    assert list((root / "wal").iterdir()) == []


def claimed(offset: int) -> Event:
    return Event(EventCode.CLAIMED, "orders", 3, offset, "bill")


def seqs(root: Path) -> list[int]:
    found = [read_log(path) for path in sorted((root / "wal").glob("*.wal"))]
    return [row.seq for log in found if isinstance(log, EventLog) for block in log.blocks for row in block.rows()]


@pytest.mark.slow  # starts a process that fills a small disk
def test_a_full_disk_loses_nothing_and_all_arrives_once_there_is_space(tmp_path: Path) -> None:
    small, copy = tmp_path / "small", tmp_path / "copy"
    small.mkdir()
    if not can_mount(small):
        pytest.skip("a small file system can't be mounted here (needs root)")
    first, second = run(SMALL_DISK, small, copy, inside=("unshare", "-m"))
    assert first.startswith(f"event log {small}/root/wal/")
    assert "No space left on device; free some space (200 events wait, none is dropped, the next flush tries again)" in first
    assert "300 events wait" in second
    assert_complete(copy, 501)


@pytest.mark.slow  # starts a process with a limit on file sizes
def test_a_limit_on_file_sizes_loses_nothing_and_all_arrives_once_it_is_raised(tmp_path: Path) -> None:
    first, second = run(SMALL_FILES, tmp_path)
    assert "File too large; raise the limit on file sizes (ulimit -f) (300 events wait" in first
    assert "300 events wait" in second
    assert_complete(tmp_path, 501)


async def test_a_log_that_was_deleted_is_written_again_with_all_that_was_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    for offset in range(3):
        journal.record(claimed(offset))
    await journal.flush()
    shutil.rmtree(tmp_path / "wal")
    journal.record(claimed(3))
    with pytest.raises(EventLogUnavailable, match="deleted or moved while it was open; leave the folder to the running process"):
        await journal.flush()
    journal.record(claimed(4))
    await journal.flush()
    assert seqs(tmp_path) == [0, 1, 2, 3, 4, 5]
    await journal.close()
    assert_complete(tmp_path, 5)


async def test_a_root_that_is_gone_is_waited_for_and_never_made_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = Journal(root, group_id="billing")
    await journal.open()
    shutil.rmtree(root)
    journal.record(claimed(0))
    for _ in range(3):
        with pytest.raises(EventLogUnavailable, match=r"root/wal.*(put the folder back|deleted or moved)"):
            await journal.flush()
    assert not root.exists()
    root.mkdir()
    await journal.flush()
    await journal.close()
    assert_complete(root, 1)


async def test_a_log_folder_that_is_no_folder_any_more_loses_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    shutil.rmtree(tmp_path / "wal")
    (tmp_path / "wal").write_text("in the way")
    journal.record(claimed(0))
    for _ in range(2):
        with pytest.raises(EventLogUnavailable):
            await journal.flush()
    (tmp_path / "wal").unlink()
    await journal.flush()
    await journal.close()
    assert_complete(tmp_path, 1)


async def test_after_a_failed_fsync_the_events_go_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take pages for clean that it failed to write, so a second fsync of the file proves nothing."""
    real = os.fsync
    failures = [OSError(errno.EIO, "Input/output error")]

    def fsync(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        real(descriptor)

    journal = Journal(tmp_path, group_id="billing")
    await journal.open()
    journal.record(claimed(0))
    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(EventLogUnavailable, match="Input/output error; look at the disk"):
        await journal.flush()
    await journal.flush()
    assert seqs(tmp_path)[-1] == 1
    assert {path.name.split("-")[1] for path in (tmp_path / "wal").glob("*.wal")} >= {"000000000001.wal"}
    await journal.close()
    assert_complete(tmp_path, 1)


async def test_a_journal_that_can_t_be_opened_says_why_and_can_be_opened_later(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("in the way")
    journal = Journal(root, group_id="billing")
    with pytest.raises(EventLogUnavailable, match=r"event log .*root: File exists; a file stands where a folder belongs, move it away"):
        await journal.open()
    root.unlink()
    await journal.open()
    await journal.close()
    assert [row["event_type"] for row in exported(root)] == [EventCode.SESSION_START, EventCode.SESSION_END]


async def test_closing_fails_as_flushing_does_and_can_be_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = Journal(root, group_id="billing")
    await journal.open()
    shutil.rmtree(root)
    for _ in range(2):
        with pytest.raises(EventLogUnavailable):
            await journal.close()
    root.mkdir()
    await journal.close()
    assert [row["event_type"] for row in exported(root)] == [EventCode.SESSION_START, EventCode.SESSION_END]


async def test_parquet_that_can_t_be_written_leaves_the_log_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    journal = Journal(tmp_path, group_id="billing", roll_events=2)
    await journal.open()
    for offset in range(6):
        journal.record(claimed(offset))
        await journal.flush()
    (tmp_path / "events").unlink()
    await journal.close()
    assert_complete(tmp_path, 6)


async def test_a_failing_disk_is_logged_once_and_so_is_its_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    journal = Journal(root, group_id="billing")
    await journal.open()
    shutil.rmtree(root)
    journal.record(claimed(0))
    with caplog.at_level(logging.WARNING, "ackwise.events"):
        for _ in range(5):
            await asyncio.gather(journal.flush(), return_exceptions=True)
        root.mkdir()
        await journal.flush()
    await journal.close()
    assert len(caplog.records) == 2
    assert caplog.records[1].message == f"the event log is written again, nothing is missing: folder={root}"
