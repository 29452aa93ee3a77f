"""`SQLiteStore`: claims in one SQLite file, for the workers of one host.

The state is as wide as the file: workers on other hosts know nothing of it, and after a rebalance to another host
(or onto a fresh volume) what was completed before runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.store import Exchange, ExchangeResult, Outcome
from ackwise.stores.protocol.purpose import CLAIMS
from ackwise.stores.protocol.transitions import Place, Record, decide
from ackwise.stores.sqlite.clock import Clocks, FileClock, clocks_of
from ackwise.stores.sqlite.file import File, result_code
from ackwise.stores.sqlite.maintenance import clean, complaints, forget_some
from ackwise.stores.sqlite.schema import CLAIMS as _PART
from ackwise.stores.sqlite.schema import create_claims, version
from ackwise.stores.sqlite.url import parse, seconds

__all__ = ["SQLiteStore", "from_url"]


# A batch is read by one statement and written by one, through JSON. One statement per key is faster as long as the event
# loop rests; but each gives up the interpreter's lock, which a busy loop hands back only every few milliseconds.
_READ: Final = """
SELECT json_group_object(place, json_array(token, epoch, next_attempt, lost, took_unreleased, outcome, leased_until, kept_until, owner))
FROM json_each(?) CROSS JOIN ackwise_claims ON place = value
"""
_WRITE: Final = f"""
INSERT OR REPLACE INTO ackwise_claims (place, {", ".join(Record._fields)}, owner)
SELECT {", ".join(f"json_extract(value, '$[{i}]')" for i in range(2 + len(Record._fields)))} FROM json_each(?)
"""
_MOVE_LEASES: Final = "UPDATE ackwise_claims SET leased_until = leased_until + ? WHERE outcome IS NULL AND token <> 0"
_FORGET: Final = """
DELETE FROM ackwise_claims WHERE place IN (SELECT place FROM ackwise_claims WHERE kept_until <= ? LIMIT ?)
"""
_FORGET_AT_ONCE: Final = 1000
"""Rows; an exchange that cleans up takes some milliseconds longer."""
_FORGET_EVERY: Final = 1.0
"""Seconds between two looks for forgotten records, unless the last one found as many as it may delete."""


class SQLiteStore:
    """A claim store in the SQLite file at `path`; any number of processes of one host may share it.

    `synchronous` is SQLite's: with `normal` a killed process loses nothing, and a power failure may take the last exchanges
    with it, so that their messages run again; `full` waits for the disk and survives that too.
    A process that is stopped in the middle of an exchange (SIGSTOP, a debugger) keeps the file's lock: the others pause until it
    goes on or dies. Nothing is lost by it.
    `timeout` (seconds) is how long an exchange waits for other writers of the file before it raises `StoreUnavailable`.
    `clock` gives wall-clock seconds, which is what the processes of one host have in common. The host's own is compared with its
    uptime: where it jumps, neither leases nor what is remembered end early (`stores/sqlite/clock.py`).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "normal",
        timeout: float = 5.0,
        clock: Callable[[], float] | Clocks = time.time,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("a SQLite store needs the path of a file; for claims that end with the process use memory://")
        if synchronous not in ("normal", "full"):
            raise ConfigurationError(f"synchronous is {synchronous!r} for the SQLite store; it can be normal or full")
        self._file = File(CLAIMS, path, timeout, "an exchange")
        self._path = self._file.path
        self._synchronous = synchronous
        self._timeout = timeout
        self._clock = clock
        self._file_clock = FileClock(_PART.name, self._path, clocks_of(clock))
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._forgot_at: float | None = None

    async def open(self) -> None:
        """Open the file, and create it and its tables if need be; its folder has to exist.

        Raises `ConfigurationError` if the file is no SQLite database or has another version than ours, and
        `StoreUnavailable` if it can't be opened now. Opening twice does nothing.
        """
        if self._thread is not None:
            return
        # SQLite wants one writer, so there is one thread; it alone touches the connection.
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"ackwise-{self._path.name}")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._connect)
        except BaseException:
            thread.submit(self._disconnect)
            thread.shutdown(wait=False)
            raise
        self._thread = thread

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one transaction. Raises `StoreUnavailable`; then nothing was applied, unless the commit itself failed.

        An exchange whose caller is cancelled is applied as a whole or not at all.
        """
        if self._thread is None:
            raise StoreUnavailable(CLAIMS.not_open(str(self._path)))
        give_up_at = time.monotonic() + self._timeout
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._apply, exchange, give_up_at)

    async def close(self) -> None:
        """Finish the exchanges under way, close the file and end the thread. Closing twice does nothing."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        closing = asyncio.wrap_future(thread.submit(self._disconnect))
        thread.shutdown(wait=False)
        await asyncio.shield(closing)
        thread.shutdown()

    async def init(self) -> None:
        """Create the file and its tables if need be, as `open` does. Raises as `open` does."""
        another = SQLiteStore(self._path, synchronous=self._synchronous, timeout=self._timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return await asyncio.to_thread(self._file.use, complaints, _PART, self._timeout, self._clock)

    async def cleanup(self) -> int:
        """Delete what is forgotten, which exchanges do as well; return how many records. Raises as `open` does."""
        return await clean(lambda: self._file.use(forget_some, _PART, self._timeout, self._clock))

    def _connect(self) -> None:
        self._file.use(self._connect_to)

    def _connect_to(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=self._timeout, isolation_level=None)
        self._write_ahead(self._connection)
        self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        with _transaction(self._connection):
            self._prepare(self._connection)

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Switch the file to write-ahead logging, which lets others read while one writes."""
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                # SQLite itself does not wait here if several workers open a new file at once.
                if result_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)
            else:
                return

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables, unless they are there in another version than ours."""
        CLAIMS.require_version(version(connection, _PART), str(self._path), "name another file")
        create_claims(connection)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _apply(self, exchange: Exchange, give_up_at: float) -> ExchangeResult:
        connection = self._connection
        if connection is None or time.monotonic() > give_up_at:
            raise StoreUnavailable(f"{self._path}: the exchanges before this one took all of its {self._timeout} s; nothing was applied")
        try:
            with _transaction(connection):
                # Asked after the wait for the other writers: a lease starts when it is granted.
                now, keep_from, jump = self._file_clock.read(connection)
                if jump:
                    connection.execute(_MOVE_LEASES, (jump,))
                records = _read(connection, exchange)
                result, written = decide(lambda place: records.get(_name(*place)), exchange, now)
                _write(connection, written, keep_from - now)
                self._forget(connection, now)
        except sqlite3.Error as error:
            raise self._file.unavailable(error) from error
        return result

    def _forget(self, connection: sqlite3.Connection, now: float) -> None:
        """Delete some of the records that `decide` takes for unknown anyway."""
        if self._forgot_at is None or abs(now - self._forgot_at) >= _FORGET_EVERY:
            forgotten = connection.execute(_FORGET, (now, _FORGET_AT_ONCE)).rowcount
            self._forgot_at = None if forgotten == _FORGET_AT_ONCE else now


def from_url(url: str) -> SQLiteStore:
    """Return the store that `sqlite:///relative/path` or `sqlite:////absolute/path` names.

    Options follow as a query: `?synchronous=full&timeout=2.5`. Raises `ConfigurationError`.
    """
    path, options = parse(url, "SQLite store", "synchronous", "timeout")
    timeout = seconds(options.get("timeout", "5"), "SQLite store")
    return SQLiteStore(path, synchronous=options.get("synchronous", "normal"), timeout=timeout)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that first reads and then wants to write can't wait for another writer, it fails at once.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite ended the transaction itself; the first error is the one to tell
            connection.execute("ROLLBACK")
        raise


def _read(connection: sqlite3.Connection, exchange: Exchange) -> dict[str, Record]:
    requests = (exchange.completes, exchange.releases, exchange.renews, exchange.claims)
    names = [_name(request.key.id, request.key.day) for kind in requests for request in kind]
    (found,) = connection.execute(_READ, (json.dumps(names),)).fetchone()
    return {name: _record(*columns) for name, columns in json.loads(found).items()}


def _write(connection: sqlite3.Connection, written: dict[Place, Record], keep_longer: float) -> None:
    if written:
        rows = [(_name(*place), *record[:-1], record.kept_until + keep_longer, record.owner) for place, record in written.items()]
        connection.execute(_WRITE, (json.dumps(rows),))


def _name(id: bytes, day: int | None) -> str:
    return id.hex() if day is None else f"{id.hex()}/{day}"


def _record(
    token: int,
    epoch: int,
    next_attempt: int,
    lost: int,
    took_unreleased: int,
    outcome: int | None,
    leased_until: float,
    kept_until: float,
    owner: str,
) -> Record:
    finished = None if outcome is None else Outcome(outcome)
    return Record(token, epoch, next_attempt, lost, bool(took_unreleased), finished, leased_until, kept_until).held_by(owner)
