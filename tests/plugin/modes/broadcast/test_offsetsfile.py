"""The file of positions: one writer, the old one or the new one after any crash, and nothing that is wrong is believed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.consumer.commits import to_commit
from ackwise.plugin.consumer.lane import Lane, Told
from ackwise.plugin.kafka.brokeroffsets import Committed
from ackwise.plugin.modes import broadcasting
from ackwise.plugin.modes.broadcasting import OffsetsFile

PLACE = TopicPartition("changes", 0)


def file_at(path: Path, group: str = "cache@web-1", cluster: str | None = "east") -> OffsetsFile:
    file = OffsetsFile(path, group, cluster)
    file.open()
    return file


async def offset_in(path: Path) -> int | None:
    file = file_at(path)
    await file.close()
    found = file.positions.get(PLACE)
    return None if found is None else found.offset


async def kept(path: Path) -> None:
    file = file_at(path)
    await file.commit({PLACE: Committed(7, "{}")})
    await file.close()


async def test_what_was_committed_is_there_after_a_restart_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    file = file_at(path)
    await file.commit({PLACE: Committed(7, "writer 1")})
    await file.commit({TopicPartition("changes", 1): Committed(3, "")})
    await file.close()
    again = file_at(path)
    assert dict(again.positions) == {PLACE: Committed(7, "writer 1"), TopicPartition("changes", 1): Committed(3, "")}
    await again.close()


async def test_a_damaged_file_is_refused_also_if_one_digit_has_changed(tmp_path: Path) -> None:
    await kept(path := tmp_path / "offsets")
    changed = path.read_bytes().replace(b"7,", b"9,")
    for text in (b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b'{"format": 1}', b"[" * 100_000, changed):
        path.write_bytes(text)
        with pytest.raises(ConfigurationError) as refused:
            file_at(path)
        assert "is damaged, or was written by something else; put back a copy of it, or take it away" in str(refused.value), text[:20]


async def test_a_file_of_another_instance_of_another_cluster_or_of_another_version_is_refused(tmp_path: Path) -> None:
    await kept(path := tmp_path / "offsets")
    with pytest.raises(ConfigurationError, match="has the positions of 'cache@web-1', and this is 'cache@web-2'"):
        file_at(path, "cache@web-2")
    with pytest.raises(ConfigurationError, match="has positions in the Kafka cluster east, and this is west"):
        file_at(path, cluster="west")
    await file_at(path, cluster=None).close()  # a cluster without an id is not compared
    body: dict[str, Any] = json.loads(path.read_bytes())
    path.write_text(json.dumps(body | {"format": "ackwise-offsets-2"}))
    with pytest.raises(ConfigurationError, match="of a format that this Ackwise does not know"):
        file_at(path)


#: A process that has the file until it is killed.
_HOLD = """
import sys
from pathlib import Path
from ackwise.plugin.modes.broadcasting import OffsetsFile
held = OffsetsFile(Path(sys.argv[1]), "cache@web-1", None)
held.open()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow  # starts a process that holds the file
def test_one_process_writes_it_and_after_a_kill_the_next_one_may(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "offsets")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    try:
        with pytest.raises(ConfigurationError, match="another worker has it"):
            file_at(tmp_path / "offsets")
    finally:
        process.kill()
        process.communicate()
    asyncio.run(file_at(tmp_path / "offsets").close())


async def test_a_link_stays_one_and_what_it_leads_to_is_written_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    real, link = tmp_path / "volume" / "offsets", tmp_path / "offsets"
    link.symlink_to(real)
    await kept(link)
    assert (link.is_symlink(), await offset_in(real)) == (True, 7)
    file = file_at(real)
    with pytest.raises(ConfigurationError, match="another worker has it"):
        file_at(link)
    await file.close()


def test_a_folder_that_is_not_there_or_stands_in_its_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't be locked .*No such file or directory.*give a file in a folder that is there"):
        file_at(tmp_path / "nowhere" / "offsets")
    (tmp_path / "offsets").mkdir()
    with pytest.raises(ConfigurationError, match="can't be read"):
        file_at(tmp_path / "offsets")


async def test_that_it_is_gone_is_a_warning_and_that_it_is_not_there_yet_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await kept(path := tmp_path / "offsets")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    path.unlink()
    await file_at(path).close()
    assert "offsets file is gone" in caplog.text


