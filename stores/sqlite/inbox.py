"""`SQLiteInbox`: exactly once in one SQLite file, for handlers that write to that file; by keys or by offsets."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.transaction import Progress
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sqlite import offsets
from ackwise.stores.sqlite.clock import Clocks, FileClock, Instant, clocks_of
from ackwise.stores.sqlite.file import File, result_code
from ackwise.stores.sqlite.maintenance import clean, complaints, no_file
from ackwise.stores.sqlite.schema import INBOX as _PART
from ackwise.stores.sqlite.schema import create_inbox, version
from ackwise.stores.sqlite.thread import maintain
from ackwise.stores.sqlite.transaction import BEGAN, OpenTransaction
from ackwise.stores.sqlite.url import parse, seconds

__all__ = ["SQLiteInbox", "from_url"]

#: Seconds between two tries for the file while another process writes to it.
_TRY_AGAIN: Final = 0.005


class SQLiteInbox:
    """An inbox in the SQLite file at `path`, in which the handler's own tables are as well.

    The handler gets a `sqlite3.Connection` in the middle of a transaction; it is called from the event loop's thread. SQLite
    has one writer: while a batch is worked on, nobody else writes to the file. `timeout` (seconds) is how long a batch
    waits for other writers before `StoreUnavailable`. `prepare` is given the connection once, for what your handler wants of
    it: a row factory, `PRAGMA foreign_keys = ON`. `clock` gives wall-clock seconds; where the host's own jumps, nothing is forgotten
    early (`stores/sqlite/clock.py`).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 5.0,
        prepare: Callable[[sqlite3.Connection], object] | None = None,
        clock: Callable[[], float] | Clocks = time.time,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("a SQLite inbox needs the path of the file that the handler writes to")
        self._file = File(INBOX, path, timeout, "a batch")
        self._path = self._file.path
        self._timeout = timeout
        self._prepare = prepare
        self._clock = clock
        self._file_clock = FileClock(_PART.name, self._path, clocks_of(clock))
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Open the file, and create it and the table if need be. Opening twice does nothing.

        Raises `ConfigurationError` if the file is no SQLite database or has another version than ours, `StoreUnavailable` if it
        can't be opened now.
        """
        if self._connection is not None:
            return
        self._file.require_folder()
        try:
            connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        except sqlite3.Error as error:
            raise self._file.unavailable(error) from error
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        if self._prepare is not None:
            self._prepare(connection)
        self._connection = connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            INBOX.require_version(version(connection, _PART), str(self._path), "name another file")
            create_inbox(connection)
            connection.execute("PRAGMA busy_timeout = 0")  # from here on we wait ourselves, and let the event loop go on
        except sqlite3.OperationalError as error:
            raise self._file.unavailable(error) from error
        except sqlite3.DatabaseError as error:
            raise self._file.no_database() from error

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[OpenTransaction]:
        """See `TransactionalStore.begin`; the connection is one for all, so one batch at a time is in a transaction."""
        async with self._one_at_a_time:
            connection = self._connection
            if connection is None:
                raise StoreUnavailable(INBOX.not_open(str(self._path)))
            opened = OpenTransaction(connection, await self._begin(connection), retention)
            try:
                yield opened
                opened.check()
                connection.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                raise TransactionAborted(f"the database refuses to commit what the handler wrote: {error}") from error
            except sqlite3.Error as error:
                raise self._file.unavailable(error) from error
            finally:
                _roll_back(connection)

    async def _begin(self, connection: sqlite3.Connection) -> Instant:
        """Become the writer of the file, waiting for others without holding up the event loop."""
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                instant = self._file_clock.read(connection)
                connection.execute(f"SAVEPOINT {BEGAN}")
            except sqlite3.Error as error:
                _roll_back(connection)
                if result_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise self._file.unavailable(error) from error
                await asyncio.sleep(_TRY_AGAIN)
            else:
                return instant

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; one statement."""
        async with self._one_at_a_time:
            connection = self._connection
            if connection is None:
                raise StoreUnavailable(INBOX.not_open(str(self._path)))
            await self._begin(connection)
            try:
                taken = offsets.take_over(connection, owner, positions)
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._file.unavailable(error) from error
            finally:
                _roll_back(connection)
            return taken

    async def close(self) -> None:
        """Wait for the batch under way, and close the file. Closing twice does nothing."""
        async with self._one_at_a_time:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def init(self) -> None:
        """Create the file and the table if need be, as `open` does. Raises as `open` does."""
        another = SQLiteInbox(self._path, timeout=self._timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return no_file(self._file) or await maintain(self._file, lambda: complaints(str(self._path), _PART, self._clock))

    async def cleanup(self) -> int:
        """Delete what is forgotten, which batches do as well; return how many keys. Raises as `open` does."""
        return await maintain(self._file, lambda: clean(str(self._path), _PART, self._clock))


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def from_url(url: str) -> SQLiteInbox:
    """Return the inbox in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, with `?timeout=2.5`.

    Raises `ConfigurationError`.
    """
    path, options = parse(url, "SQLite inbox", "timeout")
    return SQLiteInbox(path, timeout=seconds(options.get("timeout", "5"), "SQLite inbox"))
