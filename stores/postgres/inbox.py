"""`PostgresInbox`: exactly once in one PostgreSQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres import checking, maintenance, schema
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.inboxsession import PostgresSession, reset
from ackwise.stores.postgres.inboxstatements import PostgresStatements
from ackwise.stores.postgres.schema import layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import complaints, create
from ackwise.stores.sql.serverinbox import ServerInbox

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg.pool import PoolConnectionProxy  # noqa: F401  # in quotes below

__all__ = ["PostgresInbox", "from_url"]

_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""

# A worker that vanished, or stands still in the middle of a batch, keeps the locks of its keys until its server notices:
# after a minute if its host is gone, after five if only its process does nothing.
_SESSION: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "300000",
}


class PostgresInbox(ServerInbox["Pool", "PoolConnectionProxy"]):
    """An inbox in the PostgreSQL database of `url`, in which the handler's own tables are as well.

    The handler gets an asyncpg connection in the middle of a transaction, and may open `connection.transaction()` in it, which
    is a savepoint. Each batch under way has a connection, `max_size` at most are open; a batch that finds none waits. Or give
    your own `pool`, which stays yours: its settings are not touched, nor is it closed.

    `timeout` (seconds) bounds each of our own statements, with its wait for another worker's batch that holds the same key.
    `schema` and `prefix` say where the table is: without a schema, where the search path leads. `statement_cache_size=0` is
    for PgBouncer in transaction mode. Raises `ConfigurationError`.
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
    ) -> None:
        driver = Asyncpg(
            INBOX,
            url,
            pool,
            timeout=timeout,
            max_size=max_size,
            statement_cache_size=statement_cache_size,
            session=_SESSION,
            maintenance_session=_SESSION,
            is_bounded=False,
            reset=reset,
        )
        super().__init__(Connections(driver), lambda connection, statements: PostgresSession(connection, statements, driver))
        self._address = driver.address
        self._tables = Tables(schema, prefix)
        self._layout = layout(self._tables, INBOX, self._address)

    def __repr__(self) -> str:
        return f"<PostgresInbox {self._address}>"

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
        return await self._connections.maintained(lambda: complaints(self._layout, lambda: checking.of_inbox(self._tables, self._address)))

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers; return how many records."""
        return await self._connections.maintained(lambda: maintenance.clean_inbox(self._layout, self._tables))

    def _prepare(self) -> Steps[None]:
        yield from checking.require_durable(self._address)
        yield from create(self._layout)
        yield from checking.require_rights((self._tables.named("inbox"), self._tables.named("offsets")), self._address)
        found = yield from schema.found(self._tables)
        self._statements = PostgresStatements(found.named("inbox"), found.named("offsets"))


def from_url(url: str) -> PostgresInbox:
    """Return the inbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=20&statement_cache_size=0`, and libpq's `sslmode`,
    `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL inbox has no option synchronous_commit; what Kafka is told is done has to be durable")
    return PostgresInbox(drivers, **settings)
