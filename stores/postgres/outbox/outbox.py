"""`PostgresOutbox`: rows to be sent, in the business transactions of one PostgreSQL database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import FIRST_CHECK, CheckAnswer, Failed, OutboxRow, OutboxStatus, Parked, Prepared, Sent, TransactionOutcome
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.postgres import checking, schema
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.failures import FAILURES, is_broken, is_conflict
from ackwise.stores.postgres.outbox import inspecting, preparing, relaying
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.postgres.outbox.waking import Listening, Waking, say_idle
from ackwise.stores.postgres.outbox.writing import asyncpg_connection, business, insert, writes
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxrows import columns_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.outbox.transaction import transaction
from ackwise.stores.sql.outbox.writing import Block, Rows

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
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


class PostgresOutbox(Sends):
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
        super().__init__()
        self.keeping = Keeping(retention, keep_sent, keep_parked, blank)  #: what stays of rows that nobody has to send
        self._connections = Connections(
            Asyncpg(
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
        )
        self._address, self._timeout = self._connections.address, timeout
        self._tables = OutboxTables(Tables(schema, prefix))
        self._wakes = wakes_of(f"{self._address} {self._tables.rows}")
        self._seen = self._wakes.count  #: commits of this process before the last `pending`
        self._newest: int | None = None
        self._owner: str | None = None
        self._blocks_key = True
        self._waking = Waking(self._tables, self._run)
        self._listening = Listening(self._tables, self._wakes) if statement_cache_size else None

    def __repr__(self) -> str:
        return f"<PostgresOutbox {self._address}>"

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

    # The business

    @asynccontextmanager
    async def transaction(self, connection: Connection | PoolConnectionProxy) -> AsyncIterator[Block]:
        """See `Outbox.transaction`. The errors of `connection` are asyncpg's own, those of writing rows `AckwiseError`."""
        mine = business(asyncpg_connection(connection), self._address, self._timeout)
        async with transaction(mine, writes(self._tables), self, self.wake) as block:
            yield block

    def writer(self, connection: Connection | PoolConnectionProxy) -> Rows:
        """See `Outbox.writer`."""
        return Rows(writes(self._tables), business(asyncpg_connection(connection), self._address, self._timeout))

    def wake(self) -> None:
        """See `Outbox.wake`; a relay of another process is notified if it is idle and this outbox is open."""
        self._wakes.wake()
        if self._connections.pool is not None:
            self._waking.soon()

    # A relay

    async def claim_relay(self, kind: str) -> None:
        """See `RelayStore.claim_relay`."""

        async def claim(connection: PoolConnectionProxy) -> str:
            await inspecting.require_relay_rights(connection, self._tables, self._address)
            statement = f"INSERT INTO {self._tables.meta} VALUES ('relay_kind', $1) ON CONFLICT DO NOTHING"
            await connection.execute(statement, kind)
            return str(await connection.fetchval(f"SELECT value FROM {self._tables.meta} WHERE name = 'relay_kind'"))

        if (found := await self._run(claim)) != kind:
            raise ConfigurationError(
                f"{self._address}: relays of kind {found!r} send the rows of this outbox, and one of kind {kind!r} would send them again; "
                "stop all of those first, then call ackwise outbox release"
            )

    async def release_relay(self) -> None:
        """See `RelayStore.release_relay`."""
        if alive := await self.relays():
            raise ConfigurationError(f"{self._address}: {alive} relays have a lease; stop them, and try again when it has ended")
        await self._run(lambda connection: connection.execute(f"DELETE FROM {self._tables.meta} WHERE name = 'relay_kind'"))

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        """See `RelayStore.own`."""
        self._owner = owner
        owned = await self._run(lambda connection: relaying.own(connection, self._tables, owner, lease, share))
        await self._run(lambda connection: relaying.free(connection, self._tables, self._blocks_key))
        return owned

    async def relays(self) -> int:
        """See `RelayStore.relays`."""
        statement = f"SELECT count(*) FROM {self._tables.relays} WHERE leased_until > clock_timestamp()"
        return int(await self._run(lambda connection: connection.fetchval(statement)))

    async def leave(self, owner: str) -> None:
        """See `RelayStore.leave`."""
        await self._run(lambda connection: relaying.leave(connection, self._tables, owner))

    async def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        """See `RelayStore.pending`."""
        self._seen = self._wakes.count
        if not shards or limit < 1:
            return []
        if block_key is not self._blocks_key:
            self._blocks_key = block_key
            await self._run(lambda connection: relaying.free(connection, self._tables, block_key))
        return await self._run(lambda connection: relaying.pending(connection, self._tables, shards, limit, under_way, blocked, block_key))

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        """See `RelayStore.sent`."""
        if not rows:
            return 0
        return await self._run(lambda connection: relaying.sent(connection, self._tables, rows, shards, self.keeping))

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        """See `RelayStore.failed`. Not repeated by itself: an attempt would count twice."""
        if not failures:
            return 0
        return await self._run(lambda connection: relaying.failed(connection, self._tables, failures, shards), repeats=False)

    @property
    def notifies(self) -> bool:
        """Whether commits of other processes end `wait_for_rows`; through PgBouncer they can't."""
        return self._listening is not None

    async def wait_for_rows(self, at_most: float) -> None:
        """See `RelayStore.wait_for_rows`."""
        waiter = self._wakes.begin(self._seen)
        if not waiter.event.is_set() and await self._say_idle(at_most):
            return
        await waiter.wait(at_most)

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        """See `RelayStore.next_due`."""
        return await self._run(lambda connection: relaying.next_due(connection, self._tables, shards))

    # Half messages

    async def database_id(self, connection: Connection | PoolConnectionProxy | None = None) -> str:
        """See `BarrierStore.database_id`."""
        if connection is not None:
            with self._connections.errors(self._timeout):
                return await preparing.database_id(connection, self._tables)
        return await self._run(lambda connection: preparing.database_id(connection, self._tables))

    async def barrier(self, connection: Connection | PoolConnectionProxy, tx_id: str) -> None:
        """See `BarrierStore.barrier`."""
        with self._connections.errors(self._timeout):
            await preparing.barrier(asyncpg_connection(connection), self._tables, tx_id)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`; it waits for less than the timeout in any case."""
        patience = min(wait, self._timeout / 2)
        return await self._run(lambda connection: preparing.probe(connection, self._tables, tx_id, patience))

    async def prepare(
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> None:
        """See `PreparedStore.prepare`. Not repeated by itself: rows could be there twice."""
        rows, prepared = [columns_of(message) for message in messages], (first_check, tx_id, producer_group, barrier_in)
        if rows:
            text, values = insert(self._tables.rows, rows, prepared)
            await self._run(lambda connection: connection.execute(text, *values), repeats=False)

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        """See `PreparedStore.decide`."""
        changed = await self._run(lambda connection: preparing.decide(connection, self._tables, tx_id, outcome))
        if changed and outcome is TransactionOutcome.COMMIT:
            self.wake()
        return changed

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        """See `PreparedStore.due_checks`."""
        return await self._run(lambda connection: preparing.due_checks(connection, self._tables, producer_group, limit, lease))

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        """See `PreparedStore.answered`. Not repeated by itself: a check would count twice."""
        if not answers:
            return 0
        changed = await self._run(lambda connection: preparing.answered(connection, self._tables, answers), repeats=False)
        if changed and any(answer.outcome is TransactionOutcome.COMMIT for answer in answers):
            self.wake()
        return changed

    # An operator

    async def status(self) -> OutboxStatus:
        """See `OutboxStore.status`."""
        return await self._run(lambda connection: inspecting.status(connection, self._tables))

    async def parked(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        """See `OutboxStore.parked`."""
        return await self._run(lambda connection: inspecting.parked(connection, self._tables, limit, after))

    async def show(self, row: int) -> Parked | None:
        """See `OutboxStore.show`."""
        return await self._run(lambda connection: inspecting.show(connection, self._tables, row))

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        """See `OutboxStore.requeue`."""
        changed = await self._run(lambda connection: inspecting.requeue(connection, self._tables, rows))
        if changed:
            self.wake()
        return changed

    async def init(self) -> None:
        """Create the tables if they are missing. Doing it twice changes nothing."""
        async with self._connections.maintain() as connection:
            await schema.create(connection, self._tables.all, OUTBOX, self._address, self._tables.ddl)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        async with self._connections.maintain() as connection:
            return await inspecting.complaints(connection, self._tables, self._address)

    async def cleanup(self) -> int:
        """Delete what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        async with self._connections.maintain() as connection:
            await schema.require_tables(connection, self._tables.all, OUTBOX, self._address)
            return await inspecting.clean(connection, self._tables, self.keeping, self._address)

    # Our own connections

    async def _run(self, work: Callable[[PoolConnectionProxy], Awaitable[T]], *, repeats: bool = True) -> T:
        """Do `work` within the timeout. A lost connection is replaced once, if what was done may be done again."""
        pool = self._connections.require_open()
        replaced = not repeats
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    try:
                        async with self._connections.borrow(pool) as connection:
                            return await work(connection)
                    except FAILURES as error:
                        if not is_conflict(error):
                            if replaced or not is_broken(error):
                                raise
                            replaced = True
                            await self._connections.replace(pool)
        except FAILURES as error:
            raise self._connections.unavailable(error) from None

    async def _say_idle(self, at_most: float) -> bool:
        """Let others notify us; returns whether rows have come since we looked, which a notification would have come too early for."""
        if self._owner is None or self._listening is None:
            return False
        owner, pool = self._owner, self._connections.require_open()
        await self._listen(self._listening, pool)
        newest = await self._run(lambda connection: say_idle(connection, self._tables, owner, at_most))
        before, self._newest = self._newest, newest
        return newest is not None and newest != before

    async def _listen(self, listening: Listening, pool: Pool) -> None:
        """Listen; a lost connection of the pool is replaced once."""
        try:
            await listening.ensure(pool, self._timeout)
        except FAILURES as error:
            if not is_broken(error):
                raise self._connections.unavailable(error) from None
            await self._connections.replace(pool)
            with self._connections.errors(self._timeout):
                await listening.ensure(pool, self._timeout)

    async def _prepare(self, connection: PoolConnectionProxy) -> None:
        await checking.require_durable(connection, self._address)
        if await schema.version(connection, self._tables.all, OUTBOX) is None:
            await schema.create(connection, self._tables.all, OUTBOX, self._address, self._tables.ddl)
        await schema.require_tables(connection, self._tables.all, OUTBOX, self._address)
        await inspecting.require_rights(connection, self._tables, self._address)


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
