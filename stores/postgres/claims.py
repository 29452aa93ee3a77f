"""`PostgresStore`: claims in a PostgreSQL database, for all workers that reach it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.postgres import checking, schema
from ackwise.stores.postgres import maintenance as cleanup
from ackwise.stores.postgres.connections import connect
from ackwise.stores.postgres.exchanging import exchange_on
from ackwise.stores.postgres.failures import FAILURES, is_broken, is_conflict, told
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, address_of, parse

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["SESSION", "PostgresStore", "from_url"]

T = TypeVar("T")

# Only the look-up of single keys in an index is left to the planner. It knows the tables as they were when it planned, and a plan
# for an empty table reads all of a large one, for as long as the connection lives.
SESSION = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}

_DURABILITIES = ("on", "off", "local", "remote_write", "remote_apply")
"""What `synchronous_commit` can be."""

_MAINTENANCE_TIMEOUT = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""


class PostgresStore:
    """A claim store in the PostgreSQL database of `url`; or on `pool`, which stays yours: its settings are not touched, nor is it closed.

    `schema` and `prefix` say where the tables are: without a schema, where the search path leads.
    `timeout` (seconds) bounds an exchange with all that it has to wait for. At most `max_size` connections are open, and none that was
    idle for five minutes. `statement_cache_size=0` is for PgBouncer in transaction mode: nothing is prepared and no setting is made.
    `synchronous_commit=off` does not wait for the server's disk: if the server itself crashes, the last exchanges are forgotten, and
    their messages run again.

    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = 2,
        statement_cache_size: int = 100,
        synchronous_commit: str | None = None,
    ) -> None:
        if (url is None) == (pool is None):
            raise ConfigurationError("a PostgreSQL store needs a URL, such as postgresql://host/database, or a pool, and not both")
        options = Options(schema, prefix, timeout, max_size, statement_cache_size, synchronous_commit)
        _require_sense(options)
        self._tables = Tables(schema, prefix)
        self._url, self._options, self._timeout = url, options, timeout
        self._given = pool
        self._pool: Pool | None = None
        self._address = "the pool's PostgreSQL" if url is None else address_of(url)
        self._keeps_owners = False
        self.asked_again = 0
        """How often an exchange took another statement, because somebody was faster with one of its keys."""

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may; make the partitions of the days to come.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        Opening twice does nothing.
        """
        if self._pool is not None:
            return
        pool = self._given or await self._guarded(self._make_pool())
        try:
            await self._guarded(self._prepare(pool))
        except BaseException:
            if pool is not self._given:
                pool.terminate()
            raise
        self._pool = pool

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one statement of one transaction. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, there are several statements. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection is given up, and the server applies each statement as a whole or not
        at all.
        """
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"{self._address}: the store is not open; open it before the first exchange")
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(pool, exchange)
        except FAILURES as error:
            raise StoreUnavailable(str(told(error, self._address, self._timeout))) from None

    async def close(self) -> None:
        """Finish the exchanges under way and disconnect. Closing twice does nothing; a pool that was given stays open."""
        pool, self._pool = self._pool, None
        if pool is None or pool is self._given:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    async def init(self) -> None:
        """Create the tables and partitions that are missing, and the columns that older versions did not have; twice changes nothing."""
        async with self._maintaining() as connection:
            await schema.create(connection, self._tables, self._address)
            await schema.add_holder(connection, self._tables, self._address)

    async def check(self) -> list[str]:
        """What is wrong or unwise, one sentence each; changes nothing."""
        async with self._maintaining() as connection:
            return await checking.complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers, and make the partitions of the days to come; gives how many records."""
        async with self._maintaining() as connection:
            await self._require_tables(connection)
            return await cleanup.clean(connection, self._tables, self._address)

    async def _exchange(self, pool: Pool, exchange: Exchange) -> ExchangeResult:
        replaced = False
        while True:
            try:
                return await self._exchange_once(pool, exchange)
            except FAILURES as error:
                if is_conflict(error):
                    continue
                if replaced or not is_broken(error):
                    raise
                replaced = True
                if pool is not self._given:
                    await pool.expire_connections()

    async def _exchange_once(self, pool: Pool, exchange: Exchange) -> ExchangeResult:
        connection = await pool.acquire()
        try:
            result, again = await exchange_on(connection, self._tables, exchange, owners=self._keeps_owners)
        except BaseException as error:
            # What was not answered by the server itself may still be under way on this connection.
            if not isinstance(error, asyncpg.PostgresError) or is_broken(error):
                with contextlib.suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
                    connection.terminate()
            raise
        finally:
            await pool.release(connection)
        self.asked_again += again
        return result

    async def _make_pool(self) -> Pool:
        return await asyncpg.create_pool(
            self._url, min_size=0, max_size=self._options.max_size, reset=_nothing, connect=connect, **self._connecting(self._session())
        )

    def _session(self) -> dict[str, str]:
        """The settings of our own connections, which are their defaults from the start on."""
        milliseconds = int(self._timeout * 1000)
        # The server gives up first, so that it says what it waited for.
        limits = {"lock_timeout": str(milliseconds * 8 // 10), "statement_timeout": str(milliseconds * 9 // 10)}
        durable = {"synchronous_commit": self._options.synchronous_commit} if self._options.synchronous_commit else {}
        return {**SESSION, **limits, **durable}

    def _connecting(self, session: dict[str, str]) -> dict[str, Any]:
        pooled = self._options.statement_cache_size == 0
        says_where = "target_session_attrs" in (self._url or "")
        return {
            "timeout": self._timeout,
            "statement_cache_size": self._options.statement_cache_size,
            "server_settings": None if pooled else session,
            **({} if says_where else {"target_session_attrs": "read-write"}),
        }

    async def _prepare(self, pool: Pool) -> None:
        async with asyncio.timeout(self._timeout), pool.acquire() as connection:
            found = await schema.version(connection, self._tables)
            if found is not None:
                schema.require_version(found, self._address)
            if await connection.fetchval("SHOW transaction_read_only") == "on":
                raise asyncpg.ReadOnlySQLTransactionError("read-only")
            if found is None or await schema.may_alter(connection, self._tables):
                await schema.create(connection, self._tables, self._address)
                with contextlib.suppress(StoreUnavailable, asyncpg.InsufficientPrivilegeError):  # goes on without
                    await schema.add_holder(connection, self._tables, self._address)
            self._keeps_owners = await schema.keeps_owners(connection, self._tables)
            used = (self._tables.claims, self._tables.daily_claims)
            if missing := await checking.missing_rights(connection, used, "SELECT", "INSERT", "UPDATE"):
                raise ConfigurationError(f"{self._address}: {missing[0]}")

    async def _require_tables(self, connection: Connection | PoolConnectionProxy) -> None:
        found = await schema.version(connection, self._tables)
        if found is None:
            raise ConfigurationError(f"{self._address}: the tables of the claim store are missing; run `ackwise store init URL`")
        schema.require_version(found, self._address)

    @contextlib.asynccontextmanager
    async def _maintaining(self) -> AsyncIterator[Connection | PoolConnectionProxy]:
        """A connection for statements that may take long; of the pool that was given, or one more of our own."""
        try:
            if self._given is not None:
                async with self._given.acquire(timeout=self._timeout) as borrowed:
                    yield borrowed
                return
            connection = await connect(self._url, command_timeout=_MAINTENANCE_TIMEOUT, **self._connecting(SESSION))
            try:
                yield connection
            finally:
                connection.terminate()
        except (*FAILURES, ValueError) as error:
            raise told(error, self._address, _MAINTENANCE_TIMEOUT) from None

    async def _guarded(self, waiting: Any) -> Any:
        try:
            return await waiting
        except (*FAILURES, ValueError) as error:
            raise told(error, self._address, self._timeout) from None


def from_url(url: str) -> PostgresStore:
    """The store of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=2&statement_cache_size=0&synchronous_commit=off`, and libpq's
    `sslmode`, `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url)
    return PostgresStore(drivers, **options._asdict())


async def _nothing(connection: Connection) -> None:
    """In place of asyncpg's reset of a returned connection, which is a round trip: exchanges leave nothing to reset."""


def _require_sense(options: Options) -> None:
    if not 0 < options.timeout < math.inf:
        raise ConfigurationError(f"timeout is {options.timeout}; give the seconds that an exchange may take, more than 0")
    if options.max_size < 1:
        raise ConfigurationError(f"max_size is {options.max_size}; the PostgreSQL store needs at least one connection")
    if options.statement_cache_size < 0:
        raise ConfigurationError(f"statement_cache_size is {options.statement_cache_size}; give 0 behind PgBouncer, else leave it out")
    if options.synchronous_commit not in (None, *_DURABILITIES):
        raise ConfigurationError(f"synchronous_commit is {options.synchronous_commit!r}; it can be {', '.join(_DURABILITIES)}")
