"""`SQLiteInbox`: exactly once in one SQLite file, for handlers that write to that file; by keys or by offsets."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ackwise.middleware.errors import ConfigurationError, Fenced, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Permit, Place, Progress, Taken, TransactionAnswer
from ackwise.stores.sqlite.clock import TABLE as _CLOCK
from ackwise.stores.sqlite.clock import Clocks, FileClock, Instant, clocks_of
from ackwise.stores.sqlite.file import Part, clean, complaints, forget_some

__all__ = ["SQLiteInbox", "from_url"]

_VERSION: Final = 1
_PART: Final = Part("inbox", _VERSION, "ackwise_inbox", "ackwise_inbox_kept_until")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS ackwise_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ackwise_inbox (
    place TEXT PRIMARY KEY,
    outcome INTEGER,
    next_attempt INTEGER NOT NULL,
    origin TEXT NOT NULL,
    exec_id INTEGER NOT NULL,
    kept_until REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ackwise_offsets (
    owner TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    began INTEGER NOT NULL,
    PRIMARY KEY (owner, topic, partition)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ackwise_inbox_kept_until ON ackwise_inbox (kept_until);
"""
_READ: Final = """
SELECT place, outcome, next_attempt, origin, exec_id FROM json_each(?) CROSS JOIN ackwise_inbox ON place = value WHERE kept_until > ?
"""
_WRITE: Final = """
INSERT OR REPLACE INTO ackwise_inbox
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), ? FROM json_each(?)
"""
_FORGET: Final = "DELETE FROM ackwise_inbox WHERE place IN (SELECT place FROM ackwise_inbox WHERE kept_until <= ? LIMIT 1000)"

_TAKE_OVER: Final = """
INSERT INTO ackwise_offsets
SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), 1, json_extract(value, '$[2]')
FROM json_each(?) WHERE TRUE
ON CONFLICT DO UPDATE SET generation = generation + 1 RETURNING topic, partition, next, generation
"""
_LOCK: Final = "SELECT next FROM ackwise_offsets WHERE owner = ? AND topic = ? AND partition = ? AND generation = ?"
_ADVANCE: Final = "UPDATE ackwise_offsets SET next = ? WHERE owner = ? AND topic = ? AND partition = ? AND generation = ?"
_PERMITS: Final = """
SELECT asked.key, ackwise_inbox.place IS NOT NULL, began IS NULL OR began > json_extract(value, '$[3]'), next > json_extract(value, '$[3]')
FROM json_each(?) AS asked
LEFT JOIN ackwise_inbox ON place = json_extract(value, '$[0]') AND kept_until > ?
LEFT JOIN ackwise_offsets ON owner = ? AND topic = json_extract(value, '$[1]') AND partition = json_extract(value, '$[2]')
ORDER BY asked.key
"""

#: A savepoint at the start of the transaction.
_OURS: Final = "ackwise_began"

#: Seconds between two tries for the file while another process writes to it.
_TRY_AGAIN: Final = 0.005

