"""The SQLite outbox passes the suite of every outbox; one relay has it at a time."""

from __future__ import annotations

import asyncio
import re
import resource
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from tests.stores.cases import case
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.outbox import OutboxStore, TransactionOutcome
from ackwise.plugin.registry import open_outbox
from ackwise.stores import SQLAlchemyOutbox
from ackwise.stores.conformance.outbox import BusinessConformance, OutboxConformance, OutboxFeatures
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.outboxwriting import require
from ackwise.stores.sqlite.outbox import SQLiteOutbox


async def test_a_connection_to_another_file_is_told_so(tmp_path: Path) -> None:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    await outbox.open()
    try:
        with (
            closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as connection,
            pytest.raises(ConfigurationError, match="are missing where the connection leads; open the outbox once"),
        ):
            async with outbox.transaction(connection):
                outbox.send("orders", b"1")
    finally:
        await outbox.close()


async def test_a_row_without_the_hash_of_its_key_which_another_program_wrote_waits_for_none(tmp_path: Path) -> None:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    await outbox.open()
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO ackwise_outbox (message_id, shard, topic, message_key, size, created) VALUES ('x', 0, 'orders', x'6b', 0, 0)"
        )
    assert await outbox.hold([1]) == {1}
    assert [row.id for row in await outbox.pending({0: 0}, limit=10)] == [1]
    await outbox.close()


async def test_a_second_relay_is_refused_though_another_name_leads_to_the_file(tmp_path: Path) -> None:
    outbox, other = SQLiteOutbox(tmp_path / "shop.db"), SQLiteOutbox(tmp_path / "link.db")
    await outbox.open()
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    await other.open()
    try:
        await outbox.own("a", lease=60.0, share=64)
        with pytest.raises(ConfigurationError, match="one relay"):
            await other.own("b", lease=60.0, share=64)
    finally:
        await outbox.close()
        await other.close()


async def test_what_is_no_connection_of_sqlite3_is_refused(tmp_path: Path) -> None:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    with pytest.raises(ConfigurationError, match=r"got a object, and writes through connections of sqlite3; .* use SQLAlchemyOutbox"):
        async with outbox.transaction(object()):
            pass
    with pytest.raises(ConfigurationError, match="connections of sqlite3"):
        await outbox.barrier(object(), "tx")


