"""The MySQL store when the server, the network or the caller fails; and who may see what. The server is MariaDB."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncmy
import pytest
from asyncmy import auth
from asyncmy.cursors import DictCursor
from asyncmy.pool import Pool
from tests.databases.certificates import Certificates
from tests.databases.mariadb import mariadb_server
from tests.databases.server import Server, free_port, skip_if_missing
from tests.shared import SharedServer
from tests.stores.cases import case
from tests.stores.mysql.database import MySQLDatabase, mysql_database

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import Acquired, AlreadyDone, Busy, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.stores.mysql import MySQLStore, from_url
from ackwise.stores.mysql.driver import as_store_error

TODAY = int(time.time() // 86400)


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(random.randbytes(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1) -> Exchange:
    return Exchange([Claim(key, token) for key in asked])


def completes(asked: Sequence[ClaimKey]) -> Exchange:
    return Exchange(completes=[Complete(key, 1, Outcome.OK) for key in asked])


def pool_of(mysql: MySQLDatabase, **options: Any) -> Any:
    """A pool with asyncmy's own settings but for `options`; to be entered."""
    return asyncmy.create_pool(minsize=1, maxsize=1, host="127.0.0.1", port=mysql.server.port, user="root", database=mysql.name, **options)


@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_pool_that_was_given_keeps_its_settings_and_stays_open(mysql: MySQLDatabase, autocommit: bool) -> None:
    """Whatever they are: another time zone, another order of assignments, rows of another shape, or nothing committed by itself."""
    variables = "SHOW SESSION VARIABLES"
    contrary = "SET SESSION time_zone = '+11:00', sql_mode = 'SIMULTANEOUS_ASSIGNMENT,ANSI_QUOTES'"
    ours = MySQLStore(mysql.url)
    await ours.open()
    async with pool_of(mysql, init_command=contrary, autocommit=autocommit, cursor_cls=DictCursor) as pool:
        async with pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute(variables)
            settings = await cursor.fetchall()
            await connection.commit()
        store = MySQLStore(pool=pool)
        await store.open()
        for day in (None, TODAY):
            asked = keys(50, day)
            assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 50
            answers = (await ours.exchange(claims(asked, 2))).claims
            assert all(isinstance(answer, Busy) and 20.0 < answer.retry_after <= 30.0 for answer in answers)
            await ours.exchange(completes(asked))
            assert (await store.exchange(claims(asked, 2))).claims == [AlreadyDone(Outcome.OK)] * 50
        assert await store.check() == []
        assert await store.cleanup() == 0
        await store.close()
        async with pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute(variables)
            changed = [pair for pair in zip(settings, await cursor.fetchall(), strict=True) if pair[0] != pair[1]]
            await connection.commit()
    assert {name for one, _ in changed for name in [one["Variable_name"]]} <= {"timestamp", "gtid_seq_no", "last_gtid"}
    await ours.close()


@pytest.mark.nightly
async def test_pools_that_read_repeatably_do_not_wait_in_a_circle_either(mysql: MySQLDatabase) -> None:
    asked = keys(100, TODAY)
    before = await mysql.deadlocks()

    async def work(number: int, pool: Pool) -> int:
        store, shuffle = MySQLStore(pool=pool, timeout=30.0), random.Random(number)
        await store.open()
        granted = 0
        for turn in range(20):
            lot = Exchange([Claim(key, 1 + number + 8 * turn) for key in shuffle.sample(asked, 50)], lease=0.0)
            granted += sum(isinstance(answer, Acquired) for answer in (await store.exchange(lot)).claims)
        return granted

    async with pool_of(mysql) as a, pool_of(mysql) as b, pool_of(mysql) as c, pool_of(mysql) as d:
        granted = await asyncio.gather(*(work(number, pool) for number, pool in enumerate((a, b, c, d))))
    assert sum(granted) > 100
    assert await mysql.deadlocks() - before == 0


