"""A transaction that ended while the handler still works: by an error that it caught, or by a statement that commits by itself.

Whatever the handler does after that must not commit by itself: the batch fails, and runs again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool
from tests.databases.proxy import proxy_to
from tests.middleware.conftest import Spine
from tests.stores.batches import FINISHED, HERE, Handler, consume, done, keys, opened
from tests.stores.dialects import MariaDBDatabase, SQLDatabase
from tests.stores.mysql.database import MySQLDatabase
from tests.tables import each
from tests.waiting import PATIENCE

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Outcome
from ackwise.middleware.storage.transaction import Finished, Taken, TransactionalStore
from ackwise.plugin.registry import open_inbox
from ackwise.stores.mysql.inbox import MySQLInbox
from ackwise.stores.mysql.outbox import MySQLOutbox
from ackwise.stores.sqlalchemy import SQLAlchemyInbox
from ackwise.stores.sqlite.inbox import SQLiteInbox
from ackwise.stores.sqlite.outbox import SQLiteOutbox

AUTOCOMMIT = "our connection is in autocommit: once an error has undone the transaction, what the handler does next commits by itself"


async def fails_and_is_taken_again(inbox: TransactionalStore, handle: Handler) -> None:
    """A batch of `handle` fails, by our error or by that of a statement that is refused; its key is free again."""
    asked = keys(1)
    failed = False
    try:
        await consume(inbox, asked, handle)
    except Exception:  # noqa: BLE001  # which one it is does not matter here
        failed = True
    assert failed, "nobody noticed that the transaction was gone"
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Taken()]


# SQLite


class File:
    """A SQLite file with an inbox, a table of effects in which `there` is, and an account."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inbox = SQLiteInbox(path)

    def ask(self, statement: str) -> list[Any]:
        """The rows of a statement, on its own connection."""
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            return connection.execute(statement).fetchall()

    def effects(self) -> list[str]:
        return [effect for (effect,) in self.ask("SELECT effect FROM effects ORDER BY effect")]


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[File]:
    file = File(tmp_path / "shop.db")
    file.ask("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
    file.ask("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
    file.ask("CREATE TABLE refused (name TEXT)")
    file.ask("CREATE TRIGGER refuses BEFORE INSERT ON refused BEGIN SELECT RAISE(ROLLBACK, 'not that'); END")
    file.ask("INSERT INTO effects VALUES ('there')")
    file.ask("INSERT INTO accounts VALUES ('anna', 0)")
    await file.inbox.open()
    yield file
    await file.inbox.close()


def or_rollback(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR ROLLBACK INTO effects VALUES ('there')")


def update_or_rollback(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE OR ROLLBACK effects SET effect = 'there' WHERE effect = 'a'")


def raising_trigger(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO refused VALUES ('x')")


def many_at_once(connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT OR ROLLBACK INTO effects VALUES (?)", [("b",), ("there",)])


def full_disk(connection: sqlite3.Connection) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 50}")
    connection.execute("PRAGMA cache_size = 5")
    connection.execute("PRAGMA cache_spill = 1")
    try:
        connection.executemany("INSERT INTO effects VALUES (?)", [(f"{number}" * 500,) for number in range(2000)])
    finally:
        connection.execute("PRAGMA max_page_count = 1000000")


@pytest.mark.parametrize("ends", [or_rollback, update_or_rollback, raising_trigger, many_at_once, full_disk])
async def test_sqlite_what_follows_an_error_that_ended_the_transaction_does_not_stay(
    file: File, ends: Callable[[sqlite3.Connection], None]
) -> None:
    async def handle(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO effects VALUES ('a')")
        with suppress(sqlite3.Error):
            ends(connection)
        connection.execute("INSERT INTO effects VALUES ('z')")

    await fails_and_is_taken_again(file.inbox, handle)
    assert file.effects() == ["there"]


async def test_sqlite_a_payment_after_such_an_error_is_made_once(file: File) -> None:
    asked = keys(1)
    fails = [True]

    async def pay(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            if fails.pop():
                or_rollback(connection)
        connection.execute("UPDATE accounts SET balance = balance + 100")

    with suppress(TransactionAborted, sqlite3.Error):
        await consume(file.inbox, asked, pay)
    fails.append(False)
    await consume(file.inbox, asked, pay)
    assert file.ask("SELECT balance FROM accounts") == [(100,)]


async def test_sqlite_an_offset_does_not_move_past_a_transaction_that_an_error_undid(file: File) -> None:
    mine = await file.inbox.take_over("ackwise/0/me", "orders", 3, position=5)

    async def batch() -> None:
        async with file.inbox.begin(retention=60.0) as transaction:
            await transaction.lock("ackwise/0/me", "orders", 3, mine.generation)
            with suppress(sqlite3.Error):
                or_rollback(transaction.connection)
            await transaction.advance("ackwise/0/me", "orders", 3, mine.generation, 9)

    with pytest.raises(TransactionAborted):
        await batch()
    assert (await file.inbox.take_over("ackwise/0/me", "orders", 3, position=0)).next == 5


def commit(connection: sqlite3.Connection) -> None:
    connection.commit()


def execute_commit(connection: sqlite3.Connection) -> None:
    connection.execute(" /* it is done */ commit")


def execute_end(connection: sqlite3.Connection) -> None:
    connection.cursor().execute("END TRANSACTION")


def script(connection: sqlite3.Connection) -> None:
    connection.executescript("SELECT 1")


def as_context(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("SELECT 1")


def isolation_level(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None


@pytest.mark.parametrize("ends", [commit, execute_commit, execute_end, script, as_context, isolation_level])
async def test_sqlite_what_commits_by_itself_is_refused_before_it_is_sent(file: File, ends: Callable[[sqlite3.Connection], None]) -> None:
    async def handle(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO effects VALUES ('a')")
        ends(connection)

    with pytest.raises(Exception):  # noqa: B017, PT011  # refused by us
        await consume(file.inbox, keys(1), handle)
    assert file.effects() == ["there"]


@each("ends", [or_rollback, raising_trigger])
async def test_sqlite_a_payment_and_its_message_are_there_together_or_not_at_all(tmp_path: Path, ends: Callable[[Any], None]) -> None:
    path = tmp_path / f"{ends.__name__}.db"
    outbox = SQLiteOutbox(path)
    await outbox.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO effects VALUES ('there')")
        connection.execute("CREATE TABLE refused (name TEXT)")
        connection.execute("CREATE TRIGGER refuses BEFORE INSERT ON refused BEGIN SELECT RAISE(ROLLBACK, 'not that'); END")
        with suppress(TransactionAborted, sqlite3.Error):
            async with outbox.transaction(connection):
                outbox.send("paid", b"first")
                with suppress(sqlite3.Error):
                    ends(connection)
                connection.execute("INSERT INTO effects VALUES ('payment')")
                outbox.send("paid", b"second")
        rows = connection.execute("SELECT count(*) FROM ackwise_outbox").fetchone()[0]
        payments = connection.execute("SELECT count(*) FROM effects WHERE effect = 'payment'").fetchone()[0]
    await outbox.close()
    assert (rows, payments) in ((0, 0), (2, 1))


# Servers


@pytest.fixture
async def inbox(sql: SQLDatabase) -> AsyncIterator[TransactionalStore]:
    """Of this test alone, beside accounts, and a table `effects` of texts that are unique."""
    await sql.execute("CREATE TABLE effects (effect VARCHAR(60) PRIMARY KEY)")
    await sql.execute("CREATE TABLE accounts (name VARCHAR(10) PRIMARY KEY, balance INTEGER NOT NULL)")
    await sql.execute("INSERT INTO accounts VALUES ('anna', 0), ('bert', 0), ('carl', 0), ('dora', 0)")
    inbox = open_inbox(sql.url(timeout=5))
    await inbox.open()
    yield inbox
    await inbox.close()


async def effects(sql: SQLDatabase) -> list[str]:
    return [effect for (effect,) in await sql.execute("SELECT effect FROM effects ORDER BY effect")]


def adds(sum: int, name: str) -> str:
    return f"UPDATE accounts SET balance = balance + {sum} WHERE name = '{name}'"


class Deadlock:
    """Two handlers that lock two accounts in either order; the one whose transaction is given up catches the error, and pays on."""

    def __init__(self, sql: SQLDatabase) -> None:
        self._sql = sql
        self._here = asyncio.Barrier(2)
        self.given_up = 0

    def handler(self, first: str, second: str, pays: str) -> Handler:
        async def handle(connection: Any) -> None:
            await self._sql.run(connection, adds(1, first))
            await self._here.wait()
            try:
                await self._sql.run(connection, adds(1, second))
            except Exception:  # noqa: BLE001  # the driver's
                self.given_up += 1
            await self._sql.run(connection, adds(100, pays))

        return handle


@pytest.mark.slow  # a server needs a second to find a deadlock
async def test_a_handler_that_goes_on_after_a_deadlock_leaves_nothing_behind(sql: SQLDatabase, inbox: TransactionalStore) -> None:
    expected: Counter[str] = Counter()
    for _ in range(2):
        deadlock = Deadlock(sql)
        plans = [("anna", "bert", "carl"), ("bert", "anna", "dora")]
        ends = await asyncio.gather(*(consume(inbox, keys(1), deadlock.handler(*plan)) for plan in plans), return_exceptions=True)
        assert deadlock.given_up == 1
        for (first, second, pays), end in zip(plans, ends, strict=True):
            if not isinstance(end, BaseException):
                expected += Counter({first: 1, second: 1, pays: 100})
    assert Counter(dict(await sql.execute("SELECT name, balance FROM accounts"))) == expected


@pytest.mark.slow  # a server needs a second to find a deadlock
async def test_a_payment_after_a_deadlock_that_was_caught_is_made_once(sql: SQLDatabase, inbox: TransactionalStore) -> None:
    await pays_each_message_once(sql, inbox)


@pytest.mark.servers
@pytest.mark.slow  # as above
async def test_mariadb_the_same_on_connections_of_a_pool_that_is_in_autocommit(mysql: MySQLDatabase) -> None:
    import asyncmy

    await mysql.fetch("CREATE TABLE accounts (name VARCHAR(10) PRIMARY KEY, balance INTEGER NOT NULL)")
    await mysql.fetch("INSERT INTO accounts VALUES ('anna', 0), ('bert', 0), ('carl', 0)")
    address: dict[str, Any] = {"host": "127.0.0.1", "port": mysql.server.port, "user": "root", "db": mysql.name}
    async with asyncmy.create_pool(minsize=1, maxsize=2, autocommit=True, **address) as pool:
        inbox = MySQLInbox(pool=pool)
        await inbox.open()
        await pays_each_message_once(MariaDBDatabase(mysql), inbox)
        await inbox.close()


@pytest.mark.servers
@pytest.mark.parametrize("is_given", [False, True])
async def test_mariadb_what_follows_a_rollback_that_nobody_could_see_does_not_stay(mysql: MySQLDatabase, is_given: bool) -> None:
    import asyncmy

    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60))")
    await mysql.fetch("CREATE PROCEDURE takes_back() ROLLBACK")
    statements = ("INSERT INTO effects VALUES ('before')", "CALL takes_back()", "INSERT INTO effects VALUES ('after')")
    address: dict[str, Any] = {"host": "127.0.0.1", "port": mysql.server.port, "user": "root", "db": mysql.name}
    async with asyncmy.create_pool(minsize=1, maxsize=2, autocommit=True, **address) as pool:
        inbox = MySQLInbox(pool=pool) if is_given else MySQLInbox(mysql.url)
        await inbox.open()
        await fails_and_is_taken_again(inbox, lambda connection: MariaDBDatabase(mysql).run(connection, *statements))
        await inbox.close()
    assert await mysql.fetch("SELECT effect FROM effects") == []


async def pays_each_message_once(sql: SQLDatabase, inbox: TransactionalStore) -> None:
    deadlock = Deadlock(sql)
    first, second = keys(2)
    plans = [(first, deadlock.handler("anna", "bert", "carl")), (second, deadlock.handler("bert", "anna", "carl"))]
    ends = await asyncio.gather(*(consume(inbox, [key], handle) for key, handle in plans), return_exceptions=True)
    (again,) = [key for key, end in zip((first, second), ends, strict=True) if isinstance(end, BaseException)]

    async def pay(connection: Any) -> None:
        await sql.run(connection, adds(100, "carl"))

    await consume(inbox, [again], pay)
    assert await sql.execute("SELECT balance FROM accounts WHERE name = 'carl'") == [(200,)], "two messages, each paid once"


async def test_a_batch_after_one_that_was_undone_commits_what_it_does_and_nothing_else(sql: SQLDatabase, inbox: TransactionalStore) -> None:
    for _ in range(3):
        await fails_and_is_taken_again(inbox, lambda connection: sql.run(connection, "INSERT INTO effects VALUES ('a')", "nonsense"))
    asked = keys(1)
    await consume(inbox, asked, lambda connection: sql.run(connection, "INSERT INTO effects VALUES ('b')"))
    assert await effects(sql) == ["b"]
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Finished(Outcome.OK, HERE, 7)]


@pytest.mark.slow  # waits until a rollback is given up
async def test_a_rollback_that_is_not_answered_commits_nothing_when_its_connection_is_let_go(
    sql: SQLDatabase, inbox: TransactionalStore
) -> None:
    async with proxy_to(sql.server.port) as proxy:
        far = open_inbox(sql.url(proxy, timeout=0.5, max_size=1))
        await far.open()
        try:

            async def handle(connection: Any) -> None:
                await sql.run(connection, "INSERT INTO effects VALUES ('a')")
                proxy.swallow_replies = True
                raise RuntimeError

            with pytest.raises((RuntimeError, StoreUnavailable)):
                await consume(far, keys(1), handle)
            proxy.swallow_replies = False
            await consume(far, keys(1), lambda connection: sql.run(connection, "INSERT INTO effects VALUES ('b')"))
        finally:
            await far.close()
    assert await effects(sql) == ["b"]


async def breaks_after(inbox: Any, breaks: Handler, *, by_offsets: bool) -> None:
    """A task that a handler left behind undoes its transaction once the handler is done, and all that Ackwise writes is written."""
    asked = keys(1)
    mine = await inbox.take_over("ackwise/0/me", "orders", 3, position=5)

    async def batch() -> None:
        async with inbox.begin(retention=60.0) as transaction:
            if by_offsets:
                await transaction.lock("ackwise/0/me", "orders", 3, mine.generation)
                await transaction.advance("ackwise/0/me", "orders", 3, mine.generation, 9)
            else:
                assert await transaction.claim(asked) == [Taken()]
                await transaction.finish(done(asked))
            with suppress(Exception):
                await breaks(transaction.connection)

    with pytest.raises((TransactionAborted, StoreUnavailable)):
        await batch()
    assert (await inbox.take_over("ackwise/0/me", "orders", 3, position=0)).next == 5
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Taken()]


@pytest.mark.parametrize("by_offsets", [False, True])
async def test_what_undoes_a_transaction_after_all_was_written_is_found_out_before_the_offset_moves(
    sql: SQLDatabase, inbox: TransactionalStore, by_offsets: bool
) -> None:
    await sql.execute("CREATE TABLE spare (id INTEGER)")
    breaks = "SELECT * FROM nowhere"
    if isinstance(sql, MariaDBDatabase):
        await sql.execute("CREATE PROCEDURE takes_back() ROLLBACK")
        breaks = "CALL takes_back()"
    await breaks_after(inbox, lambda connection: sql.run(connection, breaks), by_offsets=by_offsets)


@pytest.mark.parametrize("by_offsets", [False, True])
async def test_the_same_in_a_session(sql: SQLDatabase, by_offsets: bool) -> None:
    drivers, breaks = ["postgresql+asyncpg", "postgresql+psycopg"], text("SELECT * FROM nowhere")
    if isinstance(sql, MariaDBDatabase):
        drivers, breaks = ["mysql+asyncmy"], text("CALL takes_back()")
        await sql.execute("CREATE PROCEDURE takes_back() ROLLBACK")
    for driver in drivers:
        engine = create_async_engine(f"{driver}://{sql.url().partition('://')[2].partition('?')[0]}", poolclass=NullPool)
        async with opened(SQLAlchemyInbox(async_sessionmaker(engine))) as inbox:
            await breaks_after(inbox, lambda session: session.execute(breaks), by_offsets=by_offsets)
        await engine.dispose()


@pytest.mark.parametrize("by_offsets", [False, True])
async def test_sqlite_the_same(file: File, by_offsets: bool) -> None:
    async def breaks(connection: sqlite3.Connection) -> None:
        or_rollback(connection)

    await breaks_after(file.inbox, breaks, by_offsets=by_offsets)
    engine = create_async_engine(f"sqlite+aiosqlite:///{file.path}", poolclass=NullPool)
    statement = text("INSERT OR ROLLBACK INTO effects VALUES ('there')")
    async with opened(SQLAlchemyInbox(async_sessionmaker(engine))) as inbox:
        await breaks_after(inbox, lambda session: session.execute(statement), by_offsets=by_offsets)
    await engine.dispose()


#: What commits by itself. PostgreSQL's DDL does not.
COMMITTING = {
    "postgres": ["COMMIT", "END", "COMMIT AND CHAIN", "/* done */ commit work", "SELECT 1; COMMIT", "PREPARE TRANSACTION 'x'"],
    "mysql": [
        "COMMIT",
        "/* done */ commit work",
        "COMMIT AND CHAIN",
        "BEGIN",
        "START TRANSACTION",
        "SET autocommit = 1",
        "SET @@session.autocommit = ON",
        "LOCK TABLES spare WRITE",
        "CREATE TABLE other (id INT)",
        "ALTER TABLE spare ADD COLUMN other INT",
        "CREATE INDEX other ON spare (id)",
        "ANALYZE TABLE spare",
        "TRUNCATE TABLE spare",
        "DROP TABLE IF EXISTS nothing",
        "RENAME TABLE spare TO spares",
        "GRANT SELECT ON *.* TO root@localhost",
        "FLUSH PRIVILEGES",
        "SELECT 1; COMMIT",
        "/*! COMMIT */",
    ],
}


@pytest.mark.slow  # a server and many connections
async def test_a_statement_that_commits_by_itself_is_refused_before_it_is_sent(sql: SQLDatabase, inbox: TransactionalStore) -> None:
    await sql.execute("CREATE TABLE spare (id INTEGER)")
    stayed = []
    for statement in COMMITTING["mysql" if isinstance(sql, MariaDBDatabase) else "postgres"]:
        one = open_inbox(sql.url(timeout=5, max_size=1))  # of its own, so that what it locks is free again
        await one.open()

        async def handle(connection: Any, statement: str = statement) -> None:
            await sql.run(connection, "INSERT INTO effects VALUES ('a')", statement)

        with suppress(Exception):
            async with asyncio.timeout(PATIENCE):
                await consume(one, keys(1), handle)
        await one.close()
        if await effects(sql):
            stayed.append(statement)
            await sql.execute("DELETE FROM effects")
    assert stayed == []


async def test_a_task_that_a_handler_left_behind_can_not_end_its_transaction_once_the_handler_is_done(
    sql: SQLDatabase, inbox: TransactionalStore
) -> None:
    asked = keys(1)
    with pytest.raises(RuntimeError):  # noqa: PT012  # what is tested comes before it
        async with inbox.begin(retention=60.0) as transaction:
            assert await transaction.claim(asked) == [Taken()]
            await sql.run(transaction.connection, "INSERT INTO effects VALUES ('a')")
            await transaction.finish(done(asked))
            with pytest.raises(TransactionAborted):
                await sql.run(transaction.connection, "COMMIT")
            raise RuntimeError("what follows fails, such as a copy that is not acknowledged")
    assert await effects(sql) == []
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Taken()]


@pytest.mark.servers
async def test_mariadb_a_payment_and_its_message_are_there_together_or_not_at_all(mysql: MySQLDatabase) -> None:
    database = MariaDBDatabase(mysql)
    outbox = MySQLOutbox(mysql.url)
    await outbox.open()
    await mysql.fetch("CREATE TABLE accounts (name VARCHAR(10) PRIMARY KEY, balance INTEGER NOT NULL)")
    await mysql.fetch("INSERT INTO accounts VALUES ('anna', 0), ('bert', 0), ('carl', 0), ('dora', 0)")
    deadlock = Deadlock(database)

    async def transact(first: str, second: str, pays: str) -> None:
        async with mysql.connected() as connection, outbox.transaction(connection):
            await deadlock.handler(first, second, pays)(connection)
            outbox.send("paid", pays.encode())

    await asyncio.gather(transact("anna", "bert", "carl"), transact("bert", "anna", "dora"), return_exceptions=True)
    ((rows,),) = await mysql.fetch("SELECT count(*) FROM ackwise_outbox")
    paid = await mysql.fetch("SELECT name FROM accounts WHERE balance = 100")
    await outbox.close()
    assert deadlock.given_up == 1
    assert (rows, len(paid)) == (1, 1)


@pytest.mark.servers
async def test_mariadb_no_payment_stays_after_a_rollback_of_the_block_that_nobody_could_see(mysql: MySQLDatabase) -> None:
    database = MariaDBDatabase(mysql)
    outbox = MySQLOutbox(mysql.url)
    await outbox.open()
    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60))")
    await mysql.fetch("CREATE PROCEDURE takes_back() ROLLBACK")

    async def transact() -> None:
        async with mysql.connected() as connection, outbox.transaction(connection):
            await database.run(connection, "CALL takes_back()", "INSERT INTO effects VALUES ('after')")
            outbox.send("paid", b"after")

    with pytest.raises(TransactionAborted):
        await transact()
    await outbox.close()
    assert await mysql.fetch("SELECT effect FROM effects") == []
    assert await mysql.fetch("SELECT count(*) FROM ackwise_outbox") == [(0,)]


@pytest.mark.servers
async def test_mariadb_connections_of_a_pool_that_was_given_are_in_autocommit_again_however_the_batch_ended(mysql: MySQLDatabase) -> None:
    import asyncmy

    address: dict[str, Any] = {"host": "127.0.0.1", "port": mysql.server.port, "user": "root", "db": mysql.name}
    async with asyncmy.create_pool(minsize=1, maxsize=1, autocommit=True, **address) as pool:
        inbox = MySQLInbox(pool=pool)
        await inbox.open()
        for statements in ([], ["nonsense"], ["COMMIT"]):

            async def handle(connection: Any, statements: list[str] = statements) -> None:
                await MariaDBDatabase(mysql).run(connection, *statements)

            with suppress(Exception):
                await consume(inbox, keys(1), handle)
            async with pool.acquire() as connection:
                assert connection.get_autocommit()
                assert not connection.get_transaction_status(), "nothing is open on it"
        await inbox.close()


# The spine


def transactional(inbox: TransactionalStore, handler: Callable[[Message[bytes]], Awaitable[None]]) -> Spine:
    """A spine with the pipeline of a transaction, on `inbox`."""
    spine = Spine(handler, kind="message")
    spine.worker = type(spine.worker)(
        **{name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name not in ("dedup", "leases")},
        dedup=Transactional(inbox, key=lambda message: message.raw),
    )
    spine.agent = Agent(spine.agent.name, spine.agent.topics, "message", handler, spine.agent.decode)
    spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=inbox))
    return spine


@pytest.mark.servers
@pytest.mark.parametrize("raises", [False, True])
async def test_what_was_committed_though_its_transaction_is_gone_is_a_dead_letter_and_never_run_again(
    mysql: MySQLDatabase, raises: bool
) -> None:
    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60))")
    await mysql.fetch("CREATE PROCEDURE settle() BEGIN INSERT INTO effects VALUES ('paid'); COMMIT; END")  # nobody sees it in the call

    async def handle(message: Message[bytes]) -> None:
        await MariaDBDatabase(mysql).run(message.connection, "CALL settle()")
        if raises:
            raise RuntimeError

    inbox = MySQLInbox(mysql.url)
    await inbox.open()
    spine = transactional(inbox, handle)
    stages = await spine.run([spine.entry(100)])
    await spine.run([spine.entry(100)])
    await inbox.close()
    assert stages == [Stage.SETTLED]
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"]
    assert ("ackwise-reason", b"aborted-and-committed") in spine.publisher.sent[0].headers
    assert await mysql.fetch("SELECT effect FROM effects") == [("paid",)]


