"""The thread of a file: what an operation leaves when it fails, and when it is run."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.options import CLAIMS
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps
from ackwise.stores.sqlite.driver import File, FileThread, maintain


def prepare() -> Steps[None]:
    yield [Statement("CREATE TABLE IF NOT EXISTS notes (n INTEGER PRIMARY KEY)")]


def noted() -> Steps[list[int]]:
    (found,) = yield [Statement("SELECT n FROM notes ORDER BY n")]
    return [n for (n,) in found.rows]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(CLAIMS, tmp_path / "notes.db", 0.5, "a note")


@pytest.fixture
async def thread(file: File) -> AsyncIterator[FileThread]:
    thread = FileThread(file, "normal")
    await thread.open(prepare)
    yield thread
    await thread.close()


async def test_an_operation_that_fails_in_its_transaction_leaves_nothing(thread: FileThread) -> None:
    def steps() -> Steps[None]:
        yield [Statement("BEGIN IMMEDIATE"), Statement("INSERT INTO notes VALUES (1)")]
        yield [Statement("INSERT INTO notes VALUES (1)")]

    with pytest.raises(StoreUnavailable, match="UNIQUE constraint"):
        await thread.run(steps)
    assert await thread.run(noted) == []


async def test_a_bug_in_an_operation_passes_and_leaves_nothing(thread: FileThread) -> None:
    def steps() -> Steps[None]:
        yield [Statement("BEGIN IMMEDIATE"), Statement("INSERT INTO notes VALUES (1)")]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await thread.run(steps)
    assert await thread.run(noted) == []


async def test_an_operation_whose_caller_is_cancelled_is_run_as_a_whole_or_not_at_all(thread: FileThread) -> None:
    def steps() -> Steps[None]:
        yield [Statement("BEGIN IMMEDIATE"), Statement("INSERT INTO notes VALUES (1)")]
        yield [Statement("INSERT INTO notes VALUES (2)"), Statement("COMMIT")]

    running = asyncio.ensure_future(thread.run(steps))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await thread.run(noted) in ([], [1, 2])


async def test_maintenance_makes_no_file_and_sees_what_sqlite_says(thread: FileThread, tmp_path: Path) -> None:
    def steps() -> Steps[Problem]:
        try:
            yield [Statement("SELECT 1 FROM nowhere")]
        except Failure as failure:
            return failure.problem
        return Problem.REFUSED

    assert await thread.maintained(steps) is Problem.MISSING
    other = File(CLAIMS, tmp_path / "none.db", 0.5, "a note")
    with pytest.raises(ConfigurationError, match=r"none\.db: there is no such file; name another, or run `ackwise store init URL` first"):
        await maintain(other, steps)
    assert not other.path.exists()
    other.path.write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigurationError, match="this is no SQLite database"):
        await maintain(other, noted)


async def test_maintenance_waits_for_a_writer_no_longer_than_the_timeout(file: File, thread: FileThread) -> None:
    def steps() -> Steps[None]:
        yield [Statement("INSERT INTO notes VALUES (2)")]

    writer = sqlite3.connect(file.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"another writer held the file for 0\.5 s"):
        await thread.maintained(steps)
    writer.execute("ROLLBACK")
    writer.close()
    await thread.maintained(steps)
    assert await thread.run(noted) == [2]