@pytest.fixture(scope="module")
def guarded(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MariaDB that takes the user `worker` with the password `s3cr/t@` by TLS only, and `plain` without."""
    options = (f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}", f"--ssl-ca={certificates.authority}")
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("guarded"), *options) as server:
        asyncio.run(_guard(MySQLDatabase(server, "test")))
        yield server


async def _guard(database: MySQLDatabase) -> None:
    await database.fetch("CREATE USER worker IDENTIFIED BY 's3cr/t@' REQUIRE SSL")
    await database.fetch("CREATE USER plain IDENTIFIED BY 's3cr/t@'")
    for user in ("worker", "plain"):
        await database.fetch(f"GRANT ALL ON test.* TO {user}")


PASSWORD = "s3cr%2Ft%40"


@pytest.mark.servers
async def test_tls_is_verified_against_the_authority_that_the_url_names(guarded: Server, certificates: Certificates) -> None:
    base = f"mysql://worker:{PASSWORD}@127.0.0.1:{guarded.port}/test"
    for mode in ("", "sslmode=verify-full&", "sslmode=verify-ca&"):
        store = from_url(f"{base}?{mode}sslrootcert={certificates.authority}")
        await store.open()
        assert store._connections.pool is not None
        async with store._connections.pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_version'")
            assert (await cursor.fetchall())[0][1].startswith("TLS")
        assert (await store.exchange(claims(keys(3)))).claims == [Acquired(1)] * 3
        await store.close()
    for mode in ("verify-full", "verify-ca"):
        for authority in (f"&sslrootcert={certificates.stranger}", ""):
            with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.*\); correct sslrootcert, or the host"):
                await from_url(f"{base}?sslmode={mode}{authority}").open()
    elsewhere = base.replace("127.0.0.1", "localhost")
    with pytest.raises(ConfigurationError, match=r"its certificate is not trusted \(.*localhost"):
        await from_url(f"{elsewhere}?sslrootcert={certificates.authority}").open()
    store = from_url(f"{elsewhere}?sslmode=verify-ca&sslrootcert={certificates.authority}")
    await store.open()
    await store.close()


async def test_a_server_without_tls_is_refused_if_the_url_asks_for_it(mariadb: SharedServer) -> None:
    with pytest.raises(AckwiseError, match="the server speaks no TLS, and sslmode asks for it"):
        await from_url(f"mariadb://root@127.0.0.1:{mariadb.port}/test?sslmode=require").open()


@pytest.mark.servers
async def test_a_store_that_can_not_be_opened_says_why_and_no_secret(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    for url, sentence in [
        ("mysql://worker:wr0ng-one@{host}/test?sslmode=require", "the server does not let this user in; check user and password"),
        ("mysql://worker:wr0ng-one@{host}/test", "the server does not let this user in"),
        ("mysql://wr0ng-user:wr0ng-one@{host}/test", "the server does not let this user in"),
        ("mysql://plain:s3cr%2Ft%40@{host}/nowhere", "this user may not use the database"),
        ("mysql://root@{host}/nowhere", "this database does not exist; create it"),
        ("mysql://worker:wr0ng-one@{host}/test?sslrootcert=/not/there", "sslrootcert, sslcert or sslkey is no readable PEM file"),
        ("mysql://worker:wr0ng-one@127.0.0.1:{closed}/test", "it can't be reached"),
        ("mysql://worker:wr0ng-one@nowhere.invalid/test", "it can't be reached"),
    ]:
        with case(url, sentence):
            caplog.set_level(logging.DEBUG)
            store = from_url(url.format(host=f"127.0.0.1:{guarded.port}", closed=free_port()))
            for refused in (store.open, store.init, store.check, store.cleanup):
                with pytest.raises(AckwiseError, match=sentence) as raised:
                    await refused()
                assert raised.value.__cause__ is None
                said = "".join(traceback.format_exception(raised.value))
                assert "wr0ng" not in said
                assert "s3cr" not in said
            assert "wr0ng" not in repr(store) + caplog.text


@pytest.fixture
async def worker(mysql: MySQLDatabase) -> AsyncIterator[str]:
    """The URL of a user without special rights, whose tables are there."""
    await MySQLStore(mysql.url).init()
    user = f"worker_{mysql.name[-6:]}"
    await mysql.fetch(f"CREATE USER {user}")
    await mysql.fetch(f"GRANT ALL ON {mysql.name}.* TO {user}")
    yield mysql.url_by(mysql.server, user)
    await mysql.fetch(f"DROP USER {user}")


async def test_a_server_that_takes_no_writes_is_named_and_used_again_when_it_does(mysql: MySQLDatabase, worker: str) -> None:
    store, sentence = MySQLStore(worker), "the server takes no writes, it is a replica or read_only is on; name the primary"
    await store.open()
    await mysql.fetch("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreUnavailable, match=sentence):
            await store.exchange(claims(keys(1)))
        with pytest.raises(StoreUnavailable, match=sentence):
            await MySQLStore(worker).open()
    finally:
        await mysql.fetch("SET GLOBAL read_only = 0")
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
    await store.close()


async def test_a_server_without_a_free_connection_is_named(mysql: MySQLDatabase, worker: str) -> None:
    user = worker.split("//")[1].split("@")[0]
    await mysql.fetch(f"ALTER USER {user} WITH MAX_USER_CONNECTIONS 1")
    first, second = MySQLStore(worker, max_size=1), MySQLStore(worker)
    await first.open()
    with pytest.raises(StoreUnavailable, match="the server has no connection left for this user; raise max_connections, or lower max_size"):
        await second.open()
    await first.close()


@pytest.mark.servers
async def test_settings_of_the_server_that_are_unwise_are_told_and_those_that_can_not_work_are_refused(tmp_path: Path) -> None:
    options = ("--log-bin", "--sysdate-is-now", "--innodb-flush-log-at-trx-commit=2")
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path, *options) as server:
        async with mysql_database(server) as database:
            store = MySQLStore(database.url)
            await store.open()
            assert (await store.exchange(claims(keys(3)))).claims == [Acquired(1)] * 3
            first, second = await store.check()
            assert "innodb_flush_log_at_trx_commit is 2, so a crash of the server or its host forgets the last exchanges" in first
            assert "sysdate-is-now is on, so a claim that had to wait gets a shorter lease" in second
            await store.close()
            await database.fetch("SET GLOBAL binlog_format = 'STATEMENT'")
            with pytest.raises(
                ConfigurationError, match="its binlog_format is STATEMENT, which can't carry claims; set it to MIXED or ROW"
            ):
                await store.open()


@pytest.mark.servers
async def test_a_full_disk_is_told_of_and_nothing_of_the_exchange_is_applied(tmp_path: Path) -> None:
    options = ("--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M")  # one file for all tables, which may not grow
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path, *options) as server:
        async with mysql_database(server) as database:
            store, few = MySQLStore(database.url), keys(5)
            await store.open()
            await store.exchange(claims(few))
            with pytest.raises(StoreUnavailable, match="the server's disk or tablespace is full; make room"):
                await store.exchange(claims(keys(1000)))
            assert await database.fetch("SELECT COUNT(*) FROM ackwise_claims") == [(5,)]
            assert (await store.exchange(claims(few))).claims == [Acquired(1)] * 5
            await store.close()


async def test_what_is_no_mysql_is_named_so() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable, match=r"what answers does not speak MySQL's protocol \(.*\); check host and port of the URL"):
            await MySQLStore(f"mysql://u@127.0.0.1:{port}/d").open()


def test_a_package_that_the_users_way_of_authentication_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table: list[tuple[str, Callable[[], object]]] = [
        ("cryptography", lambda: auth.sha2_rsa_encrypt(b"wr0ng", b"salt", b"key")),
        ("pynacl", lambda: auth.ed25519_password(b"wr0ng", b"scramble")),
    ]
    for package, ask in table:
        with case(package, ask):
            monkeypatch.setattr(auth, "_have_cryptography", False)
            monkeypatch.setattr(auth, "_nacl_bindings", None)
            with pytest.raises(RuntimeError) as raised:
                ask()
            said = as_store_error(raised.value, "mysql://h/d", 5.0)
            assert isinstance(said, ConfigurationError)
            assert str(said) == f"mysql://h/d: asyncmy needs {package} for the way this user is authenticated; pip install {package}"
