"""`PostgresInbox`: exactly once in one PostgreSQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.transaction import Progress
from ackwise.stores.postgres import inboxschema as schema
from ackwise.stores.postgres import offsets
from ackwise.stores.postgres.connections import connect
from ackwise.stores.postgres.failures import FAILURES, is_broken, told
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.transaction import OpenTransaction
from ackwise.stores.postgres.url import Options, address_of, parse

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["PostgresInbox", "from_url"]

_MAX_SIZE = 10
"""Connections: a batch under way has one."""

_MAINTENANCE_TIMEOUT = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""

# A worker that vanished, or stands still in the middle of a batch, keeps the locks of its keys until its server notices:
# after a minute if its host is gone, after five if only its process does nothing.
_SESSION = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "300000",
}


class PostgresInbox:
    """An inbox in the PostgreSQL database of `url`, in which the handler's own tables are as well.

    The handler gets an asyncpg connection in the middle of a transaction, and may open `connection.transaction()` in it, which
    is a savepoint. Each batch under way has a connection, `max_size` at most are open; a batch that finds none waits. Or give
    your own `pool`, which stays yours: its settings are not touched, nor is it closed.

    `timeout` (seconds) bounds each of our own statements, with its wait for another worker's batch that holds the same key.
    `schema` and `prefix` say where the table is: without a schema, where the search path leads. `statement_cache_size=0` is
    for PgBouncer in transaction mode. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = _MAX_SIZE,
        statement_cache_size: int = 100,
    ) -> None:
        if (url is None) == (pool is None):
            raise ConfigurationError("a PostgreSQL inbox needs a URL, such as postgresql://host/database, or a pool, and not both")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that a statement of the inbox may take, more than 0")
        if max_size < 1:
            raise ConfigurationError(f"max_size is {max_size}; the PostgreSQL inbox needs at least one connection")
        if statement_cache_size < 0:
            raise ConfigurationError(f"statement_cache_size is {statement_cache_size}; give 0 behind PgBouncer, else leave it out")
        self._tables = Tables(schema, prefix)
        self._inbox, self._offsets = self._tables.named("inbox"), self._tables.named("offsets")
        self._url, self._timeout, self._max_size, self._cache = url, timeout, max_size, statement_cache_size
        self._given = pool
        self._pool: Pool | None = None
        self._address = "the pool's PostgreSQL" if url is None else address_of(url)

    def __repr__(self) -> str:
        return f"<PostgresInbox {self._address}>"

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        if self._pool is not None:
            return
        pool = self._given
        try:
            if pool is None:
                pool = await asyncpg.create_pool(self._url, min_size=0, max_size=self._max_size, connect=connect, **self._connecting())
            async with asyncio.timeout(self._timeout), pool.acquire() as connection:
                await schema.require_durable(connection, self._address)
                if await schema.version(connection, self._tables) is None:
                    await schema.create(connection, self._tables, self._address)
                await schema.require_table(connection, self._tables, self._address)
                await schema.require_rights(connection, self._tables, self._address)
        except BaseException as error:
            if pool is not None and pool is not self._given:
                pool.terminate()
            if isinstance(error, (*FAILURES, ValueError)):
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
            await self._release(pool, opened.connection)

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
            return await offsets.take_over(connection, self._offsets, owner, positions, self._timeout)
        except FAILURES as error:
            raise self._unavailable(error) from None
        finally:
            await self._release(pool, connection)

    async def close(self) -> None:
        """Wait for the batches under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        pool, self._pool = self._pool, None
        if pool is None or pool is self._given:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await pool.close()
        except TimeoutError:
            pool.terminate()

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
                connection, self._inbox, self._offsets, retention=retention, timeout=self._timeout, address=self._address
            )
            try:
                await opened.start()
            except BaseException as error:
                opened.cut()
                await self._release(pool, connection)
                if not isinstance(error, FAILURES):
                    raise
                if replaced or not is_broken(error):
                    raise self._unavailable(error) from None
                replaced = True
                if pool is not self._given:
                    await pool.expire_connections()
            else:
                return opened

    async def _acquire(self, pool: Pool) -> PoolConnectionProxy:
        try:
            return await pool.acquire(timeout=self._timeout)
        except TimeoutError:
            if pool.get_idle_size() or pool.get_size() < pool.get_max_size():
                raise self._unavailable(TimeoutError()) from None
            raise StoreUnavailable(
                f"{self._address}: all {pool.get_size()} connections were in use for {self._timeout} s; raise max_size to the number "
                "of batches that one worker has under way, which is at most that of its partitions"
            ) from None
        except FAILURES as error:
            raise self._unavailable(error) from None

    async def _release(self, pool: Pool, connection: PoolConnectionProxy) -> None:
        # What goes wrong here changes nothing about how the transaction ended, and asyncpg drops the connection by itself.
        with suppress(*FAILURES):
            await pool.release(connection, timeout=self._timeout)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(str(told(error, self._address, self._timeout, "inbox")))

    def _connecting(self) -> dict[str, Any]:
        says_where = "target_session_attrs" in (self._url or "")
        return {
            "timeout": self._timeout,
            "statement_cache_size": self._cache,
            "server_settings": _SESSION if self._cache else None,
            **({} if says_where else {"target_session_attrs": "read-write"}),
        }

    @asynccontextmanager
    async def _maintaining(self) -> AsyncIterator[Connection | PoolConnectionProxy]:
        """A connection for statements that may take long; of the pool that was given, or one more of our own."""
        try:
            if self._given is not None:
                async with self._given.acquire(timeout=self._timeout) as borrowed:
                    yield borrowed
                return
            connection = await connect(self._url, command_timeout=_MAINTENANCE_TIMEOUT, **self._connecting())
            try:
                yield connection
            finally:
                connection.terminate()
        except (*FAILURES, ValueError) as error:
            raise told(error, self._address, _MAINTENANCE_TIMEOUT, "inbox") from None


def from_url(url: str) -> PostgresInbox:
    """The inbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=20&statement_cache_size=0`, and libpq's `sslmode`,
    `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL inbox has no option synchronous_commit; what Kafka is told is done has to be durable")
    return PostgresInbox(drivers, **settings)
