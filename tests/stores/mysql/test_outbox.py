"""The MySQL outbox passes the suite of every outbox on MariaDB, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncmy
import pytest
from asyncmy.connection import Connection
from asyncmy.errors import MySQLError
from tests.databases.proxy import proxy_to
from tests.databases.server import Server
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.stores.mysql.database import MySQLDatabase, mysql_database

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import (
    SHARDS,
    CheckAnswer,
    Failed,
    OutboxRow,
    OutboxStore,
    OutboxTransaction,
    Sent,
    TransactionOutcome,
    UnreadableRow,
)
from ackwise.stores.conformance.outbox import BusinessConformance, OutboxConformance
from ackwise.stores.mysql.outbox import MySQLOutbox, from_url


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_mariadb


class OnMariaDB(BusinessConformance):
    isolation = "REPEATABLE READ"

    @pytest.fixture(autouse=True)
    def _on(self, mariadb: SharedServer) -> None:
        self.database = MySQLDatabase(mariadb, "test")
        self.prefix = f"t{os.urandom(6).hex()}_"

    def make(self, place: Path) -> OutboxStore:
        return MySQLOutbox(self.database.url, prefix=self.prefix, retention=0.0)

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        return MySQLOutbox(self.database.url, prefix=self.prefix, retention=0.0, **settings)

    async def rows(self, place: Path) -> list[Any]:
        columns = "state, CONVERT(message_id USING ascii), message_key, value, headers"
        return await self.database.fetch(f"SELECT {columns} FROM {self.prefix}outbox ORDER BY id")

    async def prepare(self, place: Path) -> None:
        await self.database.fetch(f"CREATE TABLE {self.prefix}effects (effect VARCHAR(60) PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        async with self.database.connected() as connection:
            await execute(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {self.isolation}")
            yield connection

    @asynccontextmanager
    async def begin(self, connection: Any) -> AsyncIterator[Any]:
        await connection.begin()
        try:
            yield
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return savepoint(connection)

    async def write(self, connection: Any, effect: str) -> None:
        await execute(connection, f"INSERT INTO {self.prefix}effects VALUES ('{effect}')")

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self.database.fetch(f"SELECT effect FROM {self.prefix}effects")]

    async def age(self, place: Path, seconds: float) -> None:
        for table in ("outbox", "outbox_barrier"):
            await self.database.fetch(f"UPDATE {self.prefix}{table} SET created = created - INTERVAL {seconds} SECOND")
        await self.database.fetch(f"UPDATE {self.prefix}outbox SET next_at = next_at - INTERVAL {seconds} SECOND WHERE state = 5")


class TestMySQLOutbox(OnMariaDB, OutboxConformance):
    pass


@pytest.mark.nightly
class TestMySQLOutboxInReadCommitted(OnMariaDB):
    isolation = "READ COMMITTED"


@asynccontextmanager
async def savepoint(connection: Any) -> AsyncIterator[None]:
    name = f"s{os.urandom(4).hex()}"
    await execute(connection, f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        await execute(connection, f"ROLLBACK TO SAVEPOINT {name}")
        raise
    await execute(connection, f"RELEASE SAVEPOINT {name}")


async def execute(connection: Any, *statements: str) -> None:
    async with connection.cursor() as cursor:
        for statement in statements:
            await cursor.execute(statement)


ALL_SHARDS = dict.fromkeys(range(SHARDS), 0)

ROW = "INSERT INTO effects VALUES ('{}')"


@pytest.fixture
async def shop(mariadb: SharedServer) -> AsyncIterator[MySQLDatabase]:
    """A database of this test alone with a table `effects` of texts that are unique."""
    async with mysql_database(mariadb) as database:
        await database.fetch("CREATE TABLE effects (effect VARCHAR(60) PRIMARY KEY)")
        yield database


@pytest.fixture
async def outbox(shop: MySQLDatabase) -> AsyncIterator[MySQLOutbox]:
    outbox = MySQLOutbox(shop.url)
    await outbox.open()
    yield outbox
    await outbox.close()


async def waiting(outbox: MySQLOutbox) -> list[OutboxRow]:
    return await outbox.pending(ALL_SHARDS, limit=1000)


async def values(outbox: MySQLOutbox) -> list[bytes | None]:
    return [row.message.value for row in await waiting(outbox)]


async def effects(shop: MySQLDatabase) -> list[str]:
    return [effect for (effect,) in await shop.fetch("SELECT effect FROM effects ORDER BY effect")]


async def business(outbox: MySQLOutbox, connection: Any, handle: Callable[[OutboxTransaction], Awaitable[None]]) -> None:
    """One business transaction."""
    async with outbox.transaction(connection) as transaction:
        await handle(transaction)


async def lock_wait(shop: MySQLDatabase) -> None:
    """Return once somebody waits for a lock."""
    while not await shop.fetch("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"):  # noqa: ASYNC110  # the server's state
        await asyncio.sleep(0.12)  # the view is made again once nobody has looked at it for a tenth of a second


async def nothing_open(shop: MySQLDatabase) -> None:
    """Return once no transaction is open."""
    while await shop.fetch("SELECT 1 FROM information_schema.innodb_trx"):  # noqa: ASYNC110  # as above
        await asyncio.sleep(0.12)  # as above


@asynccontextmanager
async def pooled(shop: MySQLDatabase, *, user: str = "root", **settings: Any) -> AsyncIterator[asyncmy.pool.Pool]:
    """A pool of the user's, in the isolation and autocommit that asyncmy and the server have by default."""
    place: dict[str, Any] = {"host": "127.0.0.1", "port": shop.server.port, "user": user, "database": shop.name, "minsize": 0, "maxsize": 1}
    async with await asyncmy.create_pool(**place, **settings) as pool:
        yield pool


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_that_a_deadlock_undid_and_the_handler_went_on_in_sends_nothing(
    outbox: MySQLOutbox, shop: MySQLDatabase, autocommit: bool
) -> None:
    await shop.fetch("INSERT INTO effects VALUES ('1'), ('2'), ('3'), ('4'), ('5')")
    async with shop.connected() as connection, shop.connected() as other:
        await connection.autocommit(autocommit)
        await other.begin()
        await execute(other, *(f"DELETE FROM effects WHERE effect = '{number}'" for number in range(2, 6)))

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, "DELETE FROM effects WHERE effect = '1'")
            transaction.send("orders", b"before")
            waits = asyncio.create_task(execute(other, "DELETE FROM effects WHERE effect = '1'"))
            await lock_wait(shop)
            with pytest.raises(MySQLError, match="Deadlock"):
                await execute(connection, "DELETE FROM effects WHERE effect = '5'")
            await waits
            transaction.send("orders", b"after")

        with pytest.raises(TransactionAborted, match="after a deadlock"):
            await business(outbox, connection, handle)
        await other.rollback()
    assert (await values(outbox), await effects(shop)) == ([], ["1", "2", "3", "4", "5"])


