"""`Connections`: the connections of a MariaDB or MySQL claim store, inbox or outbox, from a pool of its own or from one that was given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import asyncmy

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.mysql.failures import FAILURES, as_store_error
from ackwise.stores.mysql.schema import TIMEOUT as _MAINTENANCE_TIMEOUT
from ackwise.stores.mysql.url import Address
from ackwise.stores.protocol.purpose import Purpose

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["Connections"]

_IDLE: Final = 300
"""Seconds after which a connection that nobody used is replaced: proxies and firewalls forget such ones without a word."""


class Connections:
    """Connections to the server of `url`, `max_size` at most; or those of `given`, a pool that is not changed and not closed.

    `session` and `maintenance_session` give the SQL that connections of our own start with, for the timeout. `timeout` (seconds)
    bounds connecting and waiting for a connection. Raises `ConfigurationError`.

    Whatever goes wrong on a connection, and any cancellation, closes it: it may be in the middle of a transaction or of an answer,
    and what was asked may still be under way.
    """

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
    ) -> None:
        purpose.require_sense("MySQL", "mysql://host/database", url, given, timeout, max_size)
        self._server = None if url is None else Address.of(url)
        self.address = "the pool's MySQL" if self._server is None else str(self._server)
        self.timeout = timeout
        self.pool: Pool | None = None  #: While open.
        self._purpose, self._given, self._max_size = purpose, given, max_size
        self._session, self._maintenance_session = session, maintenance_session

    async def open(self, prepare: Callable[[Connection], Awaitable[None]]) -> None:
        """Connect and run `prepare` once, within the timeout. Opening twice does nothing.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver; then nothing stays open.
        """
        if self.pool is not None:
            return
        pool = self._given or await self._make_pool()
        try:
            with self.errors(self.timeout):
                async with asyncio.timeout(self.timeout), self.borrow(pool) as connection:
                    await prepare(connection)
        except BaseException:
            await self._end(pool)
            raise
        self.pool = pool

    def require_open(self) -> Pool:
        """Return the pool, which whoever has begun goes on with when the store is closed. Raise `StoreUnavailable` if it is not open."""
        if self.pool is None:
            raise StoreUnavailable(self._purpose.not_open(self.address))
        return self.pool

    @contextlib.asynccontextmanager
    async def borrow(self, pool: Pool) -> AsyncIterator[Connection]:
        """A connection, closed if anything goes wrong on it; the caller bounds the time. Raises what asyncmy raises."""
        connection = await pool.acquire()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            await pool.release(connection)

    async def acquire(self, pool: Pool) -> Connection:
        """Return a connection for one batch. Raise `StoreUnavailable` if none is free or made within the timeout."""
        try:
            async with asyncio.timeout(self.timeout):
                return await pool.acquire()
        except TimeoutError:
            if pool.size < pool.maxsize:
                raise self.unavailable(TimeoutError()) from None
            raise StoreUnavailable(
                f"{self.address}: all {pool.size} connections were in use for {self.timeout:g} s; raise max_size to the number "
                "of batches that one worker has under way, which is at most that of its partitions"
            ) from None
        except FAILURES as error:
            raise self.unavailable(error) from None

    async def replace(self, pool: Pool) -> None:
        """Let the next exchange or batch begin on a new connection; a pool that was given sees to that itself."""
        if pool is not self._given:
            await pool.clear()

    @contextlib.asynccontextmanager
    async def maintain(self) -> AsyncIterator[Connection]:
        """A connection for statements that may take long: of the pool that was given, or one more of our own.

        Raises `ConfigurationError` or `StoreUnavailable` for an error of the driver.
        """
        if self._given is not None:
            with self.errors(_MAINTENANCE_TIMEOUT):
                async with self.borrow(self._given) as borrowed:
                    yield borrowed
            return
        with self.errors(self.timeout):
            async with asyncio.timeout(self.timeout):
                connection = await asyncmy.connect(**self._options(self._maintenance_session(self.timeout)))
        with self.errors(_MAINTENANCE_TIMEOUT):
            async with connection:
                yield connection

    async def close(self) -> None:
        """Wait for what is under way, and disconnect. Closing twice does nothing."""
        pool, self.pool = self.pool, None
        if pool is not None:
            await self._end(pool)

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The error of an exchange or a batch, which is tried again whatever its reason."""
        return StoreUnavailable(str(self._as_store_error(error, self.timeout)))

    @contextlib.contextmanager
    def errors(self, timeout: float) -> Iterator[None]:
        """Raise our error for the driver's; `timeout` is what the statements were given."""
        try:
            yield
        except FAILURES as error:
            raise self._as_store_error(error, timeout) from None

    def _as_store_error(self, error: Exception, timeout: float) -> ConfigurationError | StoreUnavailable:
        return as_store_error(error, self.address, timeout, self._purpose.tables, self._purpose.init)

    async def _make_pool(self) -> Pool:
        options = self._options(self._session(self.timeout))
        return await asyncmy.create_pool(minsize=0, maxsize=self._max_size, pool_recycle=_IDLE, **options)

    async def _end(self, pool: Pool) -> None:
        if pool is self._given:
            return
        pool.close()
        try:
            async with asyncio.timeout(self.timeout):
                await pool.wait_closed()
        except TimeoutError:
            pool.terminate()

    def _options(self, session: str) -> dict[str, Any]:
        assert self._server is not None
        return {**self._server.connecting(), "connect_timeout": self.timeout, "init_command": session, "program_name": "ackwise"}
