"""`File` is a SQLite file with its URL and errors; `FileThread` is a connection in its own thread, which runs operations there."""

from __future__ import annotations

import asyncio
import math
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.options import CLAIMS, Purpose
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Steps, run, run_now


def parse(url: str, what: str, *known: str) -> tuple[str, dict[str, str]]:
    """Return the path, and the options that are given of those `known`. Raise `ConfigurationError`; `what` is the URL's."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as sqlite://[x
        parts = urlsplit("")
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ConfigurationError(f"the URL of the {what} names no file; write sqlite:///relative/path or sqlite:////absolute/path")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - known):
        raise ConfigurationError(f"the {what} has no option {', '.join(unknown)}; it has {' and '.join(known)}")
    return unquote(parts.path[1:]), options


def seconds(timeout: str, what: str) -> float:
    """Return the option `timeout`. Raise `ConfigurationError`."""
    try:
        return float(timeout)
    except ValueError:
        raise ConfigurationError(f"timeout is {timeout!r} in the URL of the {what}; give seconds, such as timeout=2.5") from None


_CLAIMS: Final = {
    sqlite3.SQLITE_BUSY: "another writer held the file for {timeout} s; look for a process that keeps a transaction open",
    sqlite3.SQLITE_CANTOPEN: "the file can't be opened; check the rights of the file and of its folder",
    sqlite3.SQLITE_CORRUPT: "the file is damaged ({error}); move it away, and expect what was completed within the retention to run again",
    sqlite3.SQLITE_FULL: "the disk is full; make room",
    sqlite3.SQLITE_IOERR: "the disk failed ({error}); check the volume",
    sqlite3.SQLITE_READONLY: "the file can't be written; check the rights of the file and of its folder",
}

#: The file of an inbox has the handler's tables as well, so no sentence says to move it away.
_INBOX: Final = {sqlite3.SQLITE_BUSY: "another writer held the file for {timeout} s; look who keeps a transaction open"}

_REFUSED: Final = "SQLite refused: {error}; check the file, its rights and the disk"

#: SQLite has no code for a transaction that is not open any more.
_ENDED: Final = re.compile("no such savepoint|no transaction is active")

#: Seconds between two tries for the file while another connection writes to it.
_TRY_AGAIN: Final = 0.005

T = TypeVar("T")


class File:
    """The file at `path`, for which `waits` has to wait up to `timeout` seconds while others write. Raises `ConfigurationError`."""

    def __init__(self, purpose: Purpose, path: str | Path, timeout: float, waits: str) -> None:
        if "\0" in str(path):
            raise ConfigurationError(f"the path of the SQLite {purpose.name} has a NUL in it, which no file can have; name another")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that {waits} may wait for the file, more than 0")
        self.path, self.timeout, self.purpose = Path(path), timeout, purpose

    def require_folder(self) -> None:
        """Raise `ConfigurationError` if there is none for the file."""
        if not self.path.parent.is_dir():
            raise ConfigurationError(
                f"{self.path}: the folder of the {self.purpose.tables} does not exist; create it, or name another path"
            )

    def as_store_error(self, error: Exception) -> ConfigurationError | StoreUnavailable:
        """The error for what SQLite raised, which may say that the file is of another kind."""
        return self.no_database() if result_code(error) == sqlite3.SQLITE_NOTADB else self.unavailable(error)

    def no_database(self) -> ConfigurationError:
        """The error for a file of another kind."""
        return ConfigurationError(f"{self.path}: this is no SQLite database; name another file, or move this one away")

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The error for what SQLite raised."""
        reasons, other = (_CLAIMS, "SQLite refused: {error}") if self.purpose is CLAIMS else (_INBOX, _REFUSED)
        reason = reasons.get(result_code(error), other).format(timeout=self.timeout, error=error)
        return StoreUnavailable(f"{self.path}: {reason}")


async def when_free(step: Callable[[], T], timeout: float) -> T:
    """Return what `step` returns, tried again for `timeout` seconds while others write; the event loop goes on. Raises `Failure`."""
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            return step()
        except Failure as failure:
            if failure.problem is not Problem.BUSY or time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(_TRY_AGAIN)


def result_code(error: Exception) -> int:
    """Return SQLite's result code, without the details in its upper bits."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def problem_of(error: Exception) -> Problem:
    """Return what the error means."""
    match result_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Problem.BUSY
        case sqlite3.SQLITE_ERROR if "no such table" in str(error):
            return Problem.MISSING
        case sqlite3.SQLITE_ERROR if _ENDED.search(str(error)):
            return Problem.ENDED
        case _:
            return Problem.REFUSED


_EMPTY: Final = Answer()


#: Makes a text of any bytes: SQLite stores what it is given, and fails a whole answer for one text that is not UTF-8.
_TEXT: Final = partial(str, encoding="utf-8", errors="surrogateescape")


class SQLiteRunner:
    """Sends a statement at a time. Whatever the connection makes of rows and texts, answers have tuples and what SQLite stores."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._cursor = connection, sqlite3.Cursor(connection)
        self._cursor.row_factory = None

    def send(self, packet: Packet) -> Sequence[Answer]:
        cursor = self._cursor
        answers: list[Answer] = []
        factory = self._connection.text_factory
        if factory is not _TEXT:
            self._connection.text_factory = _TEXT
        try:
            for text, values in packet:
                cursor.execute(text, values)
                rows, count = cursor.fetchall() if cursor.description else (), cursor.rowcount
                answers.append(Answer(rows, max(0, count)) if rows or count > 0 else _EMPTY)
        except sqlite3.Error as error:
            raise Failure(problem_of(error), error) from error
        finally:
            if factory is not _TEXT:
                self._connection.text_factory = factory
        return answers


