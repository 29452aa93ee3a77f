"""`MySQLInbox`: exactly once in one MariaDB or MySQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ackwise.middleware.transaction import Progress
from ackwise.stores.mysql import checking, maintenance, offsets
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.failures import FAILURES, is_broken
from ackwise.stores.mysql.schema import layout
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.transaction import OpenTransaction
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import complaints, create

if TYPE_CHECKING:
    from asyncmy.pool import Pool

__all__ = ["MySQLInbox", "from_url"]

_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""


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
        self._connections = Connections(
            Asyncmy(INBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_session)
        )
        self._address = self._connections.address
        self._tables = Tables(prefix)
        self._layout = layout(self._tables, INBOX, self._address)

    def __repr__(self) -> str:
        return f"<MySQLInbox {self._address}>"

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
            await pool.release(opened.connection)

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """See `OffsetsStore.take_over`; waits up to the timeout for a batch of the owner before."""
        return (await self.take_over_many(owner, {(topic, partition): position}))[topic, partition]

    async def take_over_many(self, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
        """See `OffsetsStore`; waits up to the timeout for batches of the owners before."""
        pool = self._connections.require_open()
        connection = await self._connections.acquire(pool)
        try:
            async with asyncio.timeout(self._connections.timeout):
                return await offsets.take_over(connection, self._tables.named("offsets"), owner, positions)
        except BaseException as error:
            connection.close()  # it may be in the middle of a transaction, or of an answer
            if isinstance(error, FAILURES):
                raise self._connections.unavailable(error) from None
            raise
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """Wait for the batches under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        await self._connections.maintained(lambda: create(self._layout))

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(lambda: complaints(self._layout, lambda: checking.of_inbox(self._tables)))

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; return how many records."""
        return await self._connections.maintained(lambda: maintenance.clean_inbox(self._layout, self._tables))

    async def _begin(self, pool: Pool, retention: float) -> OpenTransaction:
        replaced = False
        while True:
            connection = await self._connections.acquire(pool)
            opened = OpenTransaction(
                connection,
                self._tables.named("inbox"),
                self._tables.named("offsets"),
                retention=retention,
                timeout=self._connections.timeout,
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
                    raise self._connections.unavailable(error) from None
                replaced = True
                await self._connections.replace(pool)
            else:
                return opened

    def _prepare(self) -> Steps[None]:
        yield from create(self._layout)
        yield from checking.require_inbox_rights(self._tables)


def _session(timeout: float) -> str:
    """Return what a connection begins with: the server gives up first, so that it says what it waited for.

    A worker that stands still in the middle of a batch loses it after five minutes; what stands in the comment is MariaDB's alone.
    """
    return (
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout * 0.8))} /*M! , idle_transaction_timeout = 300 */; "
        "SET SESSION sql_notes = 0"
    )


def from_url(url: str) -> MySQLInbox:
    """Return the inbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=20`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLInbox(address, **options._asdict())
