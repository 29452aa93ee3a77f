"""A block that ended well has committed all of it, and one that raised has left nothing, whatever error was caught inside.

Such an error undoes the whole transaction on PostgreSQL, on MariaDB if it is a deadlock, and on SQLite if it is of `OR ROLLBACK`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from tests.stores.batches import consume, keys, opened
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.stores.mysql.outbox import MySQLOutbox
from ackwise.stores.postgres.driver import AsyncpgRunner
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.sqlalchemy import SQLAlchemyInbox, SQLAlchemyOutbox
from ackwise.stores.sqlite.outbox import SQLiteOutbox

Ask = Callable[[str], Awaitable[list[Any]]]


class Driver(NamedTuple):
    """An outbox, and how its business works with a connection."""

    outbox: Any
    connect: Callable[[], AbstractAsyncContextManager[Any]]
    run: Callable[[Any, str], Awaitable[object]]
    begin: Callable[[Any], AbstractAsyncContextManager[Any]]
    savepoint: Callable[[Any], AbstractAsyncContextManager[Any]]


Fails = Callable[[Driver, Any], Awaitable[object]]


@asynccontextmanager
async def own(driver: Driver, connection: Any) -> AsyncIterator[Any]:
    async with driver.outbox.transaction(connection) as block:
        yield block


@asynccontextmanager
async def joined(driver: Driver, connection: Any) -> AsyncIterator[Any]:
    async with driver.begin(connection):
        await driver.run(connection, "SELECT 1")
        async with driver.outbox.transaction(connection) as block:
            yield block


@asynccontextmanager
async def nested(driver: Driver, connection: Any) -> AsyncIterator[Any]:
    async with driver.outbox.transaction(connection), driver.outbox.transaction(connection) as block:
        yield block


class Plan(NamedTuple):
    """What surrounds the error."""

    sends_before: bool = False
    flushes: bool = False
    writes_after: bool = False
    sends_after: bool = False
    fails_in_savepoint: bool = False
    goes_on_in_savepoint: bool = False


PLANS = [
    Plan(),
    Plan(sends_before=True),
    Plan(sends_before=True, flushes=True),
    Plan(sends_before=True, flushes=True, writes_after=True, sends_after=True),
    Plan(writes_after=True),
    Plan(sends_before=True, flushes=True, writes_after=True, sends_after=True, fails_in_savepoint=True),
    Plan(writes_after=True, goes_on_in_savepoint=True),
    Plan(sends_before=True, flushes=True, writes_after=True, sends_after=True, goes_on_in_savepoint=True),
]


async def business(driver: Driver, owner: Any, plan: Plan, fails: Fails) -> None:
    async with driver.connect() as connection, owner(driver, connection) as block:
        await driver.run(connection, "INSERT INTO effects VALUES ('before')")
        if plan.sends_before:
            block.send("orders", b"before")
        if plan.flushes:
            await block.flush()
        with suppress(Exception):
            async with driver.savepoint(connection) if plan.fails_in_savepoint else nullcontext():
                await fails(driver, connection)
        if plan.writes_after:
            with suppress(Exception):
                async with driver.savepoint(connection) if plan.goes_on_in_savepoint else nullcontext():
                    await driver.run(connection, "INSERT INTO effects VALUES ('after')")
        if plan.sends_after:
            block.send("orders", b"after")


async def wrong(driver: Driver, fails: Fails, ask: Ask, *, owners: Any = (own, joined, nested), plans: list[Plan] = PLANS) -> list[str]:
    """Return what was not all or nothing."""
    found = []
    for owner in owners:
        for plan in plans:
            expected = 1 + plan.writes_after, plan.sends_before + plan.sends_after
            try:
                await business(driver, owner, plan, fails)
            except Exception:  # noqa: BLE001  # ours, or that of a statement that is refused
                expected = 0, 0
            ((effects,),) = await ask("SELECT count(*) FROM effects WHERE effect <> 'there'")
            ((rows,),) = await ask("SELECT count(*) FROM ackwise_outbox")
            if (effects, rows) != expected:
                found.append(f"{owner.__name__} {plan}: {effects, rows}, not {expected}")
            await ask("DELETE FROM effects WHERE effect <> 'there'")
            await ask("DELETE FROM ackwise_outbox")
    return found


async def duplicate(driver: Driver, connection: Any) -> None:
    await driver.run(connection, "INSERT INTO effects VALUES ('there')")


async def nonsense(driver: Driver, connection: Any) -> None:
    await driver.run(connection, "SELECT * FROM nowhere")


@asynccontextmanager
async def session_on(url: str, *, begins: bool = False, **options: Any) -> AsyncIterator[AsyncSession]:
    """A session. `begins`: SQLAlchemy's recipe for SQLite, with which it starts transactions in place of sqlite3."""
    engine = create_async_engine(url, **options)
    if begins:
        event.listen(engine.sync_engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


async def execute(session: AsyncSession, statement: str) -> None:
    await session.execute(text(statement))


def sqlalchemy(url: str, **options: Any) -> Driver:
    return Driver(SQLAlchemyOutbox(), partial(session_on, url, **options), execute, AsyncSession.begin, AsyncSession.begin_nested)


# PostgreSQL


@pytest.fixture
async def shop(postgres_url: str, postgres_database: asyncpg.Connection) -> str:
    await postgres_database.execute("CREATE TABLE effects (effect text PRIMARY KEY); INSERT INTO effects VALUES ('there')")
    await PostgresOutbox(postgres_url).init()
    return postgres_url


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield connection


def of_postgres(name: str, url: str) -> Driver:
    if name.startswith("+"):
        return sqlalchemy(url.replace("postgresql", "postgresql" + name))
    connect = partial(pooled if name == "pool" else connection_to, url)
    return Driver(
        PostgresOutbox(url), connect, lambda to, statement: to.execute(statement), lambda to: to.transaction(), lambda to: to.transaction()
    )


@pytest.mark.servers
@pytest.mark.parametrize("fails", [nonsense, duplicate])
@pytest.mark.parametrize("driver", ["asyncpg", "pool", "+asyncpg", "+psycopg"])
async def test_postgres_a_block_is_all_or_nothing(shop: str, postgres_database: asyncpg.Connection, driver: str, fails: Fails) -> None:
    assert await wrong(of_postgres(driver, shop), fails, postgres_database.fetch) == []


@pytest.mark.servers
async def test_postgres_a_commit_that_the_server_answers_with_rollback_is_an_error(
    shop: str, postgres_database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = AsyncpgRunner.send

    async def send_and_fail(self: AsyncpgRunner, packet: Any) -> Any:
        answers = await send(self, packet)
        with suppress(asyncpg.PostgresError):
            await self._connection.execute("SELECT * FROM nowhere")  # after the proof
        return answers

    monkeypatch.setattr(AsyncpgRunner, "send", send_and_fail)
    outbox = PostgresOutbox(shop)
    with pytest.raises(TransactionAborted, match="an error of PostgreSQL was caught"):
        async with outbox.transaction(postgres_database):
            await postgres_database.execute("INSERT INTO effects VALUES ('before')")
    assert not postgres_database.is_in_transaction()
    assert await postgres_database.fetchval("SELECT count(*) FROM effects") == 1
    monkeypatch.undo()
    async with outbox.transaction(postgres_database):
        outbox.send("orders", b"1")
    assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_outbox") == 1


@pytest.mark.servers
@pytest.mark.parametrize("flushes", [False, True])
async def test_postgres_a_commit_inside_of_a_block_that_is_broken_is_an_error(
    shop: str, postgres_database: asyncpg.Connection, flushes: bool
) -> None:
    outbox = PostgresOutbox(shop)
    with pytest.raises(TransactionAborted, match="an error of PostgreSQL was caught"):  # noqa: PT012  # the block is what is tried
        async with outbox.transaction(postgres_database) as block:
            if flushes:
                block.send("orders", b"1")
                await block.flush()
            with suppress(asyncpg.PostgresError):
                await postgres_database.execute("SELECT * FROM nowhere")
            await postgres_database.execute("COMMIT")
    assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_outbox") == 0


@pytest.mark.servers
@pytest.mark.parametrize("driver", ["+asyncpg", "+psycopg"])
async def test_postgres_a_listener_that_breaks_the_transaction_before_the_commit_is_found_out(
    shop: str, postgres_database: asyncpg.Connection, driver: str
) -> None:
    way = of_postgres(driver, shop)

    def audit(session: Any) -> None:
        with suppress(Exception):
            if not session.in_nested_transaction():  # the savepoint of the block is released before
                session.connection().exec_driver_sql("SELECT * FROM nowhere")

    async with way.connect() as session:
        event.listen(session.sync_session, "before_commit", audit)
        with pytest.raises(TransactionAborted, match="an error of PostgreSQL was caught"):  # noqa: PT012  # the block is what is tried
            async with way.outbox.transaction(session) as block:
                await execute(session, "INSERT INTO effects VALUES ('before')")
                block.send("orders", b"1")
                await block.flush()
    assert await postgres_database.fetchval("SELECT string_agg(effect, ',') FROM effects") == "there"
    assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_outbox") == 0


# MariaDB


async def run_on_mariadb(connection: Any, statement: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(statement)


@asynccontextmanager
async def ended_by(run: Callable[[Any, str], Awaitable[object]], begin: str, undo: str, end: str, connection: Any) -> AsyncIterator[None]:
    """What is between statements that start and end it."""
    await run(connection, begin)
    try:
        yield
    except BaseException:
        await run(connection, undo)
        raise
    await run(connection, end)


SAVEPOINT = ("SAVEPOINT mine", "ROLLBACK TO SAVEPOINT mine", "RELEASE SAVEPOINT mine")


async def procedure(driver: Driver, connection: Any) -> None:
    await driver.run(connection, "CALL takes_back()")


def deadlock_in(shop: MySQLDatabase) -> Fails:
    async def deadlock(driver: Driver, connection: Any) -> None:
        async with shop.connected() as other:
            await other.begin()
            await run_on_mariadb(other, "DELETE FROM locks WHERE number > 1")
            await driver.run(connection, "DELETE FROM locks WHERE number = 1")
            waits = asyncio.create_task(run_on_mariadb(other, "DELETE FROM locks WHERE number = 1"))
            while not await shop.fetch("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"):  # noqa: ASYNC110  # the server's state
                await asyncio.sleep(0.12)  # the view is made again once nobody has looked at it for a tenth of a second
            try:
                await driver.run(connection, "DELETE FROM locks WHERE number = 5")
            finally:
                await waits
                await other.rollback()

    return deadlock


@pytest.mark.servers
@pytest.mark.parametrize("fails", ["deadlock", "procedure", "duplicate"])
@pytest.mark.parametrize("driver", ["autocommit", "asyncmy", "+asyncmy"])
async def test_mariadb_a_block_is_all_or_nothing(mysql: MySQLDatabase, driver: str, fails: str) -> None:
    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60) PRIMARY KEY)")
    await mysql.fetch("INSERT INTO effects VALUES ('there')")
    await mysql.fetch("CREATE TABLE locks (number INT PRIMARY KEY)")
    await mysql.fetch("INSERT INTO locks VALUES (1), (2), (3), (4), (5)")
    await mysql.fetch("CREATE PROCEDURE takes_back() BEGIN ROLLBACK; SIGNAL SQLSTATE '45000'; END")
    outbox = MySQLOutbox(mysql.url)
    await outbox.init()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with mysql.connected() as connection:
            await connection.autocommit(driver == "autocommit")
            yield connection

    begin, savepoint = partial(ended_by, run_on_mariadb, "BEGIN", "ROLLBACK", "COMMIT"), partial(ended_by, run_on_mariadb, *SAVEPOINT)
    way = Driver(outbox, connect, run_on_mariadb, begin, savepoint)
    if driver == "+asyncmy":
        way = sqlalchemy(mysql.url.replace("mariadb://", "mysql+asyncmy://"))
    failing: dict[str, Fails] = {"deadlock": deadlock_in(mysql), "procedure": procedure, "duplicate": duplicate}
    plans = PLANS[2:5] if fails == "deadlock" else PLANS
    assert await wrong(way, failing[fails], mysql.fetch, plans=plans) == []


@pytest.mark.servers
async def test_a_session_in_autocommit_is_refused_before_anything_is_written(mysql: MySQLDatabase, shop: str) -> None:
    await MySQLOutbox(mysql.url).init()
    for url in (mysql.url.replace("mariadb://", "mysql+asyncmy://"), shop.replace("postgresql", "postgresql+asyncpg")):
        outbox = SQLAlchemyOutbox()
        async with session_on(url, isolation_level="AUTOCOMMIT") as session:
            with pytest.raises(ConfigurationError, match="its engine is in autocommit; give the sessions one that is not"):
                async with outbox.transaction(session):
                    pytest.fail("it has started")
            writer = outbox.writer(session)
            writer.send("orders", b"1")
            for write in (writer.flush, partial(outbox.barrier, session, "tx")):
                async with session.begin() if not session.in_transaction() else nullcontext():
                    with pytest.raises(ConfigurationError, match="its engine is in autocommit"):
                        await write()


# SQLite


class File:
    """A file with a table of effects and an outbox."""

    def __init__(self, path: Path) -> None:
        self.path, self.outbox = path, SQLiteOutbox(path)
        self.url = f"sqlite+aiosqlite:///{path}"

    async def ask(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            return connection.execute(statement).fetchall()

    @asynccontextmanager
    async def connect(self, isolation_level: Any) -> AsyncIterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, isolation_level=isolation_level)) as connection:
            yield connection


