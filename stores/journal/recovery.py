"""Recovery of log files: they become Parquet, and those that can't are read as far as they go.

A log file belongs to whoever holds its lock. One that nobody holds is exported and removed; the name of its export is
made of its events, so a roll that died half way is simply done again. One that somebody holds is only read.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.eventlog import EventLog, Unreadable, parse_log
from ackwise.middleware.log import Log
from ackwise.stores.journal.layout import (
    FILE_MODE,
    boot_id,
    damaged_path,
    is_damaged,
    log_files,
    open_regular,
    sync_directory,
    writer_and_first_seq,
)
from ackwise.stores.journal.log import explain

logger = Log("ackwise.events")


@dataclass(frozen=True, slots=True)
class UnreadableLog:
    """A log file that could not be read to its end: what its writer did from `from_seq` on is unknown."""

    path: Path
    reason: str
    """Why, as the end of a sentence."""
    writer_id: int | None
    """`None` if the file's name does not say it."""
    from_seq: int


@dataclass(slots=True)
class Recovery:
    """What became of the log files."""

    rolled: list[Path] = field(default_factory=list)
    """The Parquet files that were written."""
    live: list[Path] = field(default_factory=list)
    """Log files that stay: somebody holds them, or the export failed. `snapshot` reads their events."""
    unreadable: list[UnreadableLog] = field(default_factory=list)
    """A damaged file may stand here and in `rolled` or `live`: for what is behind the damage, and for what is before."""


def recover(root: Path) -> Recovery:
    """Roll every log file below `root` that nobody holds, and say which ones stay.

    Call it before listing the Parquet files: whatever is rolled in between is then found twice rather than not at all,
    and (`writer_id`, `seq`) tells that. Raises `ConfigurationError` if pyarrow is missing and `OSError` if the folder
    can't be listed.
    """
    recovery = Recovery()
    for path in log_files(root):
        roll(path, root, recovery, boot_id())
    return recovery


def roll(path: Path, root: Path, recovery: Recovery, rolled_on: str | None = None) -> None:
    """Export one log file below `root` and remove it, if nobody holds it; note in `recovery` what became of it.

    `rolled_on` is the boot id of this machine, if the writer may be gone. It stands in the file of the writer's last log: the same id in
    its session shows that nothing of what it wrote was lost. Of a log that goes on in another it would show nothing.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return  # Somebody else has rolled it.
    except OSError as error:
        recovery.unreadable.append(_unreadable(path, error.strerror or str(error)))
        return
    try:
        # The lock comes before reading: a writer that lets go in between has written more than we would have read.
        is_ours = _lock(descriptor)
        if os.fstat(descriptor).st_nlink == 0:
            return  # Somebody else rolled it while we waited.
        log = _parse(descriptor)
        if isinstance(log, Unreadable):
            recovery.unreadable.append(_unreadable(path, log.reason))
            return
        if log.is_damaged:
            recovery.unreadable.append(_unreadable(path, "a block in the middle is destroyed", log.next_seq))
        if is_damaged(path):
            return  # Exported before.
        if not is_ours:
            recovery.live.append(path)
            return
        boot = None if _goes_on(path, root) else rolled_on
        _export_and_remove(log, path, root, recovery, stat.S_IMODE(os.fstat(descriptor).st_mode), boot)
    finally:
        os.close(descriptor)


def has_left(root: Path) -> bool:
    """Return whether there is a log below `root` that nobody holds. Raises `OSError` if the folder can't be listed.

    It takes the lock of each for a moment: who wants to roll it just then passes it by.
    """
    return any(not _is_held(path) for path in log_files(root))


def _is_held(path: Path) -> bool:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return True  # Somebody was about to remove it.
    except OSError:
        return False  # `roll` says why.
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def snapshot(live: Iterable[Path], root: Path) -> list[Path]:
    """Write the durable events of log files that others hold as Parquet files below `root`, a root of the caller's own.

    A file that is gone by now has been rolled into its own root. Raises `ConfigurationError` if pyarrow is missing and
    `OSError` if `root` can't be written.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = [read_log(path) for path in live]
    return [_export(log, root, FILE_MODE, boot_id()) for log in logs if isinstance(log, EventLog) and log.blocks]


def read_log(path: Path) -> EventLog | Unreadable:
    """Read the whole blocks of a log file, held or not. It may grow meanwhile. Never raises `OSError`."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        return Unreadable(error.strerror or str(error))
    try:
        return _parse(descriptor)
    finally:
        os.close(descriptor)


def _goes_on(path: Path, root: Path) -> bool:
    """Return whether the writer of a log has a later one, perhaps without an event so far."""
    logs = [named for each in log_files(root) if (named := writer_and_first_seq(each)) is not None]
    mine = writer_and_first_seq(path)
    return mine is not None and any(writer_id == mine[0] and first_seq > mine[1] for writer_id, first_seq in logs)


def _export_and_remove(log: EventLog, path: Path, root: Path, recovery: Recovery, file_mode: int, rolled_on: str | None) -> None:
    try:
        if log.blocks:
            recovery.rolled.append(_export(log, root, file_mode, rolled_on))  # for those who could read the log
        if log.is_damaged:
            path.replace(damaged_path(path))
        else:
            path.unlink()
        sync_directory(path.parent)
    except OSError as error:
        logger.warning(
            "an event log could not be rolled, its events stay in it and are rolled later", file=str(path), error=explain(error, root)
        )
        recovery.live.append(path)


def _export(log: EventLog, root: Path, file_mode: int, rolled_on: str | None) -> Path:
    try:
        from ackwise.stores.journal.parquet import export
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Parquet files of events are written with pyarrow, which is missing: pip install 'ackwise[events]'"
        ) from error
    return export(log, root, file_mode, rolled_on)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _parse(descriptor: int) -> EventLog | Unreadable:
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return parse_log(file.read())
    except OSError as error:
        return Unreadable(error.strerror or str(error))


def _unreadable(path: Path, reason: str, from_seq: int | None = None) -> UnreadableLog:
    writer_id, first_seq = writer_and_first_seq(path) or (None, 0)
    return UnreadableLog(path, reason, writer_id, first_seq if from_seq is None else from_seq)
