"""Offsets file: the positions of one instance in a local file, RocketMQ's `LocalFileOffsetStore`.

It is replaced as a whole: written beside it, synced, renamed. So after a crash at any moment it is the old one or the new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log
from ackwise.plugin.client.offsets import Committed

__all__ = ["OffsetsFile"]

log = Log()

_FORMAT: Final = "ackwise-offsets-1"

_Positions = dict[TopicPartition, Committed]


class OffsetsFile:
    """The positions of `group`, which is that of one instance, in the file `path`. One process has it open at a time."""

    def __init__(self, path: Path, group: str, cluster: str | None) -> None:
        """`cluster`: the id of the Kafka cluster; `None` if it has none."""
        self.path = Path(os.path.realpath(path))  # a link to it would be replaced, and what it leads to is forgotten
        self._group = group
        self._cluster = cluster
        self._positions: _Positions = {}
        self._lock: int | None = None
        self._writing: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Lock and read it. Raises `ConfigurationError` if another process has it, or if it is not what this instance wrote."""
        was_here = _lock_of(self.path).exists()
        self._lock = _locked(self.path)
        try:
            self._positions = self._read(was_here=was_here)
        except BaseException:
            self._unlock()
            raise

    async def close(self) -> None:
        """Let another process have it. Waits for a write that is under way."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        self._unlock()

    @property
    def positions(self) -> Mapping[TopicPartition, Committed]:
        """What is on the disk."""
        return self._positions

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Return once `offsets` are on the disk, beside those of other partitions. Raises `OSError`; the file is as before then.

        Who no longer waits ends no write: the next one comes after it, and has what it wrote.
        """
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})
        writing = self._writing = asyncio.ensure_future(self._replace({**self._positions, **offsets}))
        writing.add_done_callback(_take_note)
        await asyncio.shield(writing)

    async def _replace(self, positions: _Positions) -> None:
        await asyncio.to_thread(_write, self.path, self._encoded(positions))
        self._positions = positions

    def _encoded(self, positions: _Positions) -> bytes:
        rows = [[*partition, *committed] for partition, committed in sorted(positions.items())]
        body = {"format": _FORMAT, "group": self._group, "cluster": self._cluster, "positions": rows}
        return json.dumps(body | {"checksum": _checksum(body)}, indent=1).encode()

    def _read(self, *, was_here: bool) -> _Positions:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            if was_here:
                log.warning("the offsets file is gone, this instance begins as a new one", group=self._group, file=str(self.path))
            else:
                log.info("there is no offsets file yet, this instance is new", group=self._group, file=str(self.path))
            return {}
        except OSError as error:
            raise ConfigurationError(
                f"offsets_file {self.path} can't be read ({error.strerror}); make it a file that this worker may read"
            ) from None
        body = _decoded(text, self.path)
        if body["group"] != self._group:
            raise ConfigurationError(
                f"offsets_file {self.path} has the positions of {body['group']!r}, and this is {self._group!r}; give each instance a "
                "file of its own"
            )
        if None not in (body["cluster"], self._cluster) and body["cluster"] != self._cluster:
            raise ConfigurationError(
                f"offsets_file {self.path} has positions in the Kafka cluster {body['cluster']}, and this is {self._cluster}; correct "
                "brokers, or take the file away to begin as a new instance"
            )
        return {TopicPartition(topic, partition): Committed(offset, metadata) for topic, partition, offset, metadata in body["positions"]}

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _decoded(text: bytes, path: Path) -> dict[str, Any]:
    """What `text` says. Raises `ConfigurationError` if it is damaged or something else: a wrong position would pass over messages."""
    try:
        body: Any = json.loads(text)
        claimed, found = body["format"], body.pop("checksum")
    except (ValueError, KeyError, TypeError, RecursionError):
        claimed, found, body = None, None, {}
    if claimed is not None and claimed != _FORMAT:
        raise ConfigurationError(
            f"offsets_file {path} is of a format that this Ackwise does not know ({claimed!r}); run the version that wrote it"
        )
    if claimed is None or found != _checksum(body):
        raise ConfigurationError(
            f"offsets_file {path} is damaged, or was written by something else; put back a copy of it, or take it away to begin as a new "
            "instance"
        )
    return dict(body)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(path: Path) -> int:
    """The lock of `path`, a file beside it that stays: held until it is closed. Raises `ConfigurationError`."""
    lock = _lock_of(path)
    try:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"offsets_file {path} can't be locked ({error.strerror}: {lock}); give a file in a folder that is there and that this worker "
            "may write to"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        why = "another worker has it" if isinstance(error, BlockingIOError) else f"its file system has no locks: {error.strerror}"
        raise ConfigurationError(f"offsets_file {path} can't be locked ({why}); give each instance a local file of its own") from None
    return file


def _write(path: Path, text: bytes) -> None:
    """Replace the file `path`. Raises `OSError`; the old one is whole then."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _take_note(writing: asyncio.Future[None]) -> None:
    """Nobody may wait for it any more; whether it failed shows in the next commit."""
    if not writing.cancelled():
        writing.exception()
