"""The MySQL store passes the suite that every store passes, and bears what only a server can do to it. The server is MariaDB."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.store import (
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
from ackwise.stores.mysql import MySQLStore, exchanging, statements
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.protocol.requests import asked as asked_of
from ackwise.stores.testing import Clock, Features, Scene, StoreConformance

if TYPE_CHECKING:
    from asyncmy.connection import Connection

TODAY = int(time.time() // 86400)


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1) -> list[Claim]:
    return [Claim(key, token) for key in asked]


def completes(asked: Sequence[ClaimKey], token: int = 1) -> list[Complete]:
    return [Complete(key, token, Outcome.OK) for key in asked]


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since what a server counts is of all its databases."""
    return own_mariadb


class TestMySQLStore(StoreConformance):
    features = Features(shared=True, persistent=True, injected_clock=False, owners=True, lease=0.4, retention=1.2)

    @pytest.fixture(autouse=True)
    def _on(self, mariadb: Server) -> None:
        self.server = mariadb

    def make(self, place: Path, clock: Callable[[], float]) -> MySQLStore:
        return MySQLStore(f"mariadb://root@127.0.0.1:{self.server.port}/test")


class AgedMySQLStore(MySQLStore):
    """For the server's clock to go on, all records are made older by what the test's clock went on."""

    def __init__(self, url: str, prefix: str, clock: Callable[[], float], seen: list[float]) -> None:
        super().__init__(url, prefix=prefix)
        self._clock, self._seen = clock, seen

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if (passed := round(1_000_000 * (self._clock() - self._seen[-1]))) and self._connections.pool:
            self._seen.append(self._clock())
            older = ", ".join(f"{column} = {column} - INTERVAL {passed} MICROSECOND" for column in ("leased_until", "kept_until"))
            async with self._connections.pool.acquire() as connection, connection.cursor() as cursor:
                await cursor.execute(f"UPDATE {self._tables.claims} SET {older}")
        return await super().exchange(exchange)


class DatedScene(Scene):
    """Every key has a day, unless the test says otherwise."""

    def key(self, attempt: int = 1, day: int | None = TODAY) -> ClaimKey:
        return super().key(attempt, day)


class TestMySQLStoreOfKeysWithADay(StoreConformance):
    features = Features(shared=True, persistent=True, owners=True, tolerance=10.0)
    scenes = DatedScene

    @pytest.fixture(autouse=True)
    def on_the_server(self, mariadb: Server) -> None:
        self.url, self.prefix, self.seen = f"mysql://root@127.0.0.1:{mariadb.port}/test", f"t{os.urandom(4).hex()}_", [Clock()()]

    def make(self, place: Path, clock: Callable[[], float]) -> MySQLStore:
        return AgedMySQLStore(self.url, self.prefix, clock, self.seen)


class TestMySQLStoreInPacketsOfSeveralStatements(TestMySQLStoreOfKeysWithADay):
    """What MySQL is sent, but for the name of the inserted row, which MariaDB does not know."""

    @pytest.fixture(autouse=True)
    def _as_mysql(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchanging, "MARIADB", statements.MYSQL._replace(alias="", inserted="VALUES({})"))


@pytest.fixture
async def proxy(mariadb: Server) -> AsyncIterator[Proxy]:
    async with proxy_to(mariadb.port) as proxy:
        yield proxy


@pytest.fixture
async def far(mysql: MySQLDatabase, proxy: Proxy) -> AsyncIterator[MySQLStore]:
    """A store behind the proxy, on one connection that is open."""
    store = MySQLStore(mysql.url_by(proxy), timeout=2.0, max_size=1)
    await store.open()
    yield store
    proxy.swallow_replies, proxy.cut_after = False, None
    await store.close()


def all_kinds(day: int | None, count: int = 100) -> tuple[Exchange, Exchange]:
    """An exchange that claims, and one of all four kinds that follows it."""
    done, back, longer, fresh = (keys(count, day) for _ in range(4))
    return Exchange(claims([*done, *back, *longer])), Exchange(
        claims(fresh), completes(done), [Release(key, 1, 2) for key in back], [Renew(key, 1) for key in longer]
    )


@pytest.mark.parametrize("day", [None, TODAY])
@pytest.mark.parametrize("count", [1, 100, 250])
async def test_an_exchange_of_all_four_kinds_is_one_round_trip(far: MySQLStore, proxy: Proxy, day: int | None, count: int) -> None:
    first, second = all_kinds(day, count)
    await far.exchange(first)
    proxy.delay = 0.02  # an answer in between would have come by then
    before, connections = proxy.requests, proxy.connections
    began = time.monotonic()
    result = await far.exchange(second)
    assert result == ExchangeResult([Acquired(1)] * count, [Ack.OK] * count, [Ack.OK] * count, [Ack.OK] * count)
    pieces = 1 + count * 4 * 150 // 2**16  # what fills more than one buffer arrives in pieces
    assert proxy.requests - before <= pieces
    assert proxy.connections == connections
    assert time.monotonic() - began >= 0.04


