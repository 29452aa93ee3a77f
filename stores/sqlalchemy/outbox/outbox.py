"""`SQLAlchemyOutbox`: rows to be sent, in the transactions of sessions of SQLAlchemy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import Outbox
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.sql.outbox.transaction import transaction
from ackwise.stores.sql.outbox.writing import Block, Rows
from ackwise.stores.sqlalchemy.outbox.failures import refusing
from ackwise.stores.sqlalchemy.outbox.statements import DIALECTS, Statements
from ackwise.stores.sqlalchemy.outbox.writing import business, once_ended

__all__ = ["SQLAlchemyOutbox"]


class SQLAlchemyOutbox(Sends):
    """The business side of an outbox for an `AsyncSession`, on PostgreSQL, MariaDB, MySQL or SQLite:

        async with outbox.transaction(session):
            session.add(order)
            outbox.send("orders", value, key=key)

    It writes into the tables of the database's own outbox, which `ackwise outbox init URL` makes and whose relay sends the rows:
    `ackwise relay --outbox postgresql://…`, `mariadb://…` or `sqlite:///…`. `schema` and `prefix` are that outbox's. `store` may be that
    outbox in this process (a `PostgresOutbox`, `MySQLOutbox` or `SQLiteOutbox`): commits wake its relay; without it the relay looks every
    second. A session begins its transaction by the first thing that it does: then the block joins, and you commit.
    """

    def __init__(self, store: Outbox | None = None, *, schema: str | None = None, prefix: str = "ackwise_") -> None:
        super().__init__()
        self._store = store
        self._statements = Statements(schema, prefix)

    def __repr__(self) -> str:
        return f"<SQLAlchemyOutbox {self._store or ''}>".replace(" >", ">")

    async def open(self) -> None:
        """Refused: there is no relay here. Raises `ConfigurationError`."""
        raise ConfigurationError(
            f"SQLAlchemyOutbox is the side of the business only; give the relay the URL of the database: {', '.join(DIALECTS.values())}"
        )

    @asynccontextmanager
    async def transaction(self, session: AsyncSession | async_scoped_session[Any]) -> AsyncIterator[Block]:
        """See `Outbox.transaction`. Errors of the session are SQLAlchemy's own, those of writing rows `AckwiseError`."""
        mine = _session(session)
        async with transaction(business(mine, self._statements), self, self.wake) as block:
            yield block
        if block.has_written and not block.commits:
            once_ended(mine.sync_session, self.wake)

    def writer(self, session: AsyncSession | async_scoped_session[Any]) -> Rows:
        """See `Outbox.writer`."""
        return Rows(business(_session(session), self._statements))

    def wake(self) -> None:
        """See `Outbox.wake`; does something if there is a `store`."""
        if self._store is not None:
            self._store.wake()

    async def barrier(self, session: AsyncSession | async_scoped_session[Any], tx_id: str) -> None:
        """See `BarrierStore.barrier`."""
        mine = _session(session)
        if not mine.in_transaction():
            raise ConfigurationError(
                f"the barrier of {tx_id} has to be in the local transaction, and none is open in the session; begin one"
            )
        with refusing():
            await (await mine.connection()).run_sync(self._statements.insert_barrier, tx_id)

    async def database_id(self, session: AsyncSession | async_scoped_session[Any]) -> str:
        """See `BarrierStore.database_id`."""
        with refusing():
            return await (await _session(session).connection()).run_sync(self._statements.database_id)


def _session(given: Any) -> AsyncSession:
    """Return the session. Raises `ConfigurationError` for what is none."""
    session = given() if isinstance(given, async_scoped_session) else given
    if not isinstance(session, AsyncSession):
        raise ConfigurationError(f"the SQLAlchemy outbox got a {type(given).__name__}, and writes through an AsyncSession")
    return session
