"""The SQLAlchemy outbox passes the suite of the business on each database, with the database's own outbox as the side of the relay."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.databases.postgres import USER
from tests.shared import SharedServer

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.storage.outbox import OutboxStore, OutboxTransaction
from ackwise.stores.conformance.outbox import BusinessConformance, OutboxFeatures
from ackwise.stores.mysql import MySQLOutbox
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.sqlalchemy import SQLAlchemyOutbox
from ackwise.stores.sqlite.outbox import SQLiteOutbox


class Both:
    """The database's own outbox, whose side of the business is that of a session."""

    def __init__(self, store: OutboxStore, prefix: str) -> None:
        self._store, self._business = store, SQLAlchemyOutbox(store, prefix=prefix)
        for name in ("transaction", "writer", "send", "barrier"):
            setattr(self, name, getattr(self._business, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def database_id(self, session: AsyncSession | None = None) -> str:
        return await (self._store.database_id() if session is None else self._business.database_id(session))


class OnSQLAlchemy(BusinessConformance):
    """`url` is set by a fixture."""

    url: str
    prefix: str

    def store(self, place: Path) -> OutboxStore:
        raise NotImplementedError

    def make(self, place: Path) -> OutboxStore:
        both: Any = Both(self.store(place), self.prefix)
        made: OutboxStore = both
        return made

    def engine_url(self, place: Path) -> str:
        return self.url

    async def prepare(self, place: Path) -> None:
        async with self.connect(place) as session:
            await session.execute(text(f"CREATE TABLE {self.prefix}effects (effect VARCHAR(60) PRIMARY KEY)"))
            await session.commit()

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        engine = create_async_engine(self.engine_url(place))
        try:
            async with AsyncSession(engine) as session:
                yield session
        finally:
            await engine.dispose()

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        begun: AbstractAsyncContextManager[Any] = connection.begin()
        return begun

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        nested: AbstractAsyncContextManager[Any] = connection.begin_nested()
        return nested

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(text(f"INSERT INTO {self.prefix}effects VALUES (:effect)"), {"effect": effect})

    async def effects(self, place: Path) -> list[str]:
        async with self.connect(place) as session:
            return list(await session.scalars(text(f"SELECT effect FROM {self.prefix}effects")))

    async def age(self, place: Path, seconds: float) -> None:
        async with self.connect(place) as session:
            for table in ("outbox", "outbox_barrier"):
                await session.execute(text(f"UPDATE {self.prefix}{table} SET created = created - {self.interval(seconds)}"))
            await session.execute(text(f"UPDATE {self.prefix}outbox SET next_at = next_at - {self.interval(seconds)} WHERE state = 5"))
            await session.commit()

    def interval(self, seconds: float) -> str:
        return f"INTERVAL '{seconds}' SECOND"

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    async def test_a_block_may_end_its_transaction_and_open_no_other(self, tmp_path: Path, end: str) -> None:
        outbox = SQLAlchemyOutbox(prefix=self.prefix)
        store = self.store(tmp_path)
        await store.open()
        await self.prepare(tmp_path)

        async def business(session: AsyncSession, *after: str) -> None:
            async with outbox.transaction(session) as transaction:
                transaction.send("orders", b"1")
                await self.write(session, f"{end}{len(after)}")
                await getattr(session, end)()
                for effect in after:
                    await self.write(session, effect)

        async with self.connect(tmp_path) as session:
            await business(session)
            with pytest.raises(TransactionAborted, match="leave its end to the block"):
                await business(session, "other")
        rows = await store.pending(dict.fromkeys(range(64), 0), limit=10)
        assert len(rows) == len(await self.effects(tmp_path)) == (2 if end == "commit" else 0)
        await store.close()

    async def test_tables_that_are_missing_are_named(self, tmp_path: Path) -> None:
        outbox = SQLAlchemyOutbox(prefix="none_")

        async def business(session: AsyncSession) -> None:
            async with outbox.transaction(session):
                outbox.send("orders", b"secret")

        async with self.connect(tmp_path) as session:
            with pytest.raises(ConfigurationError, match="run `ackwise outbox init URL`") as caught:
                await business(session)
            with pytest.raises(ConfigurationError, match="run `ackwise outbox init URL`"):
                await outbox.database_id(session)
        assert "secret" not in str(caught.value)


@pytest.mark.nightly
class TestOnSQLite(OnSQLAlchemy):
    features = OutboxFeatures(relays=False, writers=False)
    prefix = "ackwise_"

    def store(self, place: Path) -> OutboxStore:
        return SQLiteOutbox(place / "shop.db", retention=0.0)

    def engine_url(self, place: Path) -> str:
        return f"sqlite+aiosqlite:///{place / 'shop.db'}"

    def interval(self, seconds: float) -> str:
        return str(seconds)


class TestOnPostgres(OnSQLAlchemy):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.url = f"postgresql+asyncpg://{USER}@127.0.0.1:{postgres.port}/postgres"
        self.prefix = f"t{os.urandom(6).hex()}_"

    def store(self, place: Path) -> OutboxStore:
        return PostgresOutbox(self.url.replace("+asyncpg", ""), prefix=self.prefix, retention=0.0)


@pytest.mark.nightly
class TestOnPsycopg(TestOnPostgres):
    """The statements of asyncpg, as psycopg wants them written."""

    def engine_url(self, place: Path) -> str:
        return self.url.replace("+asyncpg", "+psycopg")


@pytest.mark.nightly
class TestOnMariaDB(OnSQLAlchemy):
    @pytest.fixture(autouse=True)
    def _on(self, mariadb: SharedServer) -> None:
        self.url = f"mysql+asyncmy://root@127.0.0.1:{mariadb.port}/test"
        self.prefix = f"t{os.urandom(6).hex()}_"

    def store(self, place: Path) -> OutboxStore:
        return MySQLOutbox(self.url.replace("+asyncmy", ""), prefix=self.prefix, retention=0.0)


async def test_what_has_no_relay_says_which_url_one_takes() -> None:
    outbox = SQLAlchemyOutbox()
    with pytest.raises(ConfigurationError, match="the URL of the database: postgresql://host/database"):
        await outbox.open()
    with pytest.raises(ConfigurationError, match="got a object, and writes through an AsyncSession"):
        outbox.writer(object())  # type: ignore[arg-type]


async def test_a_transaction_that_was_undone_past_the_session_sends_nothing(mariadb: SharedServer) -> None:
    engine = create_async_engine(f"mysql+asyncmy://root@127.0.0.1:{mariadb.port}/test")
    store = MySQLOutbox(f"mysql://root@127.0.0.1:{mariadb.port}/test", prefix="undone_")
    await store.open()
    outbox = SQLAlchemyOutbox(prefix="undone_")

    async def handle(transaction: OutboxTransaction, session: AsyncSession) -> None:
        transaction.send("orders", b"1")
        raw = await (await session.connection()).get_raw_connection()
        await raw.driver_connection.rollback()  # type: ignore[union-attr]  # as a deadlock does, of which the handler caught the error

    async def business(session: AsyncSession) -> None:
        async with outbox.transaction(session) as transaction:
            await handle(transaction, session)

    async with AsyncSession(engine) as session:
        with pytest.raises(TransactionAborted, match="leave its end to the block"):
            await business(session)
    assert await store.pending(dict.fromkeys(range(64), 0), limit=10) == []
    await store.close()
    await engine.dispose()
