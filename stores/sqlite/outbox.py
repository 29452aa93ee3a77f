"""`SQLiteOutbox`: rows to be sent, in the business transactions of one SQLite file; `SQLite` is its dialect, with our own clock."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.outbox import SHARDS, RowState
from ackwise.stores.protocol.options import OUTBOX
from ackwise.stores.protocol.outbox import PAYLOAD, Keeping, RowColumns, keeping_of, wakes_of
from ackwise.stores.sql.operation import Answer, Packet, Placeholders, Statement, Steps
from ackwise.stores.sql.outbox import SQLOutbox
from ackwise.stores.sql.outboxdialect import Around, Dialect
from ackwise.stores.sql.outboxwriting import Business, Writes, require
from ackwise.stores.sql.schema import Maintenance, SQLStore, names_of
from ackwise.stores.sqlite.driver import File, FileThread, SQLiteRunner, parse, seconds, when_free
from ackwise.stores.sqlite.handlerconnection import is_free, watched
from ackwise.stores.sqlite.schema import OUTBOX as _PART
from ackwise.stores.sqlite.schema import Tables, complaints, no_file, require_set_up, set_up

_WORDS: Final = {
    "now": ":now",
    "later": ":now + :it",
    "at": ":it",
    "until": "{it} - :now",
    "age": ":now - {it}",
    "epoch": ":now",
    "ms": "{it} * 1000",
    "due_time": "CASE WHEN due < 0 THEN :now - due ELSE due END",
    "moment": ":now",
    "moment_later": ":now + :it",
    "among": "IN (SELECT value FROM json_each(:it))",
    "mine": """
SELECT shard FROM {shards}
WHERE (shard, token) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:mine))""",
    "locked": "",  # no other connection writes to the file
    "by_key": "INDEXED BY ackwise_outbox_failed",
    "is_behind": "{it}.behind AND {it}.key_hash IS NOT NULL",
    # By id, from the start. What blocks a key is found in an index that has rows which failed or wait behind one, and no others. The large
    # columns are read last, of few rows.
    "pending": """
WITH ordered AS (
    SELECT id, size, key_hash
    FROM {rows} INDEXED BY ackwise_outbox_to_send
    WHERE state = {LOCAL_COMMIT} AND NOT behind AND due IS NULL AND shard {among shards} AND (next_at IS NULL OR next_at <= :now)
        AND NOT id {among under_way} AND (key_hash IS NULL OR NOT key_hash {among blocked})
    ORDER BY id LIMIT :limit
), delayed AS (
    SELECT id, size, key_hash FROM {rows} INDEXED BY ackwise_outbox_delayed
    WHERE state = {LOCAL_COMMIT} AND due IS NOT NULL AND next_at <= :now AND shard {among shards} AND NOT id {among under_way}
    ORDER BY next_at LIMIT :limit
), seen AS (
    SELECT * FROM ordered UNION ALL SELECT * FROM delayed ORDER BY id LIMIT :limit
), {judged seen}, summed AS (
    SELECT id, is_blocked, sum(CASE WHEN is_blocked THEN 0 ELSE size END) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)
        - CASE WHEN is_blocked THEN 0 ELSE size END AS before_it FROM judged
)
SELECT r.id, shard, attempts, {ms created}, size, is_blocked, due IS NOT NULL, expires IS NOT NULL, topic,
    CASE WHEN NOT is_blocked THEN value END, message_key, headers, partition, message_id
