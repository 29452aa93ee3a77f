"""Workers that are killed again and again under `Transactional`: every effect is there once."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.databases.postgres import USER
from tests.failures.transacting import account_of
from tests.servers import RawKafka
from tests.shared import SharedKafka, SharedServer
from tests.stores.mysql.database import mysql_database

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(280)]

ACCOUNTS = "0123456789"
TABLES = ("CREATE TABLE effects (id VARCHAR(40))", "CREATE TABLE accounts (name VARCHAR(1) PRIMARY KEY, balance INTEGER NOT NULL)")
OPENED = f"INSERT INTO accounts VALUES {', '.join(f'({name!r}, 0)' for name in ACCOUNTS)}"


class Shop:
    """A database with the tables that the worker writes to; `ask` gives the rows of a statement, read past the worker."""

    def __init__(self, url: str, ask: Callable[[str], Awaitable[list[Any]]]) -> None:
        self.url = url
        self.ask = ask

    async def set_up(self) -> Shop:
        for statement in (*TABLES, OPENED):
            await self.ask(statement)
        return self

    async def count(self) -> int:
        ((count,),) = await self.ask("SELECT count(*) FROM effects")
        return int(count)

    async def effects(self) -> Counter[str]:
        return Counter(id for (id,) in await self.ask("SELECT id FROM effects"))

    async def balances(self) -> Counter[str]:
        return Counter({name: int(balance) for name, balance in await self.ask("SELECT name, balance FROM accounts") if balance})


@pytest.fixture
async def sqlite_shop(tmp_path: Path) -> Shop:
    path = tmp_path / "shop.db"

    async def ask(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, timeout=10)) as connection, connection:
            return connection.execute(statement).fetchall()

    return await Shop(f"sqlite:///{path}", ask).set_up()


@pytest.fixture
async def postgres_shop(postgres: SharedServer) -> AsyncIterator[Shop]:
    import asyncpg

    server, name = f"postgresql://{USER}@127.0.0.1:{postgres.port}", f"shop_{os.urandom(6).hex()}"
    outside = await asyncpg.connect(f"{server}/postgres")
    await outside.execute(f"CREATE DATABASE {name}")
    inside = await asyncpg.connect(f"{server}/{name}")

    async def ask(statement: str) -> list[Any]:
        return list(await inside.fetch(statement))

    yield await Shop(f"{server}/{name}", ask).set_up()
    await inside.close()
    await outside.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await outside.close()


@pytest.fixture
async def mariadb_shop(mariadb: SharedServer) -> AsyncIterator[Shop]:
    async with mysql_database(mariadb) as database:
        yield await Shop(database.url, database.fetch).set_up()


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    """The one that a test is parametrized with."""
    chosen: Shop = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
async def kafka_here(kafka: SharedKafka) -> AsyncIterator[RawKafka]:
    raw = RawKafka(kafka.bootstrap)
    await raw.start()
    yield raw
    await raw.close()


async def start(*arguments: object) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.failures.transacting", *map(str, arguments)]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT)


async def until(shop: Shop, count: int, *workers: asyncio.subprocess.Process) -> None:
    """Return once `count` effects are there; the workers write them."""
    async with asyncio.timeout(120):
        while await shop.count() < count:
            assert [worker.returncode for worker in workers] == [None] * len(workers)
            await asyncio.sleep(0.05)


async def require_once(shop: Shop, ids: list[str]) -> None:
    assert await shop.effects() == Counter(ids)
    assert await shop.balances() == Counter(map(account_of, ids))


@pytest.mark.parametrize(
    ("shop", "mode", "seed"),
    [
        pytest.param("sqlite_shop", "inbox", 1),
        pytest.param("sqlite_shop", "offsets", 2),
        pytest.param("postgres_shop", "inbox", 3, marks=pytest.mark.servers),
        pytest.param("postgres_shop", "offsets", 4, marks=pytest.mark.servers),
        pytest.param("mariadb_shop", "inbox", 5, marks=pytest.mark.servers),
        pytest.param("mariadb_shop", "offsets", 6, marks=pytest.mark.servers),
    ],
    indirect=["shop"],
)
async def test_every_effect_is_there_once_whenever_the_worker_is_killed(kafka_here: RawKafka, shop: Shop, mode: str, seed: int) -> None:
    topic, group = await kafka_here.new_topic(partitions=2), kafka_here.new_group()
    ids = [f"order-{number}" for number in range(1000)]
    for partition in (0, 1):
        await kafka_here.produce(topic, *(id.encode() for id in ids[partition::2]), partition=partition)
        twice = ids[partition::20] if mode == "inbox" else []  # offsets do not tell what a producer sent twice
        await kafka_here.produce(topic, *(id.encode() for id in twice), partition=1 - partition)
    chance = random.Random(seed)
    for share in (100, 400, 700):
        worker = await start(kafka_here.bootstrap, group, topic, shop.url, mode, 0.02)
        await until(shop, share, worker)
        await asyncio.sleep(chance.random() * 0.1)
        worker.kill()
        await worker.wait()
    worker = await start(kafka_here.bootstrap, group, topic, shop.url, mode, 0.0)
    await until(shop, len(ids), worker)
    worker.terminate()
    assert await worker.wait() == 0
    await require_once(shop, ids)


@pytest.mark.parametrize("shop", [pytest.param("postgres_shop", marks=pytest.mark.servers)], indirect=True)
async def test_ten_thousand_messages_are_there_once_whatever_two_workers_suffer(kafka_here: RawKafka, shop: Shop) -> None:
    topic, group = await kafka_here.new_topic(partitions=4), kafka_here.new_group()
    ids = [f"order-{number}" for number in range(10_000)]
    for partition in range(4):
        await kafka_here.produce(topic, *(id.encode() for id in ids[partition::4]), partition=partition)
        await kafka_here.produce(topic, *(id.encode() for id in ids[partition::80]), partition=3 - partition)  # sent twice
    chance = random.Random(3)
    workers = [await start(kafka_here.bootstrap, group, topic, shop.url, "inbox", 0.02) for _ in range(2)]
    for share in range(1000, 10_000, 1500):
        await until(shop, share, *workers)
        await asyncio.sleep(chance.random() * 0.1)
        victim = workers.pop(chance.randrange(2))
        victim.kill()
        await victim.wait()
        workers.append(await start(kafka_here.bootstrap, group, topic, shop.url, "inbox", 0.02))
    await until(shop, len(ids), *workers)
    for worker in workers:
        worker.terminate()
    assert [await worker.wait() for worker in workers] == [0, 0]
    await require_once(shop, ids)


@pytest.mark.parametrize(
    ("shop", "seed"),
    [
        pytest.param("postgres_shop", 7, marks=pytest.mark.servers),
        pytest.param("mariadb_shop", 8, marks=pytest.mark.servers),
    ],
    indirect=["shop"],
)
async def test_what_a_killed_worker_consumes_writes_and_sends_is_there_once(kafka_here: RawKafka, shop: Shop, seed: int) -> None:
    topic, group = await kafka_here.new_topic(partitions=2), kafka_here.new_group()
    await kafka_here.create(f"{topic}-out")
    ids = [f"order-{number}" for number in range(500)]
    for partition in (0, 1):
        await kafka_here.produce(topic, *(id.encode() for id in ids[partition::2]), partition=partition)
        await kafka_here.produce(topic, *(id.encode() for id in ids[partition::20]), partition=1 - partition)  # sent twice
    chance = random.Random(seed)
    for share in (100, 250, 400):
        worker = await start(kafka_here.bootstrap, group, topic, shop.url, "outbox", 0.02)
        await until(shop, share, worker)
        await asyncio.sleep(chance.random() * 0.1)
        worker.kill()
        await worker.wait()
    worker = await start(kafka_here.bootstrap, group, topic, shop.url, "outbox", 0.0)
    await until(shop, len(ids), worker)
    async with asyncio.timeout(120):
        while (await shop.ask("SELECT count(*) FROM ackwise_outbox"))[0][0]:  # noqa: ASYNC110  # a database tells nobody
            await asyncio.sleep(0.05)
    worker.terminate()
    assert await worker.wait() == 0
    await require_once(shop, ids)
    sent = {dict(record.headers)["message-id"]: record.value for record in await kafka_here.records(f"{topic}-out")}
    assert Counter(sent.values()) == Counter(id.encode() for id in ids), "once for each id, behind the consumer's Dedup"
