"""The PostgreSQL store when the server, the network or the caller fails; and who may see what."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
import traceback
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.databases.certificates import Certificates
from tests.databases.postgres import USER, postgres_server
from tests.databases.server import Server, free_port, skip_if_missing
from tests.shared import SharedServer
from tests.stores.cases import case

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimKey, Exchange
from ackwise.stores.postgres import PostgresStore, from_url
from ackwise.stores.sql.operation import Statement, Steps

TODAY = int(time.time() // 86400)


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: list[ClaimKey], token: int = 1) -> Exchange:
    return Exchange([Claim(key, token) for key in asked])


async def test_a_pool_that_was_given_keeps_its_settings_and_stays_open(postgres: SharedServer) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        settings = await pool.fetch("SELECT name, setting FROM pg_settings ORDER BY name")
        store = PostgresStore(pool=pool)
        await store.open()
        for day in (None, TODAY):
            asked = keys(50, day)
            assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 50
        assert await store.check() == []
        assert await store.cleanup() >= 0
        await store.close()
        assert await pool.fetch("SELECT name, setting FROM pg_settings ORDER BY name") == settings


async def test_without_a_statement_cache_nothing_is_prepared_and_no_setting_is_made(postgres: SharedServer) -> None:
    """As PgBouncer needs it, which hands the same connection to others between two transactions."""
    url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
    store = from_url(f"{url}?statement_cache_size=0&max_size=1")
    await store.open()
    for _ in range(3):
        assert (await store.exchange(claims([*keys(5), *keys(5, TODAY)]))).claims == [Acquired(1)] * 10
    assert store._connections.pool is not None
    assert await store._connections.pool.fetch("SELECT name FROM pg_prepared_statements WHERE name <> ''") == []
    assert (
        await store._connections.pool.fetch("SELECT name FROM pg_settings WHERE source IN ('client', 'session') AND name LIKE 'enable%'")
        == []
    )
    await store.close()


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Server]:
    """A PostgreSQL that takes the users `worker`, by TLS only, and `plain`, without it, with the password `s3cr/t@`."""
    settings = {"ssl": "on", "ssl_cert_file": f"'{certificates.certificate}'", "ssl_key_file": f"'{certificates.key}'"}
    with skip_if_missing("PostgreSQL"), postgres_server(**settings) as server:
        asyncio.run(_guard(server))
        yield server


async def _guard(server: Server) -> None:
    connection = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres")
    await connection.execute("CREATE ROLE worker LOGIN PASSWORD 's3cr/t@'; GRANT CREATE ON SCHEMA public TO worker")
    await connection.execute("CREATE ROLE plain LOGIN PASSWORD 's3cr/t@' IN ROLE worker")
    rules = server.folder / "data" / "pg_hba.conf"
    ours = [
        "hostssl all worker 127.0.0.1/32 scram-sha-256",
        "hostnossl all worker 127.0.0.1/32 reject",
        "hostnossl all plain 127.0.0.1/32 scram-sha-256",
    ]
    rules.write_text("\n".join([*ours, rules.read_text()]), "utf-8")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    while await _lets_in(f"postgresql://plain:wrong@127.0.0.1:{server.port}/postgres?sslmode=disable"):
        continue


async def _lets_in(url: str) -> bool:
    """Whether the server has not read its new rules yet."""
    try:
        await (await asyncpg.connect(url)).close()
    except asyncpg.InvalidPasswordError:
        return False
    return True


PASSWORD = "s3cr%2Ft%40"


@pytest.mark.slow  # waits for a process
async def test_tls_is_verified_against_the_authority_that_the_url_names(guarded: Server, certificates: Certificates) -> None:
    base = f"postgresql://worker:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=verify-full"
    store = from_url(f"{base}&sslrootcert={certificates.authority}")
    await store.open()
    assert store._connections.pool is not None
    assert await store._connections.pool.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is True
    assert (await store.exchange(claims(keys(3)))).claims == [Acquired(1)] * 3
    await store.close()
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.*\); correct sslrootcert, or the host"):
        await from_url(f"{base}&sslrootcert={certificates.stranger}").open()
    elsewhere = base.replace("127.0.0.1", "localhost")
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.*localhost"):
        await from_url(f"{elsewhere}&sslrootcert={certificates.authority}").open()


async def test_a_server_without_tls_is_refused_if_the_url_asks_for_it(postgres: SharedServer) -> None:
    with pytest.raises(ConfigurationError, match="the server speaks no TLS, and sslmode asks for it"):
        await from_url(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres?sslmode=require").open()


@pytest.mark.slow  # waits for a process
async def test_a_store_that_can_not_be_opened_says_why_and_no_secret(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    for url, sentence in [
        ("postgresql://plain:wr0ng-one@{host}/postgres?sslmode=disable", "the password is wrong; correct it in the URL"),
        ("postgresql://worker:wr0ng-one@{host}/postgres?sslmode=disable", "PostgreSQL does not let this user in"),
        ("postgresql://stranger:wr0ng-one@{host}/postgres?sslmode=disable", "PostgreSQL does not let this user in"),
        ("postgresql://postgres:wr0ng-one@{host}/nowhere?sslmode=disable", "this database does not exist; create it"),
        (
            "postgresql://worker:wr0ng-one@{host}/postgres?sslmode=verify-full&sslrootcert=/not/there",
            "a file is not there: .* or a certificate",
        ),
        ("postgresql://worker:wr0ng-one@{host}/postgres?sslmode=sometimes", "asyncpg can't read the URL"),
        ("postgresql://worker:wr0ng-one@127.0.0.1:{closed}/postgres", "it can't be reached"),
        ("postgresql://worker:wr0ng-one@nowhere.invalid/postgres", "it can't be reached"),
        ("postgresql://worker:wr0ng-one@127.0.0.1:port/postgres", "asyncpg can't read the URL"),
        ("postgresql:///postgres?host=/not/there", "a file is not there: the server's socket"),
    ]:
        with case(url, sentence):
            caplog.set_level(logging.DEBUG)
            store = from_url(url.format(host=f"127.0.0.1:{guarded.port}", closed=free_port()))
            for refused in (store.open, store.init, store.check, store.cleanup):
                with pytest.raises(AckwiseError, match=sentence) as raised:
                    await refused()
                assert raised.value.__cause__ is None
                assert "wr0ng" not in "".join(traceback.format_exception(raised.value))
            assert "wr0ng" not in repr(store) + caplog.text


@pytest.mark.slow  # starts a PostgreSQL that asks for passwords
async def test_a_password_that_is_changed_while_the_store_is_open_makes_it_unavailable(guarded: Server) -> None:
    store = from_url(f"postgresql://plain:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=disable")
    await store.open()
    admin = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{guarded.port}/postgres")
    await admin.execute("ALTER ROLE plain PASSWORD 'another'")
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plain'")
    with pytest.raises(StoreUnavailable, match="the password is wrong"):
        await store.exchange(claims(keys(1)))
    await admin.execute("ALTER ROLE plain PASSWORD 's3cr/t@'")
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
    await admin.close()
    await store.close()


async def test_a_server_without_a_free_connection_is_named(postgres: SharedServer) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
    admin = await asyncpg.connect(url)
    await admin.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 1; GRANT pg_read_all_data, pg_write_all_data TO crowd")
    other = await asyncpg.connect(url.replace(USER + "@", "crowd@"))
    with pytest.raises(StoreUnavailable, match="the server has no connection left; raise max_connections, or lower max_size"):
        await PostgresStore(url.replace(USER + "@", "crowd@")).open()
    await other.close()
    await admin.execute("DROP OWNED BY crowd; DROP ROLE crowd")
    await admin.close()


async def test_a_connection_on_which_a_transaction_was_left_open_is_not_used_again(postgres_url: str) -> None:
    def steps() -> Steps[None]:
        yield [Statement("BEGIN"), Statement("SELECT 1 / 0")]

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    store = PostgresStore(postgres_url, max_size=1)
    await store.open()
    with pytest.raises(StoreUnavailable, match="division by zero"):
        await store._connections.run(steps)
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
    await store.close()
    assert told == [], "asyncpg would roll back, and log an error"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
async def test_wherever_an_exchange_is_cancelled_the_loop_is_told_of_nothing(postgres_url: str, seed: int) -> None:
    """Also while it connects, where asyncpg would leave a future behind that nobody looks at."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    chance = random.Random(seed)
    store = PostgresStore(postgres_url, max_size=3)
    await store.open()
    for _ in range(150):
        under_way = [asyncio.ensure_future(store.exchange(claims(keys(chance.choice((1, 200)))))) for _ in range(3)]
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        for exchange in under_way:
            exchange.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    assert len((await store.exchange(claims(keys(3)))).claims) == 3
    await store.close()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:  # connections that were on their way are made, and given up
        await asyncio.wait(left, timeout=10)
    await asyncio.sleep(0)
    gc.collect()
    assert told == []
