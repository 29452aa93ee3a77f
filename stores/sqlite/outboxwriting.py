"""Rows of an outbox on a connection of sqlite3, in the transaction of the business."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement
from ackwise.stores.sql.outbox.writing import Business, Writes, require
from ackwise.stores.sqlite.file import File
from ackwise.stores.sqlite.outboxdialect import inserting
from ackwise.stores.sqlite.runner import SQLiteRunner
from ackwise.stores.sqlite.watching import is_free, watched

_BEGIN: Final = Statement("BEGIN IMMEDIATE")

#: Seconds between two tries for the file while another connection writes to it.
_TRY_AGAIN: Final = 0.005


def _writes(clock: Callable[[], float]) -> Writes:
    """Return the statements. A row is inserted at once: that is a call within the process, and nobody can write in an authorizer."""
    return Writes(inserting("ackwise_outbox", clock), begin=[_BEGIN], restore=[Statement("ROLLBACK")], at_once=True)


def business(connection: Any, file: File, timeout: float, clock: Callable[[], float]) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of sqlite3's.

    One with callbacks of its user is not watched, and the savepoint tells of an end.
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
        is_open=lambda: connection.in_transaction,
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
        first, *others = packet
        if first is _BEGIN:
            await self._begin()
            return [Answer(), *self._send(others)]
        is_gone = first.text == "ROLLBACK" and not self._connection.in_transaction
        try:
            answers = [] if is_gone else self._send(packet)
        finally:
            # Also after a COMMIT that failed and undid the transaction, as on a full disk.
            if first.text in ("COMMIT", "ROLLBACK") and not self._connection.in_transaction:
                self._restore()
        return answers

    async def _begin(self) -> None:
        (patience,) = self._send([Statement("PRAGMA busy_timeout")])[0].rows[0]
        self._send([Statement("PRAGMA busy_timeout = 0")])
        self._leave_autocommit()
        try:
            give_up_at = time.monotonic() + self._timeout
            while True:
                try:
                    self._send([_BEGIN])
                except Failure as failure:
                    if failure.problem is not Problem.BUSY or time.monotonic() > give_up_at:
                        raise
                    await asyncio.sleep(_TRY_AGAIN)
                else:
                    break
        except BaseException:
            self._restore()
            raise
        finally:
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
