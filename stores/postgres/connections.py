"""`Connections`: the connections of a PostgreSQL claim store, inbox or outbox, from a pool of its own or from one that was given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.postgres.failures import FAILURES, as_store_error, is_broken
from ackwise.stores.postgres.url import address_of
from ackwise.stores.protocol.purpose import Purpose

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["Connections"]

_MAINTENANCE_TIMEOUT: Final = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""

#: Connections on their way for callers that have gone; the event loop itself keeps no tasks alive.
_ABANDONED: Final[set[asyncio.Task[Any]]] = set()


class Connections:
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` are settings that connections of our own start with; behind PgBouncer, which
    `statement_cache_size=0` says, none are made. `timeout` (seconds) bounds connecting and waiting for a connection;
    `is_bounded` lets the server end each statement before that too. `reset` restores a returned connection, in place of
    asyncpg's own way. Raises `ConfigurationError`.
    """

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
        self.address = "the pool's PostgreSQL" if url is None else address_of(url)
        self.timeout = timeout
        self.pool: Pool | None = None  #: While open.
        self._purpose, self._url, self._given = purpose, url, given
        self._max_size, self._cache = max_size, statement_cache_size
        self._session = {**session, **_limits(timeout)} if is_bounded else session
        self._maintenance_session, self._reset = maintenance_session, reset

    async def open(self, prepare: Callable[[PoolConnectionProxy], Awaitable[None]]) -> None:
        """Connect and run `prepare` once, within the timeout. Opening twice does nothing.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver; then nothing stays open.
        """
        if self.pool is not None:
            return
        with self.errors(self.timeout):
            pool = self._given or await self._make_pool()
            try:
                async with asyncio.timeout(self.timeout), pool.acquire() as connection:
                    await prepare(connection)
            except BaseException:
                if pool is not self._given:
                    pool.terminate()
                raise
        self.pool = pool

    def require_open(self) -> Pool:
        """Return the pool, which whoever has begun goes on with when the store is closed. Raise `StoreUnavailable` if it is not open."""
        if self.pool is None:
            raise StoreUnavailable(self._purpose.not_open(self.address))
        return self.pool

    @contextlib.asynccontextmanager
    async def borrow(self, pool: Pool) -> AsyncIterator[PoolConnectionProxy]:
        """A connection for one exchange; the caller bounds the time. Raises what asyncpg raises.

        It is given up if anything but an answer of the server ends the exchange, since that may still be under way on it.
        """
        connection = await pool.acquire()
        try:
            yield connection
        except BaseException as error:
            if not isinstance(error, asyncpg.PostgresError) or is_broken(error):
                with contextlib.suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
                    connection.terminate()
            raise
        finally:
            await pool.release(connection)

    async def acquire(self, pool: Pool) -> PoolConnectionProxy:
        """Return a connection for one batch. Raise `StoreUnavailable` if none is free or made within the timeout."""
        try:
            return await pool.acquire(timeout=self.timeout)
        except TimeoutError:
            if pool.get_idle_size() or pool.get_size() < pool.get_max_size():
                raise self.unavailable(TimeoutError()) from None
            raise StoreUnavailable(
                f"{self.address}: all {pool.get_size()} connections were in use for {self.timeout} s; raise max_size to the number "
                "of batches that one worker has under way, which is at most that of its partitions"
            ) from None
        except FAILURES as error:
            raise self.unavailable(error) from None

    async def release(self, pool: Pool, connection: PoolConnectionProxy) -> None:
        """Give the connection of a batch back. Raises nothing of the driver's."""
        # What goes wrong here changes nothing about how the transaction ended, and asyncpg drops the connection by itself.
        with contextlib.suppress(*FAILURES):
            await pool.release(connection, timeout=self.timeout)

    async def replace(self, pool: Pool) -> None:
        """Let the next exchange or batch begin on a new connection; a pool that was given sees to that itself."""
        if pool is not self._given:
            await pool.expire_connections()

    @contextlib.asynccontextmanager
    async def maintain(self) -> AsyncIterator[Connection | PoolConnectionProxy]:
        """A connection for statements that may take long: of the pool that was given, or one more of our own.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver.
        """
        with self.errors(_MAINTENANCE_TIMEOUT):
            if self._given is not None:
                async with self._given.acquire(timeout=self.timeout) as borrowed:
                    yield borrowed
                return
            options = self._options(self._maintenance_session)
            connection = await _connect(self._url, command_timeout=_MAINTENANCE_TIMEOUT, **options)
            try:
                yield connection
            finally:
                connection.terminate()

    async def close(self) -> None:
        """Wait for what is under way, and disconnect. Closing twice does nothing."""
        pool, self.pool = self.pool, None
        if pool is None or pool is self._given:
            return
        try:
            async with asyncio.timeout(self.timeout):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The error of an exchange or a batch, which is tried again whatever its reason."""
        return StoreUnavailable(str(self._as_store_error(error, self.timeout)))

    @contextlib.contextmanager
    def errors(self, timeout: float) -> Iterator[None]:
        """Raise our error for the driver's; `timeout` is what the statements were given."""
        try:
            yield
        except (*FAILURES, ValueError) as error:
            raise self._as_store_error(error, timeout) from None

    def _as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self._purpose.tables, self._purpose.init)

    async def _make_pool(self) -> Pool:
        options = self._options(self._session)
        return await asyncpg.create_pool(self._url, min_size=0, max_size=self._max_size, reset=self._reset, connect=_connect, **options)

    def _options(self, session: Mapping[str, str]) -> dict[str, Any]:
        names_servers = "target_session_attrs" in (self._url or "")
        return {
            "timeout": self.timeout,
            "statement_cache_size": self._cache,
            "server_settings": dict(session) if self._cache else None,
            **({} if names_servers else {"target_session_attrs": "read-write"}),
        }


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
    return await asyncpg.connect(*args, **options)


def _terminate(made: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(made)
    if not made.cancelled() and made.exception() is None:
        made.result().terminate()