async def never(*_: object) -> None:
    """As one does who is dead."""


@pytest.mark.servers
async def test_what_was_committed_right_before_its_worker_died_is_a_dead_letter_and_never_run_again(mysql: MySQLDatabase) -> None:
    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60))")
    await mysql.fetch("CREATE PROCEDURE settle() BEGIN INSERT INTO effects VALUES ('paid'); COMMIT; END")

    async def handle(message: Message[bytes]) -> None:
        await MariaDBDatabase(mysql).run(message.connection, "CALL settle()")
        message.connection.close()  # as its death does: nobody can look for the row any more
        raise RuntimeError

    async with opened(MySQLInbox(mysql.url)) as inbox:
        dying, next_owner = transactional(inbox, handle), transactional(inbox, handle)
        steps: Any = dying.pipeline.steps
        steps._rows.mark_alone = never
        await dying.run([dying.entry(100)])
        stages = [await next_owner.run([next_owner.entry(100)]) for _ in range(2)]
    assert stages == [[Stage.SETTLED]] * 2
    assert [topic for topic, _ in next_owner.sent()] == ["billing.dlq"], "and the second delivery finds it dead"
    assert ("ackwise-reason", b"aborted-and-committed") in next_owner.publisher.sent[0].headers
    assert await mysql.fetch("SELECT effect FROM effects") == [("paid",)]


