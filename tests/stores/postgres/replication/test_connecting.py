"""Replication connections to a real PostgreSQL: passwords, TLS, rights and settings, each failure in a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import asyncpg
import pytest
from tests.databases.certificates import Certificates
from tests.databases.postgres import USER, postgres_server
from tests.databases.proxy import proxy_to
from tests.databases.server import Server, free_port, skip_if_missing
from tests.stores.cases import case
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.changes import Change, Committed
from ackwise.stores.postgres.replication import PostgresChanges, from_url

pytestmark = pytest.mark.servers

PASSWORD = "s3cr%2Ft%40"


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Server]:
    """A PostgreSQL that asks for SCRAM-SHA-256, and lets `worker` in with TLS only."""
    settings = {"ssl": "on", "ssl_cert_file": f"'{certificates.certificate}'", "ssl_key_file": f"'{certificates.key}'"}
    with skip_if_missing("PostgreSQL"), postgres_server(wal_level="logical", **settings) as server:
        asyncio.run(_guard(server))
        yield server


async def _guard(server: Server) -> None:
    connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres?sslmode=disable")
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    for role, attribute in (("worker", "REPLICATION"), ("plain", "REPLICATION"), ("poor", "NOREPLICATION")):
        await connection.execute(f"CREATE ROLE {role} LOGIN {attribute} PASSWORD 's3cr/t@'")
        await connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}; GRANT SELECT ON orders TO {role}")
    await connection.execute("CREATE PUBLICATION ackwise FOR TABLE orders")
    rules = server.folder / "data" / "pg_hba.conf"
    ours = [
        "hostssl all worker 127.0.0.1/32 scram-sha-256",
        "hostnossl all worker 127.0.0.1/32 reject",
        "host all plain,poor 127.0.0.1/32 scram-sha-256",
    ]
    rules.write_text("\n".join([*ours, rules.read_text()]), "utf-8")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    while await _lets_in(f"postgresql://plain:wrong@127.0.0.1:{server.port}/postgres?sslmode=disable"):
        continue


async def _lets_in(url: str) -> bool:
    try:
        await (await asyncpg.connect(url)).close()
    except asyncpg.InvalidPasswordError:
        return False
    return True


@pytest.fixture
async def owner(guarded: Server) -> AsyncIterator[asyncpg.Connection]:
    """A connection that may do everything; what a test made is gone after it."""
    connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    yield connection
    await connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    await connection.execute("DROP TABLE IF EXISTS ackwise_cdc; DELETE FROM orders")
    await connection.close()


def source_of(url: str) -> PostgresChanges:
    return from_url(url, name="s", publication="ackwise", tables=["orders"], create=True)


async def read_one(source: PostgresChanges, owner: asyncpg.Connection) -> Change:
    """Write a row and return what the log says of it."""
    await source.open()
    await owner.execute("INSERT INTO orders VALUES (1, 'tea')")
    async with asyncio.timeout(PATIENCE):
        while True:
            for said in await source.read(1):
                if isinstance(said, Change):
                    return said
                assert isinstance(said, Committed)


async def gone(owner: asyncpg.Connection) -> None:
    """Wait until nobody reads from the slot any more."""
    async with asyncio.timeout(PATIENCE):
        while await owner.fetchval("SELECT active FROM pg_replication_slots"):  # noqa: ASYNC110  # the server tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("user", "options"),
    [
        ("plain", "sslmode=disable"),
        ("plain", "sslmode=require"),
        ("worker", "sslmode=verify-full&sslrootcert={authority}"),
    ],
)
async def test_the_log_is_read_with_scram_over_tls_or_not(
    guarded: Server, certificates: Certificates, owner: asyncpg.Connection, user: str, options: str
) -> None:
    base = f"postgresql://{user}:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?"
    source = source_of(base + options.format(authority=certificates.authority))
    change = await read_one(source, owner)
    question = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)"
    assert await owner.fetchval(question) is (options != "sslmode=disable")
    assert (change.table, change.row) == ("public.orders", {"id": 1, "note": "tea"})
    await source.close()
    await gone(owner)


async def test_no_position_is_reported_that_the_database_did_not_take(guarded: Server, owner: asyncpg.Connection) -> None:
    source = source_of(f"postgresql://{USER}@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    await read_one(source, owner)
    async with asyncio.timeout(PATIENCE):
        while not (ends := [said for said in await source.read(10) if isinstance(said, Committed)]):
            pass
    await owner.execute("DROP TABLE ackwise_cdc")
    source.acknowledge(ends[0].position)
    await source.close()
    await gone(owner)
    confirmed = await owner.fetchval("SELECT confirmed_flush_lsn < $1::text::pg_lsn FROM pg_replication_slots", ends[0].position)
    assert confirmed, "after a crash the relay would take its own slot for a loss"


async def test_a_stranger_s_certificate_is_refused(guarded: Server, certificates: Certificates) -> None:
    source = source_of(
        f"postgresql://worker:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=verify-full&sslrootcert={certificates.stranger}"
    )
    with pytest.raises(ConfigurationError, match="its certificate is not trusted"):
        await source.open()
    await source.close()


async def test_a_wrong_password_is_a_sentence_without_it(guarded: Server) -> None:
    source = source_of(f"postgresql://plain:wr0ng@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    with pytest.raises(ConfigurationError, match=r"postgresql://127\.0\.0\.1:\d+/postgres: the password is wrong") as caught:
        await source.open()
    assert "wr0ng" not in str(caught.value)
    await source.close()


async def test_a_user_without_replication_is_told_so(guarded: Server, owner: asyncpg.Connection) -> None:
    source = source_of(f"postgresql://poor:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    with pytest.raises(ConfigurationError, match="no attribute REPLICATION: ALTER ROLE") as caught:
        await source.open()
    assert "s3cr" not in str(caught.value)
    await source.close()


async def test_a_user_who_may_not_create_the_table_is_given_the_statement(guarded: Server, owner: asyncpg.Connection) -> None:
    await owner.execute("REVOKE CREATE ON SCHEMA public FROM plain")
    source = source_of(f"postgresql://plain:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    with pytest.raises(ConfigurationError, match=r'let an owner run: CREATE TABLE "ackwise_cdc" \(slot text PRIMARY KEY'):
        await source.open()
    await source.close()
    await owner.execute("GRANT CREATE ON SCHEMA public TO plain")


async def test_a_server_without_a_logical_log_is_told(owner: asyncpg.Connection) -> None:
    with skip_if_missing("PostgreSQL"), postgres_server(wal_level="replica") as server:
        source = source_of(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres")
        with pytest.raises(ConfigurationError, match="wal_level is replica, and change data capture needs logical"):
            await source.open()
        await source.close()


async def test_a_server_that_is_away_is_unavailable() -> None:
    source = source_of(f"postgresql://{USER}@127.0.0.1:{free_port()}/postgres")
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await source.open()
    await source.close()


async def test_a_connection_that_breaks_ends_the_read_and_the_next_one_goes_on(guarded: Server, owner: asyncpg.Connection) -> None:
    async with proxy_to(guarded.port) as proxy:
        source = source_of(f"postgresql://plain:{PASSWORD}@127.0.0.1:{proxy.port}/postgres?sslmode=disable")
        first = await read_one(source, owner)
        proxy.cut()
        with pytest.raises(StoreUnavailable, match=r"replication connection failed|connection was lost"):  # noqa: PT012
            async with asyncio.timeout(PATIENCE):
                while True:
                    await source.read(10)
        await gone(owner)
        with suppress(StoreUnavailable):  # the pool may still have the connection that was cut
            await source.open()
        await source.open()
        async with asyncio.timeout(PATIENCE):
            (again, *_) = await source.read(10)
        assert again == first  # it was not acknowledged
        await source.close()
    await gone(owner)


def test_a_slot_that_postgresql_would_not_name_so_is_refused() -> None:
    for name in ["", "Upper", "with-dash", "x" * 64, 'x"; DROP']:
        with case(name), pytest.raises(ConfigurationError, match="up to 63 lower-case letters, digits"):
            from_url("postgresql://host/shop", name=name, publication="ackwise")


async def test_tables_that_can_not_be_read_are_refused(guarded: Server, owner: asyncpg.Connection) -> None:
    base = f"postgresql://{USER}@127.0.0.1:{guarded.port}/postgres?sslmode=disable"
    await owner.execute("CREATE TABLE parted (id int) PARTITION BY RANGE (id)")
    for table, sentence in (("nowhere", "there is no table nowhere; correct --table"), ("parted", "parted is partitioned")):
        source = from_url(base, name="s", publication="ackwise", tables=[table], create=True)
        with pytest.raises(ConfigurationError, match=sentence):
            await source.open()
        await source.close()
    await owner.execute("DROP TABLE parted")
