"""The SQLAlchemy inbox passes the suite of every inbox on each database, and tells what a handler did to its session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tests.databases.proxy import proxy_to
from tests.shared import SharedServer
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.stores.conformance.inbox import InboxConformance
from ackwise.stores.sqlalchemy import SQLAlchemyInbox

HERE = ("orders", 3, 17)


class Base(DeclarativeBase):
    """The tables of the handlers."""


class Parent(Base):
    __tablename__ = "parents"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)


class Child(Base):
    __tablename__ = "children"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    parent: Mapped[str] = mapped_column(ForeignKey("parents.name", deferrable=True, initially="DEFERRED"))


class OnSQLAlchemy(InboxConformance):
    """`url` is set by a fixture; engines are of one loop, that of the scene, and end with it."""

    url: str

    def make(self, place: Path) -> TransactionalStore:
        return Disposing(self.engine(place))

    def engine(self, place: Path) -> AsyncEngine:
        return create_async_engine(self.url)

    async def prepare(self, place: Path) -> None:
        self.table = f"effects_{os.urandom(6).hex()}"
        await self.past(place, f"CREATE TABLE {self.table} (effect VARCHAR(60) PRIMARY KEY)")

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(text(f"INSERT INTO {self.table} VALUES (:effect)"), {"effect": effect})

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self.past(place, f"SELECT effect FROM {self.table}")]

    async def commit(self, connection: Any) -> None:
        await connection.commit()

    async def past(self, place: Path, statement: str) -> list[Any]:
        engine = self.engine(place)
        async with engine.begin() as connection:
            result = await connection.execute(text(statement))
            found = list(result) if result.returns_rows else []
        await engine.dispose()
        return found


class Disposing(SQLAlchemyInbox):
    """Ends its engine when it is closed."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(async_sessionmaker(engine))
        self._engine = engine

    async def close(self) -> None:
        await super().close()
        await self._engine.dispose()


@pytest.mark.slow  # waits for retentions that pass in real time
class TestOnSQLite(OnSQLAlchemy):
    def engine(self, place: Path) -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{place / 'shop.db'}")


@pytest.mark.nightly
class TestOnSQLiteThatBeginsByItself(OnSQLAlchemy):
    """With the recipe of SQLAlchemy's documentation, which lets SQLAlchemy start instead of the driver."""

    def engine(self, place: Path) -> AsyncEngine:
        engine = create_async_engine(f"sqlite+aiosqlite:///{place / 'shop.db'}")

        @event.listens_for(engine.sync_engine, "connect")
        def leave_it_to_us(connection: Any, _: object) -> None:
            connection.isolation_level = None

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

        return engine


@pytest.mark.nightly
class TestOnPostgres(OnSQLAlchemy):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.url = f"postgresql+asyncpg://postgres@127.0.0.1:{postgres.port}/postgres"


@pytest.mark.nightly
class TestOnPsycopg(OnSQLAlchemy):
    """The statements of asyncpg, as psycopg wants them written."""

    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{postgres.port}/postgres"


@pytest.mark.nightly
class TestOnMariaDB(OnSQLAlchemy):
    @pytest.fixture(autouse=True)
    def _on(self, mariadb: SharedServer) -> None:
        self.url = f"mysql+asyncmy://root@127.0.0.1:{mariadb.port}/test"


def keys(count: int) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), None, 1) for _ in range(count)]


async def consume(
    inbox: SQLAlchemyInbox, asked: list[ClaimKey], handle: Callable[[AsyncSession], Awaitable[object]] | None = None
) -> list[TransactionAnswer]:
    """One batch: claim, call `handle` with the session, finish what was taken."""
    async with inbox.begin(retention=60.0) as transaction:
        answers = await transaction.claim(asked)
        if handle is not None:
            await handle(transaction.connection)
        taken = [key for key, answer in zip(asked, answers, strict=True) if answer == Taken()]
        await transaction.finish([Finish(key, HERE, 7, Outcome.OK, 1) for key in taken])
    return answers


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    """On PostgreSQL, with the tables of the handlers."""
    engine = create_async_engine(postgres_url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=2, max_overflow=0)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


@pytest.fixture
async def inbox(engine: AsyncEngine) -> SQLAlchemyInbox:
    inbox = SQLAlchemyInbox(async_sessionmaker(engine), timeout=2.0)
    await inbox.open()
    return inbox