async def test_in_autocommit_what_follows_a_deadlock_in_a_block_that_joined_is_refused(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    await shop.fetch("INSERT INTO effects VALUES ('1'), ('2'), ('3'), ('4'), ('5')")
    async with shop.connected() as connection, shop.connected() as other:
        await other.begin()
        await execute(other, *(f"DELETE FROM effects WHERE effect = '{number}'" for number in range(2, 6)))

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, "DELETE FROM effects WHERE effect = '1'")
            waits = asyncio.create_task(execute(other, "DELETE FROM effects WHERE effect = '1'"))
            await lock_wait(shop)
            with pytest.raises(MySQLError, match="Deadlock"):
                await execute(connection, "DELETE FROM effects WHERE effect = '5'")
            await waits
            transaction.send("orders", b"paid")
            await execute(connection, ROW.format("paid"))

        await connection.begin()
        with pytest.raises(TransactionAborted, match="after a deadlock"):
            await business(outbox, connection, handle)
        await other.rollback()
    assert (await values(outbox), await effects(shop)) == ([], ["1", "2", "3", "4", "5"])


async def test_a_statement_that_fails_and_undoes_itself_alone_does_not_end_the_block(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection, outbox.transaction(connection) as transaction:
        await execute(connection, ROW.format("a"))
        with pytest.raises(MySQLError, match="Duplicate"):
            await execute(connection, ROW.format("a"))
        transaction.send("orders", b"1")
        await execute(connection, ROW.format("b"))
    assert (await values(outbox), await effects(shop)) == ([b"1"], ["a", "b"])


async def test_after_a_deadlock_a_savepoint_writes_no_rows_by_themselves(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection:

        async def handle(transaction: OutboxTransaction) -> None:
            transaction.send("orders", b"1")
            await past_the_driver(connection)
            await execute(connection, "SAVEPOINT mine")

        with pytest.raises(TransactionAborted, match="was ended inside the block"):
            await business(outbox, connection, handle)
    assert await values(outbox) == []


async def past_the_driver(connection: Any) -> None:
    """End the transaction as a deadlock does: no statement of the handler says so, and the driver does not know it."""
    known = connection.server_status
    await Connection.rollback(connection)
    connection.server_status = known


async def test_rows_belong_to_a_commit_inside_of_the_block(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    for end in ["COMMIT", "commit work", "/* now */ COMMIT"]:
        with case(end):
            async with shop.connected() as connection, outbox.transaction(connection) as transaction:
                transaction.send("orders", b"1")
                await execute(connection, ROW.format("a"), end)
                with pytest.raises(TransactionAborted, match="had ended"):
                    transaction.send("orders", b"late")
            assert (await values(outbox), await effects(shop)) == ([b"1"], ["a"])
            for table in ("ackwise_outbox", "effects"):
                await shop.fetch(f"DELETE FROM {table}")


async def test_what_ends_the_transaction_takes_the_rows_along_and_is_found_out(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    for end in ["CREATE TABLE other (id INT)", "BEGIN", "SELECT 1; START TRANSACTION"]:
        with case(end):
            async with shop.connected() as connection:
                await connection.autocommit(False)

                async def handle(transaction: OutboxTransaction, end: str = end) -> None:
                    transaction.send("orders", b"1")
                    await execute(connection, ROW.format("a"), end)
                    await execute(connection, ROW.format("b"))
                    transaction.send("orders", b"2")

                with pytest.raises(TransactionAborted, match="leave its end to the block"):
                    await business(outbox, connection, handle)
            assert (await values(outbox), await effects(shop)) == ([b"1"], ["a"])
            for table in ("ackwise_outbox", "effects"):
                await shop.fetch(f"DELETE FROM {table}")


async def test_the_methods_of_a_connection_are_seen_and_are_its_own_again_afterwards(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection:
        before = dict(vars(connection))
        async with outbox.transaction(connection) as transaction:
            transaction.send("orders", b"1")
            await connection.rollback()
        async with outbox.transaction(connection) as transaction:
            transaction.send("orders", b"2")
            with pytest.raises(ConfigurationError, match="prepared statement"):
                await connection.prepare("SAVEPOINT a")
            await (await connection.prepare("SELECT ?")).execute((1,))
            await connection.commit()

        async def handle(transaction: OutboxTransaction) -> None:
            transaction.send("orders", b"3")
            await connection.begin()

        with pytest.raises(TransactionAborted):
            await business(outbox, connection, handle)
        assert vars(connection).keys() == before.keys()
    assert await values(outbox) == [b"2", b"3"]


async def test_an_outer_block_keeps_the_order_of_the_calls(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection, outbox.transaction(connection):
        outbox.send("orders", b"1")
        async with outbox.transaction(connection):
            outbox.send("orders", b"2")
        outbox.send("orders", b"3")
    assert await values(outbox) == [b"1", b"2", b"3"]


async def test_without_autocommit_a_read_begins_what_the_block_joins(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with pooled(shop) as pool, pool.acquire() as connection:
        await execute(connection, "SELECT * FROM effects")
        async with outbox.transaction(connection):
            outbox.send("orders", b"1")
        assert await values(outbox) == []
        await connection.commit()
        assert await values(outbox) == [b"1"]
        async with outbox.transaction(connection):
            outbox.send("orders", b"2")
        assert await values(outbox) == [b"1", b"2"]


async def test_a_connection_is_in_autocommit_again_however_the_block_ended(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection:
        for end in ["SELECT 1", "nonsense", "COMMIT", "ROLLBACK", "CREATE TABLE IF NOT EXISTS other (id INT)", "START TRANSACTION"]:
            with case(end):

                async def handle(transaction: OutboxTransaction, end: str = end) -> None:
                    assert not connection.get_autocommit()
                    transaction.send("orders", b"1")
                    await execute(connection, end)

                with suppress(TransactionAborted, MySQLError):
                    await business(outbox, connection, handle)
                async with connection.cursor() as cursor:
                    await cursor.execute("SELECT @@autocommit, @@in_transaction")
                    assert list(await cursor.fetchall()) == [(1, 0)]
                assert connection.get_autocommit()


async def test_a_connection_whose_rollback_is_not_answered_is_closed_and_commits_nothing(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    far = MySQLOutbox(shop.url, timeout=0.2)
    async with (
        proxy_to(shop.server.port) as proxy,
        asyncmy.connect(host="127.0.0.1", port=proxy.port, user="root", database=shop.name, autocommit=True) as connection,
    ):

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, ROW.format("a"))
            transaction.send("orders", b"1")
            proxy.swallow_replies = True
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await business(far, connection, handle)
        assert not connection.connected
    await nothing_open(shop)
    assert (await values(outbox), await effects(shop)) == ([], [])


async def test_without_autocommit_a_commit_that_was_executed_leaves_nothing_to_join(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with pooled(shop) as pool, pool.acquire() as connection:
        await execute(connection, ROW.format("a"), "COMMIT")
        async with outbox.transaction(connection):
            outbox.send("orders", b"1")
        assert await values(outbox) == [b"1"]


@pytest.mark.parametrize(("requests", "stays"), [(1, False), (2, True)])
async def test_a_commit_in_doubt_is_all_or_nothing_and_is_said(
    outbox: MySQLOutbox, shop: MySQLDatabase, requests: int, stays: bool
) -> None:
    async with (
        proxy_to(shop.server.port) as proxy,
        asyncmy.connect(host="127.0.0.1", port=proxy.port, user="root", database=shop.name) as connection,
    ):

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, ROW.format("a"))
            transaction.send("orders", b"1")
            last = proxy.requests + requests  # an answer may come in several pieces, a request does not
            proxy.cut_after = lambda _: proxy.requests == last

        with pytest.raises(StoreUnavailable) as caught:
            await business(outbox, connection, handle)
        assert ("not known whether the transaction committed" in str(caught.value)) == stays
    await nothing_open(shop)
    assert (await values(outbox), await effects(shop)) == (([b"1"], ["a"]) if stays else ([], []))


async def test_a_connection_that_was_killed_takes_the_block_along(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection:

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, ROW.format("a"))
            transaction.send("orders", b"1")
            await shop.fetch(f"KILL {connection.thread_id()}")

        with pytest.raises(StoreUnavailable):
            await business(outbox, connection, handle)
    assert (await values(outbox), await effects(shop)) == ([], [])


async def test_what_is_no_connection_of_asyncmy_is_refused(outbox: MySQLOutbox) -> None:
    with pytest.raises(ConfigurationError, match="use SQLAlchemyOutbox"):
        outbox.writer(object())


async def test_no_setting_of_a_connection_changes_a_message(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    for settings in [
        {"charset": "latin1"},
        {"charset": "gbk"},
        {"sql_mode": "'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"},
        {"sql_mode": "''", "init_command": "SET time_zone = '-11:00'"},
    ]:
        with case(settings):
            one = Outgoing("orders", b"\\\xbf\x27'\"\0\xff", b"\\'", (('\\ü"', b"\\"),), message_id="ü\\'\" ")
            async with pooled(shop, **settings) as pool:
                async with pool.acquire() as connection, outbox.transaction(connection) as transaction:
                    transaction.add(one)
                on_pool = MySQLOutbox(pool=pool)
                await on_pool.open()
                (row,) = await waiting(on_pool)
                await on_pool.close()
            ((now,),) = await shop.fetch("SELECT UNIX_TIMESTAMP() * 1000")
            assert row.message == one
            assert abs(row.created_ms - now) < 60_000
            await shop.fetch("DELETE FROM ackwise_outbox")


async def test_a_message_that_the_server_does_not_take_is_refused_and_the_connection_goes_on(
    shop: MySQLDatabase, outbox: MySQLOutbox
) -> None:
    async with shop.connected() as connection:

        async def handle(transaction: OutboxTransaction) -> None:
            await execute(connection, ROW.format("a"))
            transaction.send("orders", b"small")
            transaction.send("bills", b"x" * 9_000_000)

        with pytest.raises(ConfigurationError, match=r"a message to 'bills' needs .* max_allowed_packet is 16777216"):
            await business(outbox, connection, handle)
        async with outbox.transaction(connection):
            outbox.send("orders", b"2")
    with pytest.raises(ConfigurationError, match="max_allowed_packet"):
        await outbox.prepare([Outgoing("bills", b"x" * 9_000_000)], "tx", producer_group="shop")
    assert (await values(outbox), await effects(shop)) == ([b"2"], [])


async def test_content_of_a_check_back_that_the_server_does_not_take_is_refused_and_changes_nothing(outbox: MySQLOutbox) -> None:
    await outbox.prepare([Outgoing("bills", None, message_id="half")], "tx", producer_group="shop", first_check=0.0)
    (due,) = await outbox.due_checks("shop", limit=10, lease=0.0)
    large = CheckAnswer(due.id, TransactionOutcome.COMMIT, content=Outgoing("bills", b"x" * 9_000_000, message_id="half"))
    with pytest.raises(ConfigurationError, match=r"a message to 'bills' needs .* max_allowed_packet is 16777216"):
        await outbox.answered([large])
    assert await values(outbox) == []
    fits = CheckAnswer(due.id, TransactionOutcome.COMMIT, content=Outgoing("bills", b"x" * 7_000_000, message_id="half"))
    assert await outbox.answered([fits]) == 1
    assert [len(value or b"") for value in await values(outbox)] == [7_000_000]


async def test_a_relay_on_a_pool_of_yours_sees_what_was_committed_since_it_looked(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with pooled(shop) as pool:
        relay = MySQLOutbox(pool=pool)
        await relay.open()
        shards = await relay.own("a", lease=60.0, share=SHARDS)
        assert await values(relay) == []
        async with shop.connected() as connection, outbox.transaction(connection):
            outbox.send("orders", b"1", key=b"k")
            outbox.send("orders", b"2", key=b"k")
        first, _ = await waiting(relay)
        assert await relay.failed([Failed(first.id, first.shard, "no", 0.0)], shards) == 1
        assert await relay.sent([Sent(first.id, first.shard)], shards) == 1
        assert await values(outbox) == await values(relay) == [b"2"]
        assert (await outbox.status()).owners == {"a": SHARDS}
        await relay.close()


@pytest.mark.parametrize("wait", [0.0, 1.0])
async def test_a_check_back_waits_no_longer_than_it_may_and_leaves_the_session_as_it_was(
    outbox: MySQLOutbox, shop: MySQLDatabase, wait: float
) -> None:
    async with pooled(shop) as pool, shop.connected() as connection:
        checking = MySQLOutbox(pool=pool)
        await checking.open()
        await connection.begin()
        await outbox.barrier(connection, "tx")
        assert await checking.probe("tx", wait=wait) is TransactionOutcome.UNKNOWN
        await connection.rollback()
        assert await checking.probe("tx", wait=wait) is TransactionOutcome.ROLLBACK
        async with pool.acquire() as same, same.cursor() as cursor:
            await cursor.execute("SELECT @@innodb_lock_wait_timeout, @@in_transaction")
            assert list(await cursor.fetchall()) == [(50, 0)]
        await checking.close()


async def test_a_check_back_that_waits_hears_how_the_local_transaction_ended(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    async with shop.connected() as connection:
        await connection.begin()
        await outbox.barrier(connection, "tx")
        checking = asyncio.create_task(outbox.probe("tx", wait=2.0))
        await lock_wait(shop)
        await connection.commit()
        assert await checking is TransactionOutcome.COMMIT


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
async def test_a_barrier_sees_a_check_back_that_came_after_the_snapshot(outbox: MySQLOutbox, shop: MySQLDatabase, isolation: str) -> None:
    async with shop.connected() as connection:
        await execute(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        assert await outbox.probe("tx", wait=1.0) is TransactionOutcome.ROLLBACK
        with pytest.raises(TransactionAborted, match="a check-back took"):
            await outbox.barrier(connection, "tx")
        await connection.rollback()


async def test_names_that_a_server_could_cut_are_refused(outbox: MySQLOutbox) -> None:
    with pytest.raises(ConfigurationError, match=r"tx_id .* more than 255 bytes"):
        await outbox.prepare([Outgoing("orders", b"1")], "x" * 256, producer_group="shop")
    with pytest.raises(ConfigurationError, match=r"owner .* more than 255 bytes"):
        await outbox.own("ü" * 128, lease=1.0, share=1)
    with pytest.raises(ConfigurationError, match="at most 50 characters"):
        MySQLOutbox("mysql://u@h/d", prefix="x" * 51)


async def test_tx_ids_that_differ_in_a_space_at_the_end_are_two(outbox: MySQLOutbox) -> None:
    await outbox.prepare([Outgoing("orders", b"1")], "tx", producer_group="shop")
    assert await outbox.decide("tx ", TransactionOutcome.COMMIT) == 0
    assert await outbox.decide("TX", TransactionOutcome.COMMIT) == 0
    assert await outbox.decide("tx", TransactionOutcome.COMMIT) == 1


async def test_connections_that_the_server_ended_are_made_anew(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    assert await values(outbox) == []
    for (thread,) in await shop.fetch(f"SELECT id FROM information_schema.processlist WHERE db = '{shop.name}' AND id <> CONNECTION_ID()"):
        await shop.fetch(f"KILL {thread}")
    assert await values(outbox) == []
    assert len(await outbox.own("a", lease=1.0, share=SHARDS)) == SHARDS


async def test_business_relays_and_check_backs_side_by_side_never_wait_in_a_circle(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    before, done = await shop.deadlocks(), asyncio.Event()

    async def business(number: int) -> None:
        async with shop.connected() as connection:
            for step in range(15):
                tx_id = f"{number} {step}"
                await outbox.prepare([Outgoing("orders", tx_id.encode(), b"%d" % number)], tx_id, producer_group="shop", first_check=0.0)
                async with outbox.transaction(connection):
                    outbox.send("orders", tx_id.encode(), key=b"%d" % number)
                await outbox.decide(tx_id, TransactionOutcome.COMMIT)

    async def relay(owner: str) -> int:
        relaying, count = MySQLOutbox(shop.url), 0
        await relaying.open()
        while not done.is_set() or await values(relaying):
            shards = await relaying.own(owner, lease=60.0, share=32)
            rows = await relaying.pending(shards, limit=10)
            failing = [row for row in rows if row.id % 7 == 0 and row.attempts == 0]
            await relaying.failed([Failed(row.id, row.shard, "now and then", 0.0) for row in failing], shards)
            count += await relaying.sent([Sent(row.id, row.shard) for row in rows if row not in failing], shards)
        await relaying.close()
        return count

    async def check() -> None:
        while not done.is_set():
            due = await outbox.due_checks("shop", limit=5, lease=0.0)
            await outbox.answered([CheckAnswer(row.id, TransactionOutcome.UNKNOWN, 0.0) for row in due])

    relays = [asyncio.create_task(relay(owner)) for owner in ("a", "b")]
    checks = [asyncio.create_task(check()) for _ in range(2)]
    await asyncio.gather(*(business(number) for number in range(4)))
    done.set()
    await asyncio.gather(*checks)
    sent = sum(await asyncio.gather(*relays))
    assert (sent, await shop.deadlocks() - before) == (2 * 4 * 15, 0)


async def test_each_user_needs_the_rights_of_what_it_does_and_no_others(outbox: MySQLOutbox, shop: MySQLDatabase) -> None:
    user = f"u{os.urandom(4).hex()}"

    async def grant(rights: str, table: str) -> None:
        await shop.fetch(f"GRANT {rights} ON {shop.name}.ackwise_{table} TO {user}")

    await shop.fetch(f"CREATE USER {user}")
    mine = MySQLOutbox(shop.url_by(shop.server, user))
    await grant("INSERT", "outbox")
    with pytest.raises(ConfigurationError, match="let a user who may create tables run `ackwise outbox init URL`"):
        await mine.open()
    async with pooled(shop, user=user) as pool, pool.acquire() as connection, mine.transaction(connection):
        mine.send("orders", b"1")
    for rights, table in [("SELECT", "schema"), ("SELECT, INSERT", "outbox_barrier"), ("SELECT", "outbox_meta")]:
        with pytest.raises(ConfigurationError, match="grant"):
            await mine.open()
        await grant(rights, table)
    await mine.open()
    with pytest.raises(ConfigurationError, match=r"no right to SELECT, UPDATE, DELETE on `ackwise_outbox`"):
        await mine.claim_relay("table")
    for rights, table in [("SELECT, UPDATE, DELETE", "outbox"), ("SELECT, UPDATE", "outbox_shard"), ("UPDATE, DELETE", "outbox_barrier")]:
        await grant(rights, table)
    await grant("SELECT, INSERT, UPDATE, DELETE", "outbox_relay")
    await grant("INSERT, UPDATE, DELETE", "outbox_meta")
    await mine.claim_relay("table")
    shards = await mine.own("a", lease=60.0, share=SHARDS)
    assert await mine.sent([Sent(row.id, row.shard) for row in await waiting(mine)], shards) == 1
    assert await mine.check() == []
    assert await mine.cleanup() == 0
    await mine.close()
    await shop.fetch(f"DROP USER {user}")


async def test_a_check_says_what_makes_an_outbox_unsafe(shop: MySQLDatabase, outbox: MySQLOutbox) -> None:
    async with shop.connected() as connection, outbox.transaction(connection):
        outbox.send("orders", b"1")
    async with pooled(shop, init_command="SET SESSION auto_increment_increment = 2, SESSION binlog_format = 'STATEMENT'") as pool:
        said = await MySQLOutbox(pool=pool).check()
    assert [word for word in ("auto_increment_increment", "binlog_format", "1 rows wait") if word in " ".join(said)] == [
        "auto_increment_increment",
        "binlog_format",
        "1 rows wait",
    ]
    assert len(said) == 3


async def test_tables_are_made_by_any_number_at_once_and_a_newer_version_is_refused(shop: MySQLDatabase) -> None:
    outboxes = [from_url(f"{shop.url}?prefix=o_&timeout=20") for _ in range(5)]
    await asyncio.gather(*(outbox.init() for outbox in outboxes))
    await asyncio.gather(*(outbox.open() for outbox in outboxes))
    assert len({await outbox.database_id() for outbox in outboxes}) == 1
    assert await shop.fetch("SELECT COUNT(*) FROM o_outbox_shard") == [(SHARDS,)]
    await asyncio.gather(*(outbox.close() for outbox in outboxes))
    await shop.fetch("UPDATE o_schema SET version = 9")
    with pytest.raises(ConfigurationError, match="its outbox has version 9, and this Ackwise knows version 5 alone"):
        await outboxes[0].open()


async def test_whatever_another_program_wrote_into_a_column_the_next_row_is_read_and_the_operator_is_shown_the_row(
    shop: MySQLDatabase,
) -> None:
    outbox = MySQLOutbox(shop.url)
    await outbox.open()
    tokens = await outbox.own("relay", lease=60.0, share=SHARDS)
    for spoiled in (
        "topic = x'ff'",
        "topic = ''",
        "message_id = x'ff'",
        "message_key = x'ff'",
        "headers = REPEAT('[', 100000)",
        "headers = '[[1, \"YQ==\"]]'",
        "headers = '[[\"\\\\ud800\", null]]'",
        "headers = ''",
        "`partition` = -7",
        "attempts = -1",
        "size = -1",
        "created = '0001-01-01'",
        "created = '9999-12-31'",
        "shard = -3",
        "key_hash = -1",
    ):
        async with shop.connected() as connection, outbox.transaction(connection) as rows:
            rows.add(Outgoing("orders", b"spoiled", b"a"))
            rows.add(Outgoing("orders", b"next", b"b"))
        await shop.fetch(f"UPDATE ackwise_outbox SET {spoiled} WHERE value = 'spoiled'")
        found: list[bytes | None] = []
        while b"next" not in found:
            try:
                found += [row.message.value for row in await outbox.pending(tokens, limit=10, block_key=False)]
            except UnreadableRow as unreadable:
                await outbox.failed([Failed(unreadable.id, unreadable.shard, str(unreadable), None)], tokens)
        for parked in await outbox.parked():
            "\n".join(map(str, parked)).encode()
            await outbox.show(parked.id)
        await outbox.holders()
        await shop.fetch("DELETE FROM ackwise_outbox")
    await outbox.close()
