"""`SQLiteInbox`: exactly once in one SQLite file, by keys or by offsets, for handlers that write to that file.

A transaction that writes locks the whole file.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey
from ackwise.middleware.storage.transaction import Place, Progress
from ackwise.stores.protocol.options import INBOX
from ackwise.stores.sql.inbox import ENDED, UNFINISHED, Fence, Record, take_over
from ackwise.stores.sql.inboxtransaction import InboxTransaction, Session
from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement, Steps, run, run_now
from ackwise.stores.sqlite.clock import Clocks, FileClock, Instant, clocks_of
from ackwise.stores.sqlite.driver import File, SQLiteRunner, maintain, parse, problem_of, seconds, when_free
from ackwise.stores.sqlite.handlerconnection import HandlerConnection
from ackwise.stores.sqlite.schema import INBOX as _PART
from ackwise.stores.sqlite.schema import clean, complaints, no_file, set_up

BEGAN: Final = "ackwise_began"
"""A savepoint at the start of the transaction, which is there as long as the transaction is."""

_BEGIN: Final = (Statement("BEGIN IMMEDIATE"),)
_MARK: Final = (Statement(f"SAVEPOINT {BEGAN}"),)
_RELEASE: Final = Statement(f"RELEASE {BEGAN}")

_CLAIM: Final = f"""
SELECT value, coalesce(outcome, {UNFINISHED}), coalesce(next_attempt, 0), coalesce(origin_topic, ''), coalesce(origin_partition, 0),
       coalesce(origin_offset, 0), coalesce(exec_id, 0), NULL
FROM json_each(?) LEFT JOIN ackwise_inbox ON place = value AND kept_until > ?
"""
_FINISH: Final = """
INSERT OR REPLACE INTO ackwise_inbox (place, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), ? FROM json_each(?)
"""
_FORGET: Final = "DELETE FROM ackwise_inbox WHERE place IN (SELECT place FROM ackwise_inbox WHERE kept_until <= ? LIMIT 1000)"

_TAKE_OVER: Final = """
INSERT INTO ackwise_offsets (owner, topic, part, next_offset, generation, began)
SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), 1, json_extract(value, '$[2]')
FROM json_each(?) WHERE TRUE
ON CONFLICT DO UPDATE SET generation = generation + 1 RETURNING topic, part, next_offset, generation
"""
_LOCK: Final = "SELECT next_offset, NULL FROM ackwise_offsets WHERE owner = ? AND topic = ? AND part = ? AND generation = ?"
_ADVANCE: Final = (
    "UPDATE ackwise_offsets SET next_offset = ? WHERE owner = ? AND topic = ? AND part = ? AND generation = ? RETURNING next_offset"
)
_PERMITS: Final = """
SELECT place IS NOT NULL OR began IS NULL OR began > json_extract(value, '$[3]'), next_offset > json_extract(value, '$[3]')
FROM json_each(?) AS asked
LEFT JOIN ackwise_inbox ON place = json_extract(value, '$[0]') AND kept_until > ? AND next_attempt > 0
LEFT JOIN ackwise_offsets ON owner = ? AND topic = json_extract(value, '$[1]') AND part = json_extract(value, '$[2]')
ORDER BY asked.key
"""


def begin(clock: FileClock) -> Steps[Instant]:
    """Become the writer of the file, and return how late it is."""
    instant, _ = yield from clock.instant(_BEGIN, _MARK)
    return instant


class SQLiteStatements:
    """For a transaction that started at `instant`. See `Statements`."""

    state: Packet = ()

    def __init__(self, instant: Instant) -> None:
        self._instant = instant

    still_there: Packet = ()
    undoes_all = True
    proof: Packet = ()

    def put_back(self, state: Sequence[Any]) -> Packet:
        return ()

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        """See `Statements`; nothing needs to be locked."""
        return [Statement(_CLAIM, (json.dumps([id.hex() for id in ids]), self._instant.now))]

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        """See `Statements`. It deletes what is forgotten as well."""
        written = json.dumps([(id.hex(), *others) for id, *others in records])
        return [
            _RELEASE,
            Statement(_FINISH, (self._instant.keep_from + retention, written)),
            Statement(_FORGET, (self._instant.now,)),
        ]

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        """See `Statements`: a claim writes nothing, and nothing in SQLite commits from within."""
        return ()

    def lock(self, fence: Fence) -> Packet:
        """See `Statements`; nothing needs to be locked."""
        return [Statement(_LOCK, fence)]

    def advance(self, fence: Fence, next: int) -> Packet:
        return [Statement(_ADVANCE, (next, *fence))]

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        asked = json.dumps([(key.id.hex(), *origin) for key, origin in copies])
        return [Statement(_PERMITS, (asked, self._instant.now, owner))]

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        return [Statement(_TAKE_OVER, (owner, json.dumps([(*place, position) for place, position in positions.items()])))]

    def why_ended(self, error: Exception) -> str:
        return ENDED


class SQLiteInbox:
    """An inbox in the SQLite file at `path`, in which the handler's own tables are as well.

    The handler gets a `sqlite3.Connection` in the middle of a transaction; it is called from the event loop's thread. SQLite
    has one writer: while a batch is worked on, nobody else writes to the file. `timeout` (seconds) is how long a batch
    waits for other writers before `StoreUnavailable`. `prepare` is given each connection, for what your handler wants of
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
        self._is_open = False
        self._connection: HandlerConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Open the file, and create it and the table if need be. Opening twice does nothing.

        Raises `ConfigurationError` if the file is no SQLite database or has another version than ours, `StoreUnavailable` if it
        can't be opened now.
        """
        async with self._one_at_a_time:
            if self._is_open:
                return
            self._file.require_folder()
            try:
                self._connection = await when_free(lambda: _connected(self._file, self._prepare, is_new=True), self._timeout)
            except Failure as failure:
                raise self._file.as_store_error(failure.error) from failure.error
            self._is_open = True

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[InboxTransaction]:
        """See `TransactionalStore.start`; the connection is one for all, so one batch at a time is in a transaction."""
        async with self._one_at_a_time:
            session = await self._begin()
            try:
                async with InboxTransaction(session, retention) as transaction:
                    yield transaction
            finally:
                self._tidy(session)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; one statement."""
        async with self._one_at_a_time:
            session = await self._begin()
            try:
                taken = await run(take_over(session.statements, owner, positions), session)
                await session.commit()
            except Failure as failure:
                raise session.unavailable(failure.error) from failure.error
            finally:
                self._tidy(session)
            return taken

    async def close(self) -> None:
        """Wait for the batch under way, and close the file. Closing twice does nothing."""
        async with self._one_at_a_time:
            self._is_open = False
            self._let_go()

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

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _begin(self) -> SQLiteSession:
        """Become the writer of the file, waiting for others without holding up the event loop."""
        if not self._is_open:
            raise StoreUnavailable(INBOX.not_open(str(self._path)))
        try:
            self._connection = self._connection or _connected(self._file, self._prepare, is_new=False)
            session = SQLiteSession(self._connection, self._file)
            await when_free(lambda: session.begin(self._file_clock), self._timeout)
        except Failure as failure:
            raise self._file.unavailable(failure.error) from failure.error
        return session

    def _tidy(self, session: SQLiteSession) -> None:
        """SQLite has no reset: a connection on which a handler may have left something is not used again."""
        session.tidy()
        if session.connection.is_used_up:
            self._let_go()