async def names(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list(await connection.scalars(text("SELECT name FROM parents ORDER BY name")))


async def add(session: AsyncSession) -> None:
    session.add(Parent(name="a"))


async def test_what_a_handler_adds_is_flushed_and_committed_with_the_keys(inbox: SQLAlchemyInbox, engine: AsyncEngine) -> None:
    asked = keys(3)
    assert await consume(inbox, asked, add) == [Taken()] * 3
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 3
    assert await names(engine) == ["a"]


async def end_by_itself(session: AsyncSession) -> None:
    session.add(Parent(name="b"))
    await session.rollback()
    session.add(Parent(name="c"))


async def end_by_hand(session: AsyncSession) -> None:
    await session.execute(text("ROLLBACK"))
    await session.execute(text("BEGIN"))


async def swallow(session: AsyncSession) -> None:
    with suppress(DBAPIError):
        await session.execute(text("SELECT * FROM nowhere"))


async def add_twice(session: AsyncSession) -> None:
    session.add_all([Parent(name="d"), Child(name="x", parent="d"), Child(name="x", parent="d")])


async def swallow_a_flush(session: AsyncSession) -> None:
    session.add_all([Parent(name="a"), Parent(name="a")])
    with suppress(IntegrityError):
        await session.flush()


async def add_an_orphan(session: AsyncSession) -> None:
    session.add(Child(name="x", parent="nobody"))


@pytest.mark.filterwarnings("ignore:New instance:sqlalchemy.exc.SAWarning")
async def test_a_handler_that_ends_or_breaks_its_transaction_is_found_out_and_nothing_is_marked(
    inbox: SQLAlchemyInbox, engine: AsyncEngine
) -> None:
    for handle, why in [
        (end_by_itself, "the handler ended the transaction"),
        (end_by_hand, "the handler ended the transaction"),
        (swallow, "the handler caught an error of PostgreSQL and went on"),
        (add_twice, "the database refuses to flush what the handler wrote: .*duplicate key"),
        (swallow_a_flush, "the handler ended the transaction|left its session in the middle of an error"),
        (add_an_orphan, "the database refuses to commit what the handler wrote: .*foreign key"),
    ]:
        with case(handle, why):
            asked = keys(3)
            with pytest.raises(TransactionAborted, match=why):
                await consume(inbox, asked, handle)
            assert await names(engine) == []
            assert await consume(inbox, asked) == [Taken()] * 3


async def test_a_savepoint_of_the_handler_holds_what_may_fail(inbox: SQLAlchemyInbox, engine: AsyncEngine) -> None:
    async def handle(session: AsyncSession) -> None:
        with suppress(DBAPIError):
            async with session.begin_nested():
                await session.execute(text("SELECT * FROM nowhere"))
        session.add(Parent(name="a"))

    assert await consume(inbox, keys(1), handle) == [Taken()]
    assert await names(engine) == ["a"]


@pytest.mark.parametrize("step", ["finish", "commit", "committed"])
async def test_a_connection_that_is_cut_leaves_all_or_nothing_and_the_next_batch_tells(
    engine: AsyncEngine, postgres: SharedServer, postgres_url: str, step: str
) -> None:
    async with proxy_to(postgres.port) as proxy:
        far = create_async_engine(f"postgresql+asyncpg://postgres@127.0.0.1:{proxy.port}/{postgres_url.rpartition('/')[2]}")
        inbox = SQLAlchemyInbox(async_sessionmaker(far), timeout=2.0)
        await inbox.open()
        asked = keys(3)

        async def batch() -> None:
            async with inbox.begin(retention=60.0) as transaction:
                await transaction.claim(asked)
                await add(transaction.connection)
                if step == "finish":
                    proxy.cut()
                await transaction.finish([Finish(key, HERE, 7, Outcome.OK, 1) for key in asked])
                if step == "commit":
                    proxy.cut()
                elif step == "committed":
                    proxy.cut_after = lambda said: b"COMMIT\0" in said

        with pytest.raises(StoreUnavailable):
            await batch()
        proxy.cut_after = None
        came_through = step == "committed"
        assert await names(engine) == (["a"] if came_through else [])
        with suppress(StoreUnavailable):
            await consume(inbox, [])  # a pool without pre-ping finds out by trying
        assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7) if came_through else Taken()] * 3
        await far.dispose()


async def test_a_key_that_is_held_for_too_long_makes_the_inbox_unavailable(engine: AsyncEngine, inbox: SQLAlchemyInbox) -> None:
    hasty = SQLAlchemyInbox(async_sessionmaker(engine), timeout=0.3)
    await hasty.open()
    asked = keys(1)
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim(asked)
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.3 s; another transaction may hold a key of this batch"):
            await consume(hasty, asked)
    assert await consume(hasty, asked) == [Taken()]


async def test_the_table_is_made_once_cleaned_and_refused_if_it_is_newer(engine: AsyncEngine) -> None:
    inbox = SQLAlchemyInbox(async_sessionmaker(engine))
    missing = "the database of the SQLAlchemy inbox: the table of the inbox is missing"
    assert await inbox.check() == [f"{missing}; run `ackwise store init URL`"]
    with pytest.raises(ConfigurationError, match=missing):
        await inbox.cleanup()
    await asyncio.gather(inbox.init(), SQLAlchemyInbox(async_sessionmaker(engine)).init())
    await inbox.open()
    old, new = keys(1100), keys(10)
    await consume(inbox, old)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE ackwise_inbox SET kept_until = kept_until - interval '61 s'"))
    await consume(inbox, new)
    assert (await inbox.check(), await inbox.cleanup(), await inbox.cleanup()) == ([], 1100, 0)
    assert await consume(inbox, new) == [Finished(Outcome.OK, HERE, 7)] * 10
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE ackwise_schema SET version = 9"))
    refused: list[Callable[[], Awaitable[object]]] = [
        SQLAlchemyInbox(async_sessionmaker(engine)).open,
        inbox.init,
        inbox.check,
        inbox.cleanup,
    ]
    for act in refused:
        with pytest.raises(ConfigurationError, match="has version 9, and this Ackwise knows version 4 alone"):
            await act()


async def test_a_database_that_is_away_is_unavailable() -> None:
    away = create_async_engine("postgresql+asyncpg://me:hunter2@127.0.0.1:1/shop")
    with pytest.raises(StoreUnavailable, match="can't be reached") as raised:
        await SQLAlchemyInbox(async_sessionmaker(away)).open()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"timeout is 0\.0"):
        SQLAlchemyInbox(async_sessionmaker(away), timeout=0.0)
