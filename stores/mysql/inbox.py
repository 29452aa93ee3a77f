"""`MySQLInbox`: exactly once in one MariaDB or MySQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackwise.stores.mysql import checking, maintenance
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.inboxsession import MySQLSession
from ackwise.stores.mysql.inboxstatements import found
from ackwise.stores.mysql.schema import layout
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.mysql.url import Options, parse
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import complaints, create
from ackwise.stores.sql.serverinbox import ServerInbox

if TYPE_CHECKING:
    from asyncmy.connection import Connection  # noqa: F401  # in quotes below
    from asyncmy.pool import Pool

__all__ = ["MySQLInbox", "from_url"]

_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""


class MySQLInbox(ServerInbox["Pool", "Connection"]):
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
        driver = Asyncmy(INBOX, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_session)
        super().__init__(Connections(driver), lambda connection, statements: MySQLSession(connection, statements, driver))
        self._address = driver.address
        self._tables = Tables(prefix)
        self._layout = layout(self._tables, INBOX, self._address)

    def __repr__(self) -> str:
        return f"<MySQLInbox {self._address}>"

    async def open(self) -> None:
        """Connect, and create the table if it is missing and the user may. Opening twice does nothing.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the server does not answer now.
        """
        await self._connections.open_with(self._prepare)

    async def init(self) -> None:
        """Create the table if it is missing. Doing it twice changes nothing."""
        await self._connections.maintained(lambda: create(self._layout))

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(lambda: complaints(self._layout, lambda: checking.of_inbox(self._tables)))

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; return how many records."""
        return await self._connections.maintained(lambda: maintenance.clean_inbox(self._layout, self._tables))

    def _prepare(self) -> Steps[None]:
        yield from create(self._layout)
        yield from checking.require_inbox_rights(self._tables)
        self._statements = yield from found(self._tables)


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