def test_a_block_that_is_entered_by_a_plain_with_says_what_to_write(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:")
    blocks: list[Any] = [
        SQLiteOutbox(tmp_path / "shop.db").transaction(connection),
        SQLAlchemyOutbox().transaction(AsyncSession()),
        MemoryOutbox().transaction(),
    ]
    for block in blocks:
        with pytest.raises(ConfigurationError, match=r"^transaction\(…\) was entered by a plain `with`; write `async with`"), block:
            pass
    connection.close()


def made_in(module: str) -> object:
    """A connection whose class is of that module."""
    return type("Connection", (), {"__module__": module})()


@each(
    ("connection", "sentence"),
    [
        (None, "the SQLite outbox got None, and writes through connections of sqlite3; Django has one connection for each thread"),
        (made_in("django.utils.connection"), "got a Connection of django, and writes through connections of sqlite3; Django has one"),
        (made_in("apsw"), "got a Connection of apsw, and writes through connections of sqlite3; for a session of SQLAlchemy use"),
    ],
)
def test_what_is_no_connection_of_sqlite3_is_refused_with_what_to_give(connection: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        SQLiteOutbox(tmp_path / "shop.db").writer(connection)


def test_a_connection_of_django_is_none_of_a_driver_that_django_does_not_use(tmp_path: Path) -> None:
    sentence = "got a Connection of django, and writes through connections of asyncpg; Django has none of those: give one of asyncpg"
    with pytest.raises(ConfigurationError, match=sentence):
        require(made_in("django.utils.connection"), sqlite3.Connection, "PostgreSQL", "asyncpg")


async def test_a_connection_commits_by_itself_again_after_a_commit_that_failed_and_undid_the_block(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    outbox = SQLiteOutbox(path)
    await outbox.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, closing(sqlite3.connect(path)) as other:
        connection.execute("CREATE TABLE effects (effect)")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        async def transact() -> None:
            async with outbox.transaction(connection):
                connection.execute("INSERT INTO effects VALUES (zeroblob(1000000))")
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # as a disk that is full

        try:
            with pytest.raises(sqlite3.OperationalError):
                await transact()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert connection.isolation_level is None
        connection.execute("INSERT INTO effects VALUES ('later')")
        assert other.execute("SELECT effect FROM effects").fetchall() == [("later",)]
    await outbox.close()


async def test_a_call_that_waits_behind_a_close_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    await outbox.open()
    assert outbox._connections._thread is not None
    busy = threading.Event()
    outbox._connections._thread.submit(busy.wait)
    closing = asyncio.create_task(outbox.close())
    await asyncio.sleep(0)
    leaving = asyncio.create_task(outbox.leave("relay"))
    await asyncio.sleep(0)
    busy.set()
    await closing
    with pytest.raises(StoreUnavailable):
        await leaving
    await outbox.open()
    await outbox.leave("relay")
    await outbox.close()


class OnSQLite(BusinessConformance):
    features = OutboxFeatures(relays=False, writers=False)
    #: Of the business's connections.
    isolation_level: Any = ""

    def make(self, place: Path) -> OutboxStore:
        return SQLiteOutbox(place / "shop.db", retention=0.0)

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        return SQLiteOutbox(place / "shop.db", retention=0.0, **settings)

    async def rows(self, place: Path) -> list[Any]:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            return connection.execute("SELECT state, message_id, message_key, value, headers FROM ackwise_outbox ORDER BY id").fetchall()

    async def prepare(self, place: Path) -> None:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        with closing(sqlite3.connect(place / "shop.db", isolation_level=self.isolation_level, timeout=0.0)) as connection:
            yield connection

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _begun(connection)

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _saved(connection)

    async def write(self, connection: Any, effect: str) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (effect,))

    async def effects(self, place: Path) -> list[str]:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            return [effect for (effect,) in connection.execute("SELECT effect FROM effects")]

    async def age(self, place: Path, seconds: float) -> None:
        with closing(sqlite3.connect(place / "shop.db")) as connection, connection:
            for table in ("ackwise_outbox", "ackwise_outbox_barrier"):
                connection.execute(f"UPDATE {table} SET created = created - ?", (seconds,))
            connection.execute("UPDATE ackwise_outbox SET next_at = next_at - ? WHERE state = 5", (seconds,))


class TestSQLiteOutbox(OnSQLite, OutboxConformance):
    pass


@pytest.mark.nightly
class TestSQLiteOutboxInAutocommit(OnSQLite):
    isolation_level = None


@asynccontextmanager
async def _begun(connection: sqlite3.Connection) -> AsyncIterator[None]:
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            await asyncio.sleep(0.002)
        else:
            break
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@asynccontextmanager
async def _saved(connection: sqlite3.Connection) -> AsyncIterator[None]:
    connection.execute("SAVEPOINT mine")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO mine")
        connection.execute("RELEASE mine")
        raise
    connection.execute("RELEASE mine")


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[SQLiteOutbox]:
    outbox = SQLiteOutbox(tmp_path / "shop.db", timeout=0.05)
    await outbox.open()
    yield outbox
    await outbox.close()


def connected(outbox: SQLiteOutbox) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(outbox._path))


@pytest.mark.slow  # waits for a process that owns the rows and is killed
async def test_a_relay_that_died_is_followed_at_once_and_one_that_lives_is_not(outbox: SQLiteOutbox) -> None:
    script = f"""
import asyncio, time
from ackwise.stores.sqlite.outbox import SQLiteOutbox
async def own():
    outbox = SQLiteOutbox({str(outbox._path)!r})
    await outbox.open()
    await outbox.own("a", lease=3600.0, share=64)
    print("owns", flush=True)
    time.sleep(60)
asyncio.run(own())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"owns\n"
    with pytest.raises(ConfigurationError, match="another relay sends the rows of this file"):
        await outbox.own("b", lease=60.0, share=64)
    process.kill()
    await process.wait()
    assert len(await outbox.own("b", lease=60.0, share=64)) == 64


async def test_a_business_that_waits_for_the_file_does_not_hold_up_the_loop(outbox: SQLiteOutbox) -> None:
    with connected(outbox) as other, connected(outbox) as mine:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another writer held the file for .* s; look who keeps a transaction open"):
            async with outbox.transaction(mine):
                pytest.fail("it is not the writer")
        with pytest.raises(StoreUnavailable, match="another writer held the file"):
            await outbox.decide("tx", TransactionOutcome.COMMIT)
        assert mine.execute("PRAGMA busy_timeout").fetchone() == (5000,)
        other.rollback()
        async with outbox.transaction(mine):
            outbox.send("orders", b"1")


async def test_a_call_that_failed_leaves_the_next_one_its_patience(outbox: SQLiteOutbox) -> None:
    def patience() -> Steps[int]:
        (found,) = yield [Statement("PRAGMA busy_timeout")]
        return int(found.rows[0][0])

    with connected(outbox) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON ackwise_outbox_barrier BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await outbox.probe("tx", wait=0.0)
    assert await outbox._run(patience) == 50


async def test_a_connection_with_factories_of_its_own_writes_rows(outbox: SQLiteOutbox) -> None:
    with connected(outbox) as connection:
        connection.row_factory = lambda cursor, row: {"row": row}
        async with outbox.transaction(connection) as transaction:
            await outbox.barrier(connection, "tx")
            transaction.send("orders", b"1")
        assert await outbox.database_id(connection) == await outbox.database_id()
        with pytest.raises(TransactionAborted, match="committed before"):
            async with outbox.transaction(connection):
                await outbox.barrier(connection, "tx")


async def test_a_commit_inside_the_block_commits_the_rows_before_it_and_takes_none_after(outbox: SQLiteOutbox) -> None:
    with connected(outbox) as connection:
        async with outbox.transaction(connection) as transaction:
            transaction.send("orders", b"1")
            connection.commit()
            with pytest.raises(TransactionAborted, match="was ended inside the block"):
                transaction.send("orders", b"2")
    assert [row.message.value for row in await outbox.pending(dict.fromkeys(range(64), 0), limit=9)] == [b"1"]


def or_rollback(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO effects VALUES ('there')")


def commit_and_write(connection: sqlite3.Connection) -> None:
    connection.commit()
    connection.execute("INSERT INTO effects VALUES ('b')")


def raise_(connection: sqlite3.Connection) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("isolation_level", [None, "", "EXCLUSIVE"])
@pytest.mark.parametrize("traced", [False, True])
async def test_a_connection_is_as_it_was_however_the_block_ended(outbox: SQLiteOutbox, isolation_level: Any, traced: bool) -> None:
    ends: list[Callable[[sqlite3.Connection], None]] = [lambda _: None, raise_, or_rollback, commit_and_write, sqlite3.Connection.rollback]
    with closing(sqlite3.connect(outbox._path, isolation_level=isolation_level)) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        connection.commit()
        if traced:
            connection.set_trace_callback(lambda _: None)
        for end in ends:
            with case(end):
                with suppress(ZeroDivisionError, TransactionAborted):
                    async with outbox.transaction(connection):
                        assert connection.isolation_level is not None
                        outbox.send("orders", b"1")
                        end(connection)
                assert not connection.in_transaction
                assert connection.isolation_level == isolation_level
                connection.execute("INSERT INTO effects VALUES ('z')")
                connection.execute("DELETE FROM effects WHERE effect = 'z'")
                connection.commit()
        assert connection.execute("SELECT effect FROM effects").fetchall() == [("there",)]


@pytest.mark.parametrize("payment", ["INSERT INTO effects VALUES ('a')", "WITH one AS (SELECT 'a') INSERT INTO effects SELECT * FROM one"])
async def test_what_follows_an_error_that_undid_the_transaction_is_refused(outbox: SQLiteOutbox, payment: str) -> None:
    with closing(sqlite3.connect(outbox._path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        with pytest.raises(TransactionAborted, match="an error that undoes all of it"):  # noqa: PT012  # the block is what is tried
            async with outbox.transaction(connection):
                outbox.send("orders", b"1")
                or_rollback(connection)
                connection.execute(payment)
        with pytest.raises(TransactionAborted, match="an error that undoes all of it"):  # noqa: PT012  # as above
            async with outbox.transaction(connection):
                outbox.send("orders", b"2")
                or_rollback(connection)
        assert connection.execute("SELECT effect FROM effects").fetchall() == [("there",)]
    assert await outbox.pending(dict.fromkeys(range(64), 0), limit=9) == []


def a_savepoint_as_before(connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT mine")  # which sqlite3 has prepared, so that no authorizer is asked


def another_authorizer(connection: sqlite3.Connection) -> None:
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
    connection.execute("INSERT INTO effects VALUES ('a')")


@pytest.mark.parametrize("goes_on", [a_savepoint_as_before, another_authorizer])
async def test_a_transaction_that_begins_unseen_after_such_an_error_is_not_taken_for_the_one_of_the_block(
    outbox: SQLiteOutbox, goes_on: Callable[[sqlite3.Connection], None]
) -> None:
    with connected(outbox) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        connection.commit()
        with pytest.raises(TransactionAborted, match="an error that undoes all of it"):  # noqa: PT012  # the block is what is tried
            async with outbox.transaction(connection):
                outbox.send("orders", b"1")
                a_savepoint_as_before(connection)
                connection.execute("RELEASE mine")
                or_rollback(connection)
                goes_on(connection)
                assert connection.in_transaction
        assert not connection.in_transaction
        assert connection.execute("SELECT effect FROM effects").fetchall() == [("there",)]


async def test_a_file_without_the_tables_is_named_with_the_command(tmp_path: Path) -> None:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    (said,) = await outbox.check()
    assert "run `ackwise outbox init URL`" in said
    with pytest.raises(ConfigurationError, match="there is no such file"):
        await outbox.cleanup()
    with connected(outbox) as connection:
        with pytest.raises(ConfigurationError, match="run `ackwise outbox init URL`"):
            async with outbox.transaction(connection):
                outbox.send("orders", b"1")
        with pytest.raises(ConfigurationError, match="are missing where the connection leads"):
            await outbox.database_id(connection)
    await outbox.init()
    assert await outbox.check() == []


async def test_each_file_has_its_own_id_also_if_one_process_made_them_all(tmp_path: Path) -> None:
    ids = set[str]()
    for name in ("shop.db", "half.db"):
        outbox = SQLiteOutbox(tmp_path / name)
        await outbox.open()
        ids.add(await outbox.database_id())
        await outbox.close()
    assert [len(id) for id in ids] == [32, 32]


async def test_a_file_of_a_newer_ackwise_or_of_another_kind_is_refused(tmp_path: Path, outbox: SQLiteOutbox) -> None:
    with connected(outbox) as connection, connection:
        connection.execute("UPDATE ackwise_schema SET version = 99 WHERE part = 'outbox'")
    with pytest.raises(ConfigurationError, match="its outbox has version 99"):
        await SQLiteOutbox(tmp_path / "shop.db").open()
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(ConfigurationError, match="no SQLite database"):
        await SQLiteOutbox(tmp_path / "text").open()


def test_a_url_that_can_not_work_is_refused() -> None:
    for url in ["sqlite://", "sqlite:///shop.db?prefix=x", "sqlite:///shop.db?timeout=x", "sqlite:///:memory:"]:
        with case(url), pytest.raises(ConfigurationError):
            open_outbox(url)
