"""The PostgreSQL outbox passes the suite of every outbox, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.proxy import proxy_to
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.outbox import SHARDS, CheckAnswer, Failed, OutboxStore, Sent, TransactionOutcome
from ackwise.stores.conformance.outbox import OutboxConformance
from ackwise.stores.conformance.outboxwriting import message
from ackwise.stores.postgres.driver import AsyncpgRunner
from ackwise.stores.postgres.outbox import _SESSION, Listening, Postgres, PostgresOutbox, channel_of, from_url
from ackwise.stores.postgres.schema import layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol.options import OUTBOX
from ackwise.stores.protocol.outbox import Wakes
from ackwise.stores.sql.operation import run

ALL = dict.fromkeys(range(64), 0)


async def test_what_is_no_connection_of_asyncpg_is_refused() -> None:
    outbox = PostgresOutbox("postgresql://127.0.0.1/shop")
    with pytest.raises(ConfigurationError, match=r"got a object, and writes through connections of asyncpg; .* use SQLAlchemyOutbox"):
        async with outbox.transaction(object()):
            pass
    with pytest.raises(ConfigurationError, match="connections of asyncpg"):
        await outbox.barrier(object(), "tx")


async def test_a_database_whose_texts_may_be_any_bytes_is_refused(postgres_database: asyncpg.Connection, postgres: SharedServer) -> None:
    name = f"bytes_{os.urandom(6).hex()}"
    await postgres_database.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    outbox = from_url(f"postgresql://{USER}@127.0.0.1:{postgres.port}/{name}")
    try:
        with pytest.raises(ConfigurationError, match=r"the encoding of the database is SQL_ASCII, .* with the encoding UTF8"):
            await outbox.open()
    finally:
        await outbox.close()
        await postgres_database.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_worker_that_waited_while_another_made_the_tables_makes_no_index_again(postgres_url: str) -> None:
    create = layout(Tables("returning"), OUTBOX, "here").create  # a name that is a word of SQL
    connection = await asyncpg.connect(postgres_url)
    try:
        for _ in range(2):  # both had found no tables
            await run(create(), AsyncpgRunner(connection))
        found = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'ackwise_outbox'")
        assert len(found) == 1 + 11
    finally:
        await connection.close()


class TestPostgresOutbox(OutboxConformance):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
        self.prefix = f"t{os.urandom(6).hex()}_"

    def make(self, place: Path) -> OutboxStore:
        return PostgresOutbox(self.url, prefix=self.prefix, retention=0.0)

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        return PostgresOutbox(self.url, prefix=self.prefix, retention=0.0, **settings)

    async def rows(self, place: Path) -> list[Any]:
        async with self.connect(place) as connection:
            columns = "state, message_id, message_key, value, headers"
            return [tuple(row) for row in await connection.fetch(f"SELECT {columns} FROM {self.prefix}outbox ORDER BY id")]

    async def prepare(self, place: Path) -> None:
        async with self.connect(place) as connection:
            await connection.execute(f"CREATE TABLE {self.prefix}effects (effect text PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = connection.transaction()
        return transaction

    savepoint = begin

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(f"INSERT INTO {self.prefix}effects VALUES ($1)", effect)

    async def effects(self, place: Path) -> list[str]:
        async with self.connect(place) as connection:
            return [effect for (effect,) in await connection.fetch(f"SELECT effect FROM {self.prefix}effects")]

    async def age(self, place: Path, seconds: float) -> None:
        async with self.connect(place) as connection:
            for table in ("outbox", "outbox_barrier"):
                await connection.execute(f"UPDATE {self.prefix}{table} SET created = created - $1 * interval '1 s'", seconds)
            await connection.execute(f"UPDATE {self.prefix}outbox SET next_at = next_at - $1 * interval '1 s' WHERE state = 5", seconds)


@pytest.fixture
async def outbox(postgres_url: str, postgres_database: asyncpg.Connection) -> AsyncIterator[PostgresOutbox]:
    """Of this test alone, beside a table `effects` of texts that are unique."""
    await postgres_database.execute("CREATE TABLE effects (effect text PRIMARY KEY)")
    outbox = PostgresOutbox(postgres_url, timeout=2.0)
    await outbox.open()
    yield outbox
    await outbox.close()


async def values(outbox: PostgresOutbox) -> list[bytes | None]:
    return [row.message.value for row in await outbox.pending(ALL, limit=1000)]


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.01)


async def count(database: asyncpg.Connection, table: str = "ackwise_outbox") -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM {table}"))


# Writing


async def test_the_rows_of_a_transaction_are_one_insert_before_its_commit(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"0")  # asyncpg asks once for the types of arrays
    asked: list[str] = []
    postgres_database.add_query_logger(lambda record: asked.append(record.query.strip()[:17]))
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"1")
        await postgres_database.execute("INSERT INTO effects VALUES ('a')")
        transaction.send("orders", b"2")
        await postgres_database.execute("INSERT INTO effects VALUES ('b')")
    await asyncio.sleep(0)
    assert asked == ["BEGIN;", "INSERT INTO effec", "INSERT INTO effec", 'INSERT INTO "publ', "COMMIT;"]
    assert await values(outbox) == [b"0", b"1", b"2"]


async def test_a_connection_of_a_pool_writes_rows_and_goes_back_as_it_came(outbox: PostgresOutbox, postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        async with outbox.transaction(connection) as transaction:
            transaction.send("orders", b"1")
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    transaction.send("orders", b"2")
                    raise ZeroDivisionError
            with suppress(ZeroDivisionError):
                async with outbox.transaction(connection), connection.transaction():
                    outbox.send("orders", b"3")
                    raise ZeroDivisionError
        raw: Any = connection
        assert type(raw._con) is asyncpg.Connection
        assert not connection.is_in_transaction()
    assert await values(outbox) == [b"1"]


async def test_savepoints_that_are_executed_are_seen(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    for inside, expected in [
        (["SAVEPOINT a", "+inside", "ROLLBACK TO a"], [b"before", b"after"]),
        (["savepoint a;", "+inside", "rollback to savepoint a"], [b"before", b"after"]),
        (["/* mine */ SAVEPOINT a", "+inside", "-- now\nROLLBACK WORK TO a"], [b"before", b"after"]),
        (["SELECT 1; SAVEPOINT a", "+inside", "SELECT 1; ROLLBACK TO a"], [b"before", b"after"]),
        (["SAVEPOINT a", "+inside", "RELEASE a"], [b"before", b"inside", b"after"]),
        (["SAVEPOINT a", "+inside", "SAVEPOINT b", "+deeper", "RELEASE b", "ROLLBACK TO a"], [b"before", b"after"]),
        (["SAVEPOINT a", "+inside", "SAVEPOINT b", "+deeper", "ROLLBACK TO b"], [b"before", b"inside", b"after"]),
        (["SAVEPOINT a", "+inside", "ROLLBACK TO a", "+again", "ROLLBACK TO a"], [b"before", b"after"]),
    ]:
        with case(inside, expected):
            async with outbox.transaction(postgres_database) as transaction:
                transaction.send("orders", b"before")
                for statement in inside:
                    if statement.startswith("+"):
                        transaction.send("orders", statement[1:].encode())
                    else:
                        await postgres_database.execute(statement)
                transaction.send("orders", b"after")
            assert await values(outbox) == expected
            await postgres_database.execute("DELETE FROM ackwise_outbox")


async def test_a_savepoint_that_is_prepared_is_refused(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    async with outbox.transaction(postgres_database):
        with pytest.raises(ConfigurationError, match="can't be a prepared statement"):
            await postgres_database.prepare("SAVEPOINT a")
        prepared = await postgres_database.prepare("SELECT 1")
        assert await prepared.fetchval() == 1


async def test_rows_are_part_of_a_commit_that_was_executed_inside_the_block(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    async with outbox.transaction(postgres_database) as transaction:
        await postgres_database.execute("INSERT INTO effects VALUES ('a')")
        transaction.send("orders", b"1")
        await postgres_database.execute("COMMIT")
    assert await values(outbox) == [b"1"]
    with pytest.raises(TransactionAborted, match="was ended inside the block"):  # noqa: PT012  # the block is what is tried
        async with outbox.transaction(postgres_database) as transaction:
            await postgres_database.execute("COMMIT")
            transaction.send("orders", b"2")
    assert await values(outbox) == [b"1"]


async def test_an_error_that_was_swallowed_is_found_out_and_nothing_stays(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    with pytest.raises(TransactionAborted, match="an error of PostgreSQL was caught"):  # noqa: PT012  # the block is what is tried
        async with outbox.transaction(postgres_database) as transaction:
            await postgres_database.execute("INSERT INTO effects VALUES ('a')")
            with suppress(asyncpg.UndefinedTableError):
                await postgres_database.execute("SELECT * FROM nowhere")
            transaction.send("orders", b"1")
    assert (await values(outbox), await count(postgres_database, "effects")) == ([], 0)
    assert not postgres_database.is_in_transaction()


@pytest.mark.parametrize("flushes", [False, True])
async def test_an_error_that_was_swallowed_is_found_out_where_no_rows_are_left_to_write(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection, flushes: bool
) -> None:
    with pytest.raises(TransactionAborted, match="an error of PostgreSQL was caught"):  # noqa: PT012  # the block is what is tried
        async with outbox.transaction(postgres_database) as transaction:
            await postgres_database.execute("INSERT INTO effects VALUES ('a')")
            if flushes:
                transaction.send("orders", b"1")
                await transaction.flush()
            with suppress(asyncpg.UndefinedTableError):
                await postgres_database.execute("SELECT * FROM nowhere")
    assert (await values(outbox), await count(postgres_database, "effects")) == ([], 0)
    assert not postgres_database.is_in_transaction()


async def test_a_transaction_that_was_begun_by_a_statement_is_joined(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    await postgres_database.execute("BEGIN")
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"1")
    assert await values(outbox) == []
    await postgres_database.execute("COMMIT")
    assert await values(outbox) == [b"1"]


async def test_writing_needs_no_open_and_says_what_is_missing(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    outbox = PostgresOutbox(postgres_url)
    with pytest.raises(ConfigurationError, match=r"the tables of the outbox are missing; run `ackwise outbox init URL`"):
        async with outbox.transaction(postgres_database) as transaction:
            transaction.send("orders", b"1")
    await outbox.init()
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"1")
    assert await count(postgres_database) == 1


# Blocked keys


async def fail_first(outbox: PostgresOutbox, database: asyncpg.Connection, again_in: float | None) -> None:
    """Ten rows of a key, of which the first can't be sent."""
    async with outbox.transaction(database) as transaction:
        for number in range(10):
            transaction.add(message(b"%d" % number, key=b"k"))
    shards = await outbox.own("a", lease=60.0, share=64)
    (row,) = await outbox.pending(shards, limit=1)
    await outbox.failed([Failed(row.id, row.shard, "refused", again_in)], shards)


