"""What a handler leaves behind on its connection: the next message, our own statements and the user's pool see nothing of it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool
from tests.stores.batches import HERE, Handler, consume, keys, nothing, opened
from tests.stores.dialects import MariaDBDatabase, SQLDatabase
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.storage.claimstore import Outcome
from ackwise.middleware.storage.transaction import Finished, OffsetsTransaction, Taken, TransactionalStore
from ackwise.plugin.registry import open_inbox, open_outbox
from ackwise.stores.mysql.inbox import MySQLInbox
from ackwise.stores.postgres.inbox import PostgresInbox
from ackwise.stores.sqlalchemy import SQLAlchemyInbox
from ackwise.stores.sqlite.inbox import SQLiteInbox

TENANT = "our tables are found by the search path and the database, and written by the role, that the handler has turned to"


async def runs_once(inbox: TransactionalStore, handle: Handler = nothing) -> None:
    """A message runs, is marked, and is known when it comes again."""
    asked = keys(2)
    assert await consume(inbox, asked, handle) == [Taken()] * 2
    assert await consume(inbox, asked) == [Finished(Outcome.OK, HERE, 7)] * 2


def runs(sql: SQLDatabase, *statements: str) -> Handler:
    async def handle(connection: Any) -> None:
        await sql.run(connection, *statements)

    return handle


class Probe:
    """What a statement answers, in a handler and on a connection that nobody has used."""

    def __init__(self, sql: SQLDatabase, statement: str) -> None:
        self._sql, self._statement = sql, statement
        self.found: list[Any] = []

    async def __call__(self, connection: Any) -> None:
        if isinstance(self._sql, MariaDBDatabase):
            async with connection.cursor() as cursor:
                await cursor.execute(self._statement)
                self.found = list(await cursor.fetchall())
        else:
            self.found = [tuple(row) for row in await connection.fetch(self._statement)]

    async def fresh(self) -> list[Any]:
        return list(await self._sql.execute(self._statement))


@pytest.mark.servers
async def test_mariadb_a_database_that_a_handler_selected_by_its_driver_is_left_with_the_batch(mysql: MySQLDatabase) -> None:
    found: list[Any] = []

    async def turn(connection: Any) -> None:
        await connection.select_db("mysql")

    async def look(connection: Any) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute("SELECT DATABASE()")
            found.extend(await cursor.fetchall())

    async with opened(MySQLInbox(mysql.url, max_size=1)) as inbox:
        await runs_once(inbox, turn)
        await consume(inbox, keys(1), look)
    assert found == [(mysql.name,)]


# What the next message sees

POSTGRES = {
    "role": ("SET ROLE tenant", "SELECT current_user::text"),
    "authorization": ("SET SESSION AUTHORIZATION tenant", "SELECT session_user::text"),
    "temporary table": ("CREATE TEMPORARY TABLE scratch (id int)", "SELECT count(*) FROM pg_class WHERE relname = 'scratch'"),
    "temporary sequence": ("CREATE TEMPORARY SEQUENCE scratch", "SELECT count(*) FROM pg_class WHERE relname = 'scratch'"),
    "search path": ("SET search_path TO {}", "SELECT current_setting('search_path')"),
    "setting of its own": ("SELECT set_config('app.tenant', 'a', false)", "SELECT coalesce(current_setting('app.tenant', true), '')"),
    "isolation": ("SET default_transaction_isolation TO serializable", "SELECT current_setting('default_transaction_isolation')"),
    "triggers": ("SET session_replication_role TO replica", "SELECT current_setting('session_replication_role')"),
    "advisory lock": ("SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
    "channel": ("LISTEN paid", "SELECT count(*) FROM pg_listening_channels()"),
    "cursor": ("DECLARE kept CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors WHERE name = 'kept'"),
}
MARIADB = {
    "foreign keys": ("SET foreign_key_checks = 0", "SELECT @@foreign_key_checks"),
    "unique checks": ("SET unique_checks = 0", "SELECT @@unique_checks"),
    "sql mode": ("SET sql_mode = ''", "SELECT @@sql_mode"),
    "time zone": ("SET time_zone = '+05:00'", "SELECT @@time_zone"),
    "database": ("USE {}", "SELECT database()"),
    "role": ("SET ROLE tenant", "SELECT current_role()"),
}
STORES = [
    *(pytest.param("on_postgres", *found, id=f"postgres, {name}", marks=pytest.mark.servers) for name, found in POSTGRES.items()),
    *(pytest.param("on_mysql", *found, id=f"mariadb, {name}", marks=pytest.mark.servers) for name, found in MARIADB.items()),
]


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> SQLDatabase:
    """The database of a test, which makes room for a tenant in it by `let_in`."""
    sql: SQLDatabase = request.getfixturevalue(request.param)
    return sql


@asynccontextmanager
async def let_in(sql: SQLDatabase) -> AsyncIterator[str]:
    """A role `tenant` that may do nothing with our tables, and its own schema or database, with a table in it; gives that one's name."""
    if isinstance(sql, MariaDBDatabase):
        place = f"{sql.name}_tenant"
        await sql.execute("CREATE ROLE IF NOT EXISTS tenant")
        await sql.execute("GRANT tenant TO CURRENT_USER")
        await sql.execute(f"CREATE DATABASE {place}")
        await sql.execute(f"CREATE TABLE {place}.tenants (id INT)")
        yield place
        await sql.execute(f"DROP DATABASE {place}")
    else:
        await sql.execute("DO $$ BEGIN CREATE ROLE tenant; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
        await sql.execute("CREATE SCHEMA elsewhere AUTHORIZATION tenant")
        await sql.execute("CREATE TABLE elsewhere.tenants (id INT)")
        await sql.execute("ALTER TABLE elsewhere.tenants OWNER TO tenant")
        yield "elsewhere"


@pytest.mark.parametrize(("tenant", "leaves", "probe"), STORES, indirect=["tenant"])
async def test_the_next_message_sees_nothing_of_what_a_handler_set_for_its_session(tenant: SQLDatabase, leaves: str, probe: str) -> None:
    look = Probe(tenant, probe)
    async with let_in(tenant) as place, opened(open_inbox(tenant.url(max_size=1))) as inbox:
        await consume(inbox, [], runs(tenant, leaves.format(place)))
        await consume(inbox, keys(1), look)
    assert look.found == await look.fresh()


@pytest.mark.servers
async def test_mariadb_an_orphan_is_refused_though_the_message_before_turned_the_checks_off(mysql: MySQLDatabase) -> None:
    from asyncmy.errors import MySQLError

    sql = MariaDBDatabase(mysql)
    await mysql.fetch("CREATE TABLE parents (id INT PRIMARY KEY)")
    await mysql.fetch("CREATE TABLE children (parent INT, FOREIGN KEY (parent) REFERENCES parents (id))")
    async with opened(open_inbox(sql.url(max_size=1))) as inbox:
        await consume(inbox, keys(1), runs(sql, "SET foreign_key_checks = 0"))
        with pytest.raises(MySQLError):
            await consume(inbox, keys(1), runs(sql, "INSERT INTO children VALUES (7)"))
    assert await mysql.fetch("SELECT * FROM children") == []


@pytest.mark.parametrize(
    ("tenant", "leaves", "probe"),
    [
        *(pytest.param("on_postgres", *POSTGRES[name], id=f"postgres, {name}") for name in ("role", "authorization", "temporary table")),
        *(pytest.param("on_mysql", *MARIADB[name], id=f"mariadb, {name}") for name in ("foreign keys", "sql mode", "database", "role")),
    ],
    indirect=["tenant"],
)
@pytest.mark.servers
async def test_a_connection_goes_back_to_the_users_own_pool_as_it_came(tenant: SQLDatabase, leaves: str, probe: str) -> None:
    look = Probe(tenant, probe)
    async with let_in(tenant) as place, pool_of(tenant) as pool:
        async with pool.acquire() as connection:
            await look(connection)
        before = look.found
        async with opened(inbox_on(tenant, pool)) as inbox:
            await consume(inbox, keys(1), runs(tenant, leaves.format(place)))
        async with pool.acquire() as connection:
            await look(connection)
    assert look.found == before


def pool_of(sql: SQLDatabase, **options: Any) -> Any:
    """A pool of the user's, with one connection."""
    if isinstance(sql, MariaDBDatabase):
        import asyncmy

        address: dict[str, Any] = {"host": "127.0.0.1", "port": sql.server.port, "user": "root", "db": sql.name}
        return asyncmy.create_pool(minsize=1, maxsize=1, autocommit=True, **address, **options)
    import asyncpg

    return asyncpg.create_pool(sql.url(), min_size=1, max_size=1, **options)


def inbox_on(sql: SQLDatabase, pool: Any) -> Any:
    return MySQLInbox(pool=pool) if isinstance(sql, MariaDBDatabase) else PostgresInbox(pool=pool)


# A handler that turns to a tenant

TURNS = [
    ("on_postgres", ["SET LOCAL search_path TO {}", "INSERT INTO tenants VALUES (1)"]),
    ("on_postgres", ["SET LOCAL ROLE tenant", "INSERT INTO {}.tenants VALUES (1)"]),
    ("on_postgres", ["SET ROLE tenant", "SET search_path TO {}", "INSERT INTO tenants VALUES (1)"]),
    ("on_mysql", ["USE {}", "INSERT INTO tenants VALUES (1)"]),
]
_IDS = ["postgres, search path", "postgres, local role", "postgres, role and search path", "mariadb, database"]


@pytest.mark.servers
@pytest.mark.parametrize(("tenant", "turns"), TURNS, ids=_IDS, indirect=["tenant"])
async def test_a_handler_that_turns_to_a_tenant_is_marked_in_our_tables(tenant: SQLDatabase, turns: list[str]) -> None:
    async with let_in(tenant) as place, opened(open_inbox(tenant.url(max_size=1))) as inbox:
        await runs_once(inbox, runs(tenant, *(turn.format(place) for turn in turns)))
        assert await tenant.execute(f"SELECT count(*) FROM {place}.tenants") == [(1,)]


@pytest.mark.servers
@pytest.mark.parametrize(("tenant", "turns"), TURNS, ids=_IDS, indirect=["tenant"])
async def test_the_offset_of_a_handler_that_turns_to_a_tenant_moves_in_our_table(tenant: SQLDatabase, turns: list[str]) -> None:
    async with let_in(tenant) as place, opened(open_inbox(tenant.url(max_size=1))) as inbox:
        mine = await inbox.take_over("ackwise/0/me", "orders", 3, position=5)
        async with inbox.begin(retention=60.0) as begun:
            transaction: OffsetsTransaction = begun
            assert await transaction.lock("ackwise/0/me", "orders", 3, mine.generation) == 5
            await tenant.run(transaction.connection, *(turn.format(place) for turn in turns))
            await transaction.advance("ackwise/0/me", "orders", 3, mine.generation, 9)
        assert (await inbox.take_over("ackwise/0/me", "orders", 3, position=0)).next == 9


@pytest.mark.servers
@pytest.mark.parametrize(("tenant", "turns"), TURNS, ids=_IDS, indirect=["tenant"])
async def test_a_session_that_turns_to_a_tenant_is_marked_in_our_table(tenant: SQLDatabase, turns: list[str]) -> None:
    mariadb = isinstance(tenant, MariaDBDatabase)
    url = tenant.url().replace("mariadb://", "mysql+asyncmy://").replace("postgresql://", "postgresql+asyncpg://")
    assert url.startswith("mysql+asyncmy" if mariadb else "postgresql+asyncpg")
    engine = create_async_engine(url, poolclass=NullPool)

    try:
        async with let_in(tenant) as place, opened(SQLAlchemyInbox(async_sessionmaker(engine))) as inbox:

            async def handle(session: Any) -> None:
                for turn in turns:
                    await session.execute(text(turn.format(place)))

            await runs_once(inbox, handle)
    finally:
        await engine.dispose()


@pytest.mark.servers
@pytest.mark.parametrize(("tenant", "turns"), TURNS, ids=_IDS, indirect=["tenant"])
async def test_what_a_business_that_turns_to_a_tenant_sends_is_in_our_outbox(tenant: SQLDatabase, turns: list[str]) -> None:
    async with (
        let_in(tenant) as place,
        opened(open_outbox(tenant.url())) as outbox,
        pool_of(tenant) as pool,
        pool.acquire() as connection,
        outbox.transaction(connection),
    ):
        await tenant.run(connection, *(turn.format(place) for turn in turns))
        outbox.send("paid", b"x")
    assert await tenant.execute("SELECT count(*) FROM ackwise_outbox") == [(1,)]


# What the user's connection makes of rows


async def uuids_as_text(connection: Any) -> None:
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)


