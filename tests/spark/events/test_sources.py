"""Which files are read: rolled logs, logs that are still written, torn files and those of others. Starts no Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from tests.spark.histories import History, write_parquet

from ackwise.middleware.events import Event, EventCode
from ackwise.spark.events.sources import Evidence, gathered
from ackwise.stores.journal import Journal

NAME = "events-00000000000000ab-000000000000-000000000004.parquet"


def evidence(*roots: Path) -> Evidence:
    with gathered(roots, roots[0] / ".live") as found:
        return found


def file_of(root: Path, name: str = NAME) -> Path:
    return write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / name, History("g").say("w1", "0:CS W=1").events)


def test_files_of_all_roots_are_read(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a"), file_of(tmp_path / "b")]
    found = evidence(tmp_path / "a", tmp_path / "b")
    assert found.files == tuple(files)
    assert found.size == sum(path.stat().st_size for path in files)


def test_what_is_no_whole_file_is_not_read_and_makes_its_writer_doubtful(tmp_path: Path) -> None:
    no_file, link = "can't be read: it is no regular file", "can't be read: it is a link, and links are not followed"
    for place, (become, why) in enumerate(
        ((cut(0), "is torn"), (cut(3), "is torn"), (cut(100), "is torn"), (a_pipe, no_file), (a_link, link))
    ):
        become(path := file_of(tmp_path / f"{place}"))
        found = evidence(tmp_path / f"{place}")
        assert (found.files, found.unreadable) == ((), (f"{path} {why}; its events count as missing",))
        assert found.logs.unreadable == {0xAB}


def cut(size: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def test_a_folder_of_a_day_that_is_a_link_is_named_and_not_followed(tmp_path: Path) -> None:
    day = file_of(tmp_path).parent.parent
    day.rename(tmp_path / "elsewhere")
    day.symlink_to(tmp_path / "elsewhere")
    found = evidence(tmp_path)
    assert found.files == ()
    assert found.unreadable == (f"{day} is a link, and links are not followed; what is behind it was not read",)


def test_the_last_file_of_a_writer_says_on_which_machine_its_log_was_rolled(tmp_path: Path) -> None:
    for writer, files in enumerate([((4, b"b1"),), ((4, b"b1"), (9, b"b2")), ((4, b"b1"), (9, None)), ((4, b""),)]):
        for last, boot_id in files:
            path = file_of(tmp_path, f"events-{writer:016x}-{last - 4:012d}-{last:012d}.parquet")
            if boot_id is not None:
                pq.write_table(pq.read_table(path).replace_schema_metadata({b"ackwise.rolled_on": boot_id}), path)
    assert evidence(tmp_path).logs.rolled_on == {0: "b1", 1: "b2"}


def test_a_file_of_others_is_named_and_not_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, "part-00000.snappy.parquet")
    found = evidence(tmp_path)
    assert (found.files, found.foreign) == ((), (path,))


def test_an_unfinished_file_is_passed_by(tmp_path: Path) -> None:
    file_of(tmp_path, f".{NAME}.tmp")
    file_of(tmp_path, "_temporary.parquet")
    found = evidence(tmp_path)
    assert (found.files, found.foreign, found.unreadable) == ((), (), ())


async def test_a_log_that_is_still_written_is_read_and_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = Journal(root, cluster="c", group_id="g")
    await journal.open()
    try:
        journal.record(Event(EventCode.CLAIMED, "orders", 0, 7, "bill"))
        await journal.flush()
        (log,) = (root / "wal").glob("*.wal")
        with gathered([root], tmp_path / "live") as found:
            assert found.logs.still_written == {journal.writer_id}
            (copy,) = found.files
            assert pq.read_table(copy)["event_type"].to_pylist() == [EventCode.SESSION_START, EventCode.CLAIMED]
        assert log.exists()
        assert not (tmp_path / "live").exists()
    finally:
        await journal.close()


async def test_a_log_that_nobody_writes_any_more_is_rolled(tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = Journal(root, cluster="c", group_id="g")
    await journal.open()
    await journal.close()
    found = evidence(root)
    assert [path.name for path in found.files] == [f"events-{journal.writer_id:016x}-{0:012d}-{1:012d}.parquet"]
    assert list((root / "wal").iterdir()) == []


def test_a_log_that_is_no_log_makes_its_writer_doubtful(tmp_path: Path) -> None:
    log = tmp_path / "wal" / f"{0xCD:016x}-{40:012d}.wal"
    log.parent.mkdir()
    log.write_bytes(b"no log at all")
    found = evidence(tmp_path)
    assert found.logs.unreadable == {0xCD}
    assert found.unreadable[0].startswith(f"{log} can't be read from event 40 on: ")
