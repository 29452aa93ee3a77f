"""`MySQLStore`: claims in a MariaDB or MySQL database, for all workers that reach it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.mysql import checking, maintenance, schema
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.exchanging import exchange_on
from ackwise.stores.mysql.failures import FAILURES, is_broken, is_conflict
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.url import parse
from ackwise.stores.protocol.purpose import CLAIMS
from ackwise.stores.sql.connections import Connections

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["MySQLStore", "from_url"]


class MySQLStore:
    """A claim store in the MariaDB or MySQL database of `url`; or on `pool`, an asyncmy pool, which stays yours: its settings are not
    touched, nor is it closed.

    `prefix` begins the names of the tables. `timeout` (seconds) bounds an exchange with all that it has to wait for. At most
    `max_size` connections are open. In the URL, `sslmode`, `sslrootcert`, `sslcert` and `sslkey` say how TLS is used, with the
    meaning that they have for PostgreSQL; without any of them there is none.

    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = 2,
    ) -> None:
        self._connections = Connections(
            Asyncmy(CLAIMS, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        )
        self._address = self._connections.address
        self._tables = Tables(prefix)

    def __repr__(self) -> str:
        return f"<MySQLStore {self._address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        Opening twice does nothing.
        """
        await self._connections.open(self._prepare)

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one statement. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, there are several statements. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection is given up, and the server applies each statement as a whole or not
        at all.
        """
        pool = self._connections.require_open()
        conflicts: list[Exception] = []
        try:
            async with asyncio.timeout(self._connections.timeout):
                return await self._exchange(pool, exchange, conflicts)
        except FAILURES as error:
            reason = conflicts[-1] if conflicts and isinstance(error, TimeoutError) else error
            raise self._connections.unavailable(reason) from None

    async def close(self) -> None:
        """Finish the exchanges under way and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create the tables that are missing. Doing it twice changes nothing."""
        async with self._connections.maintain() as connection:
            await schema.create(connection, self._tables, CLAIMS, self._address)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        async with self._connections.maintain() as connection:
            return await checking.claims_complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; return how many records."""
        async with self._connections.maintain() as connection:
            await schema.require_tables(connection, self._tables, CLAIMS, self._address)
            return await maintenance.clean_claims(connection, self._tables, self._address)

    async def _exchange(self, pool: Pool, exchange: Exchange, conflicts: list[Exception]) -> ExchangeResult:
        replaced = False
        while True:
            try:
                async with self._connections.borrow(pool) as connection:
                    return await exchange_on(connection, self._tables, exchange)
            except FAILURES as error:
                if is_conflict(error):
                    conflicts.append(error)
                    continue
                if replaced or not is_broken(error):
                    raise
                replaced = True
                await self._connections.replace(pool)

    async def _prepare(self, connection: Connection) -> None:
        schema.require_server(connection, self._address)
        await schema.create(connection, self._tables, CLAIMS, self._address)
        await checking.require_rights(connection, self._tables, self._address)


def _session(timeout: float) -> str:
    """Return what a connection for exchanges begins with: the server gives up first, so that it says what it waited for."""
    return _settings(max(1, int(timeout * 0.8)), timeout * 0.9)


def _maintenance_session(_timeout: float) -> str:
    return _settings(int(schema.TIMEOUT), schema.TIMEOUT)


def _settings(lock_timeout: int, statement_timeout: float) -> str:
    """Return SQL for these seconds. What stands in the comment is MariaDB's alone."""
    return (
        f"SET SESSION sql_notes = 0, innodb_lock_wait_timeout = {lock_timeout} /*M! , max_statement_time = {statement_timeout} */; "
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def from_url(url: str) -> MySQLStore:
    """Return the store of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=2`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url)
    return MySQLStore(address, **options._asdict())
