"""`PostgresInbox`: exactly once in one PostgreSQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.transaction import Progress
from ackwise.stores.postgres import checking, maintenance, offsets
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.failures import FAILURES, is_broken
from ackwise.stores.postgres.schema import layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.transaction import OpenTransaction
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import complaints, create

if TYPE_CHECKING:
    from asyncpg import Pool

__all__ = ["PostgresInbox", "from_url"]

_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""

# A worker that vanished, or stands still in the middle of a batch, keeps the locks of its keys until its server notices:
# after a minute if its host is gone, after five if only its process does nothing.
_SESSION: Final = {
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
        self._connections = Connections(
            Asyncpg(
                INBOX,
                url,
                pool,
                timeout=timeout,
                max_size=max_size,
                statement_cache_size=statement_cache_size,
                session=_SESSION,
                maintenance_session=_SESSION,
                is_bounded=False,
            )
        )
        self._address = self._connections.address
        self._tables = Tables(schema, prefix)
        self._layout = layout(self._tables, INBOX, self._address)
        self._inbox, self._offsets = self._tables.named("inbox"), self._tables.named("offsets")

    def __repr__(self) -> str:
        return f"<PostgresInbox {self._address}>"

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        await self._connections.open_with(self._prepare)

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[OpenTransaction]:
        """See `TransactionalStore.begin`; waits for a connection, and replaces a lost one before anything was done."""
        pool = self._connections.require_open()
        opened = await self._begin(pool, retention)
        try:
            yield opened
            await opened.commit()
        except BaseException:
            await opened.abandon()
            raise
        finally:
            await self._connections.release(pool, opened.connection)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`; waits up to the timeout for a batch of the owner before."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; waits up to the timeout for batches of the owners before."""
        pool = self._connections.require_open()
        connection = await self._connections.acquire(pool)
        try:
            return await offsets.take_over(connection, self._offsets, owner, positions, self._connections.timeout)
        except FAILURES as error:
            raise self._connections.unavailable(error) from None
        finally:
            await self._connections.release(pool, connection)

    async def close(self) -> None:
        """Wait for the batches under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        await self._connections.maintained(lambda: create(self._layout))

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(lambda: complaints(self._layout, lambda: checking.of_inbox(self._tables, self._address)))

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; return how many records."""
        return await self._connections.maintained(lambda: maintenance.clean_inbox(self._layout, self._tables))

    async def _begin(self, pool: Pool, retention: float) -> OpenTransaction:
        replaced = False
        while True:
            connection = await self._connections.acquire(pool)
            opened = OpenTransaction(
                connection, self._inbox, self._offsets, retention=retention, timeout=self._connections.timeout, address=self._address
            )
            try:
                await opened.start()
            except BaseException as error:
                opened.cut()
                await self._connections.release(pool, connection)
                if not isinstance(error, FAILURES):
                    raise
                if replaced or not is_broken(error):
                    raise self._connections.unavailable(error) from None
                replaced = True
                await self._connections.replace(pool)
            else:
                return opened

    def _prepare(self) -> Steps[None]:
        yield from checking.require_durable(self._address)
        yield from create(self._layout)
        yield from checking.require_rights((self._inbox, self._offsets), self._address)


def from_url(url: str) -> PostgresInbox:
    """Return the inbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=20&statement_cache_size=0`, and libpq's `sslmode`,
    `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL inbox has no option synchronous_commit; what Kafka is told is done has to be durable")
    return PostgresInbox(drivers, **settings)
