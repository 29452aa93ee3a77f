"""`MySQLOutbox`: rows to be sent, in the business transactions of one MariaDB or MySQL database."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asyncmy.connection import Connection

from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.failures import FAILURES, as_store_error
from ackwise.stores.mysql.outboxdialect import MySQL, insert
from ackwise.stores.mysql.runner import AsyncmyRunner
from ackwise.stores.mysql.schema import Tables, found, layout
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.mysql.watching import watched
from ackwise.stores.protocol.outboxkeeping import PAYLOAD, Keeping, keeping_of
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.protocol.outboxwaking import wakes_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Connections
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.outbox.outbox import ServerOutbox
from ackwise.stores.sql.outbox.writing import Business, Writes, require

if TYPE_CHECKING:
    from asyncmy.pool import Pool

_MAX_SIZE: Final = 4
"""Connections: a relay asks on one, and writes on another; a check-back may want one, and a producer."""


class MySQLOutbox(ServerOutbox):
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
        tables, address = Tables(prefix), driver.address
        wakes = wakes_of(f"{address if pool is None else id(pool)} {tables.named('outbox')}")
        keeping = Keeping(retention, keep_sent, keep_parked, blank)

        def located() -> Steps[str]:
            return (yield from found(tables)).named("outbox")

        super().__init__(Connections(driver), MySQL(tables, address), layout(tables, OUTBOX, address), keeping, wakes, located, _business)


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


@functools.lru_cache(64)
def _writes(commits_by_itself: bool, table: str, address: str) -> Writes:
    """Return the statements. A connection in autocommit is out of it from before BEGIN until COMMIT or ROLLBACK was answered."""

    def inserting(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        return insert(table, rows, before, address)

    leave, back = ("SET autocommit = 0", "SET autocommit = 1") if commits_by_itself else ("", "")
    return Writes(
        inserting,
        begin=_packet(leave, "START TRANSACTION"),
        commit=_packet("COMMIT", back),
        rollback=_packet("ROLLBACK", back),
        restore=_packet(back),
        open=_OPEN,
        proves_first=True,
    )


def _packet(*texts: str) -> Packet:
    return [Statement(text) for text in texts if text]


#: What an error of the server did to a transaction, the driver does not know.
_OPEN: Final = _packet("SAVEPOINT ackwise_open", "RELEASE SAVEPOINT ackwise_open")


def _business(connection: Any, table: str, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of asyncmy's."""
    require(connection, Connection, "MySQL", "asyncmy")

    async def look() -> None:
        # Without autocommit asyncmy passes over answers that nothing is open any more.
        if connection.get_transaction_status() and not connection.get_autocommit():
            with suppress(*FAILURES):
                await connection.ping(reconnect=False)

    return Business(
        _writes(connection.get_autocommit(), table, address),
        AsyncmyRunner(connection),
        is_open=connection.get_transaction_status,
        watched=functools.partial(watched, connection),
        close=connection.close,
        as_error=lambda error: as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init),
        timeout=timeout,
        look=look,
        begins_by_itself=not connection.get_autocommit(),
    )