async def test_keys_with_and_without_a_day_travel_together(far: MySQLStore, proxy: Proxy) -> None:
    some = [*keys(50), *keys(50, TODAY), *keys(50, TODAY - 400), *keys(50, 10**9), *keys(50, -3)]
    random.shuffle(some)
    before = proxy.requests
    assert (await far.exchange(Exchange(claims(some)))).claims == [Acquired(1)] * 250
    assert proxy.requests - before == 1
    assert {type(answer) for answer in (await far.exchange(Exchange(claims(some, 2)))).claims} == {Busy}


async def test_a_key_that_is_asked_for_twice_is_answered_in_turn(mysql_store: MySQLStore) -> None:
    (key,) = keys(1)
    result = await mysql_store.exchange(Exchange(claims([key, key, key])))
    assert result.claims == [Acquired(1)] * 3
    result = await mysql_store.exchange(Exchange([Claim(key, 2)], completes([key]), renews=[Renew(key, 1)]))
    assert result == ExchangeResult([AlreadyDone(Outcome.OK)], [Ack.OK], [], [Ack.LOST])


async def test_what_was_answered_once_is_not_answered_again_by_what_the_record_keeps_of_it(mysql_store: MySQLStore) -> None:
    """The record says RESTORED or released to who asked; others, and a second question, are told what is so by then."""
    restored, released = keys(2)
    complete, release = Exchange(completes=completes([restored])), Exchange(releases=[Release(released, 1)])
    assert (await mysql_store.exchange(complete)).completes == [Ack.RESTORED]
    assert (await mysql_store.exchange(complete)).completes == [Ack.OK]
    assert (await mysql_store.exchange(Exchange(completes=completes([restored], 2)))).completes == [Ack.LOST_DONE]
    assert (await mysql_store.exchange(release)).releases == [Ack.LOST]
    await mysql_store.exchange(Exchange(claims([released])))
    assert [(await mysql_store.exchange(release)).releases for _ in range(3)] == [[Ack.OK], [Ack.LOST], [Ack.LOST]]
    assert (await mysql_store.exchange(Exchange(claims([released], 2)))).claims == [Acquired(2)]


@pytest.mark.parametrize("kind", ["release", "renew"])
async def test_a_release_or_renew_of_an_unknown_key_leaves_it_unknown(mysql: MySQLDatabase, mysql_store: MySQLStore, kind: str) -> None:
    some = keys(20)
    asked = (
        Exchange(releases=[Release(key, 1, 5) for key in some]) if kind == "release" else Exchange(renews=[Renew(key, 1) for key in some])
    )
    for _ in range(2):
        result = await mysql_store.exchange(asked)
        assert {*result.releases, *result.renews} == {Ack.LOST}
    assert (await mysql_store.exchange(Exchange(claims(some[:10], 2)))).claims == [Acquired(1)] * 10
    assert await mysql_store.cleanup() == 10
    assert (await mysql_store.exchange(Exchange(completes=completes(some[10:])))).completes == [Ack.RESTORED] * 10


async def test_an_answer_that_changes_nothing_writes_nothing(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    held, done = keys(50), keys(50)
    await mysql_store.exchange(Exchange(claims([*held, *done])))
    await mysql_store.exchange(Exchange(completes=completes(done)))
    written = "SHOW GLOBAL STATUS LIKE 'Handler_update'"
    ((_, before),) = await mysql.fetch(written)
    answers = (await mysql_store.exchange(Exchange(claims([*held, *done], 2)))).claims
    assert [type(answer) for answer in answers] == [Busy] * 50 + [AlreadyDone] * 50
    ((_, after),) = await mysql.fetch(written)
    assert int(after) - int(before) == 0
    await mysql_store.exchange(Exchange(renews=[Renew(key, 1) for key in held]))
    ((_, more),) = await mysql.fetch(written)
    assert int(more) - int(after) == 50


async def hold(connection: Connection, asked: Sequence[ClaimKey], token: int) -> None:
    """Claim in a transaction that stays open."""
    text = statements.statement(Tables(), statements.MARIADB, asked_of(Exchange(claims(asked, token))), Exchange())
    async with connection.cursor() as cursor:
        await cursor.execute("BEGIN")
        await cursor.execute(text)


async def end(connection: Connection, how: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(how)


async def until_somebody_waits(mysql: MySQLDatabase) -> None:
    async with asyncio.timeout(10):
        while True:
            if await mysql.fetch("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"):
                return
            await asyncio.sleep(0.12)  # the view is made anew once nobody has looked at it for a tenth of a second


@pytest.mark.parametrize("day", [None, TODAY])
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
async def test_a_claim_waits_for_an_uncommitted_claim_and_answers_by_how_it_ends(
    mysql: MySQLDatabase, mysql_store: MySQLStore, day: int | None, how: str
) -> None:
    asked = sorted(keys(3, day))
    async with mysql.connected() as other:
        await hold(other, asked[:2], token=1)
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(claims(asked, token=2))))
        await until_somebody_waits(mysql)
        assert not waiting.done()
        await end(other, how)
        answers = (await waiting).claims
    if how == "COMMIT":
        assert [type(answer) for answer in answers] == [Busy, Busy, Acquired]
    else:
        assert answers == [Acquired(1)] * 3


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
async def test_a_take_over_waits_for_an_uncommitted_one_and_answers_by_how_it_ends(
    mysql: MySQLDatabase, mysql_store: MySQLStore, how: str
) -> None:
    asked = keys(2)
    await mysql_store.exchange(Exchange(claims(asked)))
    await mysql_store.exchange(Exchange(releases=[Release(key, 1) for key in asked]))
    async with mysql.connected() as other:
        await hold(other, sorted(asked), token=2)
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(claims(asked, token=3))))
        await until_somebody_waits(mysql)
        await end(other, how)
        answers = (await waiting).claims
    if how == "COMMIT":
        assert {type(answer) for answer in answers} == {Busy}
    else:
        assert answers == [Acquired(2)] * 2


