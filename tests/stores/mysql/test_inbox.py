"""The MySQL inbox passes the suite of every inbox on MariaDB, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncmy
import pytest
from asyncmy.errors import MySQLError
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server, free_port
from tests.stores.mysql.database import MySQLDatabase, mysql_database

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.stores.mysql.inbox import MySQLInbox, from_url
from ackwise.stores.testing.inbox import OffsetsConformance

HERE = ("orders", 3, 17)


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_mariadb


class TestMySQLInbox(OffsetsConformance):
    @pytest.fixture(autouse=True)
    def _on(self, mariadb: Server) -> None:
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
async def shop(mariadb: Server) -> AsyncIterator[MySQLDatabase]:
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


@pytest.mark.parametrize(
    "handle",
    [statements("COMMIT"), statements("ROLLBACK"), statements("COMMIT", "BEGIN"), statements("CREATE TABLE other (id INT)")],
)
async def test_a_handler_that_ends_its_transaction_is_found_out_and_nothing_is_marked(
    inbox: MySQLInbox, shop: MySQLDatabase, handle: Any
) -> None:
    asked = keys(3)
    with pytest.raises(TransactionAborted, match="the handler ended the transaction"):
        await consume(inbox, asked, handle)
    assert await consume(inbox, asked, statements(A)) == [Taken()] * 3
    assert await effects(shop) == ["a"]


async def test_an_error_that_a_handler_catches_undoes_its_statement_alone(inbox: MySQLInbox, shop: MySQLDatabase) -> None:
    async def handle(connection: Any) -> None:
        await execute(connection, A)
        with suppress(MySQLError):
            await execute(connection, A)

    assert await consume(inbox, keys(1), handle) == [Taken()]
    assert await effects(shop) == ["a"]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_zombie_that_waits_for_the_rows_finds_them_as_the_first_left_them(
    inbox: MySQLInbox, shop: MySQLDatabase, commits: bool
) -> None:
    asked = keys(3)
    zombie = MySQLInbox(shop.url)
    await zombie.open()
    began = inbox.begin(retention=60.0)
    transaction = await began.__aenter__()
    assert await transaction.claim(asked) == [Taken()] * 3
    waiting = asyncio.ensure_future(consume(zombie, [*reversed(asked), *keys(1)]))
    async with asyncio.timeout(10):
        while not await shop.fetch("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"):  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.12)  # asked more often it shows what was
    await transaction.finish(done(asked))
    if commits:
        await began.__aexit__(None, None, None)
        assert await waiting == [Finished(Outcome.OK, HERE, 7)] * 3 + [Taken()]
    else:
        await began.__aexit__(RuntimeError, RuntimeError(), None)
        assert await waiting == [Taken()] * 4
    await zombie.close()


async def test_a_key_that_is_held_for_too_long_makes_the_inbox_unavailable(inbox: MySQLInbox, shop: MySQLDatabase) -> None:
    hasty = MySQLInbox(shop.url, timeout=0.3)
    await hasty.open()
    asked = keys(1)
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim(asked)
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.3 s; another transaction may hold a key of this batch"):
            await consume(hasty, asked)
        await transaction.finish(done(asked))
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)]
    await hasty.close()


async def test_who_gives_way_in_a_deadlock_is_unavailable_and_the_other_goes_on(inbox: MySQLInbox) -> None:
    first, second = keys(2)
    outcomes: list[object] = []

    async def work(mine: ClaimKey, other: ClaimKey, here: asyncio.Event, there: asyncio.Event) -> None:
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.claim([mine])
            here.set()
            await there.wait()
            outcomes.append(await transaction.claim([other]))

    one, two = asyncio.Event(), asyncio.Event()
    told = await asyncio.gather(work(first, second, one, two), work(second, first, two, one), return_exceptions=True)
    assert outcomes == [[Taken()]]
    (error,) = [answer for answer in told if answer is not None]
    assert isinstance(error, StoreUnavailable)
    assert "deadlock" in str(error)


async def test_batches_that_find_no_connection_wait_and_then_say_what_to_raise(shop: MySQLDatabase) -> None:
    inbox = MySQLInbox(shop.url, max_size=1, timeout=0.3)
    await inbox.open()
    async with inbox.begin(retention=60.0):
        with pytest.raises(StoreUnavailable, match=r"all 1 connections were in use for 0\.3 s; raise max_size"):
            await consume(inbox, keys(1))
    assert await consume(inbox, keys(1)) == [Taken()]
    await inbox.close()


@pytest.fixture
async def proxy(mariadb: Server) -> AsyncIterator[Proxy]:
    async with proxy_to(mariadb.port) as proxy:
        yield proxy


@pytest.fixture
async def far(shop: MySQLDatabase, proxy: Proxy) -> AsyncIterator[MySQLInbox]:
    """An inbox behind the proxy, on one connection that has done a batch."""
    far = MySQLInbox(shop.url_by(proxy), timeout=1.0, max_size=1)
    await far.open()
    await consume(far, keys(1))
    yield far
    proxy.swallow_replies, proxy.cut_after = False, None
    await far.close()


async def test_a_batch_is_four_round_trips(far: MySQLInbox, proxy: Proxy) -> None:
    before = proxy.requests
    await consume(far, keys(100))
    assert proxy.requests - before == 4


@pytest.mark.parametrize("step", ["begin", "claim", "finish", "commit", "committed", "unanswered"])
async def test_a_connection_that_is_cut_leaves_all_or_nothing_and_the_next_batch_tells(
    far: MySQLInbox, proxy: Proxy, shop: MySQLDatabase, step: str
) -> None:
    asked = keys(3)

    def reach(here: str) -> None:
        if here == step:
            proxy.cut()

    async def batch() -> None:
        async with far.begin(retention=60.0) as transaction:
            reach("claim")
            await transaction.claim(asked)
            await execute(transaction.connection, A)
            reach("finish")
            await transaction.finish(done(asked))
            reach("commit")
            if step == "committed":
                proxy.cut_after = lambda _: True
            proxy.swallow_replies = step == "unanswered"

    reach("begin")
    if step == "begin":  # nothing was done: the connection is replaced
        await batch()
    else:
        with pytest.raises(StoreUnavailable, match="it is not known" if step == "unanswered" else r"connection was lost|can't be reached"):
            await batch()
    proxy.cut_after, proxy.swallow_replies = None, False
    came_through = step in ("begin", "committed", "unanswered")
    assert await consume(far, asked) == [Finished(Outcome.OK, HERE, 7) if came_through else Taken()] * 3
    assert await effects(shop) == (["a"] if came_through else [])


async def test_a_restart_between_two_batches_is_not_noticed_and_a_batch_that_it_cuts_is_rolled_back(
    inbox: MySQLInbox, shop: MySQLDatabase, mariadb: Server
) -> None:
    before, lost = keys(3), keys(3)
    await consume(inbox, before)
    mariadb.restart()

    async def batch() -> None:
        async with inbox.begin(retention=60.0) as transaction:
            assert await transaction.claim([*before, *lost]) == [Finished(Outcome.OK, HERE, 7)] * 3 + [Taken()] * 3
            await transaction.finish(done(lost))
            mariadb.kill()

    with pytest.raises(StoreUnavailable):
        await batch()
    mariadb.start()
    assert await consume(inbox, lost) == [Taken()] * 3


async def test_a_frozen_server_is_given_up_within_the_timeout_and_used_again(inbox: MySQLInbox, mariadb: Server) -> None:
    asked = keys(3)
    await consume(inbox, keys(1))
    mariadb.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no answer within 2 s"):
            await consume(inbox, asked)
        assert time.monotonic() - began < 6.0
    finally:
        mariadb.thaw()
    assert await consume(inbox, asked) == [Taken()] * 3


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


async def test_the_table_is_made_once_cleaned_and_refused_if_it_is_newer(shop: MySQLDatabase) -> None:
    inbox = MySQLInbox(shop.url, prefix="p`'; -- ")
    (missing,) = await inbox.check()
    assert missing.endswith("the table of the inbox is missing; run `ackwise store init URL`")
    with pytest.raises(ConfigurationError, match="the table of the inbox is missing"):
        await inbox.cleanup()
    await asyncio.gather(*(MySQLInbox(shop.url, prefix="p`'; -- ").init() for _ in range(4)))
    await inbox.open()
    old, new = keys(300), keys(10)
    await consume(inbox, old)
    await shop.fetch("UPDATE `p``'; -- inbox` SET kept_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    await consume(inbox, new)
    assert (await inbox.check(), await inbox.cleanup(), await inbox.cleanup()) == ([], 300, 0)
    assert await consume(inbox, new) == [Finished(Outcome.OK, HERE, 7)] * 10
    await inbox.close()
    await shop.fetch("UPDATE `p``'; -- schema` SET version = 9")
    for act in (inbox.open, inbox.init, inbox.check, inbox.cleanup):
        with pytest.raises(ConfigurationError, match="its inbox has version 9, and this Ackwise knows version 1 alone"):
            await act()


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


async def test_a_server_that_is_away_is_named_without_the_password() -> None:
    inbox = from_url(f"mysql://me:hunter2@127.0.0.1:{free_port()}/shop")
    for act in (inbox.open, inbox.init):
        with pytest.raises(StoreUnavailable, match=r"mysql://127\.0\.0\.1:\d+/shop: it can't be reached") as raised:
            await act()
        assert "hunter2" not in str(raised.value) + repr(inbox)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://host/db?max_siez=3", "did you mean max_size"),
        ("mysql://host/db?max_size=0", "needs at least one connection"),
        ("mysql://host/db?timeout=0", r"timeout is 0\.0"),
    ],
)
def test_a_url_that_can_not_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        from_url(url)


async def test_a_statement_that_is_cancelled_in_the_middle_does_not_answer_the_next_batch(shop: MySQLDatabase) -> None:
    inbox = MySQLInbox(shop.url, max_size=1)
    await inbox.open()
    asked = keys(2)

    async def handle(connection: Any) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await execute(connection, A, "SELECT SLEEP(0.5)")
        raise RuntimeError

    for _ in range(3):
        with pytest.raises(RuntimeError):
            await consume(inbox, asked, handle)
    assert await consume(inbox, asked, statements(A)) == [Taken()] * 2
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 2
    assert await effects(shop) == ["a"]
    await inbox.close()


async def test_a_cleanup_that_is_cancelled_gives_a_pool_no_connection_back_in_the_middle_of_an_answer(
    inbox: MySQLInbox, shop: MySQLDatabase
) -> None:
    asked = keys(1)
    await consume(inbox, asked)
    await shop.fetch("UPDATE ackwise_inbox SET kept_until = '1970-01-02'")
    server: dict[str, Any] = {"host": "127.0.0.1", "port": shop.server.port, "user": "root", "database": shop.name}
    async with asyncmy.create_pool(minsize=1, maxsize=1, autocommit=True, **server) as pool, asyncio.timeout(20):
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
