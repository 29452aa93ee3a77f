"""Workers of version 0.1, which know nothing of owners, beside newer ones on the same records.

The older ones speak as they did: their script and their statements are kept in `tests/older/stores`.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.databases.postgres import USER
from tests.databases.server import Server
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.store import (
    Ack,
    Acquired,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
)
from ackwise.stores.protocol.requests import asked
from ackwise.stores.protocol.transitions import Place, Record, decide

OLDER = Path(__file__).parents[1] / "older" / "stores"
ONE, OTHER = "8d5f3c1a-0123456789abcdef", "8d5f3c1a-fedcba9876543210"
LEASE = 64.0


class Workers(NamedTuple):
    """One of each version."""

    newer: Callable[[Exchange], Awaitable[ExchangeResult]]
    older: Callable[[Exchange], Awaitable[ExchangeResult]]


def some_keys(attempt: int = 2) -> list[ClaimKey]:
    return [
        ClaimKey(bytes([number]) * 16, day, attempt)
        for number, day in ((1, None), (2, 19_000), (3, None), (4, None), (5, 19_000), (6, None))
    ]


def of_every_kind() -> Exchange:
    """What the older statements were written down for."""
    first, dated, done, back, sent_back, longer = some_keys()
    return Exchange(
        [Claim(first, 11), Claim(dated, 12)],
        [Complete(done, 13, Outcome.DEAD)],
        [Release(back, 14), Release(sent_back, 15, 3)],
        [Renew(longer, 16)],
    )


#: What is new in them: a success takes the place of a death, and of nothing else that is done; that of a replay, of any claim.
NEW = (
    (r"\n +OR (\w)\.token = 0 AND \1\.kind = 1 AND \1\.value = 1\n", "\n"),
    (r"\n +WHEN [^\n]+ = 0 AND [^\n]+ = 1 AND [^\n]+ = 1 THEN 12", ""),
    (r"THEN\n +r\.outcome = 2 AND (\w)\.kind = 1 AND \1\.value = 1\n", "THEN false\n"),
    (r"\n +WHEN outcome = 2 AND [^\n]+ = 1 AND [^\n]+ = 1 THEN 12", ""),
)


def test_without_owners_the_statements_are_those_of_version_0_1_but_for_a_success_after_a_death() -> None:
    from ackwise.stores.mysql import statements as mysql
    from ackwise.stores.mysql.tables import Tables as MySQLTables
    from ackwise.stores.postgres import statements as postgres
    from ackwise.stores.postgres.tables import Tables

    said = {"postgres.sql": postgres.statement(Tables(), undated=True, dated=True, owners=False)}
    exchange = of_every_kind()
    for name, dialect in (("mariadb.sql", mysql.MARIADB), ("mysql.sql", mysql.MYSQL)):
        said[name] = mysql.statement(MySQLTables(), dialect, asked(exchange), exchange, owners=False)
    for name, text in said.items():
        for new, old in NEW:
            text = re.sub(new, old, text)
        assert text == (OLDER / name).read_text("utf-8").rstrip("\n"), name


@asynccontextmanager
async def postgres_workers(server: Server) -> AsyncIterator[Workers]:
    import asyncpg

    from ackwise.stores.postgres import PostgresStore
    from ackwise.stores.postgres.exchanging import exchange_on
    from ackwise.stores.postgres.tables import Tables

    url, prefix = f"postgresql://{USER}@127.0.0.1:{server.port}/postgres", f"t{os.urandom(4).hex()}_"
    store, connection = PostgresStore(url, prefix=prefix), await asyncpg.connect(url)
    await store.open()

    async def older(exchange: Exchange) -> ExchangeResult:
        return (await exchange_on(connection, Tables(prefix=prefix), exchange, owners=False))[0]

    yield Workers(store.exchange, older)
    await store.close()
    await connection.close()


@asynccontextmanager
async def mysql_workers(server: Server) -> AsyncIterator[Workers]:
    from ackwise.stores.mysql import MySQLStore
    from ackwise.stores.mysql.exchanging import exchange_on
    from ackwise.stores.mysql.tables import Tables

    database, prefix = MySQLDatabase(server, "test"), f"t{os.urandom(4).hex()}_"
    store = MySQLStore(database.url, prefix=prefix)
    await store.open()
    async with database.connected() as connection:

        async def older(exchange: Exchange) -> ExchangeResult:
            return await exchange_on(connection, Tables(prefix), exchange, owners=False)

        yield Workers(store.exchange, older)
    await store.close()


@asynccontextmanager
async def redis_workers(server: Server, layout: str) -> AsyncIterator[Workers]:
    from redis.asyncio import Redis
    from tests.older.stores.redis_question import questions, result

    from ackwise.stores.redis import RedisStore

    store = RedisStore(f"redis://127.0.0.1:{server.port}", namespace=os.urandom(6).hex(), layout=layout)
    client = Redis(port=server.port)
    script = (OLDER / "redis.lua").read_text("utf-8")
    await store.open()

    async def older(exchange: Exchange) -> ExchangeResult:
        every = questions(exchange, store._layout, always_write=False)
        answers: list[Any] = [await client.eval(script, len(one.keys), *one.keys, one.settings, b"".join(one.requests)) for one in every]
        return result(exchange, zip(every, answers, strict=True))

    yield Workers(store.exchange, older)
    await store.close()
    await client.aclose()


@pytest.fixture(params=["postgres", "mysql", "redis", "redis-compact"])
async def workers(request: pytest.FixtureRequest) -> AsyncIterator[Workers]:
    kind = request.param
    if kind == "postgres":
        opening: Any = postgres_workers(request.getfixturevalue("postgres"))
    elif kind == "mysql":
        opening = mysql_workers(request.getfixturevalue("mariadb"))
    else:
        opening = redis_workers(request.getfixturevalue("redis"), "compact" if kind == "redis-compact" else "plain")
    async with opening as both:
        yield both


@pytest.mark.slow
async def test_any_history_of_old_and_new_workers_is_answered_as_the_transition_table_says(workers: Workers) -> None:
    chance = random.Random(20261122)
    for _ in range(60):
        keys = [ClaimKey(chance.randbytes(16), day, 1) for day in (None, None, 19_000)]
        records: dict[Place, Record] = {}
        for _ in range(15):
            is_old = chance.random() < 0.5
            exchange = an_exchange(chance, keys, is_old=is_old)
            expected, written = decide(records.get, exchange, 0.0)
            records.update(written)
            answered = await (workers.older if is_old else workers.newer)(exchange)
            assert [plain(answer, is_old) for answer in answered.claims] == [plain(answer, is_old) for answer in expected.claims]
            assert replace(answered, claims=[]) == replace(expected, claims=[])


def an_exchange(chance: random.Random, keys: list[ClaimKey], *, is_old: bool) -> Exchange:
    """A random one. A token is drawn by one process alone, and so never by workers of both versions."""
    claims: list[Claim] = []
    completes: list[Complete] = []
    releases: list[Release] = []
    renews: list[Renew] = []
    for key in chance.sample(keys, chance.randint(1, 3)):
        token, key = chance.randint(1, 3) + 10 * is_old, key._replace(attempt=chance.randint(1, 2))
        match chance.choice(["claim", "claim", "complete", "release", "send back", "renew", "renew"]):
            case "claim":
                claims.append(Claim(key, token))
            case "complete" if chance.random() < 0.3:
                completes.append(Complete(key, token, Outcome.OK))
            case "send back":
                releases.append(Release(key, token, 2))
            case "renew":
                renews.append(Renew(key, token))
            case _:
                releases.append(Release(key, token))
    owner, gone = ("", ()) if is_old else (chance.choice(["", ONE, OTHER]), chance.choice([(), (), (ONE,), (OTHER,), (ONE, OTHER)]))
    return Exchange(claims, completes, releases, renews, LEASE, 3 * LEASE, owner, gone)


def plain(answer: ClaimAnswer, is_old: bool) -> ClaimAnswer:
    """Without how long it is busy, and by whom if it was asked by somebody who does not hear that."""
    return Busy(1.0, "" if is_old else answer.owner) if isinstance(answer, Busy) else answer


@pytest.mark.slow
async def test_what_an_older_worker_took_over_is_not_free_when_the_owner_before_it_dies(workers: Workers) -> None:
    key = ClaimKey(os.urandom(16), None, 1)
    assert (await workers.newer(Exchange([Claim(key, 1)], lease=LEASE, owner=ONE))).claims == [Acquired(1)]
    assert (await workers.newer(Exchange(releases=[Release(key, 1)]))).releases == [Ack.OK]
    again = Exchange([Claim(key, 2)], lease=0.001, owner=ONE)
    assert (await workers.newer(again)).claims == [Acquired(2)]
    while isinstance((answer := (await workers.older(Exchange([Claim(key, 3)], lease=LEASE))).claims[0]), Busy):
        pass  # until the lease of a millisecond is over
    assert answer == Acquired(3, 1, True)
    (busy,) = (await workers.newer(Exchange([Claim(key, 4)], lease=LEASE, owner=OTHER, gone=[ONE]))).claims
    assert isinstance(busy, Busy), "the older worker lives, for all that is known"
    assert busy.owner == ""
    assert (await workers.older(Exchange(renews=[Renew(key, 3)], lease=LEASE))).renews == [Ack.OK]
    (busy,) = (await workers.newer(Exchange([Claim(key, 4)], lease=LEASE, owner=OTHER, gone=[ONE]))).claims
    assert isinstance(busy, Busy)
    assert (await workers.older(Exchange(completes=[Complete(key, 3, Outcome.OK)]))).completes == [Ack.OK]


@pytest.mark.slow
async def test_a_take_over_whose_answer_was_lost_is_answered_again(workers: Workers) -> None:
    keys = [ClaimKey(os.urandom(16), day, 1) for day in (None, 19_000)]
    await workers.newer(Exchange([Claim(key, 1) for key in keys], lease=LEASE, owner=ONE))
    take_over = Exchange([Claim(key, 2) for key in keys], lease=LEASE, owner=OTHER, gone=[ONE])
    for _ in range(2):
        assert (await workers.newer(take_over)).claims == [Acquired(2, 1, True)] * 2
    assert (await workers.newer(replace(take_over, gone=()))).claims == [Acquired(2, 1, True)] * 2
    late = Exchange([], [Complete(keys[0], 1, Outcome.OK)], [Release(keys[1], 1, 2)], lease=LEASE, owner=ONE)
    said = await workers.newer(late)
    assert (said.completes, said.releases) == ([Ack.LOST], [Ack.LOST])
    assert (await workers.newer(Exchange(renews=[Renew(keys[0], 1)], lease=LEASE, owner=ONE))).renews == [Ack.LOST]
    for owner in (ONE, ""):
        for answer in (await workers.newer(Exchange([Claim(key, 3) for key in keys], lease=LEASE, gone=[owner]))).claims:
            assert isinstance(answer, Busy)
            assert answer.owner == OTHER