class FileThread:
    """SQLite wants one writer, so there is one thread; it alone touches the connection. See `Runs`.

    `synchronous` is SQLite's. The timeout of `file` is how long an operation waits for those before it, and for other writers.
    """

    def __init__(self, file: File, synchronous: str) -> None:
        self.address = str(file.path)
        self._file, self._synchronous = file, synchronous
        self._connection: sqlite3.Connection | None = None
        self._runner: SQLiteRunner | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self, begin: Callable[[], Steps[None]]) -> None:
        """Open the file, which is made if it is missing, and run steps once. Opening twice does nothing."""
        if self._thread is not None:
            return
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"ackwise-{self._file.path.name}")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._open, begin)
        except BaseException:
            thread.submit(self._disconnect)
            thread.shutdown(wait=False)
            raise
        self._thread = thread

    async def close(self) -> None:
        """Finish the operations under way, close the file and end the thread. Closing twice does nothing."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        closing = asyncio.wrap_future(thread.submit(self._disconnect))
        thread.shutdown(wait=False)
        await asyncio.shield(closing)
        thread.shutdown()

    async def run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """Return what steps return. Raises `StoreUnavailable`; then nothing was applied, unless a commit itself failed.

        An operation whose caller is cancelled is run as a whole or not at all.
        """
        if self._thread is None:
            raise StoreUnavailable(self._file.purpose.not_open(self.address))
        give_up_at = time.monotonic() + self._file.timeout
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, begin, give_up_at)

    async def maintained(self, begin: Callable[[], Steps[T]]) -> T:
        return await maintain(self._file, begin)

    def _open(self, begin: Callable[[], Steps[None]]) -> None:
        self._file.require_folder()
        try:
            self._connection = sqlite3.connect(self._file.path, timeout=self._file.timeout, isolation_level=None)
            self._write_ahead(self._connection)
            self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._runner = SQLiteRunner(self._connection)
            self._run_steps(self._connection, self._runner, begin)
        except (sqlite3.Error, Failure) as raised:
            error = raised.error if isinstance(raised, Failure) else raised
            raise self._file.as_store_error(error) from error

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Switch the file to write-ahead logging, which lets others read while one writes."""
        give_up_at = time.monotonic() + self._file.timeout
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

    def _run(self, begin: Callable[[], Steps[T]], give_up_at: float) -> T:
        if self._connection is None or self._runner is None or time.monotonic() > give_up_at:
            before, time_limit = f"the {self._file.purpose.unit}s before this one", f"{self._file.timeout} s"
            raise StoreUnavailable(f"{self.address}: {before} took all of its {time_limit}; nothing was applied")
        try:
            return self._run_steps(self._connection, self._runner, begin)
        except Failure as failure:
            with suppress(sqlite3.Error):  # it may have set how long it waits, and not have come to the end where that is set back
                self._connection.execute(f"PRAGMA busy_timeout = {int(self._file.timeout * 1000)}")
            raise self._file.unavailable(failure.error) from failure.error

    @staticmethod
    def _run_steps(connection: sqlite3.Connection, runner: SQLiteRunner, begin: Callable[[], Steps[T]]) -> T:
        """Run steps, and roll back what they leave open, whatever ended them."""
        try:
            return run_now(begin(), runner)
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):  # SQLite ended the transaction itself; the first error is the one to tell
                    connection.execute("ROLLBACK")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def maintain(file: File, begin: Callable[[], Steps[T]]) -> T:
    """Return what steps return that may take long, on their own connection to a file that is there. Raises our errors."""
    file.require_folder()
    if not file.path.exists():
        raise ConfigurationError(f"{file.path}: there is no such file; name another, or run `{file.purpose.init}` first")
    try:
        return await run(begin(), _Maintenance(file))
    except Failure as failure:
        raise file.as_store_error(failure.error) from failure.error


class _Maintenance:
    """A runner that connects for each packet. It rests as long as it worked, since a worker that waits for the file looks for it now and
    then only."""

    def __init__(self, file: File) -> None:
        self._address, self._timeout = f"{file.path.absolute().as_uri()}?mode=rw", file.timeout
        self._rest = 0.0

    async def send(self, packet: Packet) -> Sequence[Answer]:
        await asyncio.sleep(self._rest)
        began = time.monotonic()
        answers = await asyncio.to_thread(self._send, packet)
        self._rest = time.monotonic() - began
        return answers

    def _send(self, packet: Packet) -> Sequence[Answer]:
        try:
            with closing(sqlite3.connect(self._address, uri=True, timeout=self._timeout, isolation_level=None)) as connection:
                return SQLiteRunner(connection).send(packet)
        except sqlite3.Error as error:
            raise Failure(problem_of(error), error) from error
