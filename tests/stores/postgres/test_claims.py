"""The PostgreSQL store passes the suite that every store passes, and bears what only a server can do to it."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Endpoint
from tests.shared import SharedServer

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
from ackwise.stores.postgres import PostgresStore
from ackwise.stores.postgres.exchanging import exchange_on
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.testing import Clock, Features, Scene, StoreConformance

TODAY = int(time.time() // 86400)


def url_of(server: Endpoint, database: str = "postgres", user: str = USER) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1) -> list[Claim]:
    return [Claim(key, token) for key in asked]


def completes(asked: Sequence[ClaimKey], token: int = 1) -> list[Complete]:
    return [Complete(key, token, Outcome.OK) for key in asked]


class TestPostgresStore(StoreConformance):
    features = Features(shared=True, persistent=True, injected_clock=False, owners=True, lease=0.4, retention=1.2)

    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.server = postgres

    def make(self, place: Path, clock: Callable[[], float]) -> PostgresStore:
        return PostgresStore(url_of(self.server))


class AgedPostgresStore(PostgresStore):
    """For PostgreSQL's clock to go on, all records are made older by what the test's clock went on."""

    def __init__(self, url: str, prefix: str, clock: Callable[[], float], seen: list[float]) -> None:
        super().__init__(url, prefix=prefix)
        self._clock, self._seen, self._prefix = clock, seen, prefix

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if (passed := self._clock() - self._seen[-1]) and self._connections.pool:
            self._seen.append(self._clock())
            for table in ("claims", "daily_claims"):
                older = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in ("leased_until", "kept_until"))
                await self._connections.pool.execute(f"UPDATE {self._prefix}{table} SET {older}", passed)
        return await super().exchange(exchange)


class DatedScene(Scene):
    """Every key has a day, unless the test says otherwise."""

    def key(self, attempt: int = 1, day: int | None = TODAY) -> ClaimKey:
        return super().key(attempt, day)


class TestPostgresStoreOfKeysWithADay(StoreConformance):
    features = Features(shared=True, persistent=True, owners=True, tolerance=10.0)
    scenes = DatedScene

    @pytest.fixture(autouse=True)
    def on_the_server(self, postgres: SharedServer) -> None:
        self.url, self.prefix, self.seen = url_of(postgres), f"t{os.urandom(4).hex()}_", [Clock()()]

    def make(self, place: Path, clock: Callable[[], float]) -> PostgresStore:
        return AgedPostgresStore(self.url, self.prefix, clock, self.seen)


@pytest.fixture
async def proxy(postgres: SharedServer) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres.port) as proxy:
        yield proxy


@pytest.fixture
async def far(postgres_url: str, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy, on one connection that has done each kind of exchange before."""
    store = PostgresStore(url_of(proxy, postgres_url.rpartition("/")[2]), timeout=2.0, max_size=1)
    await store.open()
    for some in (keys(1), keys(1, TODAY), [*keys(1), *keys(1, TODAY)]):
        await store.exchange(Exchange(claims(some)))
    yield store
    proxy.swallow_replies, proxy.cut_after = False, None
    await store.close()


def all_kinds(day: int | None, count: int) -> tuple[Exchange, Exchange]:
    """An exchange that claims, and one of all four kinds that follows it."""
    done, back, longer, fresh = (keys(count, day) for _ in range(4))
    return Exchange(claims([*done, *back, *longer])), Exchange(
        claims(fresh), completes(done), [Release(key, 1, 2) for key in back], [Renew(key, 1) for key in longer]
    )


@pytest.mark.parametrize("day", [None, TODAY])
async def test_an_exchange_of_all_four_kinds_is_one_round_trip(far: PostgresStore, proxy: Proxy, day: int | None) -> None:
    first, second = all_kinds(day, 100)
    await far.exchange(first)
    before = proxy.requests
    result = await far.exchange(second)
    assert proxy.requests - before == 1
    assert result == ExchangeResult([Acquired(1)] * 100, [Ack.OK] * 100, [Ack.OK] * 100, [Ack.OK] * 100)


