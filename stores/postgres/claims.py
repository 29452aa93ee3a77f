"""`PostgresStore`: claims in a PostgreSQL database, for all workers that reach it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.postgres import checking, maintenance, schema
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.exchanging import exchange_on
from ackwise.stores.postgres.failures import FAILURES, is_broken, is_conflict
from ackwise.stores.postgres.partitions import may_alter
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import parse
from ackwise.stores.protocol.purpose import CLAIMS
from ackwise.stores.sql.connections import Connections

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["SESSION", "PostgresStore", "from_url"]

# Only the look-up of single keys in an index is left to the planner. It knows the tables as they were when it planned, and a plan
# for an empty table reads all of a large one, for as long as the connection lives.
SESSION: Final = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}

_DURABILITIES: Final = ("on", "off", "local", "remote_write", "remote_apply")
"""What `synchronous_commit` can be."""


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
        self._connections = Connections(
            Asyncpg(
                CLAIMS,
                url,
                pool,
                timeout=timeout,
                max_size=max_size,
                statement_cache_size=statement_cache_size,
                session={**SESSION, **_durability(synchronous_commit)},
                maintenance_session=SESSION,
                is_bounded=True,
                reset=_nothing,
            )
        )
        self._address = self._connections.address
        self._tables = Tables(schema, prefix)
        self.asked_again = 0
        """How often an exchange took another statement, because somebody was faster with one of its keys."""

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may; make the partitions of the days to come.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        Opening twice does nothing.
        """
        await self._connections.open(self._prepare)

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one statement of one transaction. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, there are several statements. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection is given up, and the server applies each statement as a whole or not
        at all.
        """
        pool = self._connections.require_open()
        try:
            async with asyncio.timeout(self._connections.timeout):
                return await self._exchange(pool, exchange)
        except FAILURES as error:
            raise self._connections.unavailable(error) from None

    async def close(self) -> None:
        """Finish the exchanges under way and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create the tables and partitions that are missing; doing it twice changes nothing."""
        async with self._connections.maintain() as connection:
            await schema.create(connection, self._tables, CLAIMS, self._address)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        async with self._connections.maintain() as connection:
            return await checking.claims_complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers, and make the partitions of the days to come; return how many records."""
        async with self._connections.maintain() as connection:
            await schema.require_tables(connection, self._tables, CLAIMS, self._address)
            return await maintenance.clean_claims(connection, self._tables, self._address)

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
                await self._connections.replace(pool)

    async def _exchange_once(self, pool: Pool, exchange: Exchange) -> ExchangeResult:
        async with self._connections.borrow(pool) as connection:
            result, again = await exchange_on(connection, self._tables, exchange)
        self.asked_again += again
        return result

    async def _prepare(self, connection: PoolConnectionProxy) -> None:
        found = await schema.version(connection, self._tables, CLAIMS)
        if found is not None:
            CLAIMS.require_version(found, self._address)
        if await connection.fetchval("SHOW transaction_read_only") == "on":
            raise asyncpg.ReadOnlySQLTransactionError("read-only")
        if found is None or await may_alter(connection, self._tables):
            await schema.create(connection, self._tables, CLAIMS, self._address)
        used = (self._tables.claims, self._tables.daily_claims)
        await checking.require_rights(connection, used, self._address)


def from_url(url: str) -> PostgresStore:
    """Return the store of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=2&statement_cache_size=0&synchronous_commit=off`, and libpq's
    `sslmode`, `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url)
    return PostgresStore(drivers, **options._asdict())


async def _nothing(connection: Connection) -> None:
    """In place of asyncpg's reset of a returned connection, which is a round trip: exchanges leave nothing to reset."""


def _durability(synchronous_commit: str | None) -> dict[str, str]:
    if synchronous_commit not in (None, *_DURABILITIES):
        raise ConfigurationError(f"synchronous_commit is {synchronous_commit!r}; it can be {', '.join(_DURABILITIES)}")
    return {"synchronous_commit": synchronous_commit} if synchronous_commit else {}