def _connected(file: File, prepare: Callable[[sqlite3.Connection], object] | None, *, is_new: bool) -> HandlerConnection:
    """Return a connection that waits for no other, with all that `prepare` does. Raises `Failure`."""
    connection = None
    try:
        # We wait ourselves, and let the event loop go on; SQLite does not wait where several switch a new file to WAL at once.
        connection = sqlite3.connect(file.path, timeout=0, isolation_level=None, factory=HandlerConnection)
        if is_new:
            connection.execute("PRAGMA journal_mode = WAL")
            run_now(set_up(_PART, str(file.path)), SQLiteRunner(connection))
        if prepare is not None:
            prepare(connection)
    except BaseException as raised:
        if connection is not None:
            connection.close()
        if isinstance(raised, sqlite3.Error):
            raise Failure(problem_of(raised), raised) from raised
        raise
    return connection


class SQLiteSession(Session[HandlerConnection]):
    """The connection of a `SQLiteInbox` for one batch. See `Session`."""

    def __init__(self, connection: HandlerConnection, file: File) -> None:
        self.connection = connection
        self.address = str(file.path)
        self.timeout: float | None = None
        self._file, self._runner = file, SQLiteRunner(connection)
        self._factories = connection.row_factory, connection.text_factory
        self._guard = ExitStack()

    @property
    def is_open(self) -> bool:
        return self.connection.in_transaction

    def begin(self, clock: FileClock) -> None:
        """Raises `Failure`; then nothing is open."""
        try:
            self.statements = SQLiteStatements(run_now(begin(clock), self._runner))
        except Failure:
            self.end()
            raise
        self._guard.enter_context(self.connection.guarded())

    async def send(self, packet: Packet) -> Sequence[Answer]:
        return self._runner.send(packet)

    async def commit(self) -> None:
        try:
            await self.send([Statement("COMMIT")])
        except Failure as failure:
            if isinstance(failure.error, sqlite3.IntegrityError):
                raise TransactionAborted(f"the database refuses to commit what the handler wrote: {failure.error}") from failure.error
            raise

    async def rollback(self, *, is_marked: bool) -> bool:
        is_there = self.is_open
        self.end()
        return is_there

    async def cut(self) -> None:
        """See `Session.cut`; the connection lives on."""
        self.end()

    def end(self) -> None:
        """Roll back what is open."""
        if self.connection.in_transaction:
            with suppress(Failure):
                self._runner.send([Statement("ROLLBACK")])

    def tidy(self) -> None:
        """The next handler finds the connection as `prepare` left it."""
        self.end()
        self._guard.close()
        self.connection.row_factory, self.connection.text_factory = self._factories

    def unavailable(self, error: Exception) -> StoreUnavailable:
        assert isinstance(error, sqlite3.Error)
        return self._file.unavailable(error)


def from_url(url: str) -> SQLiteInbox:
    """Return the inbox in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, with `?timeout=2.5`.

    Raises `ConfigurationError`.
    """
    path, options = parse(url, "SQLite inbox", "timeout")
    return SQLiteInbox(path, timeout=seconds(options.get("timeout", "5"), "SQLite inbox"))
