"""`SQLiteOutbox`: rows to be sent, in the business transactions of one SQLite file."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.outbox import SHARDS
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.operation import Answer, Failure, Owned, Packet, run
from ackwise.stores.sql.outbox.outbox import SQLOutbox
from ackwise.stores.sql.outbox.writing import Business
from ackwise.stores.sqlite.file import File, parse, problem_of, seconds
from ackwise.stores.sqlite.outboxdialect import BEGIN, SQLite
from ackwise.stores.sqlite.outboxwriting import as_error, begin, business
from ackwise.stores.sqlite.runner import SQLiteRunner
from ackwise.stores.sqlite.schema import OUTBOX as _PART
from ackwise.stores.sqlite.schema import complaints, connected, no_file
from ackwise.stores.sqlite.thread import maintain

T = TypeVar("T")

_REST: Final = 0.005
"""Seconds between two steps of the cleanup: others may want the file."""


class SQLiteOutbox(SQLOutbox):
    """An outbox in the SQLite file at `path`, in which the business's own tables are as well.

        async with outbox.transaction(connection):
            connection.execute("UPDATE …")
            outbox.send("orders", value, key=key)

    `connection` is a `sqlite3.Connection` to that file, of the thread that calls. A row is inserted by the call of `send`. Open the outbox
    once before, so that its tables are there. One relay at a time sends the rows; a second one is refused. A relay in another process
    finds rows when it looks, not at once.

    Rows are deleted once they were sent. With `keep_sent` (seconds) they stay so long, without what `blank` names (`value`, `key` and
    `headers` by default). Parked rows stay until they are requeued, or with `keep_parked` (seconds) until `cleanup` deletes them unsent.
    `timeout` (seconds) is how long a call waits while others write to the file; `retention` (seconds) is how long `cleanup` leaves what was
    rolled back; `clock` gives seconds since 1970. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 5.0,
        retention: float = 86400.0,
        keep_sent: float = 0.0,
        keep_parked: float | None = None,
        blank: Collection[str] = tuple(PAYLOAD),
        clock: Callable[[], float] = time.time,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("a SQLite outbox needs the path of the file that the business writes to")
        if "://" in str(path):
            raise ConfigurationError("a SQLite outbox takes the path of a file, such as 'shop.db'; it was given a URL")
        self._file = File(OUTBOX, path, timeout, "a call of the outbox")
        self._path, self._clock = self._file.path, clock
        keeping, wakes = Keeping(retention, keep_sent, keep_parked, blank), wakes_of(f"sqlite {self._path.absolute()}")
        super().__init__(SQLite(clock), str(self._path), timeout, keeping, wakes)
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._lock = _RelayLock(self._path)

    async def open(self) -> None:
        """Open the file, and create it and the tables if need be. Opening twice does nothing.

        Raises `ConfigurationError` if the file is no SQLite database or has another version than ours, `StoreUnavailable` if it
        can't be opened now.
        """
        if self._connection is None:
            self._file.require_folder()
            self._connection = connected(self._file, _PART, sqlite3.Connection)

    async def close(self) -> None:
        """Wait for the call under way, and close the file; another relay may begin. Closing twice does nothing."""
        async with self._turn:
            self._lock.release()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # Our own connection

    def _signing_in(self, owner: str, share: int) -> int:
        """A relay whose process has died is followed at once."""
        self._lock.acquire()
        return SHARDS

    def _signed_out(self) -> None:
        self._lock.release()

    async def init(self) -> None:
        """Create the file and the tables if need be, as `open` does. Raises as `open` does."""
        another = SQLiteOutbox(self._path, timeout=self._timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return no_file(self._file) or await maintain(self._file, lambda: complaints(str(self._path), _PART, self._clock))

    async def cleanup(self) -> int:
        """Delete what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        if not self._path.exists():
            raise ConfigurationError(f"{self._path}: there is no such file; name another, or run `{OUTBOX.init}` first")
        another = SQLiteOutbox(self._path, timeout=self._timeout)
        await another.open()
        try:
            return await another._run(Owned(self._clean), rest=_REST)
        finally:
            await another.close()

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(OUTBOX.not_open(str(self._path)))
        return self._connection

    async def _run(self, operation: Owned[T], *, rest: float = 0.0) -> T:
        runner = _Runner(self._require_open(), self._turn, self._timeout, rest)
        try:
            return await run(operation.begin(), runner)
        except Failure as failure:
            raise self._as_error(failure) from failure.error
        finally:
            runner.end()

    def _through(self, connection: Any) -> Business:
        return business(connection, self._file, self._timeout, self._clock)

    def _as_error(self, failure: Failure) -> ConfigurationError | StoreUnavailable:
        assert isinstance(failure.error, sqlite3.Error)
        return as_error(self._file, failure.error)


class _Runner:
    """One operation on our connection. Its transactions take their turn, and do not hold up the event loop while others write to the file;
    `rest` seconds pass before each, as others may want the file."""

    def __init__(self, connection: sqlite3.Connection, turn: asyncio.Lock, timeout: float, rest: float) -> None:
        self._connection, self._turn, self._timeout, self._rest = connection, turn, timeout, rest
        self._has_turn = False

    async def send(self, packet: Packet) -> Sequence[Answer]:
        begun = [await self._begin(*packet[0].values)] if packet[0].text.startswith(BEGIN) else []
        answers = self._send(packet[len(begun) :])
        if not self._connection.in_transaction:
            self.end()
        return [*begun, *answers]

    def _send(self, packet: Packet) -> Sequence[Answer]:
        try:
            return SQLiteRunner(self._connection).send(packet)
        except sqlite3.Error as error:  # of a connection that was closed
            raise Failure(problem_of(error), error) from error

    def end(self) -> None:
        """Roll back what was not committed, and let the next one have its turn. Doing it twice does nothing."""
        if not self._has_turn:
            return
        self._has_turn = False
        with suppress(sqlite3.Error):  # of a connection that was closed before its turn, too
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._turn.release()

    async def _begin(self, wait: float | None = None) -> Answer:
        if self._rest:
            await asyncio.sleep(self._rest)
        await self._turn.acquire()
        self._has_turn = True
        try:
            await begin(self._connection, self._timeout if wait is None else wait)
        except sqlite3.Error as error:
            self.end()
            raise Failure(problem_of(error), error) from error
        return Answer()


class _RelayLock:
    """A locked file beside the database: it proves that one relay at a time is at work, and ends with its process."""

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


def from_url(url: str) -> SQLiteOutbox:
    """Return the outbox in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, with `?timeout=2.5`
    and `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`.

    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    path, options = parse(url, "SQLite outbox", "timeout")
    return SQLiteOutbox(path, timeout=seconds(options.get("timeout", "5"), "SQLite outbox"), **keeping.given)
