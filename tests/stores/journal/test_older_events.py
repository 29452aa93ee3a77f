"""What version 0.1 wrote, which had events of layout 1, is read, rolled and told as before; what it lacks is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ackwise.middleware.eventlog import EventLog
from ackwise.middleware.events import EventCode
from ackwise.stores.journal import read_log, recover, snapshot
from ackwise.stores.journal.parquet import SCHEMA, counted_before

OLDER = Path(__file__).parents[2] / "older" / "root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of events as an older worker left it when it was killed."""
    return Path(shutil.copytree(OLDER, tmp_path / "root"))


def test_a_log_that_an_older_worker_left_is_read(root: Path) -> None:
    (path,) = (root / "wal").iterdir()
    log = read_log(path)
    assert isinstance(log, EventLog)
    assert not log.is_damaged
    assert log.header.counts is None
    rows = [row for block in log.blocks for row in block.rows()]
    assert [row.event.code for row in rows[:3]] == [EventCode.SESSION_START, EventCode.ASSIGNED, EventCode.RECEIVED_RANGE]
    assert (rows[1].event.topic, rows[1].event.role, rows[1].event.from_commit) == ("orders", "source", True)
    assert {(row.mono_ns, row.event.proved) for row in rows} == {(None, None)}


def test_a_log_that_an_older_worker_left_is_rolled_without_what_it_never_said(root: Path) -> None:
    recovery = recover(root)
    assert not recovery.unreadable
    (file,) = recovery.rolled
    table = pq.ParquetFile(file).read()
    assert table.schema.equals(SCHEMA)
    assert table["seq"].to_pylist() == list(range(8))
    assert table["exec_id"].to_pylist()[4] == 2**40 + 1
    assert table["proved"].null_count == table["mono_ns"].null_count == 8
    assert set(table["schema_version"].to_pylist()) == {1}
    assert counted_before(file) is None


def test_a_log_that_an_older_worker_still_writes_is_copied(root: Path, tmp_path: Path) -> None:
    (file,) = snapshot((root / "wal").iterdir(), tmp_path / "copy")
    assert pq.ParquetFile(file).read()["seq"].to_pylist() == list(range(8))


def test_a_file_that_an_older_worker_rolled_says_no_counts(root: Path) -> None:
    (file,) = root.glob("events/*/*/*.parquet")
    assert counted_before(file) is None
