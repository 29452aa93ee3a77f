"""`MySQLOutbox`: rows to be sent, in the business transactions of one MariaDB or MySQL database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import FIRST_CHECK, CheckAnswer, Failed, OutboxRow, OutboxStatus, Parked, Prepared, Sent, TransactionOutcome
from ackwise.middleware.outgoing import Outgoing
from ackwise.stores.mysql import schema
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.failures import FAILURES, is_broken, is_conflict
from ackwise.stores.mysql.outbox import inspecting, preparing, relaying
from ackwise.stores.mysql.outbox.sql import BEGIN, NOW
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.mysql.outbox.writing import asyncmy_connection, business, writes
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxliterals import literal
from ackwise.stores.protocol.outboxrows import columns_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.outbox.transaction import transaction
from ackwise.stores.sql.outbox.writing import Block, Rows

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["MySQLOutbox", "from_url"]

T = TypeVar("T")

_MAX_SIZE: Final = 4
"""Connections: a relay asks on one, and writes on another; a check-back may want one, and a producer."""


class MySQLOutbox(Sends):
    """An outbox in the MariaDB or MySQL database of `url`, in which the business's own tables are as well.

        async with outbox.transaction(connection):
            async with connection.cursor() as cursor:
                await cursor.execute("UPDATE …")
            outbox.send("orders", value, key=key)

    `connection` is any asyncmy connection to that database, in any isolation. Without autocommit a transaction is open after the first
    statement, also after one that reads: then it is joined, and you commit it. Savepoints are made by `SAVEPOINT …` as always. Writing rows
    needs no `open`. Relays, half messages and operators use connections of our own, `max_size` at most; or give your own asyncmy `pool`,
    which stays yours: its settings are not touched, nor is it closed.

    Rows are deleted once they were sent. With `keep_sent` (seconds) they stay so long, without what `blank` names (`value`, `key` and
    `headers` by default). Parked rows stay until they are requeued, or with `keep_parked` (seconds) until `cleanup` deletes them unsent.
    `retention` (seconds) is how long `cleanup` leaves what was rolled back. `timeout` (seconds) bounds each call on our own connections.
    `prefix` begins the names of the tables. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = _MAX_SIZE,
        retention: float = 86400.0,
        keep_sent: float = 0.0,
        keep_parked: float | None = None,
        blank: Collection[str] = tuple(PAYLOAD),
    ) -> None:
        super().__init__()
        self.keeping = Keeping(retention, keep_sent, keep_parked, blank)  #: what stays of rows that nobody has to send
        self._connections = Connections(
            Asyncmy(OUTBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        )
        self._address, self._timeout = self._connections.address, timeout
        self._tables = OutboxTables(Tables(prefix))
        self._wakes = wakes_of(f"{self._address if pool is None else id(pool)} {self._tables.rows}")
        self._seen = self._wakes.count  #: commits of this process before the last `pending`

    def __repr__(self) -> str:
        return f"<MySQLOutbox {self._address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        await self._connections.open(self._prepare)

    async def close(self) -> None:
        """Wait for the calls under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    # The business

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[Block]:
        """See `Outbox.transaction`. Errors of `connection` are asyncmy's own, those of writing rows and of the commit `AckwiseError`."""
        mine = business(asyncmy_connection(connection), self._address, self._timeout)
        async with transaction(mine, writes(connection, self._tables, self._address), self, self.wake) as block:
            yield block

    def writer(self, connection: Connection) -> Rows:
        """See `Outbox.writer`."""
        mine = business(asyncmy_connection(connection), self._address, self._timeout)
        return Rows(writes(connection, self._tables, self._address), mine)

    def wake(self) -> None:
        """See `Outbox.wake`; relays of other processes look every second."""
        self._wakes.wake()

    # A relay

    async def claim_relay(self, kind: str) -> None:
        """See `RelayStore.claim_relay`."""
        meta = self._tables.meta
        claim = (
            f"{BEGIN}INSERT INTO {meta} VALUES ('relay_kind', {literal(kind)}) ON DUPLICATE KEY UPDATE name = name; "
            f"SELECT value FROM {meta} WHERE name = 'relay_kind'; COMMIT"
        )

        async def claimed(connection: Connection) -> str:
            await inspecting.require_relay_rights(connection, self._tables, self._address)
            ((found,),) = await rows_of(connection, claim)
            return str(found.decode())

        if (found := await self._run(claimed)) != kind:
            raise ConfigurationError(
                f"{self._address}: relays of kind {found!r} send the rows of this outbox, and one of kind {kind!r} would send them again; "
                "stop all of those first, then call ackwise outbox release"
            )

    async def release_relay(self) -> None:
        """See `RelayStore.release_relay`."""
        if alive := await self.relays():
            raise ConfigurationError(f"{self._address}: {alive} relays have a lease; stop them, and try again when it has ended")
        forget = f"{BEGIN}DELETE FROM {self._tables.meta} WHERE name = 'relay_kind'; COMMIT"
        await self._run(lambda connection: rows_of(connection, forget))

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        """See `RelayStore.own`."""
        return await self._run(lambda connection: relaying.own(connection, self._tables, owner, lease, share))

    async def relays(self) -> int:
        """See `RelayStore.relays`."""
        count = f"{BEGIN}SELECT COUNT(*) FROM {self._tables.relays} WHERE leased_until > {NOW}; COMMIT"
        return int((await self._run(lambda connection: rows_of(connection, count)))[0][0])

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
        return await self._run(lambda connection: relaying.pending(connection, self._tables, shards, limit, under_way, blocked, block_key))

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        """See `RelayStore.sent`."""
        if not rows:
            return 0
        return await self._run(lambda connection: relaying.sent(connection, self._tables, rows, shards, self.keeping))

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        """See `RelayStore.failed`. Not repeated after a lost connection: an attempt would count twice."""
        if not failures:
            return 0
        return await self._run(lambda connection: relaying.failed(connection, self._tables, failures, shards), repeats=False)

    async def wait_for_rows(self, at_most: float) -> None:
        """See `RelayStore.wait_for_rows`; the server can't notify, so only commits of this process end the wait early."""
        await self._wakes.begin(self._seen).wait(at_most)

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        """See `RelayStore.next_due`."""
        return await self._run(lambda connection: relaying.next_due(connection, self._tables, shards))

    # Half messages

    async def database_id(self, connection: Connection | None = None) -> str:
        """See `BarrierStore.database_id`."""
        if connection is not None:
            with self._connections.errors(self._timeout):
                return await preparing.database_id(asyncmy_connection(connection), self._tables)
        return await self._run(lambda connection: preparing.database_id(connection, self._tables))

    async def barrier(self, connection: Connection, tx_id: str) -> None:
        """See `BarrierStore.barrier`."""
        with self._connections.errors(self._timeout):
            await preparing.barrier(asyncmy_connection(connection), self._tables, tx_id)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`. The server waits for whole seconds, and for less than the timeout in any case."""
        patience = min(wait, self._timeout / 2)
        return await self._run(lambda connection: preparing.probe(connection, self._tables, tx_id, patience))

    async def prepare(
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> None:
        """See `PreparedStore.prepare`. Not repeated after a lost connection: rows could be there twice."""
        rows, told = [columns_of(message) for message in messages], (tx_id, producer_group, barrier_in, first_check, self._address)
        if rows:
            await self._run(lambda connection: preparing.prepare(connection, self._tables, rows, *told), repeats=False)

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
        """See `PreparedStore.answered`. Not repeated after a lost connection: a check would count twice."""
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

    async def _run(self, work: Callable[[Connection], Awaitable[T]], *, repeats: bool = True) -> T:
        """Do `work` within the timeout, again after a deadlock. A lost connection is replaced once, if what was done may be done again."""
        pool = self._connections.require_open()
        replaced, conflicts = not repeats, list[Exception]()
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    try:
                        async with self._connections.borrow(pool) as connection:
                            return await work(connection)
                    except FAILURES as error:
                        if is_conflict(error):
                            conflicts.append(error)
                            continue
                        if replaced or not is_broken(error):
                            raise
                        replaced = True
                        await self._connections.replace(pool)
        except FAILURES as error:
            raise self._connections.unavailable(conflicts[-1] if conflicts and isinstance(error, TimeoutError) else error) from None

    async def _prepare(self, connection: Connection) -> None:
        await schema.create(connection, self._tables.all, OUTBOX, self._address, self._tables.ddl)
        await inspecting.require_writer_rights(connection, self._tables, self._address)


def _session(timeout: float) -> str:
    """Return what our connections begin with: the server gives up first, so that it says what it waited for."""
    return (
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout * 0.4))}, sql_notes = 0 "
        f"/*M! , max_statement_time = {timeout * 0.9} */; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def _maintenance_session(_timeout: float) -> str:
    return f"SET SESSION innodb_lock_wait_timeout = {int(schema.TIMEOUT)}, sql_notes = 0"


def from_url(url: str) -> MySQLOutbox:
    """Return the outbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=4`, `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`,
    and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLOutbox(address, **options._asdict(), **keeping.given)
