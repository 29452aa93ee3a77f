"""`FileThread`: one connection to a SQLite file in a thread of its own, which runs operations there."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.sql.operation import Answer, Failure, Packet, Steps, run, run_now
from ackwise.stores.sqlite.file import File, SQLiteRunner, problem_of, result_code

T = TypeVar("T")


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
    """Return what steps return that may take long, on a connection of their own to a file that is there. Raises our errors."""
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
