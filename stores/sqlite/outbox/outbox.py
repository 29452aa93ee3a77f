"""`SQLiteOutbox`: rows to be sent, in the business transactions of one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.outbox import FIRST_CHECK, CheckAnswer, Failed, OutboxRow, OutboxStatus, Parked, Prepared, Sent, TransactionOutcome
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxrows import columns_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.outbox.transaction import transaction
from ackwise.stores.sql.outbox.writing import Block, Rows
from ackwise.stores.sqlite.file import File, result_code
from ackwise.stores.sqlite.maintenance import complaints
from ackwise.stores.sqlite.outbox import inspecting, preparing, relaying, tables
from ackwise.stores.sqlite.outbox.relaylock import RelayLock
from ackwise.stores.sqlite.outbox.writing import begin, business, insert, sqlite_connection, writes
from ackwise.stores.sqlite.runner import SQLiteRunner
from ackwise.stores.sqlite.schema import version
from ackwise.stores.sqlite.url import parse, seconds

__all__ = ["SQLiteOutbox", "from_url"]

P = ParamSpec("P")
T = TypeVar("T")

_REST: Final = 0.005
"""Seconds between two steps of the cleanup: others may want the file."""


class SQLiteOutbox(Sends):
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
        super().__init__()
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("a SQLite outbox needs the path of the file that the business writes to")
        if "://" in str(path):
            raise ConfigurationError("a SQLite outbox takes the path of a file, such as 'shop.db'; it was given a URL")
        self.keeping = Keeping(retention, keep_sent, keep_parked, blank)  #: what stays of rows that nobody has to send
        self._file = File(OUTBOX, path, timeout, "a call of the outbox")
        self._path, self._timeout, self._clock = self._file.path, timeout, clock
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._lock = RelayLock(self._path)
        self._wakes = wakes_of(f"sqlite {self._path.absolute()}")
        self._seen = self._wakes.count

    def __repr__(self) -> str:
        return f"<SQLiteOutbox {self._path}>"

    async def open(self) -> None:
        """Open the file, and create it and the tables if need be. Opening twice does nothing.

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
        connection.row_factory = sqlite3.Row
        self._connection = connection

    async def close(self) -> None:
        """Wait for the call under way, and close the file; another relay may begin. Closing twice does nothing."""
        async with self._one_at_a_time:
            self._lock.release()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # The business

    @asynccontextmanager
    async def transaction(self, connection: sqlite3.Connection) -> AsyncIterator[Block]:
        """See `Outbox.transaction`. It begins as the writer of the file (BEGIN IMMEDIATE); raises `StoreUnavailable` if others write to it
        for longer than the timeout. What is executed on `connection` raises sqlite3's own errors."""
        mine = business(sqlite_connection(connection), self._file, self._timeout)
        async with transaction(mine, writes(self._clock), self, self.wake) as block:
            yield block

    def writer(self, connection: sqlite3.Connection) -> Rows:
        """See `Outbox.writer`; rows are inserted by `add`."""
        return Rows(writes(self._clock), business(sqlite_connection(connection), self._file, self._timeout))

    def wake(self) -> None:
        """See `Outbox.wake`; a relay of another process looks by itself."""
        self._wakes.wake()

    # A relay

    async def claim_relay(self, kind: str) -> None:
        """See `RelayStore.claim_relay`."""

        def claim(connection: sqlite3.Connection) -> str:
            connection.execute("INSERT OR IGNORE INTO ackwise_outbox_meta VALUES ('relay_kind', ?)", (kind,))
            return str(connection.execute("SELECT value FROM ackwise_outbox_meta WHERE name = 'relay_kind'").fetchone()[0])

        if (found := await self._write(claim)) != kind:
            raise ConfigurationError(
                f"{self._path}: relays of kind {found!r} send the rows of this outbox, and one of kind {kind!r} would send them again; "
                "stop all of those first, then call ackwise outbox release"
            )

    async def release_relay(self) -> None:
        """See `RelayStore.release_relay`."""
        if alive := await self.relays():
            raise ConfigurationError(f"{self._path}: {alive} relays have a lease; stop them, and try again when it has ended")
        await self._write(lambda connection: connection.execute("DELETE FROM ackwise_outbox_meta WHERE name = 'relay_kind'"))

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        """See `RelayStore.own`. A relay whose process has died is followed at once."""
        self._lock.acquire()
        return await self._write(relaying.own, owner, lease, self._clock())

    async def relays(self) -> int:
        """See `RelayStore.relays`."""
        statement = "SELECT count(*) FROM ackwise_outbox_relay WHERE leased_until > ?"
        return int(self._read(lambda connection: connection.execute(statement, (self._clock(),)).fetchone()[0]))

    async def leave(self, owner: str) -> None:
        """See `RelayStore.leave`."""
        await self._write(relaying.leave, owner)
        self._lock.release()

    async def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        """See `RelayStore.pending`."""
        self._seen = self._wakes.count
        return self._read(relaying.pending, shards, limit, under_way, blocked, block_key, self._clock())

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        """See `RelayStore.sent`."""
        return await self._write(relaying.sent, rows, shards, self.keeping, self._clock())

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        """See `RelayStore.failed`."""
        return await self._write(relaying.failed, failures, shards, self._clock())

    async def wait_for_rows(self, at_most: float) -> None:
        """See `RelayStore.wait_for_rows`."""
        await self._wakes.begin(self._seen).wait(at_most)

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        """See `RelayStore.next_due`."""
        return self._read(relaying.next_due, shards, self._clock())

    # Half messages

    async def database_id(self, connection: sqlite3.Connection | None = None) -> str:
        """See `BarrierStore.database_id`."""
        return self._read(preparing.database_id) if connection is None else self._on(connection, preparing.database_id)

    async def barrier(self, connection: sqlite3.Connection, tx_id: str) -> None:
        """See `BarrierStore.barrier`."""
        self._on(sqlite_connection(connection), preparing.barrier, tx_id, self._clock())

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`; UNKNOWN while anybody writes to the file."""
        async with self._one_at_a_time:
            connection = self._require_open()
            try:
                await begin(connection, wait)
            except sqlite3.Error as error:
                if result_code(error) == sqlite3.SQLITE_BUSY:
                    return TransactionOutcome.UNKNOWN
                raise self._file.unavailable(error) from error
            return self._finish(connection, preparing.probe, tx_id, self._clock())

    async def prepare(
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> None:
        """See `PreparedStore.prepare`."""
        rows, now = [columns_of(message) for message in messages], self._clock()
        packet = insert(rows, now, (1, now + first_check, tx_id, producer_group, barrier_in))
        await self._write(lambda connection: SQLiteRunner(connection).send(packet))

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        """See `PreparedStore.decide`."""
        changed = await self._write(preparing.decide, tx_id, outcome)
        if changed and outcome is TransactionOutcome.COMMIT:
            self.wake()
        return changed

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        """See `PreparedStore.due_checks`."""
        return await self._write(preparing.due_checks, producer_group, limit, lease, self._clock())

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        """See `PreparedStore.answered`."""
        if not answers:
            return 0
        changed = await self._write(preparing.answered, answers, self._clock())
        if changed and any(answer.outcome is TransactionOutcome.COMMIT for answer in answers):
            self.wake()
        return changed

    # An operator

    async def status(self) -> OutboxStatus:
        """See `OutboxStore.status`."""
        return self._read(inspecting.status, self._clock())

    async def parked(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        """See `OutboxStore.parked`."""
        return self._read(inspecting.parked, limit, after)

    async def show(self, row: int) -> Parked | None:
        """See `OutboxStore.show`."""
        return self._read(inspecting.show, row)

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        """See `OutboxStore.requeue`."""
        changed = await self._write(inspecting.requeue, rows)
        if changed:
            self.wake()
        return changed

    async def init(self) -> None:
        """Create the file and the tables if need be, as `open` does. Raises as `open` does."""
        another = SQLiteOutbox(self._path, timeout=self._timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        said = await asyncio.to_thread(self._file.use, complaints, tables.OUTBOX, self._timeout, self._clock)
        return [sentence.replace("ackwise store init", "ackwise outbox init") for sentence in said]

    async def cleanup(self) -> int:
        """Delete what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        if not self._path.exists():
            raise ConfigurationError(f"{self._path}: there is no such file; name another, or run `{OUTBOX.init}` first")
        another = SQLiteOutbox(self._path, timeout=self._timeout)
        await another.open()
        try:
            deleted, is_more = 0, True
            while is_more:
                some, is_more = await another._write(inspecting.clean_some, self.keeping, self._clock())
                deleted += some
                await asyncio.sleep(_REST if is_more else 0)
            return deleted
        finally:
            await another.close()

    # Our own connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            OUTBOX.require_version(version(connection, tables.OUTBOX), str(self._path), "name another file")
            tables.create(connection)
            connection.execute("PRAGMA busy_timeout = 0")  # from here on we wait ourselves, and let the event loop go on
        except sqlite3.OperationalError as error:
            raise self._file.unavailable(error) from error
        except sqlite3.DatabaseError as error:
            raise self._file.no_database() from error

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(OUTBOX.not_open(str(self._path)))
        return self._connection

    def _read(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._on(self._require_open(), work, *args, **kwargs)

    def _on(
        self, connection: sqlite3.Connection, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return work(connection, *args, **kwargs)
        except sqlite3.Error as error:
            raise tables.as_error(self._file, error) from error

    async def _write(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a transaction of its own."""
        async with self._one_at_a_time:
            connection = self._require_open()
            try:
                await begin(connection, self._timeout)
            except sqlite3.Error as error:
                raise tables.as_error(self._file, error) from error
            return self._finish(connection, work, *args, **kwargs)

    def _finish(
        self, connection: sqlite3.Connection, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            answer = work(connection, *args, **kwargs)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise tables.as_error(self._file, error) from error
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
        return answer


def from_url(url: str) -> SQLiteOutbox:
    """Return the outbox in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, with `?timeout=2.5`
    and `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`.

    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    path, options = parse(url, "SQLite outbox", "timeout")
    return SQLiteOutbox(path, timeout=seconds(options.get("timeout", "5"), "SQLite outbox"), **keeping.given)