@pytest.mark.servers
@pytest.mark.parametrize("through", ["asyncmy", "SQLAlchemy"])
async def test_what_was_claimed_with_a_message_that_its_handler_committed_and_not_seen_runs(mysql: MySQLDatabase, through: str) -> None:
    await mysql.fetch("CREATE TABLE effects (effect VARCHAR(60))")
    await mysql.fetch("CREATE PROCEDURE settle() BEGIN INSERT INTO effects VALUES ('paid'); COMMIT; END")
    engine = create_async_engine(mysql.url.replace("mariadb://", "mysql+asyncmy://"), poolclass=NullPool)
    made = MySQLInbox(mysql.url) if through == "asyncmy" else SQLAlchemyInbox(async_sessionmaker(engine))
    seen = list[int]()

    async def handle(message: Message[bytes]) -> None:
        seen.append(message.offset)
        if message.offset == 100:
            if through == "asyncmy":
                await MariaDBDatabase(mysql).run(message.connection, "CALL settle()")
            else:
                await message.connection.execute(text("CALL settle()"))
            raise RuntimeError

    async with opened(made) as inbox:
        spine = transactional(inbox, handle)
        await spine.run([spine.entry(100), spine.entry(101)])
        await spine.run([spine.entry(100), spine.entry(101)])
    await engine.dispose()
    assert sorted(seen) == [100, 101], "each once"
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"]


