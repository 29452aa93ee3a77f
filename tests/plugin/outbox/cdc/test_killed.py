"""`ackwise cdc` as a process between a real database and a real Kafka, while each of the three is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncmy
import asyncpg
import pytest
from asyncmy.errors import MySQLError
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.postgres import USER, postgres_server
from tests.databases.server import Server, skip_if_missing
from tests.servers import RawKafka
from tests.waiting import until

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.message.outgoing import MESSAGE_ID
from ackwise.plugin.local.localkafka import LocalKafka
from ackwise.plugin.registry import open_outbox

pytestmark = [pytest.mark.kafka, pytest.mark.servers, pytest.mark.slow]  # starts relay, database and broker again after each kill

KEYS = 4

#: What a database raises that is unavailable.
AWAY = (AckwiseError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, MySQLError, OSError)


@pytest.fixture(scope="module", params=["postgres", pytest.param("mariadb", marks=pytest.mark.nightly)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that this module kills, and its database."""
    if request.param == "postgres":
        with skip_if_missing("PostgreSQL"), postgres_server(wal_level="logical", wal_sender_timeout="2s") as server:
            yield server, f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"
    else:
        with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb-killed"), *WITH_LOG) as server:
            yield server, f"mariadb://root@127.0.0.1:{server.port}/test"


class Relay:
    """`ackwise cdc` in its own process."""

    def __init__(self, url: str, kafka: LocalKafka, log: Path) -> None:
        command = [sys.executable, "-m", "ackwise.plugin.cli", "cdc", url, "--brokers", kafka.bootstrap]
        self._command = [*command, "--create-slot", "--log-format=json"]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(30)

    def said(self, event: str) -> int:
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return sum(1 for line in lines if line.startswith("{") and json.loads(line)["event"].startswith(event))


class Shop:
    """Writes transactions of one to three rows, numbered by key, and remembers which committed; each third one is rolled back."""

    def __init__(self, server: Server, url: str, topic: str) -> None:
        self.server, self.url, self.topic = server, url, topic
        self.outbox: Any = open_outbox(url)
        self.committed: list[str] = []
        self.undecided: set[str] = set()
        self.rolled_back: set[str] = set()
        self._numbers: dict[int, int] = defaultdict(int)
        self._count = 0

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self.url.startswith("mariadb"):
            async with asyncmy.connect(
                host="127.0.0.1", port=self.server.port, user="root", autocommit=True, database="test"
            ) as connection:
                yield connection
            return
        postgres = await asyncpg.connect(self.url)
        try:
            yield postgres
        finally:
            postgres.terminate()

    async def sell(self, times: int) -> None:
        """So many transactions. A database that is unavailable is waited for."""
        while times:
            with suppress(*AWAY):
                async with self._connection() as connection:
                    while times:
                        await self._transact(connection)
                        times -= 1
            await asyncio.sleep(0.05)

    async def selling(self, times: int, *, rows: int) -> asyncio.Task[None]:
        """So many transactions under way, of which so many rows have committed."""
        selling, before = asyncio.create_task(self.sell(times)), len(self.committed)
        await until(lambda: len(self.committed) >= before + rows)
        return selling

    async def _transact(self, connection: Any) -> None:
        self._count += 1
        key, rolls_back = self._count % KEYS, self._count % 3 == 0
        ids: list[str] = []
        with suppress(InterruptedError):
            async with self.outbox.transaction(connection) as rows:
                for _ in range(1 + self._count % 3):
                    self._numbers[key] += 1
                    ids.append(rows.send(self.topic, b"%d" % self._numbers[key], key=b"%d" % key))
                await rows.flush()
                if rolls_back:
                    self.rolled_back |= set(ids)
                    raise InterruptedError
                self.undecided |= set(ids)
            self.undecided -= set(ids)
            self.committed += ids

    async def until_empty(self) -> None:
        await until(self.outbox.status, lambda status: not status.waiting, within=120)


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is killed here."""
    return own_kafka


async def test_whatever_is_killed_every_committed_row_is_sent_and_nothing_else(
    database: tuple[Server, str], kafka: LocalKafka, raw_kafka: RawKafka, tmp_path: Path
) -> None:
    shop = Shop(*database, await raw_kafka.new_topic(2))
    relay = Relay(shop.url, kafka, tmp_path / "relay.log")
    await shop.outbox.open()
    relay.start()
    try:
        await until(lambda: relay.said("change data capture opened the log"))
        for number in range(2):  # of the relay, in the middle of a stream
            selling = await shop.selling(60, rows=10)
            relay.end(signal.SIGKILL)
            relay.start()
            await selling
            await until(lambda at=number: relay.said("change data capture opened the log") >= at + 2)  # type: ignore[misc]
        for end in (shop.server.kill, shop.server.stop):  # of the database, at once and in order
            selling = await shop.selling(60, rows=10)
            await asyncio.to_thread(end)
            await asyncio.to_thread(shop.server.start)
            await selling
        for end in (kafka.kill, kafka.stop):  # of the broker
            selling = await shop.selling(30, rows=5)
            await asyncio.to_thread(end)
            await shop.sell(10)
            await asyncio.to_thread(kafka.start)
            await selling
        await shop.until_empty()
        assert relay.end(signal.SIGTERM) == 0
    finally:
        with suppress(ProcessLookupError):
            relay.end(signal.SIGKILL)
        await shop.outbox.close()
    await _judge(shop, raw_kafka)


async def _judge(shop: Shop, raw_kafka: RawKafka) -> None:
    records = await raw_kafka.records(shop.topic)
    ids = [dict(record.headers)[MESSAGE_ID].decode() for record in records]
    assert set(shop.committed) <= set(ids)
    assert set(ids) <= set(shop.committed) | shop.undecided
    assert not set(ids) & shop.rolled_back
    first: dict[bytes | None, list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        if ids[place] not in ids[:place] and record.value is not None:
            first[record.key].append(int(record.value))
    assert len(first) == KEYS
    for numbers in first.values():  # without what was sent again, which its id tells, each key is in its order
        assert numbers == sorted(numbers)