async def test_a_write_that_fails_leaves_the_old_file_whole_and_the_next_one_makes_it_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, step in ((Path, "open"), (os, "fsync"), (Path, "replace")):
        path = tmp_path / step
        file = file_at(path)
        await file.commit({PLACE: Committed(7, "")})
        with monkeypatch.context() as broken:
            broken.setattr(owner, step, full)
            with pytest.raises(OSError, match="No space left"):
                await file.commit({PLACE: Committed(9, "")})
        assert file.positions[PLACE].offset == 7, step
        assert broadcasting._decoded(path.read_bytes(), path)["positions"] == [["changes", 0, 7, ""]], step
        await file.commit({PLACE: Committed(9, "")})
        await file.close()
        assert await offset_in(path) == 9, step


async def test_it_is_synced_before_it_takes_the_place_of_the_old_one_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(number: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        fsync(number)

    def replaced(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr("ackwise.plugin.modes.broadcasting.os.fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    file = file_at(tmp_path / "offsets")
    await file.commit({PLACE: Committed(7, "")})
    await file.close()
    assert done == ["file", "rename", "folder"]


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """A disk that hangs: the first event is set when a write has started, and the second lets all of them go on."""
    loop, begun, go_on, write = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), broadcasting._write

    def hanging(path: Path, text: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        write(path, text)

    monkeypatch.setattr(broadcasting, "_write", hanging)
    return begun, go_on


async def given_up(file: OffsetsFile, begun: asyncio.Event) -> None:
    """A commit that nobody waits for any more, while it is being written."""
    first = asyncio.create_task(file.commit({PLACE: Committed(7, "")}))
    await begun.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_commit_that_nobody_waits_for_any_more_is_in_the_next_one(
    tmp_path: Path, disk: tuple[asyncio.Event, asyncio.Event]
) -> None:
    """Two writes never overtake each other."""
    file, (begun, go_on) = file_at(tmp_path / "offsets"), disk
    await given_up(file, begun)
    second = asyncio.create_task(file.commit({TopicPartition("changes", 1): Committed(3, "")}))
    go_on.set()
    await second
    assert {partition.partition: each.offset for partition, each in file.positions.items()} == {0: 7, 1: 3}
    await file.close()


async def test_nobody_else_has_the_file_while_it_is_still_being_written(tmp_path: Path, disk: tuple[asyncio.Event, asyncio.Event]) -> None:
    file, (begun, go_on) = file_at(tmp_path / "offsets"), disk
    await given_up(file, begun)
    closing = asyncio.create_task(file.close())
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="another worker has it"):
        file_at(tmp_path / "offsets")
    go_on.set()
    await closing
    assert await offset_in(tmp_path / "offsets") == 7


# RocketMQ's offset store


def a_lane(position: int, committed: int | None) -> Lane:
    lane = Lane(*PLACE, "source", position, make=lambda place, records: [], progressed=lambda lane: None)
    lane.told = None if committed is None else Told(committed)
    return lane


def settle(lane: Lane, first: int, end: int) -> None:
    lane.watermark.track(first, end)
    lane.watermark.finish(first, end)


async def told(file: OffsetsFile, lanes: Sequence[Lane]) -> int:
    offsets = to_commit({PLACE: tuple(lanes)}, [PLACE])
    if offsets:
        await file.commit({partition: Committed(told.offset, "") for partition, (_, told) in offsets.items()})
    for lane in lanes if offsets else ():
        lane.told = offsets[PLACE][1]
    return file.positions[PLACE].offset


async def test_W09_a_position_only_grows_as_long_as_its_partition_is_read_on(tmp_path: Path) -> None:
    file = file_at(tmp_path / "offsets")
    lane = a_lane(100, None)
    settle(lane, 100, 200)
    assert await told(file, [lane]) == 200
    settle(lane, 50, 100)
    assert await told(file, [lane]) == 200
    await file.close()


async def test_W10_it_goes_back_only_where_reading_begins_anew(tmp_path: Path) -> None:
    file = file_at(tmp_path / "offsets")
    assert await told(file, [a_lane(1024, None)]) == 1024
    anew = a_lane(1023, 1024)  # the log had lost its end
    assert await told(file, [anew]) == 1023
    settle(anew, 1000, 1022)
    assert await told(file, [anew]) == 1023
    await file.close()


async def test_W11_after_the_cut_off_a_position_is_frozen_until_the_partition_is_opened_anew(tmp_path: Path) -> None:
    file = file_at(tmp_path / "offsets")
    lane = a_lane(100, None)
    assert await told(file, [lane]) == 100
    lane.cut()
    settle(lane, 100, 200)
    assert await told(file, [lane]) == 100
    anew = a_lane(100, 100)
    settle(anew, 100, 1023)
    assert await told(file, [anew]) == 1023
    await file.close()
