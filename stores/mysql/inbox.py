"""`MySQLInbox`: exactly once in one MariaDB or MySQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncmy

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.transaction import Progress
from ackwise.stores.mysql import inboxschema as schema
from ackwise.stores.mysql import offsets
from ackwise.stores.mysql.failures import FAILURES, is_broken, told
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.transaction import OpenTransaction
from ackwise.stores.mysql.url import Address, Options, parse

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["MySQLInbox", "from_url"]

_MAX_SIZE = 10
"""Connections: a batch under way has one."""

_IDLE = 300
"""Seconds after which a connection that nobody used is replaced: proxies and firewalls forget such ones without a word."""

_MAINTENANCE_TIMEOUT = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""


class MySQLInbox:
    """An inbox in the MariaDB or MySQL database of `url`, in which the handler's own tables are as well.

    The handler gets an asyncmy connection in the middle of a transaction that reads what is committed. Each batch under way
    has a connection, `max_size` at most are open; a batch that finds none waits. Or give your own asyncmy `pool`, which
    stays yours: its settings are not touched, nor is it closed.

    `timeout` (seconds) bounds each of our own statements, with its wait for another worker's batch that holds the same key;
    on our own connections a statement of the handler waits no longer for a lock either. `prefix` begins the names of the
    tables. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = _MAX_SIZE,
    ) -> None:
        if (url is None) == (pool is None):
            raise ConfigurationError("a MySQL inbox needs a URL, such as mysql://host/database, or a pool, and not both")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that a statement of the inbox may take, more than 0")
        if max_size < 1:
            raise ConfigurationError(f"max_size is {max_size}; the MySQL inbox needs at least one connection")
        self._tables = Tables(prefix)
        self._server = None if url is None else Address.of(url)
        self._timeout, self._max_size = timeout, max_size
        self._given = pool
        self._pool: Pool | None = None
        self._address = "the pool's MySQL" if self._server is None else str(self._server)

    def __repr__(self) -> str:
        return f"<MySQLInbox {self._address}>"

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        if self._pool is not None:
            return
        pool = self._given or await asyncmy.create_pool(minsize=0, maxsize=self._max_size, pool_recycle=_IDLE, **self._connecting())
        try:
            async with asyncio.timeout(self._timeout):
                connection = await pool.acquire()
                try:
                    await schema.create(connection, self._tables, self._address)
                    await schema.require_rights(connection, self._tables)
                except BaseException:
                    connection.close()
                    raise
                finally:
                    await pool.release(connection)
        except BaseException as error:
            await self._end(pool)
            if isinstance(error, FAILURES):
                raise told(error, self._address, self._timeout, "inbox") from None
            raise
        self._pool = pool

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[OpenTransaction]:
        """See `TransactionalStore.begin`; waits for a connection, and replaces a lost one before anything was done."""
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"{self._address}: the inbox is not open; open it before the first batch")
        opened = await self._begin(pool, retention)
        try:
            yield opened
            await opened.commit()
        except BaseException:
            await opened.abandon()
            raise
        finally:
            await pool.release(opened.connection)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`; waits up to the timeout for a batch of the owner before."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; waits up to the timeout for batches of the owners before."""
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"{self._address}: the inbox is not open; open it before the first batch")
        connection = await self._acquire(pool)
        try:
            async with asyncio.timeout(self._timeout):
                return await offsets.take_over(connection, self._tables.named("offsets"), owner, positions)
        except BaseException as error:
            connection.close()  # it may be in the middle of a transaction, or of an answer
            if isinstance(error, FAILURES):
                raise self._unavailable(error) from None
            raise
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Wait for the batches under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await self._end(pool)

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        async with self._maintaining() as connection:
            await schema.create(connection, self._tables, self._address)

    async def check(self) -> list[str]:
        """What is wrong or unwise, one sentence each; changes nothing."""
        async with self._maintaining() as connection:
            return await schema.complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; gives how many records."""
        async with self._maintaining() as connection:
            return await schema.clean(connection, self._tables, self._address)

    async def _begin(self, pool: Pool, retention: float) -> OpenTransaction:
        replaced = False
        while True:
            connection = await self._acquire(pool)
            opened = OpenTransaction(
                connection,
                self._tables.named("inbox"),
                self._tables.named("offsets"),
                retention=retention,
                timeout=self._timeout,
                address=self._address,
            )
            try:
                await opened.start()
            except BaseException as error:
                connection.close()
                await pool.release(connection)
                if not isinstance(error, FAILURES):
                    raise
                if replaced or not is_broken(error):
                    raise self._unavailable(error) from None
                replaced = True
                if pool is not self._given:
                    await pool.clear()
            else:
                return opened

    async def _acquire(self, pool: Pool) -> Connection:
        try:
            async with asyncio.timeout(self._timeout):
                return await pool.acquire()
        except TimeoutError:
            if pool.size < pool.maxsize:
                raise self._unavailable(TimeoutError()) from None
            raise StoreUnavailable(
                f"{self._address}: all {pool.size} connections were in use for {self._timeout:g} s; raise max_size to the number "
                "of batches that one worker has under way, which is at most that of its partitions"
            ) from None
        except FAILURES as error:
            raise self._unavailable(error) from None

    async def _end(self, pool: Pool) -> None:
        if pool is self._given:
            return
        pool.close()
        try:
            async with asyncio.timeout(self._timeout):
                await pool.wait_closed()
        except TimeoutError:
            pool.terminate()

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(str(told(error, self._address, self._timeout, "inbox")))

    def _connecting(self) -> dict[str, Any]:
        assert self._server is not None
        # The server gives up first, so that it says what it waited for. A worker that stands still in the middle of a batch loses
        # it after five minutes; what stands in the comment is MariaDB's alone.
        settings = (
            f"SET SESSION innodb_lock_wait_timeout = {max(1, int(self._timeout * 0.8))} /*M! , idle_transaction_timeout = 300 */; "
            "SET SESSION sql_notes = 0"
        )
        return {**self._server.connecting(), "connect_timeout": self._timeout, "init_command": settings, "program_name": "ackwise"}

    @asynccontextmanager
    async def _maintaining(self) -> AsyncIterator[Connection]:
        """A connection for statements that may take long; of the pool that was given, or one more of our own."""
        try:
            if self._given is not None:
                borrowed = await self._given.acquire()
                try:
                    yield borrowed
                finally:
                    await self._given.release(borrowed)
                return
            async with asyncio.timeout(self._timeout):
                connection = await asyncmy.connect(**self._connecting())
            async with asyncio.timeout(_MAINTENANCE_TIMEOUT), connection:
                yield connection
        except FAILURES as error:
            raise told(error, self._address, _MAINTENANCE_TIMEOUT, "inbox") from None


def from_url(url: str) -> MySQLInbox:
    """The inbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=20`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLInbox(address, **options._asdict())