async def test_after_a_wait_the_lease_begins_with_the_answer(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    """The statement's own time is that of its start, and would grant the rest of a lease, or one that is over already."""
    (key,) = keys(1)
    await mysql_store.exchange(Exchange(claims([key])))
    await mysql_store.exchange(Exchange(releases=[Release(key, 1)]))
    async with mysql.connected() as other:
        await hold(other, [key], token=2)
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(claims([key], token=3), lease=1.0)))
        await until_somebody_waits(mysql)
        await mysql.fetch("SELECT SLEEP(1.2)")
        await end(other, "ROLLBACK")
    assert (await waiting).claims == [Acquired(2)]
    answer = (await mysql_store.exchange(Exchange(claims([key], token=4)))).claims[0]
    assert isinstance(answer, Busy)
    assert 0.5 < answer.retry_after <= 1.0


async def test_a_lease_that_ends_while_its_taker_waits_is_over(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    (key,) = keys(1)
    await mysql_store.exchange(Exchange(claims([key]), lease=0.5))
    async with mysql.connected() as other:
        async with other.cursor() as cursor:
            await cursor.execute("BEGIN")
            await cursor.execute("SELECT 1 FROM ackwise_claims FOR UPDATE")
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(claims([key], token=2))))
        await until_somebody_waits(mysql)
        await mysql.fetch("SELECT SLEEP(0.6)")
        await end(other, "COMMIT")
    assert (await waiting).claims == [Acquired(2, lost=1, took_unreleased=True)]


async def test_a_claim_that_waits_too_long_is_unavailable_and_says_for_what(mysql: MySQLDatabase) -> None:
    short, longer = MySQLStore(mysql.url, timeout=0.5), MySQLStore(mysql.url, timeout=1.4)
    asked = keys(1)
    async with mysql.connected() as other:
        for store in (short, longer):
            await store.open()
            await hold(other, asked, token=1)
            with pytest.raises(StoreUnavailable, match=r"somebody (may hold|holds) a claim of this batch in an open transaction"):
                await store.exchange(Exchange(claims(asked, 2)))
            await end(other, "ROLLBACK")
            assert (await store.exchange(Exchange(claims(asked, 2)))).claims == [Acquired(1)]
            await store.exchange(Exchange(releases=[Release(asked[0], 2)]))
            await end(other, "DELETE FROM ackwise_claims")
            await store.close()