async def test_rows_of_a_blocked_key_are_read_once(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    await fail_first(outbox, postgres_database, 3600.0)
    assert await values(outbox) == []
    assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_outbox WHERE behind") == 9
    assert (await outbox.status()).waiting == 10


async def test_rows_whose_first_one_was_deleted_by_hand_are_found_by_the_next_look_for_such_rows(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    await fail_first(outbox, postgres_database, None)
    assert await values(outbox) == []
    await outbox.free()
    assert await values(outbox) == []
    await postgres_database.execute("DELETE FROM ackwise_outbox WHERE state = 5")
    await outbox.free()
    assert await values(outbox) == [b"%d" % number for number in range(1, 10)]


async def test_the_parked_rows_of_a_key_are_looked_through_once_for_all_its_new_rows(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    """With `on_error="skip"` a key may have many parked rows, none of which holds up another."""
    shards = await outbox.own("a", lease=60.0, share=64)
    await postgres_database.execute(
        "INSERT INTO ackwise_outbox (message_id, shard, topic, message_key, key_hash, size, state, attempts)"
        " SELECT n::text, 0, 'orders', 'k', 7, 0, CASE WHEN n <= 2000 THEN 5 ELSE 2 END, CASE WHEN n <= 2000 THEN 1 ELSE 0 END"
        " FROM generate_series(1, 2100) AS n"
    )
    assert len(await outbox.pending(shards, limit=100, block_key=False)) == 100
    read = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'ackwise_outbox'"
    await until(lambda: postgres_database.fetchval(read))
    assert await postgres_database.fetchval(read) < 20_000


async def test_a_portion_of_the_rows_behind_one_goes_on_at_a_time(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    async with outbox.transaction(postgres_database) as transaction:
        for number in range(2500):
            transaction.add(message(b"%d" % number, key=b"k"))
    shards = await outbox.own("a", lease=60.0, share=64)
    (row,) = await outbox.pending(shards, limit=1)
    await outbox.failed([Failed(row.id, row.shard, "refused", None)], shards)
    assert await values(outbox) == []
    await postgres_database.execute("DELETE FROM ackwise_outbox WHERE state = 5")
    for left in (1499, 499, 0):
        assert not await outbox.free(), "there is one key"
        assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_outbox WHERE behind") == left


async def test_a_failure_waits_for_whoever_takes_its_shard_over_and_is_not_written_beside_him(
    outbox: PostgresOutbox, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"1")
    shards = await outbox.own("a", lease=60.0, share=64)
    (row,) = await outbox.pending(shards, limit=1)
    other = await asyncpg.connect(postgres_url)
    await other.execute("BEGIN; UPDATE ackwise_outbox_shard SET token = token + 1")
    failing = asyncio.create_task(outbox.failed([Failed(row.id, row.shard, "refused", None)], shards))

    async def waits_or_ended() -> bool:
        return failing.done() or await postgres_database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0

    await until(waits_or_ended)
    await other.execute("COMMIT")
    assert await failing == 0
    await other.close()


async def test_a_half_message_that_another_checker_is_being_given_is_passed_over(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    await outbox.prepare([message(b"1")], "tx", producer_group="shop", first_check=0.0)
    await postgres_database.execute("BEGIN; SELECT 1 FROM ackwise_outbox FOR UPDATE")
    assert await outbox.due_checks("shop", limit=10, lease=60.0) == []
    await postgres_database.execute("ROLLBACK")
    assert len(await outbox.due_checks("shop", limit=10, lease=60.0)) == 1


async def test_a_check_back_waits_for_parts_of_a_second(postgres_database: asyncpg.Connection) -> None:
    sql = Postgres(Tables())
    for wait, patience in [(1.5, "1500ms"), (0.05, "50ms"), (0.0, "1ms")]:
        for text, values in sql.say_all(sql.patient.before, wait=wait):
            await postgres_database.execute(text, *values)
        assert await postgres_database.fetchval("SHOW lock_timeout") == patience
        await postgres_database.execute("COMMIT")


# Waking


async def test_a_relay_of_another_process_is_notified_only_if_it_is_idle(outbox: PostgresOutbox, postgres_url: str) -> None:
    other = PostgresOutbox(postgres_url)
    other._wakes = Wakes()  # as in another process
    other._listening = Listening(channel_of(other._sql.tables["rows"]), other._wakes)
    await other.open()
    await other.own("a", lease=60.0, share=64)
    async with asyncio.timeout(PATIENCE):
        await other.pending(ALL, limit=10)
        waiting = asyncio.create_task(other.wait_for_rows(3600.0))
        connection = await asyncpg.connect(postgres_url)
        await until(lambda: connection.fetchval("SELECT count(idle_until) FROM ackwise_outbox_relay"))
        async with outbox.transaction(connection) as transaction:
            transaction.send("orders", b"1")
        await waiting
    assert await connection.fetchval("SELECT count(idle_until) FROM ackwise_outbox_relay") == 0
    await connection.close()
    await other.close()


async def test_rows_that_came_while_a_relay_went_idle_are_not_waited_for(outbox: PostgresOutbox, postgres_url: str) -> None:
    other = PostgresOutbox(postgres_url)
    other._wakes = Wakes()  # as in another process
    await other.open()
    await other.own("a", lease=60.0, share=64)
    await other.pending(ALL, limit=10)
    connection = await asyncpg.connect(postgres_url)
    async with PostgresOutbox(postgres_url).transaction(connection) as transaction:  # not open: it notifies nobody
        transaction.send("orders", b"1")
    async with asyncio.timeout(PATIENCE):
        await other.wait_for_rows(3600.0)
    await connection.close()
    await other.close()


async def test_notifications_are_sent_apart_from_the_business_and_few(outbox: PostgresOutbox, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    asked: list[str] = []
    connection.add_query_logger(lambda record: asked.append(record.query))
    for _ in range(50):
        outbox.wake()
    async with outbox.transaction(connection) as transaction:
        transaction.send("orders", b"1")
    await asyncio.sleep(0)
    assert not any("notify" in statement for statement in asked)
    assert outbox._waking.sent <= 2
    await connection.close()


async def test_a_lost_listener_is_replaced_with_the_next_wait(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    await outbox.own("a", lease=60.0, share=64)
    await outbox.wait_for_rows(0.01)
    await postgres_database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database() AND query ~ 'LISTEN'"
    )
    listening = outbox._listening
    assert listening is not None

    async def is_lost() -> bool:
        return listening.is_lost

    await until(is_lost)
    await outbox.wait_for_rows(0.01)
    assert not listening.is_lost


# What only a server can do


async def test_a_commit_in_doubt_is_decided_by_the_barrier_and_never_guessed(
    outbox: PostgresOutbox, postgres: SharedServer, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    async with proxy_to(postgres.port) as proxy:
        database = postgres_url.rpartition("/")[2]
        connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{proxy.port}/{database}")
        await outbox.prepare([message(b"1")], "tx", producer_group="shop", first_check=0.0)

        async def commit_and_lose_the_answer() -> None:
            async with connection.transaction():
                await outbox.barrier(connection, "tx")
                await connection.execute("INSERT INTO effects VALUES ('a')")
                proxy.swallow_replies = True
                commit = asyncio.create_task(connection.execute("COMMIT"))
                await until(lambda: count(postgres_database, "effects"))
                proxy.cut()
                await commit

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await commit_and_lose_the_answer()
        (row,) = await outbox.due_checks("shop", limit=10, lease=60.0)
        outcome = await outbox.probe(row.tx_id, wait=1.0)
        assert outcome is TransactionOutcome.COMMIT
        await outbox.answered([CheckAnswer(row.id, outcome)])
        connection.terminate()
    assert await values(outbox) == [b"1"]


async def test_a_commit_whose_answer_is_lost_is_said_and_all_of_it_is_there(
    outbox: PostgresOutbox, postgres: SharedServer, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    async with proxy_to(postgres.port) as proxy:
        connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{proxy.port}/{postgres_url.rpartition('/')[2]}")
        with pytest.raises(StoreUnavailable, match="not known whether the transaction committed"):  # noqa: PT012  # the block is what is tried
            async with outbox.transaction(connection) as transaction:
                await connection.execute("INSERT INTO effects VALUES ('a')")
                transaction.send("orders", b"1")
                last = proxy.requests + 3  # the rows are prepared and inserted before
                proxy.cut_after = lambda _: proxy.requests == last
        assert connection.is_closed()
    await until(lambda: count(postgres_database, "effects"))
    assert await values(outbox) == [b"1"]


async def test_a_lost_connection_is_replaced_where_repeating_is_safe(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    await values(outbox)
    await postgres_database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    assert await values(outbox) == []


async def test_plans_that_were_made_for_an_empty_table_read_little_of_a_full_one(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    shards = await outbox.own("a", lease=60.0, share=64)
    for _ in range(10):
        assert await outbox.pending(shards, limit=10) == []
    await postgres_database.execute(
        "INSERT INTO ackwise_outbox (message_id, shard, topic, size) SELECT n::text, n % 64, 'orders', 0 FROM generate_series(1, 50000) n"
    )
    assert len(await outbox.pending(shards, limit=10)) == 10
    read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'ackwise_outbox'"
    await until(lambda: postgres_database.fetchval(read))
    assert await postgres_database.fetchval(read) < 5000


# Rights, versions and what is wrong


@pytest.fixture
async def clerk(postgres_url: str, postgres_database: asyncpg.Connection) -> AsyncIterator[str]:
    """The URL of a user who may do nothing in the database yet."""
    name = f"clerk_{os.urandom(4).hex()}"
    await postgres_database.execute(f"CREATE ROLE {name} LOGIN")
    yield postgres_url.replace(f"//{USER}@", f"//{name}@")
    await postgres_database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_a_business_needs_insert_and_a_relay_needs_more(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection, clerk: str
) -> None:
    name = clerk.partition("//")[2].partition("@")[0]
    business = PostgresOutbox(clerk)
    with pytest.raises(ConfigurationError, match=r"may not do what the outbox needs"):
        await business.open()
    await postgres_database.execute(f"GRANT SELECT ON ackwise_schema, ackwise_outbox_meta TO {name}")
    with pytest.raises(ConfigurationError, match='no right to INSERT on "ackwise_outbox"'):
        await business.open()
    await postgres_database.execute(f"GRANT INSERT ON ackwise_outbox TO {name}; GRANT SELECT, INSERT ON ackwise_outbox_barrier TO {name}")
    await business.open()
    connection = await asyncpg.connect(clerk)
    async with business.transaction(connection) as transaction:
        await business.barrier(connection, "tx")
        transaction.send("orders", b"1")
    await connection.close()
    with pytest.raises(ConfigurationError, match='no right to SELECT, UPDATE, DELETE on "ackwise_outbox"'):
        await business.claim_relay("table")
    await postgres_database.execute(
        f"""REVOKE INSERT ON ackwise_outbox FROM {name}; GRANT SELECT, UPDATE, DELETE ON ackwise_outbox TO {name};
        GRANT SELECT, UPDATE ON ackwise_outbox_shard TO {name}; GRANT SELECT, INSERT, UPDATE, DELETE ON ackwise_outbox_relay TO {name};
        GRANT INSERT ON ackwise_outbox_meta TO {name}"""
    )
    await business.close()
    await business.open()
    await business.claim_relay("table")
    shards = await business.own("a", lease=60.0, share=64)
    (row,) = await business.pending(shards, limit=10)
    await business.failed([Failed(row.id, row.shard, "refused", 0.0)], shards)
    assert await business.sent([Sent(row.id, row.shard)], shards) == 1
    await business.wait_for_rows(0.01)
    await business.leave("a")
    await business.close()


async def test_a_schema_of_a_newer_ackwise_is_refused(
    outbox: PostgresOutbox, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    await postgres_database.execute("UPDATE ackwise_schema SET version = 99 WHERE part = 'outbox'")
    with pytest.raises(ConfigurationError, match="its outbox has version 99"):
        await PostgresOutbox(postgres_url).open()


async def test_a_commit_that_the_server_may_forget_is_refused(postgres_url: str) -> None:
    pool = await asyncpg.create_pool(postgres_url, server_settings={"synchronous_commit": "off"})
    with pytest.raises(ConfigurationError, match="synchronous_commit is off"):
        await PostgresOutbox(pool=pool).open()
    await pool.close()


async def test_the_check_says_what_waits_for_nobody_and_what_is_parked(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    assert await outbox.check() == []
    async with outbox.transaction(postgres_database) as transaction:
        transaction.send("orders", b"1")
        transaction.send("orders", b"2")
    (said,) = await outbox.check()
    assert "2 rows wait and no relay has its lease" in said
    shards = await outbox.own("a", lease=60.0, share=64)
    first, _ = await outbox.pending(shards, limit=2)
    await outbox.failed([Failed(first.id, first.shard, "refused", None)], shards)
    (said,) = await outbox.check()
    assert "1 rows are parked" in said


def test_a_url_that_can_not_work_is_refused() -> None:
    for url, sentence in [
        ("postgresql://h/d?synchronous_commit=off", "has no option synchronous_commit"),
        ("postgresql://h/d?max_sise=2", "did you mean max_size"),
        ("postgresql://h/d?timeout=0", "timeout is 0.0"),
        ("postgres://h/d?prefix=" + "x" * 60, "prefix is"),
    ]:
        with case(url, sentence), pytest.raises(ConfigurationError, match=sentence):
            from_url(url)


async def test_a_row_that_becomes_due_while_rows_are_read_is_not_overtaken(postgres: SharedServer) -> None:
    outbox = PostgresOutbox(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres", prefix=f"t{os.urandom(6).hex()}_")
    await outbox.open()
    connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres")
    keys = [b"%d" % n for n in range(12)]
    async with outbox.transaction(connection) as rows:
        for keyed in (*[(key, b"first") for key in keys], *[(None, b"between")] * 3000, *[(key, b"second") for key in keys]):
            rows.send("orders", keyed[1], key=keyed[0])
    shards = await outbox.own("relay", lease=60, share=64)
    firsts = {row.message.key: row for row in await outbox.pending(shards, limit=len(keys))}
    for key in keys:
        await outbox.failed([Failed(firsts[key].id, firsts[key].shard, "away", 0.004)], shards)
        given = [row.message.value for row in await outbox.pending(shards, limit=5000) if row.message.key == key]
        assert given in ([], [b"first"], [b"first", b"second"])
    await connection.close()
    await outbox.close()


async def test_a_read_passes_over_no_row_whose_time_has_not_come(postgres_url: str) -> None:
    outbox = PostgresOutbox(postgres_url, prefix="delayed_")
    await outbox.open()
    connection = await asyncpg.connect(postgres_url)
    try:
        for name, value in _SESSION.items():
            await connection.execute(f"SET {name} = '{value}'")
        await connection.execute(
            "INSERT INTO delayed_outbox (message_id, shard, topic, size, due, next_at) "
            "SELECT i::text, i % 64, 'orders', 1, -1, now() + interval '1 day' FROM generate_series(1, 2000) AS i"
        )
        seek = {"shards": list(range(SHARDS)), "blocked": [], "under_way": [], "block_key": True, "limit": 500, "most": 10**7, "floor": 0}
        read = Postgres(Tables(None, "delayed_")).say("{pending}", **seek)
        plan = [line for (line,) in await connection.fetch("EXPLAIN (ANALYZE, COSTS OFF) " + read.text, *read.values)]
        assert not [line for line in plan if "Rows Removed" in line], plan
    finally:
        await connection.close()
        await outbox.close()