@pytest.fixture
async def file(tmp_path: Path) -> File:
    file = File(tmp_path / "shop.db")
    await file.outbox.init()
    await file.ask("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
    await file.ask("INSERT INTO effects VALUES ('there')")
    await file.ask("CREATE TABLE refused (name TEXT)")
    await file.ask("CREATE TRIGGER refuses BEFORE INSERT ON refused BEGIN SELECT RAISE(ROLLBACK, 'not that'); END")
    return file


async def or_rollback(driver: Driver, connection: Any) -> None:
    await driver.run(connection, "INSERT OR ROLLBACK INTO effects VALUES ('there')")


async def raising_trigger(driver: Driver, connection: Any) -> None:
    await driver.run(connection, "INSERT INTO refused VALUES ('x')")


async def run_on_sqlite(connection: sqlite3.Connection, statement: str) -> None:
    connection.execute(statement)


def of_sqlite(name: str, file: File) -> Driver:
    if name.startswith("+"):
        return sqlalchemy(file.url, begins=name == "+begins")
    begin = partial(ended_by, run_on_sqlite, "BEGIN IMMEDIATE", "ROLLBACK", "COMMIT")
    connect = partial(file.connect, None if name == "autocommit" else "")
    return Driver(file.outbox, connect, run_on_sqlite, begin, partial(ended_by, run_on_sqlite, *SAVEPOINT))


@pytest.mark.parametrize("fails", [or_rollback, raising_trigger, duplicate])
@pytest.mark.parametrize("driver", ["autocommit", "sqlite3", "+aiosqlite", "+begins"])
async def test_sqlite_a_block_is_all_or_nothing(file: File, driver: str, fails: Fails) -> None:
    assert await wrong(of_sqlite(driver, file), fails, file.ask) == []


async def test_sqlite_a_session_that_lost_its_transaction_writes_neither_rows_nor_a_barrier_by_themselves(file: File) -> None:
    way = of_sqlite("+begins", file)
    async with way.connect() as session, session.begin():
        writer = way.outbox.writer(session)
        writer.send("orders", b"1")
        with suppress(Exception):
            await or_rollback(way, session)
        with pytest.raises(TransactionAborted):
            await writer.flush()
        with pytest.raises(Exception, match="no transaction open"):
            await way.outbox.barrier(session, "tx")
    assert await file.ask("SELECT * FROM ackwise_outbox") == await file.ask("SELECT * FROM ackwise_outbox_barrier") == []


@pytest.mark.parametrize("in_savepoint", [False, True])
async def test_sqlite_a_handler_in_a_session_that_lost_its_transaction_writes_nothing_by_itself(file: File, in_savepoint: bool) -> None:
    async def handle(session: AsyncSession) -> None:
        with suppress(Exception):
            await execute(session, "INSERT OR ROLLBACK INTO effects VALUES ('there')")
        async with session.begin_nested() if in_savepoint else nullcontext():
            await execute(session, "INSERT INTO effects VALUES ('after')")

    async with session_on(file.url, begins=True) as session, opened(SQLAlchemyInbox(async_sessionmaker(session.bind))) as inbox:
        with pytest.raises(TransactionAborted):
            await consume(inbox, keys(1), handle)
    assert await file.ask("SELECT effect FROM effects") == [("there",)]
