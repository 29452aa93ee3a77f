"""`PostgresOutbox`: rows to be sent, in the business transactions of one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres import checking
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.failures import FAILURES, problem_of
from ackwise.stores.postgres.outbox.dialect import Postgres
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.postgres.outbox.waking import Listening, Waking, notify, say_idle
from ackwise.stores.postgres.outbox.writing import business, place, writes
from ackwise.stores.postgres.runner import AsyncpgRunner
from ackwise.stores.postgres.schema import layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Owned, Problem, Steps, run
from ackwise.stores.sql.outbox.outbox import SQLOutbox
from ackwise.stores.sql.outbox.rights import require_rights
from ackwise.stores.sql.outbox.transaction import Business
from ackwise.stores.sql.schema import complaints, create, required

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["PostgresOutbox", "from_url"]

T = TypeVar("T")

_MAX_SIZE: Final = 4
"""Connections: a relay has one that listens and one that asks; a check-back and a notification may want one each."""

# As for the claims: a plan for an empty table would read all of a large one for as long as the connection lives. What is left is the
# look-up by an index, in the order of the ids.
_SESSION: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}


class PostgresOutbox(SQLOutbox):
    """An outbox in the PostgreSQL database of `url`, in which the business's own tables are as well.

        async with outbox.transaction(connection):
            await connection.execute("UPDATE …")
            outbox.send("orders", value, key=key)

    `connection` is any asyncpg connection to that database. It may use `connection.transaction()` inside, which is a savepoint. Writing
    rows needs no `open`. Relays, half messages and operators use connections of our own, `max_size` at most; or give your own `pool`,
    which stays yours: its settings are not touched, nor is it closed; a relay keeps one connection of it to listen.

    Rows are deleted once they were sent. With `keep_sent` (seconds) they stay so long, without what `blank` names (`value`, `key` and
    `headers` by default). Parked rows stay until they are requeued, or with `keep_parked` (seconds) until `cleanup` deletes them unsent.
    `retention` (seconds) is how long `cleanup` leaves what was rolled back. `timeout` (seconds) bounds each call on our own connections.
    `schema` and `prefix` say where the tables are: without a schema, where the search path leads. `statement_cache_size=0` is for
    PgBouncer in transaction mode; then relays look every second, and are not notified. Raises `ConfigurationError`.
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
        retention: float = 86400.0,
        keep_sent: float = 0.0,
        keep_parked: float | None = None,
        blank: Collection[str] = tuple(PAYLOAD),
    ) -> None:
        driver = Asyncpg(
            OUTBOX,
            url,
            pool,
            timeout=timeout,
            max_size=max_size,
            statement_cache_size=statement_cache_size,
            session=_SESSION,
            maintenance_session={},
            is_bounded=True,
        )
        self._connections, self._tables = Connections(driver), OutboxTables(Tables(schema, prefix))
        self._layout = layout(self._tables.all, OUTBOX, driver.address, self._tables.ddl)
        keeping, wakes = Keeping(retention, keep_sent, keep_parked, blank), wakes_of(f"{driver.address} {self._tables.rows}")
        super().__init__(Postgres(self._tables), driver.address, timeout, keeping, wakes)
        self._newest: int | None = None
        self._owner: str | None = None
        self._writes = writes(self._tables.rows)
        self._waking = Waking(lambda: self._run(notify(self._sql, self._tables.channel)))
        self._listening = Listening(self._tables, self._wakes) if statement_cache_size else None

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        await self._connections.open(self._prepare)

    async def close(self) -> None:
        """Wait for the calls under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._waking.close()
        if self._listening is not None:
            await self._listening.close()
        await self._connections.close()

    def wake(self) -> None:
        """See `Outbox.wake`; a relay of another process is notified if it is idle and this outbox is open."""
        self._wakes.wake()
        if self._connections.pool is not None:
            self._waking.soon()

    # Our own connections

    @property
    def notifies(self) -> bool:
        """Whether commits of other processes end `wait_for_rows`; through PgBouncer they can't."""
        return self._listening is not None

    def _signing_in(self, owner: str, share: int) -> int:
        self._owner = owner
        return share

    async def wait_for_rows(self, at_most: float) -> None:
        """See `RelayStore.wait_for_rows`."""
        waiter = self._wakes.begin(self._seen)
        if not waiter.event.is_set() and await self._say_idle(at_most):
            return
        await waiter.wait(at_most)

    async def init(self) -> None:
        """Create the tables if they are missing. Doing it twice changes nothing."""
        await self._connections.maintained(lambda: create(self._layout))

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(lambda: complaints(self._layout, self._checked))

    async def cleanup(self) -> int:
        """Delete what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        return await self._connections.maintained(lambda: required(self._layout, self._clean))

    async def _run(self, operation: Owned[T]) -> T:
        return await self._connections.run(operation)

    def _through(self, connection: Any) -> Business:
        return business(connection, self._writes, self._address, self._timeout)

    async def _say_idle(self, at_most: float) -> bool:
        """Let others notify us; returns whether rows have come since we looked, which a notification would have come too early for."""
        if self._owner is None or self._listening is None:
            return False
        owner, pool = self._owner, self._connections.require_open()
        await self._listen(self._listening, pool)
        newest = await self._run(say_idle(self._sql, owner, at_most))
        before, self._newest = self._newest, newest
        return newest is not None and newest != before

    async def _listen(self, listening: Listening, pool: Pool) -> None:
        """Listen; a lost connection of the pool is replaced once."""
        try:
            await listening.ensure(pool, self._timeout)
        except FAILURES as error:
            if problem_of(error) is not Problem.LOST:
                raise self._connections.unavailable(error) from None
            await self._connections.replace(pool)
            with self._connections.errors(self._timeout):
                await listening.ensure(pool, self._timeout)

    async def _prepare(self, connection: PoolConnectionProxy) -> None:
        await run(self._prepared(), AsyncpgRunner(connection))
        self._writes = writes(await place(connection, self._tables.rows))

    def _prepared(self) -> Steps[None]:
        yield from checking.require_durable(self._address)
        yield from create(self._layout)
        yield from require_rights(self._sql, self._address)

    def _checked(self) -> Steps[list[str]]:
        yield from checking.require_durable(self._address)
        return (yield from self._complaints())


def from_url(url: str) -> PostgresOutbox:
    """Return the outbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=4&statement_cache_size=0`,
    `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`, and libpq's `sslmode`, `sslrootcert` and their kin.
    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL outbox has no option synchronous_commit; a message that was committed has to be durable")
    return PostgresOutbox(drivers, **settings, **keeping.given)
