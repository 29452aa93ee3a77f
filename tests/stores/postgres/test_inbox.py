"""The PostgreSQL inbox passes the suite of every inbox, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server, free_port

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome
from ackwise.middleware.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.stores.postgres.inbox import PostgresInbox, from_url
from ackwise.stores.testing.inbox import OffsetsConformance

HERE = ("orders", 3, 17)


def url_of(server: Any, database: str = "postgres", user: str = USER) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


@pytest.fixture
def postgres(own_postgres: Server) -> Server:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_postgres


class TestPostgresInbox(OffsetsConformance):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: Server) -> None:
        self.url = url_of(postgres)

    def make(self, place: Path) -> TransactionalStore:
        return PostgresInbox(self.url)

    async def prepare(self, place: Path) -> None:
        self.table = f"effects_{os.urandom(6).hex()}"
        await self._past(f"CREATE TABLE {self.table} (effect text PRIMARY KEY)")

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(f"INSERT INTO {self.table} VALUES ($1)", effect)

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self._past(f"SELECT effect FROM {self.table}")]

    async def commit(self, connection: Any) -> None:
        await connection.execute("COMMIT")

    async def _past(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()


def keys(count: int) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), None, 1) for _ in range(count)]


def done(asked: Sequence[ClaimKey]) -> list[Finish]:
    return [Finish(key, HERE, 7, Outcome.OK, 1) for key in asked]


async def consume(
    inbox: PostgresInbox, asked: Sequence[ClaimKey], handle: Callable[[Any], Awaitable[object]] | None = None
) -> list[TransactionAnswer]:
    """One batch: claim, call `handle` with the connection, finish what was taken."""
    async with inbox.begin(retention=60.0) as transaction:
        answers = await transaction.claim(asked)
        if handle is not None:
            await handle(transaction.connection)
        await transaction.finish(done([key for key, answer in zip(asked, answers, strict=True) if answer == Taken()]))
    return answers


@pytest.fixture
async def inbox(postgres_url: str, postgres_database: asyncpg.Connection) -> AsyncIterator[PostgresInbox]:
    """Of this test alone, beside a table `effects` of texts that are unique."""
    await postgres_database.execute("CREATE TABLE effects (effect text PRIMARY KEY)")
    inbox = PostgresInbox(postgres_url, timeout=2.0)
    await inbox.open()
    yield inbox
    await inbox.close()


async def effects(database: asyncpg.Connection) -> list[str]:
    return [effect for (effect,) in await database.fetch("SELECT effect FROM effects ORDER BY effect")]


async def until_somebody_waits(database: asyncpg.Connection) -> None:
    async with asyncio.timeout(10):
        while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.01)


# What a handler can do to its transaction


def statements(*texts: str) -> Callable[[Any], Awaitable[None]]:
    async def handle(connection: Any) -> None:
        for text in texts:
            await connection.execute(text)

    return handle


async def swallow(connection: Any) -> None:
    with suppress(asyncpg.UndefinedTableError):
        await connection.execute("SELECT * FROM nowhere")


async def swallow_after_a_savepoint(connection: Any) -> None:
    with suppress(asyncpg.UndefinedTableError):
        async with connection.transaction():
            await connection.execute("SELECT * FROM nowhere")
    await connection.execute("INSERT INTO effects VALUES ('a')")


async def leave_something_running(connection: Any) -> None:
    left.append(asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.5)")))
    await asyncio.sleep(0)


left: list[asyncio.Future[object]] = []


@pytest.mark.parametrize(
    ("handle", "why"),
    [
        (statements("COMMIT"), "the handler ended the transaction"),
        (statements("ROLLBACK"), "the handler ended the transaction"),
        (statements("COMMIT", "BEGIN"), "the handler ended the transaction"),
        (statements("ROLLBACK", "BEGIN", "INSERT INTO effects VALUES ('b')"), "the handler ended the transaction"),
        (swallow, "the handler caught an error of PostgreSQL and went on"),
        (leave_something_running, "the handler ended while it still uses its connection"),
    ],
)
async def test_a_handler_that_ends_or_breaks_its_transaction_is_found_out_and_nothing_is_marked(
    inbox: PostgresInbox, postgres_database: asyncpg.Connection, handle: Any, why: str
) -> None:
    asked = keys(3)
    with pytest.raises(TransactionAborted, match=why):
        await consume(inbox, asked, handle)
    await asyncio.gather(*left, return_exceptions=True)
    left.clear()
    assert await effects(postgres_database) == []
    assert await consume(inbox, asked, statements("INSERT INTO effects VALUES ('a')")) == [Taken()] * 3
    assert await effects(postgres_database) == ["a"]


async def test_a_broken_transaction_is_found_out_where_there_was_nothing_to_claim(inbox: PostgresInbox) -> None:
    with pytest.raises(TransactionAborted, match="caught an error"):
        async with inbox.begin(retention=60.0) as transaction:
            await swallow(transaction.connection)


async def test_a_savepoint_of_the_handler_holds_what_may_fail(inbox: PostgresInbox, postgres_database: asyncpg.Connection) -> None:
    assert await consume(inbox, keys(1), swallow_after_a_savepoint) == [Taken()]
    assert await effects(postgres_database) == ["a"]


@pytest.mark.parametrize(
    "refuses",
    [
        "CREATE TABLE child (effect text REFERENCES effects DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE child (effect text); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()",
    ],
)
async def test_what_the_database_refuses_at_commit_is_the_handlers_fault(
    inbox: PostgresInbox, postgres_database: asyncpg.Connection, refuses: str
) -> None:
    await postgres_database.execute(refuses)
    asked = keys(1)
    with pytest.raises(TransactionAborted, match="PostgreSQL refuses to commit what the handler wrote: "):
        await consume(inbox, asked, statements("INSERT INTO child VALUES ('nowhere')"))
    assert await consume(inbox, asked) == [Taken()]


async def test_what_a_handler_sets_ends_with_its_batch(inbox: PostgresInbox) -> None:
    said: list[str] = []

    async def show(connection: Any) -> None:
        said.append(await connection.fetchval("SHOW work_mem"))

    await consume(inbox, [], show)
    await consume(inbox, [], statements("SET work_mem = '77MB'"))
    await consume(inbox, [], show)
    assert said[0] == said[1]


async def test_a_statement_that_is_cancelled_in_the_middle_does_not_answer_the_next_batch(
    postgres_url: str, inbox: PostgresInbox, postgres_database: asyncpg.Connection
) -> None:
    single = PostgresInbox(postgres_url, max_size=1)
    await single.open()
    asked = keys(2)

    async def handle(connection: Any) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.execute("INSERT INTO effects VALUES ('b'); SELECT pg_sleep(0.5)")
        raise RuntimeError

    for _ in range(3):
        with pytest.raises(RuntimeError):
            await consume(single, asked, handle)
    assert await consume(single, asked, statements("INSERT INTO effects VALUES ('a')")) == [Taken()] * 2
    assert await consume(single, asked) == [Finished(Outcome.OK, HERE, 7)] * 2
    assert await effects(postgres_database) == ["a"]
    await single.close()


# Two workers


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("known", [True, False])
async def test_a_zombie_that_waits_for_the_rows_finds_them_as_the_first_left_them(
    inbox: PostgresInbox, postgres_url: str, postgres_database: asyncpg.Connection, commits: bool, known: bool
) -> None:
    asked = keys(3)
    if known:  # sent back before, so that there is a row to wait for
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.finish([Finish(key, HERE, 7, None, 1) for key in asked])
    zombie = PostgresInbox(postgres_url)
    await zombie.open()
    began = inbox.begin(retention=60.0)
    transaction = await began.__aenter__()
    assert await transaction.claim(asked) == [Taken()] * 3
    waiting = asyncio.ensure_future(consume(zombie, [*reversed(asked), *keys(1)]))
    await until_somebody_waits(postgres_database)
    await transaction.finish(done(asked))
    if commits:
        await began.__aexit__(None, None, None)
        assert await waiting == [Finished(Outcome.OK, HERE, 7)] * 3 + [Taken()]
    else:
        await began.__aexit__(RuntimeError, RuntimeError(), None)
        assert await waiting == [Taken()] * 4
    await zombie.close()


async def test_a_batch_that_repeats_a_finished_key_waits_for_nobody(inbox: PostgresInbox) -> None:
    asked = keys(3)
    await consume(inbox, asked)
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Finished(Outcome.OK, HERE, 7)] * 3
        assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 3


async def test_a_key_that_is_held_for_too_long_makes_the_inbox_unavailable_and_nobody_goes_on_waiting(
    inbox: PostgresInbox, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    hasty = PostgresInbox(postgres_url, timeout=0.3)
    await hasty.open()
    asked = keys(1)
    async with inbox.begin(retention=60.0) as transaction:
        await transaction.claim(asked)
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.3 s; another transaction may hold a key of this batch"):
            await consume(hasty, asked)
        assert await postgres_database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0
        await transaction.finish(done(asked))
    assert await consume(hasty, asked) == [Finished(Outcome.OK, HERE, 7)]
    await hasty.close()


async def test_who_gives_way_in_a_deadlock_is_unavailable_and_the_other_goes_on(inbox: PostgresInbox) -> None:
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


async def test_batches_that_find_no_connection_wait_and_then_say_what_to_raise(postgres_url: str) -> None:
    inbox = PostgresInbox(postgres_url, max_size=1, timeout=0.3)
    await inbox.open()
    async with inbox.begin(retention=60.0):
        with pytest.raises(StoreUnavailable, match=r"all 1 connections were in use for 0\.3 s; raise max_size"):
            await consume(inbox, keys(1))
    assert await consume(inbox, keys(1)) == [Taken()]
    await inbox.close()


# The way to the server, and the server


@pytest.fixture
async def proxy(postgres: Server) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres.port) as proxy:
        yield proxy


@pytest.fixture
async def far(inbox: PostgresInbox, postgres_url: str, proxy: Proxy) -> AsyncIterator[PostgresInbox]:
    """`inbox` behind the proxy, on one connection that has done a batch."""
    far = PostgresInbox(url_of(proxy, postgres_url.rpartition("/")[2]), timeout=1.0, max_size=1)
    await far.open()
    await consume(far, keys(1))
    yield far
    proxy.swallow_replies, proxy.cut_after = False, None
    await far.close()


async def test_a_batch_is_four_round_trips_and_one_that_tidies_up(far: PostgresInbox, proxy: Proxy) -> None:
    before = proxy.requests
    await consume(far, keys(100))
    assert proxy.requests - before == 4 + 1


@pytest.mark.parametrize("step", ["begin", "claim", "write", "finish", "commit", "committed"])
async def test_a_connection_that_is_cut_leaves_all_or_nothing_and_the_next_batch_tells(
    far: PostgresInbox, proxy: Proxy, postgres_database: asyncpg.Connection, step: str
) -> None:
    asked = keys(3)

    def reach(here: str) -> None:
        if here == step:
            proxy.cut()

    async def batch() -> None:
        async with far.begin(retention=60.0) as transaction:
            reach("claim")
            await transaction.claim(asked)
            await transaction.connection.execute("INSERT INTO effects VALUES ('a')")
            reach("finish")
            await transaction.finish(done(asked))
            reach("commit")
            if step == "committed":
                proxy.cut_after = lambda said: b"COMMIT\0" in said

    reach("begin")
    if step == "write":
        proxy.cut_after = lambda said: b"INSERT 0 1\0" in said
        with pytest.raises(asyncpg.PostgresConnectionError):  # told to the handler
            await batch()
    elif step == "begin":  # nothing was done: the connection is replaced
        await batch()
    else:
        with pytest.raises(StoreUnavailable, match=r"connection was lost|can't be reached"):
            await batch()
    proxy.cut_after = None
    came_through = step in ("begin", "committed")
    assert await effects(postgres_database) == (["a"] if came_through else [])
    assert await consume(far, asked) == [Finished(Outcome.OK, HERE, 7) if came_through else Taken()] * 3


async def test_a_commit_that_is_never_answered_is_in_doubt_and_the_keys_tell(
    far: PostgresInbox, proxy: Proxy, postgres_database: asyncpg.Connection
) -> None:
    asked = keys(3)

    async def batch() -> None:
        async with far.begin(retention=60.0) as transaction:
            await transaction.claim(asked)
            await transaction.finish(done(asked))
            proxy.swallow_replies = True

    with pytest.raises(StoreUnavailable, match="it is not known whether it committed; the next claim tells"):
        await batch()
    proxy.swallow_replies = False
    assert await consume(far, asked) == [Finished(Outcome.OK, HERE, 7)] * 3


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_server_that_comes_back_has_all_or_nothing_of_a_batch(
    inbox: PostgresInbox, postgres: Server, postgres_url: str, end: str
) -> None:
    before, lost = keys(3), keys(3)
    await consume(inbox, before)

    async def batch() -> None:
        async with inbox.begin(retention=60.0) as transaction:
            await transaction.claim(lost)
            await transaction.finish(done(lost))
            getattr(postgres, end)()

    with pytest.raises(StoreUnavailable):
        await batch()
    with pytest.raises(StoreUnavailable, match="it can't be reached"):
        await consume(inbox, lost)
    postgres.start()
    assert await consume(inbox, [*before, *lost]) == [Finished(Outcome.OK, HERE, 7)] * 3 + [Taken()] * 3


async def test_a_restart_between_two_batches_is_not_noticed(inbox: PostgresInbox, postgres: Server) -> None:
    await consume(inbox, keys(3))
    postgres.restart()
    assert await consume(inbox, keys(3)) == [Taken()] * 3


async def test_a_frozen_server_is_given_up_within_the_timeout_and_used_again(inbox: PostgresInbox, postgres: Server) -> None:
    asked = keys(3)
    await consume(inbox, keys(1))
    postgres.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no answer within 2\.0 s"):
            await consume(inbox, asked)
        assert time.monotonic() - began < 6.0
    finally:
        postgres.thaw()
    assert await consume(inbox, asked) == [Taken()] * 3


async def test_a_worker_that_stands_still_in_a_batch_loses_it_to_the_servers_patience(
    postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    impatient = {"idle_in_transaction_session_timeout": "100"}
    asked = keys(1)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=2, server_settings=impatient) as pool:
        inbox = PostgresInbox(pool=pool)
        await inbox.open()

        async def stand_still() -> None:
            async with inbox.begin(retention=60.0) as transaction:
                await transaction.claim(asked)
                assert await consume(inbox, asked) == [Taken()]  # waits until the server has had enough
                await transaction.finish(done(asked))

        with pytest.raises(StoreUnavailable):
            await stand_still()
        assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)]
        await inbox.close()


async def test_our_own_connections_do_not_hold_keys_for_ever(inbox: PostgresInbox) -> None:
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.connection.fetchval("SHOW idle_in_transaction_session_timeout") == "5min"
        assert await transaction.connection.fetchval("SHOW tcp_keepalives_idle") == "30"


async def test_a_pool_that_was_given_keeps_its_settings_and_stays_open(postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        settings = await pool.fetch("SELECT name, setting FROM pg_settings ORDER BY name")
        inbox = PostgresInbox(pool=pool)
        await inbox.open()
        assert await consume(inbox, keys(3)) == [Taken()] * 3
        assert await inbox.check() == []
        assert await inbox.cleanup() == 0
        await inbox.close()
        assert await pool.fetch("SELECT name, setting FROM pg_settings ORDER BY name") == settings


# Tables, rights, time


async def test_the_table_is_made_once_looked_at_and_refused_if_it_is_newer(
    postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    inbox = PostgresInbox(postgres_url)
    (missing,) = await inbox.check()
    assert missing.endswith("the table of the inbox is missing; run `ackwise store init URL`")
    with pytest.raises(ConfigurationError, match="the table of the inbox is missing"):
        await inbox.cleanup()
    await asyncio.gather(*(PostgresInbox(postgres_url).init() for _ in range(4)))
    await inbox.init()
    assert await inbox.check() == []
    await postgres_database.execute("UPDATE ackwise_schema SET version = 9")
    for act in (inbox.open, inbox.init, inbox.check, inbox.cleanup):
        with pytest.raises(ConfigurationError, match="its inbox has version 9, and this Ackwise knows version 1 alone"):
            await act()


async def test_what_is_forgotten_is_deleted_and_nothing_else(inbox: PostgresInbox, postgres_database: asyncpg.Connection) -> None:
    old, new = keys(300), keys(300)
    await consume(inbox, old)
    await postgres_database.execute("UPDATE ackwise_inbox SET kept_until = now() - interval '1 s'")
    await consume(inbox, new)
    async with inbox.begin(retention=60.0) as transaction:  # under way: nobody waits for it
        assert await transaction.claim(old[:10]) == [Taken()] * 10
        assert await inbox.cleanup() == 290
        await transaction.finish(done(old[:10]))
    assert await postgres_database.fetchval("SELECT count(*) FROM ackwise_inbox") == 310
    assert await consume(inbox, new) == [Finished(Outcome.OK, HERE, 7)] * 300


async def test_a_user_without_rights_to_create_works_on_tables_that_are_there(
    postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    user = f"worker_{os.urandom(4).hex()}"
    await PostgresInbox(postgres_url).init()
    await postgres_database.execute(f"CREATE ROLE {user} LOGIN")
    inbox = PostgresInbox(postgres_url.replace(f"//{USER}@", f"//{user}@"))
    with pytest.raises(ConfigurationError, match="this user may not do what the inbox needs"):
        await inbox.open()
    await postgres_database.execute(f"GRANT SELECT ON ackwise_schema TO {user}; GRANT SELECT, INSERT ON ackwise_inbox TO {user}")
    with pytest.raises(ConfigurationError, match='this user has no right to UPDATE on "ackwise_inbox"'):
        await inbox.open()
    await postgres_database.execute(f"GRANT UPDATE ON ackwise_inbox TO {user}")
    with pytest.raises(ConfigurationError, match='no right to SELECT, INSERT, UPDATE on "ackwise_offsets"'):
        await inbox.open()
    await postgres_database.execute(f"GRANT SELECT, INSERT, UPDATE ON ackwise_offsets TO {user}")
    await inbox.open()
    asked = keys(2)
    assert await consume(inbox, asked) == [Taken()] * 2
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 2
    assert "has no right to DELETE" in (await inbox.check())[0]
    await postgres_database.execute(f"GRANT DELETE ON ackwise_inbox TO {user}")
    assert (await inbox.check(), await inbox.cleanup()) == ([], 0)
    await inbox.close()
    await postgres_database.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


async def test_hostile_names_are_names(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    inbox = PostgresInbox(postgres_url, schema='a"b; DROP TABLE x', prefix="p'\"; --")
    await inbox.open()
    asked = keys(2)
    assert await consume(inbox, asked) == [Taken()] * 2
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 2
    assert await inbox.check() == []
    await inbox.close()
    found = await postgres_database.fetch("SELECT relname FROM pg_class WHERE relname LIKE '%inbox'")
    assert [name for (name,) in found] == ["p'\"; --inbox"]


async def test_a_server_that_forgets_commits_is_refused(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    await postgres_database.execute(f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError, match="synchronous_commit is off"):
        await PostgresInbox(postgres_url).open()


async def test_a_server_that_is_away_is_named_without_the_password() -> None:
    inbox = from_url(f"postgresql://me:hunter2@127.0.0.1:{free_port()}/shop")
    for act in (inbox.open, inbox.init):
        with pytest.raises(StoreUnavailable, match=r"postgresql://127\.0\.0\.1:\d+/shop: it can't be reached") as raised:
            await act()
        assert "hunter2" not in "".join(traceback.format_exception(raised.value)) + repr(inbox)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://host/db?max_siez=3", "did you mean max_size"),
        ("postgresql://host/db?max_size=0", "needs at least one connection"),
        ("postgresql://host/db?timeout=soon", "timeout is 'soon'"),
        ("postgresql://host/db?timeout=0", "timeout is 0.0"),
        ("postgresql://host/db?synchronous_commit=off", "has no option synchronous_commit"),
    ],
)
def test_a_url_that_can_not_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        from_url(url)


def test_an_inbox_has_a_url_or_a_pool() -> None:
    with pytest.raises(ConfigurationError, match="needs a URL, such as postgresql://host/database, or a pool, and not both"):
        PostgresInbox()