async def test_keys_with_and_without_a_day_travel_together(far: PostgresStore, proxy: Proxy) -> None:
    some = [*keys(50), *keys(50, TODAY), *keys(50, TODAY - 400), *keys(50, 10**9)]
    random.shuffle(some)
    before = proxy.requests
    assert (await far.exchange(Exchange(claims(some)))).claims == [Acquired(1)] * 200
    assert proxy.requests - before == 1
    assert {type(answer) for answer in (await far.exchange(Exchange(claims(some, 2)))).claims} == {Busy}


async def test_a_key_that_is_asked_for_twice_is_answered_in_turn(postgres_store: PostgresStore) -> None:
    (key,) = keys(1)
    result = await postgres_store.exchange(Exchange(claims([key, key, key])))
    assert result.claims == [Acquired(1)] * 3
    result = await postgres_store.exchange(Exchange([Claim(key, 2)], completes([key]), renews=[Renew(key, 1)]))
    assert result == ExchangeResult([AlreadyDone(Outcome.OK)], [Ack.OK], [], [Ack.LOST])


@pytest.mark.parametrize("day", [None, TODAY])
@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_a_claim_waits_for_an_uncommitted_claim_and_answers_by_how_it_ends(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, day: int | None, ends: str
) -> None:
    asked = keys(3, day)
    await postgres_database.execute("BEGIN")
    await exchange_on(postgres_database, Tables(), Exchange(claims(asked[:2])))
    waiting = asyncio.ensure_future(postgres_store.exchange(Exchange(claims(asked, token=2))))
    await until_somebody_waits(postgres_database)
    assert not waiting.done()
    await postgres_database.execute(ends)
    answers = (await waiting).claims
    if ends == "COMMIT":
        assert [type(answer) for answer in answers] == [Busy, Busy, Acquired]
        assert postgres_store.asked_again == 1
    else:
        assert answers == [Acquired(1)] * 3


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_a_take_over_waits_for_an_uncommitted_one_and_answers_by_how_it_ends(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection, ends: str
) -> None:
    asked = keys(2)
    await postgres_store.exchange(Exchange(claims(asked)))
    await postgres_store.exchange(Exchange(releases=[Release(key, 1) for key in asked]))
    await postgres_database.execute("BEGIN")
    await exchange_on(postgres_database, Tables(), Exchange(claims(asked, token=2)))
    waiting = asyncio.ensure_future(postgres_store.exchange(Exchange(claims(asked, token=3))))
    await until_somebody_waits(postgres_database)
    await postgres_database.execute(ends)
    answers = (await waiting).claims
    if ends == "COMMIT":
        assert {type(answer) for answer in answers} == {Busy}
    else:
        assert answers == [Acquired(2)] * 2


async def test_a_claim_that_is_repeated_while_the_first_is_uncommitted_is_answered_as_the_first(
    postgres_store: PostgresStore, postgres_database: asyncpg.Connection
) -> None:
    asked = keys(2)
    await postgres_database.execute("BEGIN")
    await exchange_on(postgres_database, Tables(), Exchange(claims(asked)))
    waiting = asyncio.ensure_future(postgres_store.exchange(Exchange(claims(asked))))
    await until_somebody_waits(postgres_database)
    await postgres_database.execute("COMMIT")
    assert (await waiting).claims == [Acquired(1)] * 2


