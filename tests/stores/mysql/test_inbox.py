"""The MySQL inbox passes the suite of every inbox on MariaDB, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncmy
import pytest
from asyncmy.errors import MySQLError
from tests.databases.server import Server
from tests.shared import SharedServer
from tests.stores.mysql.database import MySQLDatabase, mysql_database
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.stores.conformance.inbox import OffsetsConformance
from ackwise.stores.mysql.inbox import MySQLInbox

HERE = ("orders", 3, 17)


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_mariadb


class TestMySQLInbox(OffsetsConformance):
    @pytest.fixture(autouse=True)
    def _on(self, mariadb: SharedServer) -> None:
        self.database = MySQLDatabase(mariadb, "test")

    def make(self, place: Path) -> TransactionalStore:
        return MySQLInbox(self.database.url)

    async def prepare(self, place: Path) -> None:
        self.table = f"effects_{os.urandom(6).hex()}"
        await self.database.fetch(f"CREATE TABLE {self.table} (effect VARCHAR(60) PRIMARY KEY)")

    async def write(self, connection: Any, effect: str) -> None:
        await execute(connection, f"INSERT INTO {self.table} VALUES ('{effect}')")

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self.database.fetch(f"SELECT effect FROM {self.table}")]

    async def commit(self, connection: Any) -> None:
        await connection.commit()


async def execute(connection: Any, *statements: str) -> None:
    async with connection.cursor() as cursor:
        for statement in statements:
            await cursor.execute(statement)


def keys(count: int) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), None, 1) for _ in range(count)]


def done(asked: Sequence[ClaimKey]) -> list[Finish]:
    return [Finish(key, HERE, 7, Outcome.OK, 1) for key in asked]


async def consume(
    inbox: MySQLInbox, asked: Sequence[ClaimKey], handle: Callable[[Any], Awaitable[object]] | None = None
) -> list[TransactionAnswer]:
    """One batch: claim, call `handle` with the connection, finish what was taken."""
    async with inbox.begin(retention=60.0) as transaction:
        answers = await transaction.claim(asked)
        if handle is not None:
            await handle(transaction.connection)
        await transaction.finish(done([key for key, answer in zip(asked, answers, strict=True) if answer == Taken()]))
    return answers


@pytest.fixture
async def shop(mariadb: SharedServer) -> AsyncIterator[MySQLDatabase]:
    """A database of this test alone with a table `effects` of texts that are unique."""
    async with mysql_database(mariadb) as database:
        await database.fetch("CREATE TABLE effects (effect VARCHAR(60) PRIMARY KEY)")
        yield database


@pytest.fixture
async def inbox(shop: MySQLDatabase) -> AsyncIterator[MySQLInbox]:
    inbox = MySQLInbox(shop.url, timeout=2.0)
    await inbox.open()
    yield inbox
    await inbox.close()


async def effects(shop: MySQLDatabase) -> list[str]:
    return [effect for (effect,) in await shop.fetch("SELECT effect FROM effects ORDER BY effect")]


def statements(*texts: str) -> Callable[[Any], Awaitable[None]]:
    async def handle(connection: Any) -> None:
        await execute(connection, *texts)

    return handle


A = "INSERT INTO effects VALUES ('a')"


async def test_a_handler_whose_statement_commits_by_itself_is_found_out_and_nothing_is_marked(
    inbox: MySQLInbox, shop: MySQLDatabase
) -> None:
    asked = keys(3)
    with pytest.raises(TransactionAborted, match="the handler ended the transaction"):
        await consume(inbox, asked, statements("CREATE TABLE other (id INT)"))
    assert await consume(inbox, asked, statements(A)) == [Taken()] * 3
    assert await effects(shop) == ["a"]


async def test_an_error_that_a_handler_catches_undoes_its_statement_alone(inbox: MySQLInbox, shop: MySQLDatabase) -> None:
    async def handle(connection: Any) -> None:
        await execute(connection, A)
        with suppress(MySQLError):
            await execute(connection, A)

    assert await consume(inbox, keys(1), handle) == [Taken()]
    assert await effects(shop) == ["a"]


async def test_a_pool_that_was_given_stays_open_and_keeps_its_settings(shop: MySQLDatabase) -> None:
    address: dict[str, Any] = {"host": "127.0.0.1", "port": shop.server.port, "user": "root", "database": shop.name}
    async with asyncmy.create_pool(minsize=1, maxsize=1, **address) as pool:
        inbox = MySQLInbox(pool=pool)
        await inbox.open()
        asked = keys(3)
        assert await consume(inbox, asked) == [Taken()] * 3
        assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 3
        assert (await inbox.check(), await inbox.cleanup()) == ([], 0)
        await inbox.close()
        async with pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute("SELECT @@tx_isolation, @@innodb_lock_wait_timeout, @@autocommit")
            assert list(await cursor.fetchall()) == [("REPEATABLE-READ", 50, 0)]


async def test_a_user_without_rights_to_create_works_on_tables_that_are_there(shop: MySQLDatabase) -> None:
    user = f"worker_{os.urandom(4).hex()}"
    await MySQLInbox(shop.url).init()
    await shop.fetch(f"CREATE USER {user}")
    await shop.fetch(f"GRANT SELECT ON {shop.name}.ackwise_schema TO {user}")
    await shop.fetch(f"GRANT SELECT, INSERT ON {shop.name}.ackwise_inbox TO {user}")
    inbox = MySQLInbox(shop.url_by(shop.server, user))
    with pytest.raises(ConfigurationError, match=r"this user may not do what the inbox needs \(UPDATE\)"):
        await inbox.open()
    await shop.fetch(f"GRANT UPDATE ON {shop.name}.ackwise_inbox TO {user}")
    with pytest.raises(ConfigurationError, match="this user may not do what the inbox needs"):
        await inbox.open()
    await shop.fetch(f"GRANT SELECT, INSERT, UPDATE ON {shop.name}.ackwise_offsets TO {user}")
    await inbox.open()
    assert await consume(inbox, keys(2)) == [Taken()] * 2
    with pytest.raises(ConfigurationError, match=r"this user may not do what the inbox needs \(DELETE\)"):
        await inbox.check()
    await shop.fetch(f"GRANT DELETE ON {shop.name}.ackwise_inbox TO {user}")
    assert (await inbox.check(), await inbox.cleanup()) == ([], 0)
    await inbox.close()
    await shop.fetch(f"DROP USER {user}")


async def test_a_cleanup_that_is_cancelled_gives_a_pool_no_connection_back_in_the_middle_of_an_answer(
    inbox: MySQLInbox, shop: MySQLDatabase
) -> None:
    asked = keys(1)
    await consume(inbox, asked)
    await shop.fetch("UPDATE ackwise_inbox SET kept_until = '1970-01-02'")
    server: dict[str, Any] = {"host": "127.0.0.1", "port": shop.server.port, "user": "root", "database": shop.name}
    async with asyncmy.create_pool(minsize=1, maxsize=1, autocommit=True, **server) as pool, asyncio.timeout(PATIENCE):
        given = MySQLInbox(pool=pool)
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.claim(asked)
            cleaning = asyncio.ensure_future(given.cleanup())
            while not await shop.fetch("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"):  # noqa: ASYNC110  # the server's state
                await asyncio.sleep(0.12)  # asked more often it shows what was
            cleaning.cancel()
            await asyncio.wait([cleaning])
        async with pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute("SELECT 41")
            assert list(await cursor.fetchall()) == [(41,)]