async def numbers_as_decimals(connection: Any) -> None:
    for name in ("int2", "int4", "int8"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=Decimal)


async def texts_in_capitals(connection: Any) -> None:
    await connection.set_type_codec("text", schema="pg_catalog", encoder=str.upper, decoder=str.upper)


async def truths_as_letters(connection: Any) -> None:
    await connection.set_type_codec("bool", schema="pg_catalog", encoder=str, decoder=str)


async def refusing_numbers(connection: Any) -> None:
    def refuse(value: object) -> str:
        raise TypeError(value)

    await connection.set_type_codec("int8", schema="pg_catalog", encoder=refuse, decoder=int)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("codec", "by"),
    [
        (codec, by)
        for codec in (uuids_as_text, texts_in_capitals, refusing_numbers, truths_as_letters, numbers_as_decimals)
        for by in ("pool", "handler")
    ],
)
async def test_postgres_codecs_of_the_users_connection_do_not_reach_our_statements(on_postgres: SQLDatabase, codec: Any, by: str) -> None:
    async with pool_of(on_postgres, **({"init": codec} if by == "pool" else {})) as pool, opened(PostgresInbox(pool=pool)) as inbox:
        await runs_once(inbox, codec if by == "handler" else nothing)


@pytest.mark.servers
async def test_mariadb_cursors_of_the_users_pool_do_not_reach_our_statements(on_mysql: SQLDatabase) -> None:
    from asyncmy.cursors import DictCursor

    async with pool_of(on_mysql, cursor_cls=DictCursor) as pool, opened(MySQLInbox(pool=pool)) as inbox:
        await runs_once(inbox)


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def as_dicts(connection: sqlite3.Connection) -> None:
    connection.row_factory = as_dict


