"""The PostgreSQL store when the server, the network or the caller fails; and who may see what."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.certificates import Certificates, make_certificates
from tests.databases.postgres import USER, postgres_server
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server, free_port, skip_if_missing

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.store import Acquired, AlreadyDone, Busy, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.middleware.transaction import Taken
from ackwise.stores.postgres import PostgresStore, from_url
from ackwise.stores.postgres.inbox import from_url as inbox_from_url

TODAY = int(time.time() // 86400)
PROGRAM = Path(__file__).parents[1] / "claiming_process.py"


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: list[ClaimKey], token: int = 1) -> Exchange:
    return Exchange([Claim(key, token) for key in asked])


def completes(asked: list[ClaimKey]) -> Exchange:
    return Exchange(completes=[Complete(key, 1, Outcome.OK) for key in asked])


@pytest.fixture
async def store(postgres: Server) -> AsyncIterator[PostgresStore]:
    """Opened in the database that outlives this test's server."""
    store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres", timeout=2.0)
    await store.open()
    await asyncio.gather(*(store.exchange(claims(keys(1))) for _ in range(2)))  # both connections are open
    yield store
    await store.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_server_that_comes_back_is_used_again_and_what_it_had_answered_is_there(
    store: PostgresStore, postgres: Server, end: str
) -> None:
    asked = keys(100)
    await store.exchange(claims(asked))
    await store.exchange(completes(asked[:50]))
    getattr(postgres, end)()
    with pytest.raises(StoreUnavailable, match=r"it can't be reached \(.*\); start it, or correct the URL"):
        await store.exchange(claims(keys(1)))
    postgres.start()
    answers = (await store.exchange(claims(asked, 2))).claims
    assert answers[:50] == [AlreadyDone(Outcome.OK)] * 50
    assert {type(answer) for answer in answers[50:]} == {Busy}


async def test_a_restart_between_two_exchanges_is_not_noticed(store: PostgresStore, postgres: Server) -> None:
    asked = keys(10)
    await store.exchange(claims(asked))
    postgres.restart()
    assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 10


async def test_connections_that_the_server_ended_are_replaced(store: PostgresStore, postgres: Server) -> None:
    admin = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres")
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert (await store.exchange(claims(keys(10)))).claims == [Acquired(1)] * 10
    await admin.close()


async def test_a_frozen_server_is_given_up_within_the_timeout_and_used_again(store: PostgresStore, postgres: Server) -> None:
    asked = keys(10)
    postgres.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no answer within 2\.0 s; see whether the server runs"):
            await store.exchange(claims(asked))
        assert time.monotonic() - began < 10.0
    finally:
        postgres.thaw()
    assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 10
    assert store._connections.pool is not None
    assert store._connections.pool.get_size() <= 2


async def test_cancelled_exchanges_leave_no_connection_in_the_middle_of_one(store: PostgresStore, postgres: Server) -> None:
    for turns in range(12):
        asking = [asyncio.ensure_future(store.exchange(claims(keys(200)))) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        asked = keys(5)
        assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 5
        assert (await store.exchange(completes(asked))).completes


async def test_close_finishes_the_exchanges_under_way(postgres: Server) -> None:
    store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres")
    with pytest.raises(StoreUnavailable, match="the store is not open"):
        await store.exchange(Exchange())
    await store.open()
    await store.open()
    last = asyncio.ensure_future(store.exchange(claims(keys(500))))
    await asyncio.sleep(0.001)
    await store.close()
    await store.close()
    assert (await last).claims == [Acquired(1)] * 500


async def test_a_pool_that_was_given_keeps_its_settings_and_stays_open(postgres: Server) -> None:
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


async def test_without_a_statement_cache_nothing_is_prepared_and_no_setting_is_made(postgres: Server) -> None:
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


async def test_processes_share_a_database_and_no_key_goes_to_two(postgres_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), postgres_url, str(number), "20", stdout=subprocess.PIPE)
        for number in range(1, 4)
    ]
    outputs = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3
    answers = [json.loads(line) for output in outputs for line in output.splitlines()]
    assert sorted(number for answer in answers for number in answer["acquired"]) == list(range(20 * 100))
    assert {ack for answer in answers for ack in answer["acks"]} == {"ok"}


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    """In a folder that the server's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ackwise-certificates-"))
    with skip_if_missing("TLS"):
        made = make_certificates(folder)
    folder.chmod(0o755)
    if not os.geteuid():
        shutil.chown(made.key, USER)
    yield made
    shutil.rmtree(folder)


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


@pytest.mark.slow
async def test_an_inbox_verifies_tls_in_the_same_way(guarded: Server, certificates: Certificates) -> None:
    base = f"postgresql://worker:{PASSWORD}@127.0.0.1:{guarded.port}/postgres?sslmode=verify-full"
    inbox = inbox_from_url(f"{base}&sslrootcert={certificates.authority}")
    await inbox.open()
    async with inbox.begin(retention=60.0) as transaction:
        assert await transaction.connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is True
        assert await transaction.claim(keys(3)) == [Taken()] * 3
    await inbox.close()
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.*\); correct sslrootcert, or the host") as raised:
        await inbox_from_url(f"{base}&sslrootcert={certificates.stranger}").open()
    assert "s3cr" not in str(raised.value)


@pytest.mark.slow
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


async def test_a_server_without_tls_is_refused_if_the_url_asks_for_it(postgres: Server) -> None:
    with pytest.raises(ConfigurationError, match="the server speaks no TLS, and sslmode asks for it"):
        await from_url(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres?sslmode=require").open()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
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
    ],
)
async def test_a_store_that_can_not_be_opened_says_why_and_no_secret(
    guarded: Server, caplog: pytest.LogCaptureFixture, url: str, sentence: str
) -> None:
    caplog.set_level(logging.DEBUG)
    store = from_url(url.format(host=f"127.0.0.1:{guarded.port}", closed=free_port()))
    for refused in (store.open, store.init, store.check, store.cleanup):
        with pytest.raises(AckwiseError, match=sentence) as raised:
            await refused()
        assert raised.value.__cause__ is None
        assert "wr0ng" not in "".join(traceback.format_exception(raised.value))
    assert "wr0ng" not in repr(store) + caplog.text


@pytest.mark.slow
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


async def test_a_server_without_a_free_connection_is_named(postgres: Server) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
    admin = await asyncpg.connect(url)
    await admin.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 1; GRANT pg_read_all_data, pg_write_all_data TO crowd")
    other = await asyncpg.connect(url.replace(USER + "@", "crowd@"))
    with pytest.raises(StoreUnavailable, match="the server has no connection left; raise max_connections, or lower max_size"):
        await PostgresStore(url.replace(USER + "@", "crowd@")).open()
    await other.close()
    await admin.execute("DROP OWNED BY crowd; DROP ROLE crowd")
    await admin.close()


async def test_a_proxy_that_cuts_in_the_middle_of_a_handshake_is_no_reason_to_stop(postgres: Server) -> None:
    async with proxy_to(postgres.port) as proxy:
        store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres")
        proxy.refuse = True
        with pytest.raises(StoreUnavailable):
            await store.open()
        proxy.refuse = False
        await store.open()
        await store.close()
    assert isinstance(proxy, Proxy)


@pytest.mark.parametrize("seed", range(2))
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
