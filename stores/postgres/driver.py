"""`Asyncpg`: how asyncpg connects to a PostgreSQL server, for `Connections`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.postgres.failures import FAILURES, as_store_error, problem_of
from ackwise.stores.postgres.runner import AsyncpgRunner
from ackwise.stores.postgres.url import address_of
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Driver
from ackwise.stores.sql.operation import Problem

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

#: Connections on their way for callers that have gone; the event loop itself keeps no tasks alive.
_ABANDONED: Final[set[asyncio.Task[Any]]] = set()


class Asyncpg(Driver["Pool", "PoolConnectionProxy"]):
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` are settings that connections of our own start with; behind PgBouncer, which
    `statement_cache_size=0` says, none are made. `timeout` (seconds) bounds connecting and waiting for a connection;
    `is_bounded` lets the server end each statement before that too. `reset` restores a returned connection, in place of
    asyncpg's own way. Raises `ConfigurationError`.
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
        statement_cache_size: int,
        session: Mapping[str, str],
        maintenance_session: Mapping[str, str],
        is_bounded: bool,
        reset: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        purpose.require_sense("PostgreSQL", "postgresql://host/database", url, given, timeout, max_size)
        if statement_cache_size < 0:
            raise ConfigurationError(f"statement_cache_size is {statement_cache_size}; give 0 behind PgBouncer, else leave it out")
        super().__init__(purpose, "the pool's PostgreSQL" if url is None else address_of(url), given, timeout)
        self._url, self._max_size, self._cache = url, max_size, statement_cache_size
        self._session = {**session, **_limits(timeout)} if is_bounded else session
        self._maintenance_session, self._reset = maintenance_session, reset

    async def make_pool(self) -> Pool:
        options = self._options(self._session)
        return await asyncpg.create_pool(self._url, min_size=0, max_size=self._max_size, reset=self._reset, connect=_connect, **options)

    async def release(self, pool: Pool, connection: PoolConnectionProxy) -> None:
        # It cuts the connection then. What has nothing to reset needs no timer; a pool that was given resets in its own way.
        await pool.release(connection, timeout=None if self._reset is nothing and self.given is None else self.timeout)

    async def close_pool(self, pool: Pool) -> None:
        await pool.close()

    def in_use(self, pool: Pool) -> int | None:
        return pool.get_size() if not pool.get_idle_size() and pool.get_size() == pool.get_max_size() else None

    async def expire(self, pool: Pool) -> None:
        await pool.expire_connections()

    async def connect(self) -> PoolConnectionProxy:
        connection: PoolConnectionProxy = await _connect(
            self._url, command_timeout=MAINTENANCE_TIMEOUT, **self._options(self._maintenance_session)
        )
        return connection

    async def disconnect(self, connection: PoolConnectionProxy) -> None:
        self.cut(connection)

    def is_usable(self, connection: PoolConnectionProxy, error: BaseException) -> bool:
        return isinstance(error, asyncpg.PostgresError) and problem_of(error) is not Problem.LOST and not connection.is_in_transaction()

    def cut(self, connection: PoolConnectionProxy) -> None:
        with contextlib.suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
            connection.terminate()

    def runner(self, connection: PoolConnectionProxy) -> AsyncpgRunner:
        return AsyncpgRunner(connection)

    def problem(self, error: Exception) -> Problem:
        return problem_of(error)

    def as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self.purpose.tables, self.purpose.init)

    def _options(self, session: Mapping[str, str]) -> dict[str, Any]:
        names_servers = "target_session_attrs" in (self._url or "")
        return {
            "timeout": self.timeout,
            "statement_cache_size": self._cache,
            "server_settings": dict(session) if self._cache else None,
            **({} if names_servers else {"target_session_attrs": "read-write"}),
        }


async def nothing(connection: Connection) -> None:
    """In place of asyncpg's reset of a returned connection, which is a round trip."""


def _limits(timeout: float) -> dict[str, str]:
    """The server gives up first, so that it says what it waited for."""
    milliseconds = int(timeout * 1000)
    return {"lock_timeout": str(milliseconds * 8 // 10), "statement_timeout": str(milliseconds * 9 // 10)}


async def _connect(*args: Any, **options: Any) -> Any:
    """Connect as `asyncpg.connect` does, which ends by its own timeout; a caller that is cancelled leaves at once, and the rest goes on.

    Cut short, asyncpg leaves a future behind that nobody looks at (`TLSUpgradeProto.on_data`), and the event loop logs
    "Future exception was never retrieved". So the connection is made to its end, and then ended.
    """
    making = asyncio.create_task(_made(args, options), name="ackwise connects to PostgreSQL")
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        _ABANDONED.add(making)
        making.add_done_callback(_terminate)
        raise


async def _made(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return await asyncpg.connect(*args, **options)
    except FAILURES:  # some are a ValueError, too
        raise
    except ValueError:  # of the URL, which it may quote
        raise asyncpg.ClientConfigurationError("unreadable") from None


def _terminate(made: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(made)
    if not made.cancelled() and made.exception() is None:
        made.result().terminate()
