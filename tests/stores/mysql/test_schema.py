"""The tables of a MySQL store: made, refused, cleaned and looked at, with as few rights as it takes. The server is MariaDB."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from tests.databases.server import Server
from tests.stores.cases import case
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.claimstore import Ack, Acquired, AlreadyDone, Claim, ClaimKey, Complete, Exchange, Outcome, Release
from ackwise.stores.mysql import MySQLStore, maintenance, schema


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_mariadb


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(random.randbytes(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1, retention: float = 86400.0) -> Exchange:
    return Exchange([Claim(key, token) for key in asked], lease=0.0, retention=retention)


RIGHTS = ("SELECT, INSERT, UPDATE, DELETE ON {}.ackwise_claims", "SELECT ON {}.ackwise_schema")
"""As the documentation names them."""


class User:
    """Somebody who may do nothing yet."""

    def __init__(self, mysql: MySQLDatabase) -> None:
        self._mysql = mysql
        self.name = f"user_{mysql.name[-6:]}"
        self.url = mysql.url_by(mysql.server, self.name)

    async def __aenter__(self) -> User:
        await self._mysql.fetch(f"CREATE USER {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._mysql.fetch(f"DROP USER {self.name}")

    async def may(self, *rights: str) -> None:
        for right in rights:
            await self._mysql.fetch(f"GRANT {right.format(self._mysql.name)} TO {self.name}")


async def test_a_user_who_may_only_read_and_write_rows_can_work(mysql: MySQLDatabase) -> None:
    await MySQLStore(mysql.url).init()
    async with User(mysql) as user:
        await user.may(*RIGHTS)
        store = MySQLStore(user.url)
        await store.open()
        done, back, longer = keys(3)
        await store.exchange(claims([done, back, longer]))
        result = await store.exchange(Exchange(completes=[Complete(done, 1, Outcome.OK)], releases=[Release(back, 1)]))
        assert (result.completes, result.releases) == ([Ack.OK], [Ack.OK])
        await store.init()
        assert await store.check() == []
        assert await store.cleanup() == 0
        await store.close()


async def test_a_user_without_rights_is_told_which_are_missing(mysql: MySQLDatabase) -> None:
    async with User(mysql) as user:
        store = MySQLStore(user.url)
        with pytest.raises(ConfigurationError, match="this user may not use the database; grant it, or correct the URL"):
            await store.open()
        await user.may("SELECT, INSERT, UPDATE, DELETE ON {}.*")
        for refused in (store.open, store.init):
            with pytest.raises(
                ConfigurationError, match=r"may not do what the claim store needs \(CREATE\); let a user who may create"
            ) as raised:
                await refused()
            assert user.name not in str(raised.value)
        await MySQLStore(mysql.url).init()
        await mysql.fetch(f"REVOKE ALL PRIVILEGES ON {mysql.name}.* FROM {user.name}")
        await user.may(RIGHTS[1])
        with pytest.raises(ConfigurationError, match="this user has no right to SELECT, INSERT, UPDATE on `ackwise_claims`; grant it"):
            await store.open()
        await user.may("SELECT, INSERT ON {}.ackwise_claims")
        with pytest.raises(ConfigurationError, match="this user has no right to UPDATE on `ackwise_claims`; grant it"):
            await store.open()
        await user.may("UPDATE ON {}.ackwise_claims")
        await store.open()
        assert (await store.exchange(claims(keys(3)))).claims == [Acquired(1)] * 3
        (sentence,) = await store.check()
        assert sentence.endswith("this user has no right to DELETE on `ackwise_claims`; grant it")
        with pytest.raises(ConfigurationError, match=r"\(DELETE\)"):
            await store.cleanup()
        await store.close()


def test_a_prefix_that_no_table_can_have_is_refused() -> None:
    for prefix in ["x" * 59, "a\0b", "\N{PILE OF POO}"]:
        with case(prefix), pytest.raises(ConfigurationError, match="give at most 50 characters, none of them beyond U"):
            MySQLStore("mysql://u@h/d", prefix=prefix)


async def test_cleaning_up_beside_running_workers_costs_them_nothing_but_time(
    mysql: MySQLDatabase, mysql_store: MySQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AT_ONCE", 40)
    every, before = keys(400, 19_000), await mysql.deadlocks()
    over = asyncio.Event()
    deleted = 0

    async def clean() -> None:
        nonlocal deleted
        while not over.is_set():
            deleted += await mysql_store.cleanup()

    async def work(number: int) -> None:
        shuffle = random.Random(number)
        for turn in range(40):
            token, some = 1 + number + 8 * turn, shuffle.sample(every, 50)
            # What is claimed here is forgotten at once, so that it is deleted while others claim it.
            await mysql_store.exchange(claims(some, token, retention=0.0))

    cleaning = asyncio.ensure_future(clean())
    await asyncio.gather(*(work(number) for number in range(4)))
    over.set()
    await cleaning
    assert deleted > 400
    assert await mysql.deadlocks() - before == 0


async def test_a_record_that_is_written_while_the_cleanup_looks_at_it_stays(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    (key,) = keys(1)
    await mysql_store.exchange(claims([key], retention=0.0))
    async with mysql.connected() as other, other.cursor() as cursor:
        await cursor.execute("BEGIN")
        await cursor.execute("UPDATE ackwise_claims SET outcome = 1, kept_until = kept_until + INTERVAL 1 DAY")
        cleaning = asyncio.ensure_future(mysql_store.cleanup())
        while True:
            if await mysql.fetch("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"):
                break
            await asyncio.sleep(0.12)  # the view is made again once nobody has looked at it for a tenth of a second
        await cursor.execute("COMMIT")
    assert await cleaning == 0
    assert (await mysql_store.exchange(claims([key], 2))).claims == [AlreadyDone(Outcome.OK)]


async def test_check_tells_of_a_cleanup_that_is_overdue(mysql_store: MySQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_MANY", 50)
    await mysql_store.exchange(claims(keys(49), retention=0.0))
    assert await mysql_store.check() == []
    await mysql_store.exchange(claims(keys(1), retention=0.0))
    (sentence,) = await mysql_store.check()
    assert sentence.endswith("`ackwise_claims` holds 50 forgotten records or more; run `ackwise store cleanup URL`, best every day")


def test_a_server_that_is_too_old_is_refused() -> None:
    for greeting, named in [
        ("10.4.34-MariaDB", "MariaDB 10.4.34 is too old for the claim store; it needs 10.5 or later"),
        ("5.5.5-10.3.39-MariaDB-0+deb10u1", "MariaDB 10.3.39 is too old"),
        ("8.0.18", "MySQL 8.0.18 is too old for the claim store; it needs 8.0.19 or later"),
        ("5.7.44-log", "MySQL 5.7.44 is too old"),
        ("10.5.1-MariaDB", None),
        ("5.5.5-10.11.19-MariaDB-0+deb12u1", None),
        ("11.4.2-MariaDB", None),
        ("8.0.19", None),
        ("8.4.0", None),
        ("9.1.0-cloud", None),
    ]:
        with case(greeting, named):
            if named is None:
                schema.require_server(greeting, "mysql://h/d")
                return
            with pytest.raises(ConfigurationError, match=named):
                schema.require_server(greeting, "mysql://h/d")


@pytest.mark.nightly
async def test_a_completed_key_takes_little_room(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    for _ in range(20):
        some = keys(1000, 20_000)
        await mysql_store.exchange(Exchange([Claim(key, 1) for key in some]))
        await mysql_store.exchange(Exchange(completes=[Complete(key, 1, Outcome.OK) for key in some]))
    await mysql.fetch("ANALYZE TABLE ackwise_claims")
    sizes = (
        "SELECT data_length, index_length FROM information_schema.TABLES WHERE table_schema = DATABASE() AND table_name = 'ackwise_claims'"
    )
    ((data, index),) = await mysql.fetch(sizes)
    assert index == 0
    assert 80 < data / 20_000 < 200