def as_rows(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row


def as_one_value(connection: sqlite3.Connection) -> None:
    connection.row_factory = lambda cursor, row: row[0]


def as_bytes(connection: sqlite3.Connection) -> None:
    connection.text_factory = bytes


def in_capitals(connection: sqlite3.Connection) -> None:
    connection.text_factory = lambda value: value.decode().upper()


@pytest.mark.parametrize("by", ["prepare", "handler"])
@pytest.mark.parametrize("factory", [as_dicts, as_one_value, as_bytes, in_capitals, as_rows])
async def test_sqlite_factories_of_the_users_connection_do_not_reach_our_statements(
    tmp_path: Path, factory: Callable[[sqlite3.Connection], None], by: str
) -> None:
    async def handle(connection: sqlite3.Connection) -> None:
        if by == "handler":
            factory(connection)

    async with opened(SQLiteInbox(tmp_path / "shop.db", prepare=factory if by == "prepare" else None)) as inbox:
        await runs_once(inbox, handle)
        mine = await inbox.take_over("ackwise/0/me", "orders", 3, position=5)
        async with inbox.begin(retention=60.0) as transaction:
            assert await transaction.lock("ackwise/0/me", "orders", 3, mine.generation) == 5
            await transaction.advance("ackwise/0/me", "orders", 3, mine.generation, 9)
        assert (await inbox.take_over("ackwise/0/me", "orders", 3, position=0)).next == 9


@pytest.mark.parametrize("factory", [as_dicts, as_one_value, as_bytes, as_rows])
async def test_sqlite_a_handler_sees_rows_as_its_own_factory_makes_them(
    tmp_path: Path, factory: Callable[[sqlite3.Connection], None]
) -> None:
    found: list[object] = []

    async def handle(connection: sqlite3.Connection) -> None:
        found.append(connection.execute("SELECT 'a' AS name").fetchone())

    async with opened(SQLiteInbox(tmp_path / "shop.db", prepare=factory)) as inbox:
        await consume(inbox, [], handle)
    with closing(sqlite3.connect(":memory:")) as connection:
        factory(connection)
        assert found == [connection.execute("SELECT 'a' AS name").fetchone()]


@pytest.mark.parametrize(
    ("leaves", "probe"),
    [
        ("PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints"),
        ("PRAGMA recursive_triggers = OFF", "PRAGMA recursive_triggers"),
        ("CREATE TEMPORARY TABLE scratch (id int)", "SELECT count(*) FROM sqlite_temp_schema"),
    ],
)
async def test_sqlite_the_next_message_sees_nothing_of_it_and_what_prepare_set_is_set_again(
    tmp_path: Path, leaves: str, probe: str
) -> None:
    found: list[object] = []

    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA recursive_triggers = ON")

    async def look(connection: sqlite3.Connection) -> None:
        found.append(connection.execute(probe).fetchone())

    async def leave(connection: sqlite3.Connection) -> None:
        connection.execute(leaves)

    async with opened(SQLiteInbox(tmp_path / "shop.db", prepare=prepare)) as inbox:
        for handle in (look, leave, look):
            await consume(inbox, keys(1), handle)
    assert found[0] == found[1]
