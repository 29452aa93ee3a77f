"""The names and folders of the journal's files.

    ROOT/wal/{writer:016x}-{first_seq:012d}.wal
    ROOT/events/dt=2026-01-01/hr=13/events-{writer:016x}-{first_seq:012d}-{last_seq:012d}.parquet

A name that starts with `.` is not finished; everybody passes it by. `.wal.damaged` is a log that was exported up to a
destroyed block and kept for what stands behind it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ackwise.middleware.log import Log

log = Log("ackwise.events")

#: Of files that nobody says more about: users' texts are in them.
FILE_MODE: Final = 0o640

# A link would lead out of the folder, and opening a pipe would wait for whoever writes to it.
_NEVER: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

#: How a file system says that it keeps no permissions: FAT, and some behind FUSE.
_KEEPS_NONE: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

#: File systems that were told of.
_told: Final[set[int]] = set()

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_DAMAGED = ".damaged"
_LOG_NAME = re.compile(r"([0-9a-f]{16})-(\d{12,})\.wal(?:\.damaged)?")


def boot_id() -> str | None:
    """Return the id of this start of the host, `None` where it has none: while it is the same, the page cache has not been lost."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def log_path(root: Path, writer_id: int, first_seq: int) -> Path:
    """The log file whose first event is `first_seq`."""
    return root / "wal" / f"{writer_id:016x}-{first_seq:012d}.wal"


def damaged_path(path: Path) -> Path:
    """Where a log file stays that was destroyed in the middle."""
    return path.with_name(path.name + _DAMAGED)


def is_damaged(path: Path) -> bool:
    """Return whether it stays for what is behind the damage only."""
    return path.name.endswith(_DAMAGED)


def log_files(root: Path) -> list[Path]:
    """Every finished log file, damaged ones included, oldest first for each writer. Raises `OSError`."""
    try:
        names = os.listdir(root / "wal")  # glob would take a folder that it may not read for an empty one
    except FileNotFoundError:
        return []
    return [root / "wal" / name for name in sorted(names) if name.endswith((".wal", _DAMAGED)) and not name.startswith(".")]


def parquet_path(root: Path, writer_id: int, first_seq: int, last_seq: int, closed_ns: int) -> Path:
    """The exported file. The same events always get the same path, so exporting them twice overwrites."""
    closed = datetime.fromtimestamp(closed_ns // 1_000_000_000, UTC)
    name = f"events-{writer_id:016x}-{first_seq:012d}-{last_seq:012d}.parquet"
    return root / "events" / f"dt={closed:%Y-%m-%d}" / f"hr={closed:%H}" / name


def writer_and_first_seq(path: Path) -> tuple[int, int] | None:
    """What a log file's name says; `None` if it is not the name of one."""
    found = _LOG_NAME.fullmatch(path.name)
    return (int(found[1], 16), int(found[2])) if found else None


def folder_mode(file_mode: int) -> int:
    """Of the folder of such files: whoever may read them may find them."""
    return file_mode | (file_mode & 0o444) >> 2


def make_directories(root: Path, directory: Path, file_mode: int = FILE_MODE) -> None:
    """Make `directory` below `root`, durably, for files of `file_mode`. Raises `FileNotFoundError` if `root` itself is not there.

    A root that vanished is never made again: it may be a mount that is gone, and what lay below is not our disk.
    """
    if directory == root or directory.is_dir():
        return
    make_directories(root, directory.parent, file_mode)
    make_directory(directory, file_mode)
    sync_directory(directory.parent)


def make_directory(directory: Path, file_mode: int) -> None:
    """Make one for files of `file_mode`, unless it is there."""
    try:
        directory.mkdir()
    except FileExistsError:
        if not directory.is_dir():
            raise
    else:
        _permit(directory, directory, folder_mode(file_mode))


def create_regular(path: Path, file_mode: int) -> int:
    """A descriptor of an empty file that we may read and write. Raises `OSError`, also if something else has its name."""
    try:
        descriptor, is_new = _checked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode), True
    except FileExistsError:  # somebody was killed before it was finished
        descriptor, is_new = _checked(path, os.O_RDWR | os.O_CREAT, file_mode), False
    try:
        os.ftruncate(descriptor, 0)
        if is_new or os.fstat(descriptor).st_uid == os.geteuid():
            _permit(descriptor, path, file_mode)
        else:
            os.fchmod(descriptor, file_mode)  # who made it could let anybody read it
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _permit(target: int | Path, path: Path, mode: int) -> None:
    """Let those read what we made who are said, whatever the umask; where nobody can say, the file system does."""
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _KEEPS_NONE:
            raise
        device = os.stat(target).st_dev
        if device not in _told:
            _told.add(device)
            log.warning(
                "the file system of the event log keeps no permissions, its mount says who may read the files", folder=str(path.parent)
            )


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, opened without waiting and without following a link. Raises `OSError`, for anything else as well."""
    return _checked(path, flags, FILE_MODE)


def read_regular(path: Path) -> bytes:
    """All of a regular file. Raises `OSError`, for anything else as well."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def _checked(path: Path, flags: int, file_mode: int) -> int:
    try:
        descriptor = os.open(path, flags | _NEVER, file_mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", str(path)) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", str(path))


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