P = ParamSpec("P")
T = TypeVar("T")


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
        if "\0" in str(path):
            raise ConfigurationError("the path of the SQLite inbox has a NUL in it, which no file can have; name another")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that a batch may wait for the file, more than 0")
        self._path = Path(path)
        self._timeout = timeout
        self._prepare = prepare
        self._clock = clock
        self._file_clock = FileClock(_PART.name, self._path, clocks_of(clock))
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Open the file, and create it and the table if need be. Opening twice does nothing.

        Raises `ConfigurationError` if the file is no SQLite database or a newer Ackwise wrote it, `StoreUnavailable` if it
        can't be opened now.
        """
        if self._connection is not None:
            return
        self._require_folder()
        try:
            connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_TABLES)
            connection.execute(_CLOCK)
            connection.execute("INSERT OR IGNORE INTO ackwise_schema VALUES ('inbox', ?)", (_VERSION,))
            (version,) = connection.execute("SELECT version FROM ackwise_schema WHERE part = 'inbox'").fetchone()
            connection.execute("PRAGMA busy_timeout = 0")  # from here on we wait ourselves, and let the event loop go on
        except sqlite3.DatabaseError as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise self._unavailable(error) from error
            raise self._no_database() from error
        if version > _VERSION:
            connection.close()
            raise ConfigurationError(
                f"{self._path}: its inbox has version {version}, and this Ackwise knows version {_VERSION}; upgrade, or name another file"
            )
        if self._prepare is not None:
            self._prepare(connection)
        self._connection = connection

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[_Open]:
        """See `TransactionalStore.begin`; the connection is one for all, so one batch at a time is in a transaction."""
        async with self._one_at_a_time:
            connection = self._connection
            if connection is None:
                raise StoreUnavailable(f"{self._path}: the inbox is not open; open it before the first batch")
            opened = _Open(self, connection, await self._begin(connection), retention)
            try:
                yield opened
                opened.check()
                connection.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                raise TransactionAborted(f"the database refuses to commit what the handler wrote: {error}") from error
            except sqlite3.Error as error:
                raise self._unavailable(error) from error
            finally:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    async def _begin(self, connection: sqlite3.Connection) -> Instant:
        """Become the writer of the file, waiting for others without holding up the event loop."""
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                instant = self._file_clock.read(connection)
                connection.execute(f"SAVEPOINT {_OURS}")
            except sqlite3.Error as error:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise self._unavailable(error) from error
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
                raise StoreUnavailable(f"{self._path}: the inbox is not open; open it before the first batch")
            await self._begin(connection)
            try:
                asked = json.dumps([(*place, position) for place, position in positions.items()])
                taken = connection.execute(_TAKE_OVER, (owner, asked)).fetchall()
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._unavailable(error) from error
            finally:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
            return {(topic, partition): Progress(next, generation) for topic, partition, next, generation in taken}

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
        """What is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return await asyncio.to_thread(self._maintain, complaints, _PART, self._timeout, self._clock)

    async def cleanup(self) -> int:
        """Delete what is forgotten, which batches do as well; gives how many keys. Raises as `open` does."""
        return await clean(lambda: self._maintain(forget_some, _PART, self._timeout, self._clock))

    def _maintain(self, work: Callable[Concatenate[Path, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on the file, and tell what is wrong with it."""
        self._require_folder()
        try:
            return work(self._path, *args, **kwargs)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                raise self._no_database() from error
            raise self._unavailable(error) from error

    def _require_folder(self) -> None:
        if not self._path.parent.is_dir():
            raise ConfigurationError(f"{self._path}: the folder of the inbox does not exist; create it, or name another path")

    def _no_database(self) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: this is no SQLite database; name another file, or move this one away")

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            return StoreUnavailable(f"{self._path}: another writer held the file for {self._timeout} s; look who keeps a transaction open")
        return StoreUnavailable(f"{self._path}: SQLite refused: {error}; check the file, its rights and the disk")


class _Open:
    """A transaction of a `SQLiteInbox`."""

    def __init__(self, inbox: SQLiteInbox, connection: sqlite3.Connection, instant: Instant, retention: float) -> None:
        self.connection = connection
        self._inbox = inbox
        self._now = instant.now
        self._kept_until = instant.keep_from + retention

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; the whole file is locked already."""
        rows = self.connection.execute(_READ, (json.dumps([_place(key) for key in keys]), self._now)).fetchall()
        found = {place: rest for place, *rest in rows}
        return [_answer(found.get(_place(key)), key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`."""
        self.check()
        rows = [
            (_place(key), None if outcome is None else int(outcome), next_attempt, json.dumps(origin), exec_id)
            for key, origin, exec_id, outcome, next_attempt in finishes
        ]
        self.connection.execute(_WRITE, (self._kept_until, json.dumps(rows)))
        self.connection.execute(_FORGET, (self._now,))

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        """See `OffsetsTransaction.lock`; the whole file is locked already."""
        row = self.connection.execute(_LOCK, (owner, topic, partition, generation)).fetchone()
        if row is None:
            raise Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")
        return int(row[0])

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        """See `OffsetsTransaction.advance`."""
        self.check()
        if self.connection.execute(_ADVANCE, (next, owner, topic, partition, generation)).rowcount != 1:
            raise Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """See `OffsetsTransaction.permits`."""
        asked = json.dumps([(_place(key), *origin) for key, origin in copies])
        rows = self.connection.execute(_PERMITS, (asked, self._now, owner)).fetchall()
        return [_permit(bool(is_known), bool(is_older), bool(is_passed)) for _, is_known, is_older, is_passed in rows]

    def check(self) -> None:
        """That it is still the transaction which began, since a commit or a rollback of the handler takes the savepoint away."""
        try:
            self.connection.execute(f"RELEASE {_OURS}")
            self.connection.execute(f"SAVEPOINT {_OURS}")
        except sqlite3.OperationalError:
            raise TransactionAborted(
                "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
            ) from None


def _permit(is_known: bool, is_older: bool, is_passed: bool) -> Permit:
    if is_known or is_older:
        return Permit.GRANTED
    return Permit.SUPERSEDED if is_passed else Permit.PENDING


def _place(key: ClaimKey) -> str:
    return key.id.hex()


def _answer(row: list[object] | None, attempt: int) -> TransactionAnswer:
    if row is None:
        return Taken()
    outcome, next_attempt, origin, exec_id = row
    if outcome is not None:
        topic, partition, offset = json.loads(str(origin))
        return Finished(Outcome(int(str(outcome))), (topic, partition, offset), int(str(exec_id)))
    return Stale() if attempt < int(str(next_attempt)) else Taken()


def from_url(url: str) -> SQLiteInbox:
    """The inbox in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, with `?timeout=2.5`.

    Raises `ConfigurationError`.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # such as sqlite://[x
        parts = urlsplit("")
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ConfigurationError("the URL of the SQLite inbox names no file; write sqlite:///relative/path or sqlite:////absolute/path")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout = options.pop("timeout", "5")
    if options:
        raise ConfigurationError(f"the SQLite inbox has no option {', '.join(sorted(options))}; it has timeout")
    try:
        seconds = float(timeout)
    except ValueError:
        raise ConfigurationError(f"timeout is {timeout!r} in the URL of the SQLite inbox; give seconds, such as timeout=2.5") from None
    return SQLiteInbox(unquote(parts.path[1:]), timeout=seconds)
