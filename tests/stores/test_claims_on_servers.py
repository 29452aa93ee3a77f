"""What every claim store on a server bears: lost replies, cut connections, servers that are stalled, and workers side by side."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.databases.proxy import Proxy, proxy_to
from tests.databases.server import Server
from tests.stores.claiming_process import BATCH
from tests.stores.dialects import Database, SQLDatabase

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    Claim,
    ClaimKey,
    ClaimStore,
    Complete,
    Exchange,
    ExchangeResult,
    MaintainedStore,
    Outcome,
    Release,
    Renew,
)
from ackwise.plugin.registry import open_store

TODAY = int(time.time() // 86400)
DAYS = (None, TODAY)
PROGRAM = Path(__file__).parent / "claiming_process.py"


@pytest.fixture
def redis(own_redis: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_redis


@pytest.fixture
def postgres(own_postgres: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_postgres


@pytest.fixture
def mariadb(own_mariadb: Server) -> Server:
    """One that no other test uses, since it is stopped or counted as a whole here."""
    return own_mariadb


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1, **named: object) -> Exchange:
    return Exchange([Claim(key, token) for key in asked], **named)  # type: ignore[arg-type]  # owner, gone, lease


def completes(asked: Sequence[ClaimKey], retention: float = 86400.0) -> Exchange:
    return Exchange(completes=[Complete(key, 1, Outcome.OK) for key in asked], retention=retention)


def all_kinds(day: int | None, count: int) -> tuple[Exchange, Exchange]:
    """An exchange that claims, and one of all four kinds that follows it."""
    done, back, longer, fresh = (keys(count, day) for _ in range(4))
    settling = Exchange(
        [Claim(key, 1) for key in fresh],
        [Complete(key, 1, Outcome.OK) for key in done],
        [Release(key, 1, 2) for key in back],
        [Renew(key, 1) for key in longer],
    )
    return claims([*done, *back, *longer]), settling


def maintained(url: str) -> MaintainedStore:
    return cast(MaintainedStore, open_store(url))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ClaimStore]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(database: Database) -> AsyncIterator[ClaimStore]:
    """With the connections of two exchanges at once."""
    async with opened(database.url(timeout=2)) as store:
        await asyncio.gather(*(store.exchange(claims(keys(1))) for _ in range(2)))
        yield store


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    async with proxy_to(database.server.port) as proxy:
        yield proxy


@pytest.fixture
async def far(database: Database, proxy: Proxy) -> AsyncIterator[ClaimStore]:
    """A store behind the proxy, on one connection that has done each kind of exchange before."""
    async with opened(database.url(proxy, timeout=2, **database.single)) as store:
        for some in (keys(1), keys(1, TODAY), [*keys(1), *keys(1, TODAY)]):
            await store.exchange(claims(some))
        yield store
        proxy.swallow_replies, proxy.cut_after = False, None


async def test_an_exchange_of_all_four_kinds_is_one_round_trip(far: ClaimStore, proxy: Proxy) -> None:
    connections = proxy.connections
    for day, count in ((None, 1), (None, 100), (TODAY, 100)):
        first, second = all_kinds(day, count)
        await far.exchange(first)
        before = proxy.requests
        assert await far.exchange(second) == ExchangeResult([Acquired(1)] * count, *([Ack.OK] * count for _ in range(3)))
        assert (proxy.requests - before, proxy.connections) == (1, connections), (day, count)
    mixed = [*keys(50), *keys(50, TODAY), *keys(50, TODAY - 400), *keys(50, 10**9), *keys(50, -3)]
    random.shuffle(mixed)
    before = proxy.requests
    assert (await far.exchange(claims(mixed))).claims == [Acquired(1)] * 250
    assert proxy.requests - before == 1
    assert {type(answer) for answer in (await far.exchange(claims(mixed, 2))).claims} == {Busy}


async def test_an_exchange_whose_reply_is_lost_is_repeated_on_a_new_connection(far: ClaimStore, proxy: Proxy) -> None:
    async def with_a_lost_reply(exchange: Exchange) -> ExchangeResult:
        lost, connections = iter([True]), proxy.connections
        proxy.cut_after = lambda _: next(lost, False)
        result = await far.exchange(exchange)
        assert proxy.connections == connections + 1
        return result

    for day in DAYS:  # so few that the whole reply is sent at once
        claim, settle = all_kinds(day, 10)
        assert (await with_a_lost_reply(claim)).claims == [Acquired(1)] * 30
        result = await with_a_lost_reply(settle)
        # The releases had been applied before the reply was lost, which shows that everything was asked for twice.
        assert result == ExchangeResult([Acquired(1)] * 10, [Ack.OK] * 10, [Ack.LOST] * 10, [Ack.OK] * 10), day


async def test_a_connection_that_breaks_each_time_is_replaced_once_and_the_server_named_without_the_password(
    database: Database, far: ClaimStore, proxy: Proxy
) -> None:
    proxy.refuse = True
    proxy.cut()
    with pytest.raises(StoreUnavailable, match=r"can't be reached|connection was lost|the connection broke") as raised:
        await far.exchange(claims(keys(1)))
    assert f"127.0.0.1:{proxy.port}" in str(raised.value)
    proxy.refuse = False
    assert (await far.exchange(claims(keys(1)))).claims == [Acquired(1)]
    proxy.cut()
    assert (await far.exchange(claims(keys(1)))).claims == [Acquired(1)], "a connection that broke meanwhile is not noticed"


async def test_replies_that_never_come_make_the_store_unavailable_within_its_timeout_and_only_so_long(
    far: ClaimStore, proxy: Proxy
) -> None:
    asked = keys(10)
    proxy.swallow_replies = True
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"no answer within 2(\.0)? s"):
        await far.exchange(claims(asked))
    assert 1.0 < time.monotonic() - began < 10.0
    proxy.swallow_replies = False
    assert (await far.exchange(claims(asked))).claims == [Acquired(1)] * 10, "the claim is still ours"
    assert {type(answer) for answer in (await far.exchange(claims(asked, 2))).claims} == {Busy}


async def test_a_way_that_is_cut_in_the_middle_of_a_handshake_is_no_reason_to_stop(database: Database, proxy: Proxy) -> None:
    store = open_store(database.url(proxy, timeout=1))
    proxy.refuse = True
    with pytest.raises(StoreUnavailable):
        await store.open()
    proxy.refuse, proxy.swallow_replies = False, True
    with pytest.raises(StoreUnavailable, match=r"no answer within 1(\.0)? s"):
        await store.open()
    proxy.swallow_replies = False
    await store.open()
    await store.close()


async def test_a_server_that_comes_back_is_used_again(database: Database, store: ClaimStore) -> None:
    database.server.kill()
    try:
        with pytest.raises(StoreUnavailable, match=r"it can't be reached \(.*\); start it|nothing listens there; start"):
            await store.exchange(claims(keys(1)))
    finally:
        database.server.start()
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
    database.server.restart()
    assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)], "a restart between two exchanges is not noticed"


async def test_what_a_server_had_answered_is_there_after_a_kill(sql: SQLDatabase) -> None:
    async with opened(sql.url(timeout=2)) as store:
        asked = keys(100)
        await store.exchange(claims(asked))
        await store.exchange(completes(asked[:50]))
        sql.server.kill()
        sql.server.start()
        answers = (await store.exchange(claims(asked, 2))).claims
    assert answers[:50] == [AlreadyDone(Outcome.OK)] * 50
    assert {type(answer) for answer in answers[50:]} == {Busy}


async def test_a_frozen_server_is_given_up_within_the_timeout_and_used_again(database: Database, store: ClaimStore) -> None:
    asked, late = keys(10), open_store(database.url(timeout=1))
    await late.open()
    database.server.freeze()
    try:
        began = time.monotonic()
        answers = await asyncio.gather(*(store.exchange(claims([key])) for key in asked), return_exceptions=True)
        assert time.monotonic() - began < 10.0
        await late.close()
        with pytest.raises(StoreUnavailable, match=r"no answer within 1(\.0)? s"):
            await late.open()
    finally:
        database.server.thaw()
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert "no answer within 2" in str(answers[0])
    assert (await store.exchange(claims(asked))).claims == [Acquired(1)] * 10


async def test_cancelled_exchanges_leave_no_connection_in_the_middle_of_one(database: Database, store: ClaimStore) -> None:
    for turns in range(12):
        asking = [asyncio.ensure_future(store.exchange(claims(keys(200)))) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for one in asking[::2]:
            one.cancel()
        await asyncio.wait(asking)
        assert [one.result().claims for one in asking[1::2]] == [[Acquired(1)] * 200] * 2
        done = keys(1)
        await store.exchange(Exchange(completes=[Complete(done[0], 1, Outcome.SKIPPED)]))
        assert (await store.exchange(claims(done))).claims == [AlreadyDone(Outcome.SKIPPED)]


async def test_a_store_is_unavailable_before_it_is_opened_and_after_it_was_closed(database: Database) -> None:
    store = open_store(database.url())
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="the store is not open"):
            await store.exchange(Exchange())
        await store.open()
        await store.open()
        assert (await store.exchange(claims(keys(1)))).claims == [Acquired(1)]
        await store.close()
        await store.close()


async def test_processes_share_a_database_and_no_key_goes_to_two(database: Database) -> None:
    arguments = [sys.executable, str(PROGRAM), database.url()]
    processes = [await asyncio.create_subprocess_exec(*arguments, str(number), "20", stdout=subprocess.PIPE) for number in range(1, 4)]
    outputs = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3
    answers = [json.loads(line) for output in outputs for line in output.splitlines()]
    assert sorted(number for answer in answers for number in answer["acquired"]) == list(range(20 * BATCH))
    assert {ack for answer in answers for ack in answer["acks"]} == {"ok"}


async def test_what_was_answered_once_is_not_answered_again_by_what_the_record_keeps_of_it(database: Database, store: ClaimStore) -> None:
    """The record says RESTORED or released to who asked; others, and a second question, are told what is so by then."""
    restored, released = keys(2)
    complete, release = completes([restored]), Exchange(releases=[Release(released, 1)])
    assert [(await store.exchange(complete)).completes for _ in range(2)] == [[Ack.RESTORED], [Ack.OK]]
    assert (await store.exchange(Exchange(completes=[Complete(restored, 2, Outcome.DEAD)]))).completes == [Ack.LOST_DONE]
    assert (await store.exchange(release)).releases == [Ack.LOST]
    await store.exchange(claims([released]))
    assert [(await store.exchange(release)).releases for _ in range(3)] == [[Ack.OK], [Ack.LOST], [Ack.LOST]]
    assert (await store.exchange(claims([released], 2))).claims == [Acquired(2)]


# Where exchanges are transactions


async def test_a_key_that_is_asked_for_twice_is_answered_in_turn(sql: SQLDatabase) -> None:
    async with opened(sql.url()) as store:
        (key,) = keys(1)
        assert (await store.exchange(claims([key, key, key]))).claims == [Acquired(1)] * 3
        result = await store.exchange(Exchange([Claim(key, 2)], [Complete(key, 1, Outcome.OK)], renews=[Renew(key, 1)]))
        assert result == ExchangeResult([AlreadyDone(Outcome.OK)], [Ack.OK], [], [Ack.LOST])


async def test_a_claim_waits_for_an_uncommitted_claim_and_answers_by_how_it_ends(sql: SQLDatabase) -> None:
    async with opened(sql.url()) as store:
        for day in DAYS:
            for token, how in ((2, "COMMIT"), (2, "ROLLBACK"), (1, "COMMIT")):
                asked = sorted(keys(3, day))
                async with sql.holding(asked[:2], token=1) as end:
                    waiting = asyncio.ensure_future(store.exchange(claims(asked, token)))
                    await sql.until_somebody_waits()
                    assert not waiting.done()
                    await end(how)
                    answers = (await waiting).claims
                kinds = [Busy, Busy, Acquired] if (token, how) == (2, "COMMIT") else [Acquired] * 3
                assert [type(answer) for answer in answers] == kinds, (day, token, how)
                assert all(answer == Acquired(1) for answer in answers if isinstance(answer, Acquired))


async def test_a_take_over_waits_for_an_uncommitted_one_and_answers_by_how_it_ends(sql: SQLDatabase) -> None:
    async with opened(sql.url()) as store:
        for how in ("COMMIT", "ROLLBACK"):
            asked = keys(2)
            await store.exchange(claims(asked))
            await store.exchange(Exchange(releases=[Release(key, 1) for key in asked]))
            async with sql.holding(asked, token=2) as end:
                waiting = asyncio.ensure_future(store.exchange(claims(asked, 3)))
                await sql.until_somebody_waits()
                await end(how)
                answers = (await waiting).claims
            if how == "COMMIT":
                assert {type(answer) for answer in answers} == {Busy}
            else:
                assert answers == [Acquired(2)] * 2


async def test_a_claim_that_waits_too_long_is_unavailable_and_says_for_what(sql: SQLDatabase) -> None:
    async with opened(sql.url(timeout=3.0)) as store:
        asked = keys(1)
        async with sql.holding(asked, token=1) as end:
            with pytest.raises(StoreUnavailable, match=r"an open transaction (may hold|holds) a claim of this batch"):
                await store.exchange(claims(asked, 2))
            await end("ROLLBACK")
        assert (await store.exchange(claims(asked, 2))).claims == [Acquired(1)]


async def test_eight_workers_with_shuffled_keys_never_wait_in_a_circle(sql: SQLDatabase) -> None:
    stores = [open_store(sql.url(max_size=1, timeout=30)) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    before = await sql.deadlocks()

    async def work(number: int, store: ClaimStore, asked: Sequence[ClaimKey]) -> int:
        shuffle, granted = random.Random(number), 0
        for turn in range(5):
            token, some = 1 + number + 8 * turn, shuffle.sample(asked, 100)
            # A lease of no length: everything can be taken over at any time, also while its owner completes it.
            result = await store.exchange(claims(some, token, lease=0.0))
            mine = [key for key, answer in zip(some, result.claims, strict=True) if isinstance(answer, Acquired)]
            granted += len(mine)
            renews = shuffle.sample(asked, 100)
            releases = [Release(key, token) for key in mine[::2] if key not in renews]
            await store.exchange(Exchange(renews=[Renew(key, token) for key in renews], releases=releases, lease=0.0))
        return granted

    for day in DAYS * 2:  # of new keys each time, so that many are inserted at once
        asked = keys(200, day)
        granted = sum(await asyncio.gather(*(work(number, store, asked) for number, store in enumerate(stores))))
        assert granted > 200, day
    await asyncio.gather(*(store.close() for store in stores))
    assert await sql.deadlocks() - before == 0


# Tables


async def test_many_workers_may_start_at_once_on_an_empty_database(sql: SQLDatabase) -> None:
    stores = [open_store(sql.url(max_size=1)) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    asked = keys(10)
    answers = await asyncio.gather(*(store.exchange(claims(asked, token)) for token, store in enumerate(stores, 1)))
    assert sum(answer.claims == [Acquired(1)] * 10 for answer in answers) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_init_can_be_repeated_and_a_store_that_is_not_open_can_be_looked_after(sql: SQLDatabase) -> None:
    store = maintained(sql.url())
    (sentence,) = await store.check()
    assert sentence.endswith("the tables of the claim store are missing; run `ackwise store init URL`")
    with pytest.raises(ConfigurationError, match="the tables of the claim store are missing"):
        await store.cleanup()
    for _ in range(2):
        await store.init()
        assert (await store.check(), await store.cleanup()) == ([], 0)


async def test_tables_of_another_version_are_refused_and_not_touched(sql: SQLDatabase) -> None:
    store = maintained(sql.url())
    await store.init()
    await sql.execute("DROP TABLE ackwise_claims")
    for version in (2, 4):
        await sql.execute(f"UPDATE ackwise_schema SET version = {version}")
        for refused in (store.open, store.init, store.check, store.cleanup):
            with pytest.raises(ConfigurationError, match=f"its claims have version {version}, and this Ackwise knows version 3 alone"):
                await refused()
        assert await sql.execute("SELECT part, version FROM ackwise_schema") == [("claims", version)]
    with pytest.raises(Exception, match="ackwise_claims"):
        await sql.execute("SELECT * FROM ackwise_claims")


async def test_a_lease_that_a_jumped_clock_made_long_ends_with_its_owner(sql: SQLDatabase) -> None:
    async with opened(sql.url()) as store:
        asked = keys(2)
        await store.exchange(claims(asked, owner="a"))
        later = ", ".join(f"{column} = {sql.days.format(column, 2)}" for column in ("leased_until", "kept_until"))
        await sql.execute(f"UPDATE ackwise_claims SET {later}")
        assert {getattr(answer, "owner", None) for answer in (await store.exchange(claims(asked, 2, owner="b"))).claims} == {"a"}
        assert (await store.exchange(claims(asked, 2, owner="b", gone=["a"]))).claims == [Acquired(2, 1, True)] * 2


async def test_an_owner_is_a_text_and_nothing_else(database: Database, store: ClaimStore) -> None:
    asked, odd = keys(2), "x')ON/**/DUPLICATE--{}%s\\"
    assert (await store.exchange(claims(asked, owner=odd, gone=["') OR 1 = 1 -- {0}"]))).claims == [Acquired(1)] * 2
    assert {getattr(answer, "owner", None) for answer in (await store.exchange(claims(asked, 2, owner="b"))).claims} == {odd}
    assert (await store.exchange(claims(asked, 2, owner="b", gone=[odd]))).claims == [Acquired(2, 1, True)] * 2


async def test_a_cleanup_deletes_what_is_forgotten_and_nothing_that_is_remembered_or_being_written(sql: SQLDatabase) -> None:
    store = maintained(sql.url())
    await store.open()
    days = (None, TODAY - 500, 19_001)
    forgotten, kept, written = ([key for day in days for key in keys(300, day)] for _ in range(3))
    for some, retention in ((forgotten, 0.0), (kept, 86400.0), (written, 0.0)):
        await store.exchange(completes(some, retention))
    await store.exchange(completes(written[:5], 86400.0))
    assert (await store.cleanup(), await store.cleanup()) == (900 + 895, 0)
    assert set((await store.exchange(claims([*kept, *written[:5]], 2))).claims) == {AlreadyDone(Outcome.OK)}
    assert (await store.exchange(claims(forgotten[:5], 2))).claims == [Acquired(1)] * 5
    await store.close()
