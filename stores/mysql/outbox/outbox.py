"""`MySQLOutbox`: rows to be sent, in the business transactions of one MariaDB or MySQL database."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.outbox.dialect import MySQL
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.mysql.outbox.writing import business, place
from ackwise.stores.mysql.schema import layout
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Connections
from ackwise.stores.sql.operation import Owned, Steps, run
from ackwise.stores.sql.outbox.outbox import SQLOutbox
from ackwise.stores.sql.outbox.rights import require_rights
from ackwise.stores.sql.outbox.transaction import Business
from ackwise.stores.sql.schema import complaints, create, required

if TYPE_CHECKING:
    from asyncmy.connection import Connection
    from asyncmy.pool import Pool

__all__ = ["MySQLOutbox", "from_url"]

T = TypeVar("T")

_MAX_SIZE: Final = 4
"""Connections: a relay asks on one, and writes on another; a check-back may want one, and a producer."""


class MySQLOutbox(SQLOutbox):
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
        driver = Asyncmy(OUTBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        self._connections, self._tables = Connections(driver), OutboxTables(Tables(prefix))
        self._rows = self._tables.rows
        self._layout = layout(self._tables.all, OUTBOX, driver.address, self._tables.ddl)
        wakes = wakes_of(f"{driver.address if pool is None else id(pool)} {self._tables.rows}")
        keeping = Keeping(retention, keep_sent, keep_parked, blank)
        super().__init__(MySQL(self._tables, driver.address), driver.address, timeout, keeping, wakes)

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        await self._connections.open(self._prepare)

    async def close(self) -> None:
        """Wait for the calls under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    # Our own connections

    async def init(self) -> None:
        """Create the tables if they are missing. Doing it twice changes nothing."""
        await self._connections.maintained(lambda: create(self._layout))

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(lambda: complaints(self._layout, self._complaints))

    async def cleanup(self) -> int:
        """Delete what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        return await self._connections.maintained(lambda: required(self._layout, self._clean))

    async def _run(self, operation: Owned[T]) -> T:
        return await self._connections.run(operation)

    def _through(self, connection: Any) -> Business:
        return business(connection, self._rows, self._address, self._timeout)

    async def _prepare(self, connection: Connection) -> None:
        await run(self._prepared(), self._connections.driver.runner(connection))
        self._rows = await place(connection, self._tables.rows)

    def _prepared(self) -> Steps[None]:
        yield from create(self._layout)
        yield from require_rights(self._sql, self._address)


def _session(timeout: float) -> str:
    """Return what our connections begin with: the server gives up first, so that it says what it waited for."""
    return (
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeout * 0.4))}, sql_notes = 0 "
        f"/*M! , max_statement_time = {timeout * 0.9} */; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def _maintenance_session(_timeout: float) -> str:
    return f"SET SESSION innodb_lock_wait_timeout = {int(MAINTENANCE_TIMEOUT)}, sql_notes = 0"


def from_url(url: str) -> MySQLOutbox:
    """Return the outbox of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=4`, `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`,
    and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    address, options = parse(url, Options(max_size=_MAX_SIZE))
    return MySQLOutbox(address, **options._asdict(), **keeping.given)