FROM summed AS s CROSS JOIN {rows} AS r ON r.id = s.id WHERE is_blocked OR s.before_it < :most ORDER BY r.id""",
}

_BEGIN_TEXT: Final = "BEGIN IMMEDIATE"

#: How long to wait for others who write, for the `wait` of a call and as always. SQLite takes no value here.
_WAIT, _AS_BEFORE = "wait", "as before"

_TABLES: Final = Tables()
_SENDABLE: Final = f"state = {RowState.LOCAL_COMMIT:d}"


class SQLite(Dialect):
    """The dialect of SQLite: reads need no transaction, and wait for no writer."""

    alone = writing = Around((_BEGIN_TEXT,), ("COMMIT",))
    patient = Around((_WAIT, _BEGIN_TEXT), ("COMMIT", _AS_BEFORE))
    gave_up = Around((_AS_BEFORE,))
    signing_in = (
        "DELETE FROM {relays} WHERE owner <> :owner",
        "UPDATE {shards} SET owner = '' WHERE owner <> :owner",
    )  # who calls is alone
    waiting = (f"{_SENDABLE} AND NOT behind AND due IS NULL", f"{_SENDABLE} AND behind AND key_hash IS NOT NULL")
    has_server = False

    def __init__(self, clock: Callable[[], float], tables: Tables = _TABLES, *, timeout: float = 0.0) -> None:
        super().__init__(_WORDS, names_of(tables), Placeholders(lambda _: "?", repeats=True, adapt=_adapted))
        self._clock, self._timeout = clock, timeout

    def say(self, template: str, **values: Any) -> Statement:
        (said,) = self.say_all([template], **values)
        return said

    def say_all(self, templates: Iterable[str], **values: Any) -> Packet:
        at_once = {"now": self._clock(), **values}
        waits = {_WAIT: values.get("wait", 0.0), _AS_BEFORE: self._timeout}
        return [
            Statement(f"PRAGMA busy_timeout = {int(waits[template] * 1000)}") if template in waits else self._templates(template, at_once)
            for template in templates
        ]


def _adapted(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def inserting(table: str, clock: Callable[[], float]) -> Callable[[Sequence[RowColumns], Packet], Steps[None]]:
    """Return what inserts rows to be sent."""
    columns = (*RowColumns._fields, "next_at", "created")
    text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"

    def values(row: RowColumns) -> Sequence[Any]:
        now = clock()
        due, expires = (now - time if time is not None and time < 0 else time for time in (row.due, row.expires))
        return (*row._replace(expires=expires), due, now)

    def insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        yield [*before, *(Statement(text, values(row)) for row in rows)]

    return insert


_BEGIN: Final = Statement("BEGIN IMMEDIATE")
_PATIENCE: Final = (Statement("PRAGMA busy_timeout"),)
_NO_PATIENCE: Final = (Statement("PRAGMA busy_timeout = 0"),)


@functools.lru_cache(64)
def _writes(clock: Callable[[], float]) -> Writes:
    """Return the statements. A row is inserted at once: that is a call within the process, and an authorizer can't write."""
    return Writes(inserting("ackwise_outbox", clock), begin=[_BEGIN], restore=[Statement("ROLLBACK")], at_once=True)


