"""The log files of one writer: blocks are appended, and are durable once written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable
from ackwise.middleware.eventlog import AnyBlock, LogHeader, encoded
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
        self.end = 0  #: where the next append writes
        unfinished = path.with_name(f".{path.name}.tmp")
        self._descriptor = create_regular(unfinished, file_mode)
        try:
            self._lock()
            self._identity = os.fstat(self._descriptor)
            self.append(content)
            os.fsync(self._descriptor)
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
        """Write at the end. It is not durable, but survives the death of this process if the file is in its place."""
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self.end + written)
        self.end += written

    def sync(self, end: int) -> None:
        """Make everything before `end` durable."""
        os.fsync(self._descriptor)
        self.check_place()
        self.size = end

    def check_place(self) -> None:
        """Raise `OSError` if the file is not in its place any more."""
        if not self.is_in_place():
            raise OSError(errno.ESTALE, "the file was deleted or moved while it was open")

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this file; a deleted one takes writes as if nothing had happened."""
        try:
            return os.path.samestat(os.stat(self.path), self._identity)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def cut(self) -> None:
        """Take away what is not durable."""
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

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                sentence = f"{self.path.parent}: the file system has no file locks (flock); put the events on one that has"
                raise ConfigurationError(sentence) from error
            raise


class LogWriter:
    """Writes one writer's blocks to its log files, in order. `write` and `finish` are for one thread, the rest for the event loop.

    Both append to the file under a lock. An fsync is outside of it, so that no mark waits for the disk; only a new file is made
    within it, so that the loop never makes one.
    """

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
        self._lock = threading.Lock()
        self._blocks: deque[AnyBlock] = deque()
        self._written: deque[AnyBlock] = deque()  # to the file, which is not synced since
        self._file: LogFile | None = None
        self._file_first_seq = 0
        self._file_opened = 0.0
        self._has_failed = False
        self._finished: deque[Path] = deque()
        self._counts: Counter[int] = Counter()  # of what is durable, by code
        self.durable_seq = header.first_seq
        """Everything below is durable."""

    def put(self, block: AnyBlock) -> None:
        """Queue a block for the next `write` or `mark`."""
        self._blocks.append(block)

    def mark(self) -> None:
        """Write every queued block. It survives the death of this process then, and is durable after the next `write`.

        Raises `EventLogUnavailable`; the blocks stay queued then.
        """
        with self._lock:
            if self._file is None or self._has_failed:
                raise EventLogUnavailable(
                    f"event log {self._path(self._file_first_seq)}: a write failed before; the next flush tries again"
                )
            try:
                self._append(self._file)
                self._file.check_place()
            except OSError as error:
                self._has_failed = True
                raise self._unavailable(error) from error

    def write(self) -> None:
        """Make every queued block durable. Raises `EventLogUnavailable`; the blocks stay queued then."""
        try:
            with self._lock:
                if self._has_failed and self._file is not None:
                    self._leave(self._file)
                file = self._file or self._start()
                self._append(file)
                end, number = file.end, len(self._written)
            if number:
                file.sync(end)
                self._take_durable(number)
            if self._is_full():
                self._roll(file)
        except OSError as error:
            self._has_failed = True
            raise self._unavailable(error) from error

    def finish(self) -> None:
        """Close the file; the next block starts another one."""
        if self._file is None:
            return
        if self.durable_seq > self._file_first_seq:
            self._finished.append(self._file.path)
        else:
            with contextlib.suppress(OSError):
                self._file.path.unlink()
        self._file.close()
        self._file = None

    def take_finished(self) -> list[Path]:
        """The files closed since the last call, ready to be rolled."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def _append(self, file: LogFile) -> None:
        blocks = list(self._blocks)
        if blocks:
            self._has_failed = True
            file.append(encoded(blocks, self._file_first_seq))
            for block in blocks:
                self._blocks.popleft()
                self._written.append(block)
        self._has_failed = False

    def _take_durable(self, number: int) -> None:
        for _ in range(number):
            block = self._written.popleft()
            self._counts.update(block.codes())
            self.durable_seq = block.next_seq

    def _roll(self, file: LogFile) -> None:
        """Go on in another file, which is there before the next mark."""
        with self._lock:
            if self._written:
                file.sync(file.end)
                self._take_durable(len(self._written))
            self.finish()
            with contextlib.suppress(OSError):  # the next write makes it, or says why it can't
                self._start()

    def _start(self) -> LogFile:
        header = replace(self._header, first_seq=self.durable_seq, counts=self._counts)
        return self._create(self.durable_seq, header.encode())

    def _leave(self, failed: LogFile) -> None:
        """After a failure: keep what is durable, and go on in another file.

        Never in the same one: after a failed fsync the kernel may call pages clean that are not on the disk, so a
        second fsync of the same file proves nothing. Until the other one is there this one keeps what is not durable:
        a start mark is needed if the process dies meanwhile.
        """
        self._blocks.extendleft(reversed(self._written))
        self._written.clear()
        if not failed.is_in_place():
            self._append(self._create(self._file_first_seq, failed.durable_content()))
        else:
            first_seq = self._file_first_seq
            self._append(self._start())
            if first_seq < self._file_first_seq:
                self._finished.append(failed.path)
                with contextlib.suppress(OSError):  # then it has events that the other file has as well
                    failed.cut()
        failed.close()

    def _create(self, first_seq: int, content: bytes) -> LogFile:
        path = self._path(first_seq)
        make_directories(self._root, path.parent, self._file_mode)
        opened = self._clock()
        self._file = LogFile(path, content, self._file_mode)
        self._file_first_seq, self._file_opened = first_seq, opened
        return self._file

    def _path(self, first_seq: int) -> Path:
        return log_path(self._root, self._header.writer_id, first_seq)

    def _is_full(self) -> bool:
        events = self.durable_seq - self._file_first_seq
        return events >= self._roll_events or self._clock() - self._file_opened >= self._roll_seconds

    def _unavailable(self, error: OSError) -> EventLogUnavailable:
        waiting = sum(block.next_seq - block.first_seq for block in (*self._written, *self._blocks))
        sentence = (
            f"{explain(error, self._path(self._file_first_seq))} ({waiting} events wait, none is dropped, the next flush tries again)"
        )
        return EventLogUnavailable(sentence)
