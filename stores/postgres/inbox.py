"""`PostgresInbox`: exactly once in one PostgreSQL database, for handlers that write to it; by keys or by offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.stores.postgres import checking, maintenance
from ackwise.stores.postgres.driver import Asyncpg
from ackwise.stores.postgres.failures import FAILURES, problem_of
from ackwise.stores.postgres.inboxstatements import PostgresStatements
from ackwise.stores.postgres.runner import AsyncpgRunner
from ackwise.stores.postgres.schema import found, layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.postgres.watching import watched
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Failure, Packet, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create
from ackwise.stores.sql.serverinbox import ServerInbox, ServerSession

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy

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


#: SQLSTATEs of a commit that say nothing about what the handler wrote.
_NOT_THE_HANDLERS: Final = ("08", "25", "40001", "40P01", "53", "55", "57", "58", "XX")

_DISCARD: Final = Statement("DISCARD TEMP")

#: What a handler may have turned to or made, and asyncpg's own reset leaves.
_LEFT: Final = "RESET SESSION AUTHORIZATION; RESET ROLE; DISCARD TEMP; DISCARD SEQUENCES"


async def _reset(connection: Connection) -> None:
    """Restore a connection of our own, in the trip that asyncpg makes anyway when it is given back."""
    await connection.execute(f"{_LEFT}; {connection.get_reset_query()}")


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
            reset=_reset,
        )
        connections, tables = Connections(driver), maintained(Tables(schema, prefix), driver.address)
        super().__init__(connections, tables, lambda connection, statements: PostgresSession(connection, statements, driver))


class PostgresSession(ServerSession["PoolConnectionProxy"]):
    """PostgreSQL begins no transaction by itself: what fails leaves one that takes nothing any more."""

    def __init__(self, connection: PoolConnectionProxy, statements: Statements, driver: Asyncpg) -> None:
        super().__init__(connection, statements, driver, AsyncpgRunner(connection), watched)
        self._transaction = connection.transaction(isolation="read_committed")

    @property
    def is_open(self) -> bool:
        return self.connection.is_in_transaction()

    async def begin(self) -> None:
        with _failures():
            await self._transaction.start()
        self._watch.start()

    async def commit(self) -> None:
        self._watch.stop()
        with _failures():
            try:
                await self._transaction.commit()
            except asyncpg.PostgresError as error:
                if str(error.sqlstate).startswith(_NOT_THE_HANDLERS):
                    raise
                raise TransactionAborted(f"PostgreSQL refuses to commit what the handler wrote: {error.args[0]}") from None

    async def rollback(self, *, is_marked: bool) -> bool:
        """See `Session.rollback`; nothing in PostgreSQL commits a transaction from within."""
        self._watch.stop()
        with _failures():
            await self._transaction.rollback()
        return True

    def tidying(self) -> Packet:
        """See `ServerSession.tidying`; a pool of our own has its `reset`."""
        return () if self._driver.given is None else [*self._turning.put_back, _DISCARD]


def maintained(tables: Tables, address: str) -> Maintenance[PostgresStatements]:
    """Return what is done with the tables of an inbox."""
    made = layout(tables, INBOX, address)

    def prepare() -> Steps[PostgresStatements]:
        yield from checking.require_durable(address)
        yield from create(made)
        yield from checking.require_rights((tables.named("inbox"), tables.named("offsets")), address)
        there = yield from found(tables)
        return PostgresStatements(there.named("inbox"), there.named("offsets"))

    return Maintenance(
        prepare,
        lambda: create(made),
        lambda: complaints(made, lambda: checking.of_inbox(tables, address)),
        lambda: maintenance.clean_inbox(made, tables),
    )


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


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise Failure(problem_of(error), error) from error
