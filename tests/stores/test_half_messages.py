"""Half messages on each database: a block that ended well, and whose barrier is gone, is told so; each connection is compared."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.databases.postgres import USER
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import OutboxStore, Prepared, RowState, TransactionOutcome, Wait
from ackwise.plugin.outbox.checkback import CheckBack
from ackwise.plugin.outbox.halfmessages import LocalTransaction
from ackwise.plugin.outbox.transactionalproducer import TransactionalProducer
from ackwise.plugin.registry import open_outbox
from ackwise.stores.sqlalchemy import SQLAlchemyOutbox
from ackwise.testing import MemoryKafka

PAID = Outgoing("paid", b"42")


class Shop(NamedTuple):
    """A database with accounts, through one driver."""

    outbox_url: str
    url: str
    connect: Callable[[], AbstractAsyncContextManager[Any]]
    run: Callable[[Any, str], Awaitable[Any]]
    fails: Callable[[Any], Awaitable[None]]
    """Executes what undoes the whole transaction, and catches its error."""
    elsewhere: Callable[[Any], Awaitable[Any]]
    """Returns a connection that leads to a database of another outbox."""


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def on_asyncpg(postgres_url: str) -> Shop:
    async def fails(connection: Any) -> None:
        with suppress(Exception):
            await connection.execute("SELECT * FROM nowhere")

    async def elsewhere(connection: Any) -> Any:
        """The same connection, which has turned to another schema."""
        async with _opened(f"{postgres_url}?schema=other"):
            await connection.execute("SET search_path TO other")
        return connection

    return Shop(postgres_url, postgres_url, lambda: connection_to(postgres_url), lambda to, sql: to.execute(sql), fails, elsewhere)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[OutboxStore]:
    outbox = open_outbox(url)
    await outbox.open()
    try:
        yield outbox
    finally:
        await outbox.close()


async def run_on_mariadb(connection: Any, statement: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(statement)


@pytest.fixture
async def on_asyncmy(mysql: MySQLDatabase) -> AsyncIterator[Shop]:
    await mysql.fetch("CREATE TABLE locks (number INT PRIMARY KEY)")
    await mysql.fetch("INSERT INTO locks VALUES (1), (2), (3), (4), (5)")

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with mysql.connected() as connection:
            await connection.autocommit(False)
            yield connection

    async def deadlock(connection: Any) -> None:
        async with mysql.connected() as other:
            await other.begin()
            await run_on_mariadb(other, "DELETE FROM locks WHERE number > 1")
            await run_on_mariadb(connection, "DELETE FROM locks WHERE number = 1")
            waits = asyncio.create_task(run_on_mariadb(other, "DELETE FROM locks WHERE number = 1"))
            while not await mysql.fetch("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"):  # noqa: ASYNC110  # the server's state
                await asyncio.sleep(0.12)  # the view is made again once nobody has looked at it for a tenth of a second
            with pytest.raises(Exception, match="Deadlock"):
                await run_on_mariadb(connection, "DELETE FROM locks WHERE number = 5")
            await waits
            await other.rollback()

    async def elsewhere(connection: Any) -> Any:
        """The same connection, which has turned to another database."""
        await run_on_mariadb(connection, f"CREATE DATABASE {mysql.name}_2")
        async with _opened(f"{mysql.url}_2"):
            await run_on_mariadb(connection, f"USE {mysql.name}_2")
        return connection

    yield Shop(mysql.url, mysql.url, connect, run_on_mariadb, deadlock, elsewhere)
    await mysql.fetch(f"DROP DATABASE IF EXISTS {mysql.name}_2")


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Shop]:
    path, stack = tmp_path / "shop.db", AsyncExitStack()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            yield connection

    async def run(connection: Any, statement: str) -> None:
        connection.execute(statement)

    async def fails(connection: Any) -> None:
        with suppress(sqlite3.Error):
            connection.execute("INSERT OR ROLLBACK INTO effects VALUES (NULL)")
        connection.execute("BEGIN")

    async def elsewhere(connection: Any) -> Any:
        async with _opened(f"sqlite:///{tmp_path}/other.db"):
            return stack.enter_context(closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)))

    yield Shop(f"sqlite:///{tmp_path}/half.db", f"sqlite:///{path}", connect, run, fails, elsewhere)
    await stack.aclose()


SHOPS = [
    pytest.param("on_sqlite", id="sqlite"),
    pytest.param("on_asyncpg", id="postgres", marks=pytest.mark.servers),
    pytest.param("on_asyncmy", id="mariadb", marks=pytest.mark.servers),
]


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    chosen: Shop = request.getfixturevalue(request.param)
    return chosen


@asynccontextmanager
async def producing(shop: Shop) -> AsyncIterator[TransactionalProducer]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("paid")
        business = None if shop.url == shop.outbox_url else shop.url
        async with TransactionalProducer("orders", shop.outbox_url, business=business, brokers=kafka.bootstrap) as producer:
            async with shop.connect() as connection:
                await shop.run(connection, "CREATE TABLE effects (effect VARCHAR(60) NOT NULL)")
            yield producer
    assert kafka.records("paid") == []


async def states(shop: Shop) -> list[int]:
    async with _opened(shop.outbox_url) as outbox:
        store: Any = outbox
        return [int(row[0]) for row in await store._run(lambda: store._sql.read(store._sql.say("SELECT state FROM {rows}")))]


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_a_barrier_in_a_savepoint_that_was_rolled_back_is_an_error(shop: Shop) -> None:
    async def local(tx: LocalTransaction) -> None:
        async with shop.connect() as connection:
            for statement in ("BEGIN", "SAVEPOINT mine"):
                await shop.run(connection, statement)
            await tx.barrier(connection)
            for statement in ("ROLLBACK TO SAVEPOINT mine", "INSERT INTO effects VALUES ('paid')", "COMMIT"):
                await shop.run(connection, statement)

    async with producing(shop) as producer:
        with pytest.raises(TransactionAborted, match=r"its database says that it was rolled back: its messages are not sent"):
            await producer.send_in_transaction(PAID, local)
    assert await states(shop) == [RowState.LOCAL_ROLLBACK]


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
@pytest.mark.parametrize("told", [None, TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
async def test_an_error_that_was_caught_and_undid_the_transaction_is_an_error_of_the_block(
    shop: Shop, told: TransactionOutcome | None
) -> None:
    async def local(tx: LocalTransaction) -> TransactionOutcome | None:
        async with shop.connect() as connection:
            await shop.run(connection, "BEGIN")
            await tx.barrier(connection)
            await shop.fails(connection)
            with suppress(Exception):  # PostgreSQL takes nothing more
                await shop.run(connection, "INSERT INTO effects VALUES ('paid')")
            await shop.run(connection, "COMMIT")
        return told

    async with producing(shop) as producer:
        if told is TransactionOutcome.ROLLBACK:
            assert await producer.send_in_transaction(PAID, local) is TransactionOutcome.ROLLBACK
        else:
            with pytest.raises(TransactionAborted, match=r"An error that undoes all of it was caught inside"):
                await producer.send_in_transaction(PAID, local)
    assert await states(shop) == [RowState.LOCAL_ROLLBACK]


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_a_later_connection_to_another_database_is_refused(shop: Shop) -> None:
    async with producing(shop) as producer, shop.connect() as connection:
        async with producer.prepare(PAID) as tx:
            await shop.run(connection, "BEGIN")
            await tx.barrier(connection)
            await shop.run(connection, "ROLLBACK")
            tx.rollback()
        other = await shop.elsewhere(connection)
        with pytest.raises(ConfigurationError, match="leads to another database than that of the TransactionalProducer"):  # noqa: PT012  # the block is what is tried
            async with producer.prepare(PAID) as tx:
                await shop.run(other, "BEGIN")
                await tx.barrier(other)
        await shop.run(other, "ROLLBACK")
    assert await states(shop) == [RowState.LOCAL_ROLLBACK] * 2


@pytest.mark.parametrize("shop", SHOPS, indirect=True)
async def test_two_instances_are_given_different_contents_and_the_first_is_sent_whoever_asks(shop: Shop) -> None:
    """Both ask at once: the lease of the first is over before its callback has answered."""
    second_asks, first_answers = asyncio.Event(), asyncio.Event()

    async def slow(half: Prepared) -> bytes:
        second_asks.set()
        await first_answers.wait()
        return b"late"

    async def quick(half: Prepared) -> Outgoing | Wait:
        return Outgoing("paid", b"first" * 10_000, half.message.key, (("h", b"1"),))

    async with _opened(shop.outbox_url) as outbox, _opened(shop.outbox_url) as other:
        await outbox.prepare([Outgoing("bills", None, b"42", message_id="half")], "tx", producer_group="orders", first_check=0.0)
        impatient: Any = _Impatient(outbox)
        looks = [CheckBack(impatient, producer_group="orders", check=slow), CheckBack(other, producer_group="orders", check=quick)]
        looking = asyncio.create_task(looks[0].look())
        await second_asks.wait()
        assert await looks[1].look() == 1
        first_answers.set()
        await looking
        assert [each.counts.committed for each in looks] == [0, 1]
        assert await outbox.decide("tx", TransactionOutcome.COMMIT) == 0
        (row,) = await outbox.pending(dict.fromkeys(range(64), 0), limit=10)
        assert row.message == Outgoing("paid", b"first" * 10_000, b"42", (("h", b"1"),), message_id="half")


class _Impatient:
    """An outbox whose half messages are due again at once."""

    def __init__(self, store: OutboxStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        return await self._store.due_checks(producer_group, limit=limit, lease=0.0)


@pytest.mark.servers
async def test_sessions_are_compared_and_believed_no_more_than_connections(postgres_url: str, on_asyncpg: Shop) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql", "postgresql+psycopg"))
    wrong = create_async_engine(f"postgresql+psycopg://{USER}@{postgres_url.rpartition('@')[2].partition('/')[0]}/postgres")
    async with producing(on_asyncpg) as producer:
        producer._half_messages._barriers._store = _Sessions(producer._outbox)  # type: ignore[union-attr]

        async def pay(engine: Any) -> None:
            async with producer.prepare(PAID) as tx, AsyncSession(engine) as session, session.begin():
                with suppress(ZeroDivisionError):
                    async with session.begin_nested():
                        await tx.barrier(session)
                        raise ZeroDivisionError
                await session.execute(text("INSERT INTO effects VALUES ('paid')"))

        with pytest.raises(TransactionAborted, match="its database says that it was rolled back"):
            await pay(engine)
        async with _opened(f"postgresql://{USER}@{postgres_url.rpartition('@')[2].partition('/')[0]}/postgres"):
            with pytest.raises(ConfigurationError, match="another database"):
                await pay(wrong)
    await engine.dispose()
    await wrong.dispose()


class _Sessions:
    """The barriers of an outbox, through sessions."""

    def __init__(self, store: OutboxStore) -> None:
        self._store, self._sessions = store, SQLAlchemyOutbox(store)
        self.barrier, self.probe = self._sessions.barrier, store.probe

    async def database_id(self, session: Any = None) -> str:
        return await (self._store.database_id() if session is None else self._sessions.database_id(session))
