"""Workers that are killed again and again under `Transactional`: every effect is there once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.databases.postgres import USER
from tests.failures.process import WorkerProcess
from tests.failures.transacting import account_of, main
from tests.servers import RawKafka
from tests.shared import SharedServer
from tests.stores.mysql.database import mysql_database
from tests.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(280)]  # a worker that was killed is missed only after its session

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


class Scene:
    """A topic, what was sent to it, and the workers that read it into a shop."""

    def __init__(self, kafka: RawKafka, shop: Shop, mode: str, folder: Path) -> None:
        self.kafka, self.shop, self.mode, self.folder = kafka, shop, mode, folder
        self.topic, self.group, self.ids = "", kafka.new_group(), list[str]()

    async def send(self, count: int, *, partitions: int = 2) -> None:
        """Send each once, and some once more to another partition: offsets do not tell of those."""
        self.topic = await self.kafka.new_topic(partitions=partitions)
        self.ids = [f"order-{number}" for number in range(count)]
        for partition in range(partitions):
            await self.kafka.produce(self.topic, *(id.encode() for id in self.ids[partition::partitions]), partition=partition)
            twice = [] if self.mode == "offsets" else self.ids[partition :: 10 * partitions]
            await self.kafka.produce(self.topic, *(id.encode() for id in twice), partition=partitions - 1 - partition)

    def start(self, pause: float = 0.02) -> WorkerProcess:
        told = (self.kafka.bootstrap, self.group, self.topic, self.shop.url, self.mode, pause)
        return WorkerProcess(main, told, self.folder / "log")

    async def until(self, count: int, *workers: WorkerProcess) -> None:
        """Return once `count` effects are there; the workers write them."""
        async with asyncio.timeout(120):
            while await self.shop.count() < count:
                assert [worker.returncode for worker in workers] == [None] * len(workers), workers[0].said()
                await asyncio.sleep(0.05)

    async def kill_at(self, shares: tuple[int, ...], seed: int) -> WorkerProcess:
        """Kill a worker at about each of `shares`; returns one that did the rest."""
        chance = random.Random(seed)
        for share in shares:
            worker = self.start()
            await self.until(share, worker)
            await asyncio.sleep(chance.random() * 0.1)
            worker.kill()
            await worker.wait()
        worker = self.start(0.0)
        await self.until(len(self.ids), worker)
        return worker

    async def require_once(self, *workers: WorkerProcess) -> None:
        """Let the workers end; every effect is there once."""
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        assert [await worker.wait() for worker in workers] == [0] * len(workers)
        assert await self.shop.effects() == Counter(self.ids)
        assert await self.shop.balances() == Counter(map(account_of, self.ids))


SERVERS, NIGHTLY = pytest.mark.servers, pytest.mark.nightly


@pytest.mark.parametrize(
    ("shop", "mode", "seed"),
    [
        pytest.param("sqlite_shop", "inbox", 1, marks=NIGHTLY),
        pytest.param("sqlite_shop", "offsets", 2),
        pytest.param("postgres_shop", "inbox", 3, marks=[SERVERS, NIGHTLY]),
        pytest.param("postgres_shop", "offsets", 4, marks=SERVERS),
        pytest.param("mariadb_shop", "inbox", 5, marks=SERVERS),
        pytest.param("mariadb_shop", "offsets", 6, marks=[SERVERS, NIGHTLY]),
    ],
    indirect=["shop"],
)
async def test_every_effect_is_there_once_whenever_the_worker_is_killed(
    raw_kafka: RawKafka, tmp_path: Path, shop: Shop, mode: str, seed: int
) -> None:
    scene = Scene(raw_kafka, shop, mode, tmp_path)
    await scene.send(400)
    await scene.require_once(await scene.kill_at((60, 240), seed))


@NIGHTLY
@pytest.mark.parametrize("shop", [pytest.param("postgres_shop", marks=SERVERS)], indirect=True)
async def test_ten_thousand_messages_are_there_once_whatever_two_workers_suffer(raw_kafka: RawKafka, tmp_path: Path, shop: Shop) -> None:
    scene, chance = Scene(raw_kafka, shop, "inbox", tmp_path), random.Random(3)
    await scene.send(10_000, partitions=4)
    workers = [scene.start() for _ in range(2)]
    for share in range(1000, 10_000, 1500):
        await scene.until(share, *workers)
        await asyncio.sleep(chance.random() * 0.1)
        victim = workers.pop(chance.randrange(2))
        victim.kill()
        await victim.wait()
        workers.append(scene.start())
    await scene.until(10_000, *workers)
    await scene.require_once(*workers)


@pytest.mark.parametrize(
    ("shop", "seed"),
    [pytest.param("postgres_shop", 7, marks=SERVERS), pytest.param("mariadb_shop", 8, marks=[SERVERS, NIGHTLY])],
    indirect=["shop"],
)
async def test_what_a_killed_worker_consumes_writes_and_sends_is_there_once(
    raw_kafka: RawKafka, tmp_path: Path, shop: Shop, seed: int
) -> None:
    scene = Scene(raw_kafka, shop, "outbox", tmp_path)
    await scene.send(300)
    await raw_kafka.create(f"{scene.topic}-out")
    worker = await scene.kill_at((60, 180), seed)
    await until(lambda: shop.ask("SELECT count(*) FROM ackwise_outbox"), lambda rows: rows[0][0] == 0, within=120)
    await scene.require_once(worker)
    sent = {dict(record.headers)["message-id"]: record.value for record in await raw_kafka.records(f"{scene.topic}-out")}
    assert Counter(sent.values()) == Counter(id.encode() for id in scene.ids), "once for each id, behind the consumer's Dedup"
