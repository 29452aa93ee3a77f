"""The MySQL store passes the suite that every store passes, and bears what only a server can do to it. The server is MariaDB."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.databases.server import Server
from tests.shared import SharedServer
from tests.stores.dialects import MariaDBDatabase

from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimKey,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
)
from ackwise.stores.conformance import Clock, Features, Scene, StoreConformance
from ackwise.stores.mysql import MySQLStore
from ackwise.stores.mysql import claims as statements
from ackwise.stores.mysql.schema import Tables
from ackwise.stores.protocol.transitions import asked as asked_of

if TYPE_CHECKING:
    pass

TODAY = int(time.time() // 86400)


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_mariadb


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1) -> list[Claim]:
    return [Claim(key, token) for key in asked]


class TestMySQLStore(StoreConformance):
    features = Features(shared=True, persistent=True, injected_clock=False, owners=True, lease=0.8, retention=2.4)

    @pytest.fixture(autouse=True)
    def _on(self, mariadb: SharedServer) -> None:
        self.server = mariadb

    def make(self, place: Path, clock: Callable[[], float]) -> MySQLStore:
        return MySQLStore(f"mariadb://root@127.0.0.1:{self.server.port}/test")


class AgedMySQLStore(MySQLStore):
    """For the server's clock to go on, all records are made older by what the test's clock went on."""

    def __init__(self, url: str, prefix: str, clock: Callable[[], float], seen: list[float]) -> None:
        super().__init__(url, prefix=prefix)
        self._clock, self._seen, self._claims = clock, seen, Tables(prefix).claims

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if (passed := round(1_000_000 * (self._clock() - self._seen[-1]))) and self._connections.pool:
            self._seen.append(self._clock())
            older = ", ".join(f"{column} = {column} - INTERVAL {passed} MICROSECOND" for column in ("leased_until", "kept_until"))
            async with self._connections.pool.acquire() as connection, connection.cursor() as cursor:
                await cursor.execute(f"UPDATE {self._claims} SET {older}")
        return await super().exchange(exchange)


class DatedScene(Scene):
    """Every key has a day, unless the test says otherwise."""

    def key(self, attempt: int = 1, day: int | None = TODAY) -> ClaimKey:
        return super().key(attempt, day)


@pytest.mark.nightly
class TestMySQLStoreOfKeysWithADay(StoreConformance):
    features = Features(shared=True, persistent=True, owners=True, tolerance=10.0)
    scenes = DatedScene

    @pytest.fixture(autouse=True)
    def on_the_server(self, mariadb: SharedServer) -> None:
        self.url, self.prefix, self.seen = f"mysql://root@127.0.0.1:{mariadb.port}/test", f"t{os.urandom(4).hex()}_", [Clock()()]

    def make(self, place: Path, clock: Callable[[], float]) -> MySQLStore:
        return AgedMySQLStore(self.url, self.prefix, clock, self.seen)


class TestMySQLStoreInPacketsOfSeveralStatements(TestMySQLStoreOfKeysWithADay):
    """What MySQL is sent, but for the name of the inserted row, which MariaDB does not know."""

    @pytest.fixture(autouse=True)
    def _as_mysql(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statements, "MARIADB", statements.MYSQL._replace(alias="", inserted="VALUES({})"))


async def test_an_answer_that_changes_nothing_writes_nothing(on_mysql: MariaDBDatabase, mysql_store: MySQLStore) -> None:
    async def written() -> int:
        ((_, count),) = await on_mysql.execute("SHOW GLOBAL STATUS LIKE 'Handler_update'")
        return int(count)

    held, done = keys(50), keys(50)
    await mysql_store.exchange(Exchange(claims([*held, *done])))
    await mysql_store.exchange(Exchange(completes=[Complete(key, 1, Outcome.OK) for key in done]))
    before = await written()
    answers = (await mysql_store.exchange(Exchange(claims([*held, *done], 2)))).claims
    assert [type(answer) for answer in answers] == [Busy] * 50 + [AlreadyDone] * 50
    assert await written() == before
    await mysql_store.exchange(Exchange(renews=[Renew(key, 1) for key in held]))
    assert await written() == before + 50


async def test_a_deadlock_that_others_cause_is_not_seen_by_the_caller(on_mysql: MariaDBDatabase, mysql_store: MySQLStore) -> None:
    low, high = sorted(keys(2))
    await mysql_store.exchange(Exchange(claims([low, high])))
    before = await on_mysql.deadlocks()
    lock = f"SELECT 1 FROM ackwise_claims WHERE day = {statements.NO_DAY} AND k = x'{{}}' FOR UPDATE"
    async with on_mysql.connected() as other, other.cursor() as cursor:
        await cursor.execute("BEGIN")
        await cursor.execute("CREATE TEMPORARY TABLE weight (n INT) ENGINE = InnoDB")
        await cursor.execute("INSERT INTO weight SELECT seq FROM seq_1_to_1000")  # who changed less gives way
        await cursor.execute(lock.format(high.id.hex()))
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(renews=[Renew(low, 1), Renew(high, 1)])))
        await on_mysql.until_somebody_waits()
        await cursor.execute(lock.format(low.id.hex()))
        await cursor.execute("COMMIT")
    assert (await waiting).renews == [Ack.OK, Ack.OK]
    assert await on_mysql.deadlocks() - before == 1


async def test_after_a_wait_the_lease_begins_with_the_answer(on_mysql: MariaDBDatabase, mysql_store: MySQLStore) -> None:
    """The statement's own time is that of its start, and would grant the rest of a lease, or one that is over already."""
    (key,) = keys(1)
    await mysql_store.exchange(Exchange(claims([key])))
    await mysql_store.exchange(Exchange(releases=[Release(key, 1)]))
    async with on_mysql.holding([key], token=2) as end:
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(claims([key], 3), lease=1.0)))
        await on_mysql.until_somebody_waits()
        await asyncio.sleep(1.2)
        await end("ROLLBACK")
        assert (await waiting).claims == [Acquired(2)]
        (answer,) = (await mysql_store.exchange(Exchange(claims([key], 4)))).claims
    assert isinstance(answer, Busy)
    assert answer.retry_after <= 1.0


def test_mysql_is_told_the_name_of_the_inserted_row() -> None:
    """MySQL itself runs in no test; its words are pinned here."""
    asked = asked_of(Exchange(claims([ClaimKey(bytes(16), 1, 1)])))
    said = "; ".join(statement.text for statement in statements.packet(Tables(), statements.MYSQL, asked, Exchange()))
    assert " AS n (n_day, n_k, n_step, n_token, n_next_attempt, n_outcome, n_leased_until, n_kept_until, n_holder)" in said
    assert "VALUES(" not in said
    assert "RETURNING" not in said
    assert said.startswith("SET @ackwise_zone = @@time_zone, time_zone = '+00:00'; START TRANSACTION; INSERT")
    assert said.endswith("IN ((1,x'00000000000000000000000000000000')); COMMIT; SET time_zone = @ackwise_zone")
