"""The PostgreSQL inbox passes the suite of every inbox, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.server import Server
from tests.shared import SharedServer
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, TransactionalStore, TransactionAnswer
from ackwise.stores.conformance.inbox import OffsetsConformance
from ackwise.stores.postgres.inbox import PostgresInbox

HERE = ("orders", 3, 17)


def url_of(server: Any, database: str = "postgres", user: str = USER) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


@pytest.fixture
def postgres(own_postgres: Server) -> Server:
    """One that no other test uses, since it is stopped, killed and frozen here."""
    return own_postgres


class TestPostgresInbox(OffsetsConformance):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
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


async def test_a_handler_that_breaks_its_transaction_or_its_connection_is_found_out_and_nothing_is_marked(
    inbox: PostgresInbox, postgres_database: asyncpg.Connection
) -> None:
    for handle, why in [
        (swallow, "the handler caught an error of PostgreSQL and went on"),
        (leave_something_running, "the handler ended while it still uses its connection"),
    ]:
        with case(handle, why):
            asked = keys(3)
            with pytest.raises(TransactionAborted, match=why):
                await consume(inbox, asked, handle)
            await asyncio.gather(*left, return_exceptions=True)
            left.clear()
            assert await consume(inbox, asked) == [Taken()] * 3


async def test_a_broken_transaction_is_found_out_where_there_was_nothing_to_claim(inbox: PostgresInbox) -> None:
    with pytest.raises(TransactionAborted, match="caught an error"):
        async with inbox.begin(retention=60.0) as transaction:
            await swallow(transaction.connection)


async def test_a_savepoint_of_the_handler_holds_what_may_fail(inbox: PostgresInbox, postgres_database: asyncpg.Connection) -> None:
    assert await consume(inbox, keys(1), swallow_after_a_savepoint) == [Taken()]
    assert await effects(postgres_database) == ["a"]


async def test_what_the_database_refuses_at_commit_is_the_handlers_fault(
    inbox: PostgresInbox, postgres_database: asyncpg.Connection
) -> None:
    for refuses in [
        "CREATE TABLE child (effect text REFERENCES effects DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE child (effect text); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()",
    ]:
        with case(refuses):
            await postgres_database.execute(refuses)
            asked = keys(1)
            with pytest.raises(TransactionAborted, match="PostgreSQL refuses to commit what the handler wrote: "):
                await consume(inbox, asked, statements("INSERT INTO child VALUES ('nowhere')"))
            assert await consume(inbox, asked) == [Taken()]
            await postgres_database.execute("DROP TABLE child")


async def test_what_a_handler_sets_ends_with_its_batch(inbox: PostgresInbox) -> None:
    said: list[str] = []

    async def show(connection: Any) -> None:
        said.append(await connection.fetchval("SHOW work_mem"))

    await consume(inbox, [], show)
    await consume(inbox, [], statements("SET work_mem = '77MB'"))
    await consume(inbox, [], show)
    assert said[0] == said[1]


# Two workers


async def test_a_batch_that_repeats_a_finished_key_waits_for_nobody(inbox: PostgresInbox) -> None:
    asked = keys(3)
    await consume(inbox, asked)
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.claim(asked) == [Finished(Outcome.OK, HERE, 7)] * 3
        assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 3


# The way to the server, and the server


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


async def test_a_server_that_forgets_commits_is_refused(postgres_url: str, postgres_database: asyncpg.Connection) -> None:
    await postgres_database.execute(f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET synchronous_commit = off")
    with pytest.raises(ConfigurationError, match="synchronous_commit is off"):
        await PostgresInbox(postgres_url).open()


def test_an_inbox_has_a_url_or_a_pool() -> None:
    with pytest.raises(ConfigurationError, match="needs a URL, such as postgresql://host/database, or a pool, and not both"):
        PostgresInbox()
