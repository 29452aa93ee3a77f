"""A claim store of one's own in one file, and an app that uses it: run it with `ackwise run custom_store:app` in this folder.

A store decides who may run a message. The decisions are in `ackwise.stores.protocol.transitions`, for every store the same; what is
left to do is to keep records, safely. This one keeps them in a JSON file that it writes again for every batch: fine for
some thousand keys and one process. That it is right says `ackwise.stores.conformance`, the suite that every store passes.

To have it found by its URL, `Dedup("jsonfile://claims.json")`, a package announces it in its pyproject.toml:

    [project.entry-points."ackwise.stores"]
    jsonfile = "custom_store:from_url"

The app reads the topic `letters` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

import asyncio
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ackwise import App, Dedup
from ackwise.errors import ConfigurationError, StoreUnavailable
from ackwise.stores import Exchange, ExchangeResult, Outcome, Place, Record, decide


class JsonFileStore:
    """Claims in the JSON file `path`; `clock` gives seconds that mean the same after a restart."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._turn = threading.Lock()
        self._records: dict[Place, Record] = {}
        self._lock: IO[str] | None = None

    async def open(self) -> None:
        """Read the file. Raises `ConfigurationError` if another process has it open, `StoreUnavailable` if it can't be read."""
        try:
            self._lock = self._path.with_suffix(".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
            if self._path.exists():
                self._records = dict(map(_from_json, json.loads(self._path.read_text())))
        except BlockingIOError:
            raise ConfigurationError(
                f"{self._path} is open in another process; give each its own, or all a store that they share"
            ) from None
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"{self._path} can't be read ({error}); fix it, or move it away") from error

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Decide and write, in a thread: if the caller is cancelled, it is still done as a whole."""
        try:
            return await asyncio.to_thread(self._apply, exchange)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} can't be written ({error}); look at the disk") from error

    def _apply(self, exchange: Exchange) -> ExchangeResult:
        with self._turn:
            now = self._clock()
            result, written = decide(self._records.get, exchange, now)
            records = {place: record for place, record in (self._records | written).items() if record.kept_until > now}
            self._write(records)
            self._records = records  # only what is on the disk counts
            return result

    def _write(self, records: dict[Place, Record]) -> None:
        """All or nothing: the old file stays until the new one is whole."""
        unfinished = self._path.with_suffix(".tmp")
        with unfinished.open("w") as file:
            json.dump([_to_json(place, record) for place, record in records.items()], file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)

    async def close(self) -> None:
        """Let others have the file."""
        if self._lock is not None:
            self._lock.close()


def _to_json(place: Place, record: Record) -> list[object]:
    return [place[0].hex(), place[1], *record]


def _from_json(row: list[Any]) -> tuple[Place, Record]:
    key, day, *fields = row
    record = Record(*fields)
    return (bytes.fromhex(key), day), record._replace(outcome=None if record.outcome is None else Outcome(record.outcome))


def from_url(url: str) -> JsonFileStore:
    """The store of `jsonfile://claims.json`. Raises `ConfigurationError`."""
    _, _, path = url.partition("://")
    if not path:
        raise ConfigurationError("the URL of a JSON file store names no file; write jsonfile://claims.json")
    return JsonFileStore(Path(path))


app = App("letters")
app.use(Dedup(JsonFileStore(Path("claims.json")), key=lambda message: message.key))


@app.agent("letters")
async def file_away(letter: str) -> None:
    """Each key runs once, also after a restart."""
    print("filed", letter, flush=True)
