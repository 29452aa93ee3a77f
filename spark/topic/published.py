"""`Published`: the files that a topic already has, kept in a file beside them.

    ROOT/published/{cluster}/{topic}

One name of a file in each line, which is durable once the topic has all events of that file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.journal.layout import make_directories, open_regular, read_regular, sync_directory

__all__ = ["Published", "published"]


class Published:
    """The names of the files that were published; made by `published`."""

    def __init__(self, descriptor: int, names: set[str]) -> None:
        self._descriptor = descriptor
        self._names = names

    def __contains__(self, file: object) -> bool:
        return isinstance(file, Path) and file.name in self._names

    def add(self, file: Path) -> None:
        """Add a file whose events are all in the topic. Durable when it returns; raises `OSError`."""
        os.write(self._descriptor, f"{file.name}\n".encode())
        os.fsync(self._descriptor)
        self._names.add(file.name)


@contextmanager
def published(root: Path, cluster: str, topic: str, there: Sequence[Path]) -> Iterator[Published]:
    """Open the names of those files `there` that the topic has. Other names are dropped.

    Raises `ConfigurationError` if another process publishes to the same topic now, and `OSError`.
    """
    place = root / "published" / cluster / topic
    make_directories(root, place.parent)
    descriptor = open_regular(place, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        _take(descriptor, root, topic)
        known = set(read_regular(place).decode(errors="replace").splitlines()) & {file.name for file in there}
        # Written anew, also since a crash may have left half a line. A crash in between sends files again, which is no harm.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, "".join(f"{name}\n" for name in sorted(known)).encode())
        os.fsync(descriptor)
        sync_directory(place.parent)
        yield Published(descriptor, known)
    finally:
        os.close(descriptor)


def _take(descriptor: int, root: Path, topic: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"another process publishes the events of {root} to {topic} now; let it end") from None
