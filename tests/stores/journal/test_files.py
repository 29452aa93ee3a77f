"""Who may read the files of events, and that nothing but files is opened: no link is followed, no pipe is waited for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable
from ackwise.middleware.eventlog import EventBuffer, LogHeader, Unreadable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.policies.policies import Events
from ackwise.stores.journal import Journal, layout, read_log, recover
from ackwise.stores.journal.layout import create_regular, open_regular, read_regular
from ackwise.stores.journal.log import LogWriter

LOG = "0000000000abcdef-000000000000.wal"


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """As on machines where everybody may read everything."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """Of all that is below `root`, by name; parts of names that differ are left out."""
    found = {path.suffix or path.name.split("=")[0]: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    return {name: f"{mode:04o}" for name, mode in found.items()}


async def journal_of(root: Path, **options: int) -> Journal:
    made = Journal(root, group_id="billing", **options)  # type: ignore[arg-type]  # options are numbers
    await made.open()
    made.record(Event(EventCode.HEARTBEAT))
    await made.flush()
    return made


async def test_files_of_events_are_for_their_owner_and_group_only(tmp_path: Path) -> None:
    root = tmp_path / "events"
    made = await journal_of(root)
    assert modes(root) == {"events": "0750", "wal": "0750", ".wal": "0640"}
    await made.close()
    assert modes(root) == {"events": "0750", "wal": "0750", "dt": "0750", "hr": "0750", ".parquet": "0640"}


async def test_who_may_read_them_is_an_option_that_no_umask_changes(tmp_path: Path) -> None:
    for mode, folder in [(0o600, "0700"), (0o644, "0755"), (0o660, "0770")]:
        with case(mode, folder):
            root = tmp_path / folder
            made = await journal_of(root, file_mode=mode)
            await made.close()
            assert modes(root) == dict.fromkeys((folder, "wal", "events", "dt", "hr"), folder) | {".parquet": f"{mode:04o}"}


async def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    made = await journal_of(root)
    await made.close()
    assert modes(root)["root"] == "0777"


def test_what_somebody_else_rolls_is_for_those_who_could_read_the_log(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, LogHeader(0xABCDEF, 0), roll_events=10**9, roll_seconds=10**9, file_mode=0o600)
    buffer = EventBuffer()
    buffer.record(Event(EventCode.HEARTBEAT))
    (block,) = buffer.seal()
    writer.put(block)
    writer.write()
    writer.finish()
    (rolled,) = recover(tmp_path).rolled
    assert stat.S_IMODE(rolled.stat().st_mode) == 0o600


def test_the_option_of_a_policy_is_octal() -> None:
    for mode in ["640", "0600", "0644", "0664"]:
        with case(mode):
            assert Events("events", file_mode=mode).permissions == int(mode, 8)


def test_a_mode_that_its_owner_could_not_write_with_is_refused() -> None:
    for mode in ["", "0400", "0750", "0o640", "-640", "0648", "10640", "rw-r-----"]:
        with case(mode), pytest.raises(ConfigurationError, match="write it in octal, such as '0640'"):
            Events("events", file_mode=mode)


def test_a_mode_that_is_no_text_is_refused_with_a_sentence() -> None:
    modes: list[Any] = [0o640, 640, None]
    for mode in modes:
        with case(mode), pytest.raises(ConfigurationError, match=f"is {mode}; write it in octal, such as '0640', as a text"):
            Events("events", file_mode=mode)


@pytest.fixture
def no_permissions(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As on a file system that keeps none."""

    def refuse(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(layout, "_told", set())


@pytest.mark.parametrize("no_permissions", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS], indirect=True)
@pytest.mark.usefixtures("no_permissions")
async def test_a_file_system_that_keeps_no_permissions_takes_events_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = await journal_of(tmp_path / "events")
    await made.close()
    assert list((tmp_path / "events").rglob("*.parquet"))
    assert [record.getMessage() for record in caplog.records] == [
        "the file system of the event log keeps no permissions, its mount says who may read the files: folder=" + str(tmp_path)
    ]


@pytest.mark.parametrize("no_permissions", [errno.EIO], indirect=True)
@pytest.mark.usefixtures("no_permissions")
def test_permissions_that_can_t_be_set_for_another_reason_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        create_regular(tmp_path / "x", 0o640)


@pytest.mark.parametrize("no_permissions", [errno.EPERM], indirect=True)
@pytest.mark.usefixtures("no_permissions")
def test_a_file_that_somebody_else_made_is_written_only_with_our_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    os.close(create_regular(tmp_path / "x", 0o640))
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "x").stat().st_uid + 1)
    with pytest.raises(PermissionError):
        create_regular(tmp_path / "x", 0o640)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_bytes(b"anything")
    path.symlink_to(target)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which has no end
    except PermissionError:
        pytest.skip("only root makes devices")


THINGS: list[Callable[[Path], None]] = [a_pipe, a_link, a_link_to_nothing, a_folder, a_device]


def test_what_is_no_file_is_unreadable_and_nobody_waits_for_it(tmp_path: Path) -> None:
    for make in THINGS:
        with case(make):
            root = tmp_path / make.__name__
            (root / "wal").mkdir(parents=True)
            path = root / "wal" / LOG
            make(path)
            assert isinstance(read_log(path), Unreadable)
            (unread,) = recover(root).unreadable
            assert (unread.writer_id, unread.from_seq) == (0xABCDEF, 0)
            assert unread.reason in ("it is no regular file", "it is a link, and links are not followed")
            for opens in (open_regular, read_regular):
                with pytest.raises(OSError, match="it is"):
                    opens(path)


async def test_a_journal_writes_to_nothing_that_somebody_put_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in THINGS:
        with case(make):
            monkeypatch.setattr("ackwise.stores.journal.sink.secrets.randbits", lambda bits: 0xABCDEF)
            root = tmp_path / make.__name__
            (root / "wal").mkdir(parents=True)
            make(root / "wal" / f".{LOG}.tmp")
            made = Journal(root, group_id="billing")
            with pytest.raises(EventLogUnavailable):
                await made.open()
            await made.close()
            assert not (root / "elsewhere").exists() or (root / "elsewhere").read_bytes() == b"anything"
