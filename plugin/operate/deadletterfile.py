"""Letter file: dead letters as lines of JSON, as they lay in their topic, so that an editor's user can choose among them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.plugin.operate.deadletter import Letter, read_letter

_VERSION: Final = 1

#: Its owner alone reads it: it has whole messages.
_MODE: Final = 0o600


class LetterFile:
    """Writes a file that must not be there yet. It has its name once it is whole and the block ends well, and is gone otherwise.

    Raises `ConfigurationError` for a path that can't be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file: BinaryIO | None = None
        self.number = 0

    def __enter__(self) -> LetterFile:
        if self._path.exists():
            raise ConfigurationError(f"{self._path} is there already; name a new file")
        try:
            self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "wb")
        except OSError as error:
            raise self._unwritten(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                file.flush()
                os.fsync(file.fileno())
            if kind is None:
                os.link(self._part, self._path)  # not a rename, which would replace a file that was made meanwhile
        except FileExistsError:
            raise ConfigurationError(f"{self._path} is there already; name a new file") from None
        except OSError as failed:
            raise self._unwritten(failed) from failed
        finally:
            self._part.unlink(missing_ok=True)

    def write(self, letter: Letter) -> None:
        """Add a letter. Raises `ConfigurationError` if there is no room."""
        if self._file is None:
            raise RuntimeError("the file is not open; write inside of its block")
        record = letter.record
        facts = {
            "version": _VERSION,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
        try:
            self._file.write(json.dumps(facts).encode() + b"\n")
        except OSError as error:
            raise self._unwritten(error) from error
        self.number += 1

    def _unwritten(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"{self._path} can't be written ({error.strerror}); name another file")


def check_letters(path: Path, group: str) -> int:
    """How many dead letters a file has; every line is looked at. Raises `ConfigurationError` for one that is no letter."""
    return sum(1 for _ in _letters(path, group))


async def letters_of(path: Path, group: str) -> AsyncIterator[Letter]:
    """The dead letters of a file, in its order. Raises as `check_letters`."""
    for letter in _letters(path, group):
        yield letter


def _letters(path: Path, group: str) -> Iterator[Letter]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield read_letter(_record(path, number, line), group)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read ({error.strerror}); name a file that ackwise dlq export wrote") from error


def _record(path: Path, number: int, line: bytes) -> Delivery:
    try:
        said: Any = json.loads(line)
        place = said["topic"], said["partition"], said["offset"], said["timestamp_ms"]
        headers = tuple((name, _bytes(value)) for name, value in said["headers"])
        key, value, version = _bytes(said["key"]), _bytes(said["value"]), said["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(path, number) from None
    numbers_fit = all(type(each) is int and lowest <= each < 2**63 for each, lowest in zip(place[1:], (0, 0, -(2**63)), strict=True))
    if version != _VERSION or not numbers_fit or not all(isinstance(name, str) for name in (place[0], *(name for name, _ in headers))):
        raise _damaged(path, number)
    origin = Origin(*place)
    return Delivery(*origin, key, value, headers, origin)


def _damaged(path: Path, number: int) -> ConfigurationError:
    return ConfigurationError(f"line {number} of {path} is no letter as ackwise dlq export writes it; nothing of the file was sent")


def _text(given: bytes | None) -> str | None:
    return None if given is None else base64.b64encode(given).decode()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else base64.b64decode(given, validate=True)