async def test_a_claim_that_waits_too_long_is_unavailable_and_says_for_what(
    postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    store = PostgresStore(postgres_url, timeout=0.5)
    await store.open()
    asked = keys(1)
    await postgres_database.execute("BEGIN")
    await exchange_on(postgres_database, Tables(), Exchange(claims(asked)))
    with pytest.raises(StoreUnavailable, match=r"somebody holds a claim of this batch in an open transaction for longer than 0\.5 s"):
        await store.exchange(Exchange(claims(asked, 2)))
    await postgres_database.execute("ROLLBACK")
    assert (await store.exchange(Exchange(claims(asked, 2)))).claims == [Acquired(1)]
    await store.close()


async def until_somebody_waits(database: asyncpg.Connection) -> None:
    async with asyncio.timeout(10):
        while True:
            if await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("day", [None, TODAY])
async def test_eight_workers_with_shuffled_keys_never_wait_in_a_circle(
    postgres_url: str, postgres_database: asyncpg.Connection, day: int | None
) -> None:
    stores = [PostgresStore(postgres_url, max_size=1) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    asked = keys(200, day)

    async def work(number: int, store: PostgresStore) -> int:
        shuffle, granted = random.Random(number), 0
        for turn in range(40):
            token = 1 + number + 8 * turn
            # A lease of no length: everything can be taken over at any time, also while its owner completes it.
            result = await store.exchange(Exchange(claims(shuffle.sample(asked, 100), token), lease=0.0))
            mine = [key for key, answer in zip(asked, result.claims, strict=False) if isinstance(answer, Acquired)]
            granted += len(mine)
            await store.exchange(Exchange(renews=[Renew(key, token) for key in shuffle.sample(asked, 100)], lease=0.0))
        return granted

    granted = await asyncio.gather(*(work(number, store) for number, store in enumerate(stores)))
    await asyncio.gather(*(store.close() for store in stores))
    assert sum(granted) > 200
    assert await postgres_database.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


@pytest.mark.parametrize("day", [None, TODAY])
async def test_an_exchange_whose_reply_is_lost_is_repeated_on_a_new_connection(far: PostgresStore, proxy: Proxy, day: int | None) -> None:
    # So few that the whole reply is sent at once, after the commit.
    claim, settle = all_kinds(day, 10)
    assert (await with_a_lost_reply(far, proxy, claim)).claims == [Acquired(1)] * 30
    result = await with_a_lost_reply(far, proxy, settle)
    # The releases had been applied before the reply was lost, which shows that everything was asked for twice.
    assert result == ExchangeResult([Acquired(1)] * 10, [Ack.OK] * 10, [Ack.LOST] * 10, [Ack.OK] * 10)


@pytest.mark.parametrize("day", [None, TODAY])
async def test_an_exchange_that_is_cut_within_its_reply_is_applied_as_a_whole(far: PostgresStore, proxy: Proxy, day: int | None) -> None:
    claim, settle = all_kinds(day, 250)
    assert (await with_a_lost_reply(far, proxy, claim)).claims == [Acquired(1)] * 750
    result = await with_a_lost_reply(far, proxy, settle)
    assert (result.claims, result.completes, result.renews) == ([Acquired(1)] * 250, [Ack.OK] * 250, [Ack.OK] * 250)
    # PostgreSQL begins such a reply before it commits, and gives up what it can't tell anybody.
    assert len(set(result.releases)) == 1


async def with_a_lost_reply(store: PostgresStore, proxy: Proxy, exchange: Exchange) -> ExchangeResult:
    lost, connections = iter([True]), proxy.connections
    proxy.cut_after = lambda _: next(lost, False)
    result = await store.exchange(exchange)
    assert proxy.connections == connections + 1
    return result


async def test_replies_that_never_come_make_the_store_unavailable_within_its_timeout_and_only_so_long(
    far: PostgresStore, proxy: Proxy
) -> None:
    asked = keys(10)
    proxy.swallow_replies = True
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"no answer within 2\.0 s"):
        await far.exchange(Exchange(claims(asked)))
    assert time.monotonic() - began < 10.0
    proxy.swallow_replies = False
    assert (await far.exchange(Exchange(claims(asked)))).claims == [Acquired(1)] * 10


async def test_a_server_that_is_gone_is_named_without_the_password(postgres: SharedServer) -> None:
    async with proxy_to(postgres.port) as proxy:
        store = PostgresStore(url_of(proxy).replace("postgres@", "postgres:hunter2@"))
        await store.open()
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(StoreUnavailable, match=r"can't be reached|connection was lost") as raised:
            await store.exchange(Exchange(claims(keys(1))))
        proxy.refuse = False
        assert (await store.exchange(Exchange(claims(keys(1))))).claims == [Acquired(1)]
        await store.close()
    assert "hunter2" not in str(raised.value) + repr(store)