@pytest.mark.parametrize("day", [None, TODAY])
async def test_eight_workers_with_shuffled_keys_never_wait_in_a_circle(mysql: MySQLDatabase, day: int | None) -> None:
    stores = [MySQLStore(mysql.url, max_size=1, timeout=30.0) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    before = await mysql.deadlocks()
    granted = 0

    async def work(number: int, store: MySQLStore, asked: Sequence[ClaimKey], turns: int) -> int:
        shuffle, granted = random.Random(number), 0
        for turn in range(turns):
            token = 1 + number + 8 * turn
            some = shuffle.sample(asked, 100)
            # A lease of no length: everything can be taken over at any time, also while its owner completes it.
            result = await store.exchange(Exchange(claims(some, token), lease=0.0))
            mine = [key for key, answer in zip(some, result.claims, strict=True) if isinstance(answer, Acquired)]
            granted += len(mine)
            renews = [Renew(key, token) for key in shuffle.sample(asked, 100)]
            releases = [Release(key, token) for key in mine[::2] if key not in {renew.key for renew in renews}]
            await store.exchange(Exchange(renews=renews, releases=releases, lease=0.0))
        return granted

    for _ in range(6):  # of new keys each time, so that many are inserted at once
        asked = keys(200, day)
        granted += sum(await asyncio.gather(*(work(number, store, asked, 5) for number, store in enumerate(stores))))
    await asyncio.gather(*(store.close() for store in stores))
    assert granted > 6 * 200
    assert await mysql.deadlocks() - before == 0


async def test_a_deadlock_that_others_cause_is_not_seen_by_the_caller(mysql: MySQLDatabase, mysql_store: MySQLStore) -> None:
    low, high = sorted(keys(2))
    await mysql_store.exchange(Exchange(claims([low, high])))
    before = await mysql.deadlocks()
    async with mysql.connected() as other, other.cursor() as cursor:
        await cursor.execute("BEGIN")
        await cursor.execute("CREATE TEMPORARY TABLE weight (n INT) ENGINE = InnoDB")
        await cursor.execute("INSERT INTO weight SELECT seq FROM seq_1_to_1000")  # who changed less gives way
        await cursor.execute(f"SELECT 1 FROM ackwise_claims WHERE day = {statements.NO_DAY} AND k = x'{high.id.hex()}' FOR UPDATE")
        waiting = asyncio.ensure_future(mysql_store.exchange(Exchange(renews=[Renew(low, 1), Renew(high, 1)])))
        await until_somebody_waits(mysql)
        await cursor.execute(f"SELECT 1 FROM ackwise_claims WHERE day = {statements.NO_DAY} AND k = x'{low.id.hex()}' FOR UPDATE")
        await cursor.execute("COMMIT")
    assert (await waiting).renews == [Ack.OK, Ack.OK]
    assert await mysql.deadlocks() - before == 1


@pytest.mark.parametrize("day", [None, TODAY])
async def test_an_exchange_whose_reply_is_lost_is_repeated_on_a_new_connection(far: MySQLStore, proxy: Proxy, day: int | None) -> None:
    claim, settle = all_kinds(day)
    result = ExchangeResult([], [], [], [])
    for exchange in (claim, settle):
        lost = iter([True])
        connections, proxy.cut_after = proxy.connections, lambda said, lost=lost: next(lost, False)
        result = await far.exchange(exchange)
        assert proxy.connections == connections + 1
        assert set(result.claims) == {Acquired(1)}
    assert result.completes == result.renews == [Ack.OK] * 100
    # The releases had been applied before the reply was lost, which shows that everything was asked for twice.
    assert result.releases == [Ack.LOST] * 100


async def test_replies_that_never_come_make_the_store_unavailable_within_its_timeout_and_only_so_long(
    far: MySQLStore, proxy: Proxy
) -> None:
    asked = keys(10)
    proxy.swallow_replies = True
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"no answer within 2 s"):
        await far.exchange(Exchange(claims(asked)))
    assert time.monotonic() - began < 10.0
    proxy.swallow_replies = False
    assert (await far.exchange(Exchange(claims(asked)))).claims == [Acquired(1)] * 10


async def test_a_server_that_is_gone_is_named_without_the_password(mysql: MySQLDatabase, mariadb: Server) -> None:
    await mysql.fetch("CREATE USER IF NOT EXISTS gone IDENTIFIED BY 'hunter2'")
    await mysql.fetch(f"GRANT ALL ON {mysql.name}.* TO gone")
    async with proxy_to(mariadb.port) as proxy:
        store = MySQLStore(mysql.url_by(proxy).replace("root@", "gone:hunter2@"))
        await store.open()
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(StoreUnavailable, match=r"can't be reached|connection was lost") as raised:
            await store.exchange(Exchange(claims(keys(1))))
        proxy.refuse = False
        assert (await store.exchange(Exchange(claims(keys(1))))).claims == [Acquired(1)]
        await store.close()
    assert "hunter2" not in str(raised.value) + repr(store)
    assert "gone" not in str(raised.value) + repr(store)


def test_mysql_is_told_the_name_of_the_inserted_row() -> None:
    """MySQL itself runs in no test; its words are pinned here."""
    asked = asked_of(Exchange(claims([ClaimKey(bytes(16), 1, 1)])))
    said = statements.statement(Tables(), statements.MYSQL, asked, Exchange())
    assert " AS n (n_day, n_k, n_step, n_token, n_next_attempt, n_outcome, n_leased_until, n_kept_until, n_holder)" in said
    assert "VALUES(" not in said
    assert "RETURNING" not in said
    assert said.startswith("SET @ackwise_zone = @@time_zone, time_zone = '+00:00'; START TRANSACTION; INSERT")
    assert said.endswith("IN ((1,x'00000000000000000000000000000000')); COMMIT; SET time_zone = @ackwise_zone")
