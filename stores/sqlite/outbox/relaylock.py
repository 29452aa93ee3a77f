"""`RelayLock`: proves that one relay at a time works on a file. It is the operating system's, so it ends with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ackwise.middleware.errors import ConfigurationError

__all__ = ["RelayLock"]


class RelayLock:
    """A locked file beside the database."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}-relay")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or keep it. Raises `ConfigurationError` if another relay has it."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ConfigurationError(
                f"{self._path}: another relay sends the rows of this file, and SQLite has one relay; stop that one first"
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another relay begin. Doing it twice does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
