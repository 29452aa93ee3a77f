"""`MySQLStore`: claims in a MariaDB or MySQL database, for all workers that reach it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import asyncmy
from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.mysql import checking, schema
from ackwise.stores.mysql import maintenance as cleanup
from ackwise.stores.mysql.exchanging import exchange_on
from ackwise.stores.mysql.failures import FAILURES, is_broken, is_conflict, told
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.url import Address, parse

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["MySQLStore", "from_url"]

_IDLE = 300
"""Seconds after which a connection that nobody used is replaced: proxies and firewalls forget such ones without a word."""


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
        if (url is None) == (pool is None):
            raise ConfigurationError("a MySQL store needs a URL, such as mysql://host/database, or a pool, and not both")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that an exchange may take, more than 0")
        if max_size < 1:
            raise ConfigurationError(f"max_size is {max_size}; the MySQL store needs at least one connection")
        self._tables = Tables(prefix)
        self._server = None if url is None else Address.of(url)
        self._timeout, self._max_size = timeout, max_size
        self._given = pool
        self._pool: Pool | None = None
        self._keeps_owners = False
        self._address = "the pool's MySQL" if self._server is None else str(self._server)

    def __repr__(self) -> str:
        return f"<MySQLStore {self._address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        Opening twice does nothing.
        """
        if self._pool is not None:
            return
        pool = self._given or await self._make_pool()
        try:
            with self._telling(self._timeout):
                async with asyncio.timeout(self._timeout), self._borrowed(pool) as connection:
                    await self._prepare(connection)
        except BaseException:
            await self._end(pool)
            raise
        self._pool = pool

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one statement. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, there are several statements. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection is given up, and the server applies each statement as a whole or not
        at all.
        """
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"{self._address}: the store is not open; open it before the first exchange")
        conflicts: list[Exception] = []
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(pool, exchange, conflicts)
        except FAILURES as error:
            reason = conflicts[-1] if conflicts and isinstance(error, TimeoutError) else error
            raise StoreUnavailable(str(told(reason, self._address, self._timeout))) from None

    async def close(self) -> None:
        """Finish the exchanges under way and disconnect. Closing twice does nothing; a pool that was given stays open."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await self._end(pool)

    async def init(self) -> None:
        """Create the tables that are missing, and the column that older versions did not have. Doing it twice changes nothing."""
        async with self._maintaining() as connection:
            await schema.create(connection, self._tables, self._address)
            await schema.add_holder(connection, self._tables, self._address, instant=False)

    async def check(self) -> list[str]:
        """What is wrong or unwise, one sentence each; changes nothing."""
        async with self._maintaining() as connection:
            return await checking.complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; gives how many records."""
        async with self._maintaining() as connection:
            found = await schema.version(connection, self._tables)
            if found is None:
                raise ConfigurationError(f"{self._address}: the tables of the claim store are missing; run `ackwise store init URL`")
            schema.require_version(found, self._address)
            return await cleanup.clean(connection, self._tables, self._address)

    async def _exchange(self, pool: Pool, exchange: Exchange, conflicts: list[Exception]) -> ExchangeResult:
        replaced = False
        while True:
            try:
                async with self._borrowed(pool) as connection:
                    return await exchange_on(connection, self._tables, exchange, owners=self._keeps_owners)
            except FAILURES as error:
                if is_conflict(error):
                    conflicts.append(error)
                    continue
                if replaced or not is_broken(error):
                    raise
                replaced = True
                if pool is not self._given:
                    await pool.clear()

    @contextlib.asynccontextmanager
    async def _borrowed(self, pool: Pool) -> AsyncIterator[Connection]:
        """A connection of the pool, which is given up if anything goes wrong: what was asked may still be under way on it."""
        connection = await pool.acquire()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            await pool.release(connection)

    async def _prepare(self, connection: Connection) -> None:
        schema.require_server(connection, self._address)
        await schema.create(connection, self._tables, self._address)
        if missing := await checking.missing_rights(connection, self._tables, "SELECT", "INSERT", "UPDATE"):
            raise ConfigurationError(f"{self._address}: {missing[0]}")
        with contextlib.suppress(MySQLError, StoreUnavailable):  # goes on without, as where it may not alter tables
            await schema.add_holder(connection, self._tables, self._address, instant=True)
        self._keeps_owners = await schema.keeps_owners(connection, self._tables)

    async def _make_pool(self) -> Pool:
        # The server gives up first, so that it says what it waited for.
        session = _session(max(1, int(self._timeout * 0.8)), self._timeout * 0.9)
        return await asyncmy.create_pool(minsize=0, maxsize=self._max_size, pool_recycle=_IDLE, **self._connecting(session))

    async def _end(self, pool: Pool) -> None:
        if pool is self._given:
            return
        pool.close()
        try:
            async with asyncio.timeout(self._timeout):
                await pool.wait_closed()
        except TimeoutError:
            pool.terminate()

    def _connecting(self, session: str) -> dict[str, Any]:
        assert self._server is not None
        return {**self._server.connecting(), "connect_timeout": self._timeout, "init_command": session, "program_name": "ackwise"}

    @contextlib.asynccontextmanager
    async def _maintaining(self) -> AsyncIterator[Connection]:
        """A connection for statements that may take long; of the pool that was given, or one more of our own."""
        if self._given is not None:
            with self._telling(schema.TIMEOUT):
                async with self._borrowed(self._given) as borrowed:
                    yield borrowed
            return
        with self._telling(self._timeout):
            async with asyncio.timeout(self._timeout):
                connection = await asyncmy.connect(**self._connecting(_session(int(schema.TIMEOUT), schema.TIMEOUT)))
        with self._telling(schema.TIMEOUT):
            async with connection:
                yield connection

    @contextlib.contextmanager
    def _telling(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise told(error, self._address, timeout) from None


def _session(lock_timeout: int, statement_timeout: float) -> str:
    """What our own connections begin with; seconds. What stands in the comment is MariaDB's alone."""
    return (
        f"SET SESSION sql_notes = 0, innodb_lock_wait_timeout = {lock_timeout} /*M! , max_statement_time = {statement_timeout} */; "
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def from_url(url: str) -> MySQLStore:
    """The store of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=2`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url)
    return MySQLStore(address, **options._asdict())