def business(connection: Any, file: File, timeout: float, clock: Callable[[], float]) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of sqlite3's.

    One with callbacks of its user is not watched, and the savepoint shows an end.
    """
    require(connection, sqlite3.Connection, "SQLite", "sqlite3")
    runner = SQLiteRunner(connection)

    def as_error(error: Exception) -> Exception:
        if "no such table: ackwise_outbox" in str(error):
            return ConfigurationError(
                f"{file.path}: the tables of the outbox are missing where the connection leads; open the outbox once, or run "
                "`ackwise outbox init URL`, and connect to this file"
            )
        return file.unavailable(error)

    return Business(
        _writes(clock),
        _Runner(connection, runner, timeout),
        is_open=functools.partial(getattr, connection, "in_transaction"),
        watched=lambda block: watched(connection, block) if is_free(connection) else nullcontext(),
        close=connection.close,
        as_error=as_error,
        timeout=timeout,
        now=runner,
        waits_to_begin=True,
    )


class _Runner:
    """A connection that commits by itself does so no more from before BEGIN until COMMIT or ROLLBACK was done."""

    def __init__(self, connection: sqlite3.Connection, runner: SQLiteRunner, timeout: float) -> None:
        self._connection, self._send, self._timeout = connection, runner.send, timeout
        self._before: tuple[Any, Any] | None = None  #: how the connection was given

    async def send(self, packet: Packet) -> Sequence[Answer]:
        try:
            if packet[0] is _BEGIN:
                return await self._begin(packet)
            is_gone = packet[0].text == "ROLLBACK" and not self._connection.in_transaction
            return () if is_gone else self._send(packet)
        finally:
            # Also after a COMMIT that failed and undid the transaction, as on a full disk.
            if not self._connection.in_transaction:
                self._restore()

    async def _begin(self, packet: Packet) -> Sequence[Answer]:
        (patience,) = self._send(_PATIENCE)[0].rows[0]
        if patience:
            self._send(_NO_PATIENCE)
        self._leave_autocommit()
        try:
            return await when_free(functools.partial(self._send, packet), self._timeout)
        finally:
            if patience:
                self._send([Statement(f"PRAGMA busy_timeout = {int(patience)}")])

    def _leave_autocommit(self) -> None:
        connection: Any = self._connection
        self._before = (connection.isolation_level, getattr(connection, "autocommit", None))
        if self._before[1] is True:  # an attribute since Python 3.12
            connection.autocommit = sqlite3.LEGACY_TRANSACTION_CONTROL  # type: ignore[attr-defined,unused-ignore]
        connection.isolation_level = connection.isolation_level or "DEFERRED"

    def _restore(self) -> None:
        """Only when nothing is open: it would be committed."""
        if self._before is not None:
            connection: Any = self._connection
            (connection.isolation_level, autocommit), self._before = self._before, None
            if autocommit is True:
                connection.autocommit = True


T = TypeVar("T")


class SQLiteOutbox(SQLOutbox, SQLStore[FileThread]):
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
        address, self._lock = str(self._path), _RelayLock(self._path)
        keeping, wakes = Keeping(retention, keep_sent, keep_parked, blank), wakes_of(f"sqlite {self._path.resolve()}")
        SQLOutbox.__init__(self, SQLite(clock, timeout=timeout), address, timeout, keeping, wakes)

        def clean() -> Steps[int]:
            yield from require_set_up(address, _PART)
            return (yield from self._clean())

        made = functools.partial(set_up, _PART, address)
        SQLStore.__init__(self, FileThread(self._file, "full"), Maintenance(made, made, lambda: complaints(address, _PART, clock), clean))

    async def close(self) -> None:
        """Wait for the calls under way, and close the file; another relay may start. Closing twice does nothing."""
        try:
            await super().close()
        finally:
            self._lock.release()

    async def init(self) -> None:
        """Create the file and the tables if need be, as `open` does. Raises as `open` does."""
        another = SQLiteOutbox(self._path, timeout=self._timeout)
        await another.open()
        await another.close()

    async def check(self) -> list[str]:
        """Return what is wrong or unwise about the file; reads all of it. Raises as `open` does, for a file that can't be written too."""
        return no_file(self._file) or await super().check()

    def _signing_in(self, owner: str, share: int) -> int:
        """A relay whose process has died is followed at once."""
        self._lock.acquire()
        return SHARDS

    def _signed_out(self) -> None:
        self._lock.release()

    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        return await self._connections.run(begin, repeats=repeats)

    def _through(self, connection: Any) -> Business:
        return business(connection, self._file, self._timeout, self._clock)


class _RelayLock:
    """A locked file beside the database: it proves that one relay at a time is at work, and ends with its process."""

    def __init__(self, path: Path) -> None:
        self._of = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or keep it. Raises `ConfigurationError` if another relay has it."""
        if self._descriptor is not None:
            return
        path = self._of.resolve()  # two names may lead to one file
        path = path.with_name(f"{path.name}-relay")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ConfigurationError(
                f"{path}: another relay sends the rows of this file, and SQLite has one relay; stop that one first"
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another relay start. Doing it twice does nothing."""
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
