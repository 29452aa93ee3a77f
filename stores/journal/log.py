"""The log files of one writer: blocks are appended, and are durable once written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable
from ackwise.middleware.eventlog import Block, LogHeader, RunBlock
from ackwise.stores.journal.layout import FILE_MODE, create_regular, log_path, make_directories, sync_directory

_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or raise the quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.ENOENT: "put the folder back",
    errno.ENOTDIR: "a file stands where a folder belongs, move it away",
    errno.EEXIST: "a file stands where a folder belongs, move it away",
    errno.ESTALE: "leave the folder to the running process",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def explain(error: OSError, path: Path) -> str:
    """What failed, where and what to do about it, as the start of a sentence."""
    reason = error.strerror or str(error)
    return f"event log {error.filename or path}: {reason}; {_ADVICE.get(error.errno or 0, 'look at the disk and at the log of the system')}"


class LogFile:
    """One open log file, locked while it is open. `size` bytes of it are durable; every method may raise `OSError`."""

    def __init__(self, path: Path, content: bytes, file_mode: int = FILE_MODE) -> None:
        """Make the file with this durable content. It gets its name only when it is locked and whole."""
        self.path = path
        self.size = 0
        unfinished = path.with_name(f".{path.name}.tmp")
        self._descriptor = create_regular(unfinished, file_mode)
        try:
            self._lock()
            self._write(content)
            unfinished.replace(path)
            sync_directory(path.parent)
            self.size = len(content)
        except BaseException:
            self.close()
            # What is left of it takes space that may be short, and its events come again in another file.
            for leftover in (unfinished, path):
                with contextlib.suppress(OSError):
                    leftover.unlink()
            raise

    def append(self, data: bytes) -> None:
        """Write at the end and make it durable."""
        self._write(data)
        if not self.is_in_place():
            raise OSError(errno.ESTALE, "the file was deleted or moved while it was open")
        self.size += len(data)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this file; a deleted one takes writes as if nothing had happened."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def cut(self) -> None:
        """Take away what a failed append left behind."""
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)

    def durable_content(self) -> bytes:
        """What was made durable, even if the file has been deleted."""
        return os.pread(self._descriptor, self.size, 0)

    def close(self) -> None:
        """Let go of the file and its lock."""
        # The descriptor is gone even when close complains, and what counts was made durable before.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self.size + written)
        os.fsync(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                sentence = f"{self.path.parent}: the file system has no file locks (flock); put the events on one that has"
                raise ConfigurationError(sentence) from error
            raise


class LogWriter:
    """Writes one writer's blocks to its log files, in order. `put` and `take_finished` are for the event loop, the rest for one thread."""

    def __init__(
        self,
        root: Path,
        header: LogHeader,
        *,
        roll_events: int,
        roll_seconds: float,
        file_mode: int = FILE_MODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._file_mode = file_mode
        self._header = header
        self._roll_events = roll_events
        self._roll_seconds = roll_seconds
        self._clock = clock
        self._blocks: deque[Block | RunBlock] = deque()
        self._file: LogFile | None = None
        self._file_first_seq = 0
        self._file_opened = 0.0
        self._has_failed = False
        self._finished: deque[Path] = deque()
        self._counts: Counter[int] = Counter()  # of what is durable, by code
        self.durable_seq = header.first_seq
        """Everything below is durable."""

    def put(self, block: Block | RunBlock) -> None:
        """Queue a block for the next `write`."""
        self._blocks.append(block)

    def write(self) -> None:
        """Make every queued block durable. Raises `EventLogUnavailable`; the blocks stay queued then."""
        blocks = list(self._blocks)
        if not blocks:
            return
        try:
            self._append(b"".join(block.encode() for block in blocks))
        except OSError as error:
            waiting = blocks[-1].next_seq - self.durable_seq
            sentence = f"{explain(error, self._path())} ({waiting} events wait, none is dropped, the next flush tries again)"
            raise EventLogUnavailable(sentence) from error
        self.durable_seq = blocks[-1].next_seq
        for block in blocks:
            self._counts.update(block.codes())
            self._blocks.popleft()
        if self._is_full():
            self.finish()

    def finish(self) -> None:
        """Close the file; the next block starts another one."""
        if self._file is None:
            return
        self._file.close()
        self._finished.append(self._file.path)
        self._file = None

    def take_finished(self) -> list[Path]:
        """The files closed since the last call, ready to be rolled."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def _append(self, data: bytes) -> None:
        if self._file is not None and self._has_failed:
            self._leave(self._file)
        if self._file is None:
            self._file_first_seq = self.durable_seq
            header = replace(self._header, first_seq=self.durable_seq, counts=self._counts)
            self._file = self._create(header.encode() + data)
        else:
            self._has_failed = True
            self._file.append(data)
            self._has_failed = False

    def _leave(self, file: LogFile) -> None:
        """After a failure: keep what is durable, and go on in another file.

        Never in the same one: after a failed fsync the kernel may call pages clean that are not on the disk, so a
        second fsync of the same file proves nothing.
        """
        if file.is_in_place():
            file.cut()
            self.finish()
        else:
            self._file = self._create(file.durable_content())
            file.close()
        self._has_failed = False

    def _create(self, content: bytes) -> LogFile:
        path = self._path()
        make_directories(self._root, path.parent, self._file_mode)
        self._file_opened = self._clock()
        return LogFile(path, content, self._file_mode)

    def _path(self) -> Path:
        return log_path(self._root, self._header.writer_id, self._file_first_seq)

    def _is_full(self) -> bool:
        events = self.durable_seq - self._file_first_seq
        return events >= self._roll_events or self._clock() - self._file_opened >= self._roll_seconds
