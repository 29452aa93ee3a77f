"""`Asyncmy`: how asyncmy connects to a MariaDB or MySQL server, for `Connections`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import asyncmy

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.mysql.failures import FAILURES, as_store_error, problem_of
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.url import Address
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.connections import Driver, at_once
from ackwise.stores.sql.operation import Problem

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

_IDLE: Final = 300
"""Seconds after which a connection that nobody used is replaced: proxies and firewalls forget such ones without a word."""


_CANCEL_AGAIN: Final = 0.01
"""Seconds."""

#: Whether `asyncio.wait_for` never passes over a cancellation.
_WAITS_RIGHT: Final = sys.version_info >= (3, 12)

_ENDING: Final[set[asyncio.Task[None]]] = set()


class Asyncmy(Driver["Pool", "Connection"]):
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` give the SQL that connections of our own start with, for the timeout; they are in `autocommit` or
    not. `timeout` (seconds) bounds connecting and waiting for a connection. Raises `ConfigurationError`.
    """

    failures: tuple[type[Exception], ...] = FAILURES

    def __init__(
        self,
        purpose: Purpose,
        url: str | None,
        given: Pool | None,
        *,
        timeout: float,
        max_size: int,
        session: Callable[[float], str],
        maintenance_session: Callable[[float], str],
        autocommit: bool = True,
    ) -> None:
        purpose.require_sense("MySQL", "mysql://host/database", url, given, timeout, max_size)
        self.server = None if url is None else Address.of(url)
        super().__init__(purpose, str(self.server or "the pool's MySQL"), given, timeout)
        self._max_size, self._session, self._maintenance_session, self._autocommit = max_size, session, maintenance_session, autocommit

    async def make_pool(self) -> Pool:
        options = self._options(self._session(self.timeout))
        return await asyncmy.create_pool(minsize=0, maxsize=self._max_size, pool_recycle=_IDLE, **options)

    async def acquire(self, pool: Pool) -> Connection:

        async def give_back(connection: Connection) -> None:
            connection.close()
            await pool.release(connection)

        if _WAITS_RIGHT:
            return await pool.acquire()
        return await at_once(pool.acquire(), lambda rest: _connected(rest, give_back))

    async def close_pool(self, pool: Pool) -> None:
        pool.close()
        await pool.wait_closed()

    def in_use(self, pool: Pool) -> int | None:
        return pool.size if pool.size >= pool.maxsize else None

    async def expire(self, pool: Pool) -> None:
        await pool.clear()

    async def connect(self) -> Connection:
        async with asyncio.timeout(self.timeout):
            return await _connected(_connect(self._options(self._maintenance_session(self.timeout))), _closed)

    async def disconnect(self, connection: Connection) -> None:
        await connection.ensure_closed()

    def is_usable(self, connection: Connection, error: BaseException) -> bool:  # of the protocol
        """Return `False`: what the server answered before the error may still be unread, or a transaction open."""
        return False

    def cut(self, connection: Connection) -> None:
        connection.close()

    def runner(self, connection: Connection) -> AsyncmyRunner:
        return AsyncmyRunner(connection, commits=not connection.get_autocommit())

    def problem(self, error: Exception) -> Problem:
        return problem_of(error)

    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self.purpose.tables, self.purpose.init)

    def _options(self, session: str) -> dict[str, Any]:
        assert self.server is not None
        ours = {"autocommit": self._autocommit, "connect_timeout": self.timeout, "init_command": session, "program_name": "ackwise"}
        return {**self.server.connecting(), **ours}


async def _connect(options: dict[str, Any]) -> Connection:
    return await asyncmy.connect(**options)


async def _closed(connection: Connection) -> None:
    connection.close()


async def _connected(connecting: Coroutine[Any, Any, Connection], undo: Callable[[Connection], Awaitable[None]]) -> Connection:
    """Return the connection; whoever is cancelled gets none: asyncmy is cancelled until it ends, and `undo` takes what it brings.

    It connects in `asyncio.wait_for`, which before Python 3.12 passes over a cancellation that comes together with the connection. Then
    it would wait for the first word of a server for as long as that says nothing.
    """
    task = asyncio.create_task(connecting, name="ackwise connects to MySQL")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.create_task(_end(task, undo), name="ackwise gives up a connection to MySQL")
        _ENDING.add(ending)  # the event loop itself keeps no tasks alive
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)
        raise


async def _end(task: asyncio.Task[Connection], undo: Callable[[Connection], Awaitable[None]]) -> None:
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN)
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())