@pytest.mark.servers
async def test_mariadb_a_key_that_was_claimed_and_left_is_free_again(mysql: MySQLDatabase) -> None:
    asked = keys(3)
    async with opened(MySQLInbox(mysql.url)) as inbox:
        async with inbox.begin(retention=60.0) as transaction:
            assert await transaction.claim(asked) == [Taken()] * 3
            await transaction.finish(done(asked[:1]))
        assert await consume(inbox, asked) == [FINISHED, Taken(), Taken()]


async def test_a_message_whose_transaction_an_error_undid_comes_later_and_pays_once(file: File) -> None:
    calls: list[int] = []

    async def handle(message: Message[bytes]) -> None:
        calls.append(message.offset)
        with suppress(sqlite3.Error):
            if len(calls) == 1:
                raising_trigger(message.connection)
        message.connection.execute("UPDATE accounts SET balance = balance + 100")

    spine = transactional(file.inbox, handle)
    assert await spine.run([spine.entry(100)]) == [Stage.SETTLED]
    (copy,) = spine.publisher.sent
    assert copy.topic.startswith("billing.delay"), "it comes later, and is no dead letter"
    assert await spine.run([spine.returned(copy)]) == [Stage.SETTLED]
    assert file.ask("SELECT balance FROM accounts") == [(100,)]
