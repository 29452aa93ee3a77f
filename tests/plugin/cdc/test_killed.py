"""`ackwise cdc` as a process between a real PostgreSQL and a real Kafka, while each of the three is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
from tests.databases.postgres import USER, postgres_server
from tests.databases.server import Server, skip_if_missing
from tests.servers import RawKafka

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.outgoing import MESSAGE_ID
from ackwise.plugin.local.broker import LocalKafka
from ackwise.stores.postgres.outbox import PostgresOutbox

pytestmark = [pytest.mark.kafka, pytest.mark.servers, pytest.mark.slow]

KEYS = 4


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL that this module kills."""
    with skip_if_missing("PostgreSQL"), postgres_server(wal_level="logical", wal_sender_timeout="2s") as server:
        yield server


class Relay:
    """`ackwise cdc` in a process of its own."""

    def __init__(self, url: str, bootstrap: str, log: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "ackwise.plugin.cli",
            "cdc",
            url,
            "--brokers",
            bootstrap,
            "--create-slot",
            "--log-format=json",
        ]
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
    """Writes transactions of one to three rows, numbered by key, and remembers which committed."""

    def __init__(self, url: str, topic: str) -> None:
        self.url, self.topic = url, topic
        self.outbox = PostgresOutbox(url)
        self.committed: list[str] = []
        self.undecided: set[str] = set()
        self.rolled_back: set[str] = set()
        self._numbers: dict[int, int] = defaultdict(int)
        self._count = 0

    async def sell(self, times: int) -> None:
        """So many transactions; each third one is rolled back. A database that is away is waited for."""
        connection: asyncpg.Connection | None = None
        while times:
            try:
                connection = connection or await asyncpg.connect(self.url)
                await self._transact(connection)
                times -= 1
            except (AckwiseError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                if connection is not None:
                    connection.terminate()
                connection = None
                await asyncio.sleep(0.05)
        if connection is not None:
            await connection.close()

    async def _transact(self, connection: asyncpg.Connection) -> None:
        self._count += 1
        key, rolls_back = self._count % KEYS, self._count % 3 == 0
        ids: list[str] = []
        transaction = connection.transaction()
        await transaction.start()
        rows = self.outbox.writer(connection)
        for _ in range(1 + self._count % 3):
            self._numbers[key] += 1
            ids.append(rows.send(self.topic, b"%d" % self._numbers[key], key=b"%d" % key))
        await rows.flush()
        if rolls_back:
            self.rolled_back |= set(ids)
            await transaction.rollback()
            return
        self.undecided |= set(ids)
        await transaction.commit()
        self.undecided -= set(ids)
        self.committed += ids


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.02)


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is killed here."""
    return own_kafka


@pytest.fixture
async def shop(own_postgres: Server, raw_kafka: RawKafka) -> AsyncIterator[Shop]:
    shop = Shop(f"postgresql://{USER}@127.0.0.1:{own_postgres.port}/postgres", await raw_kafka.new_topic(2))
    await shop.outbox.open()
    yield shop
    await shop.outbox.close()


async def test_whatever_is_killed_every_committed_row_is_sent_and_nothing_else(
    own_postgres: Server, kafka: LocalKafka, raw_kafka: RawKafka, shop: Shop, tmp_path: Path
) -> None:
    relay = Relay(shop.url, kafka.bootstrap, tmp_path / "relay.log")
    relay.start()
    try:
        await eventually(lambda: relay.said("change data capture reads the log"))
        for number in range(2):  # of the relay, in the middle of a stream
            selling = asyncio.create_task(shop.sell(60))
            before = len(shop.committed)
            await eventually(lambda at=before: len(shop.committed) >= at + 10)  # type: ignore[misc]
            relay.end(signal.SIGKILL)
            relay.start()
            await selling
            await eventually(lambda at=number: relay.said("change data capture reads the log") >= at + 2)  # type: ignore[misc]
        for end in (own_postgres.kill, own_postgres.stop):  # of the database, at once and in order
            selling = asyncio.create_task(shop.sell(60))
            before = len(shop.committed)
            await eventually(lambda at=before: len(shop.committed) >= at + 10)  # type: ignore[misc]
            await asyncio.to_thread(end)
            await asyncio.to_thread(own_postgres.start)
            await selling
        for end in (kafka.kill, kafka.stop):  # of the broker
            selling = asyncio.create_task(shop.sell(30))
            before = len(shop.committed)
            await eventually(lambda at=before: len(shop.committed) >= at + 5)  # type: ignore[misc]
            await asyncio.to_thread(end)
            await shop.sell(10)
            await asyncio.to_thread(kafka.start)
            await selling
        await _until_empty(shop)
        assert relay.end(signal.SIGTERM) == 0
    finally:
        with suppress(ProcessLookupError):
            relay.end(signal.SIGKILL)
    await _judge(shop, raw_kafka)


async def _until_empty(shop: Shop) -> None:
    connection = await asyncpg.connect(shop.url)
    async with asyncio.timeout(120):
        while await connection.fetchval("SELECT count(*) FROM ackwise_outbox"):  # noqa: ASYNC110  # the table tells nobody
            await asyncio.sleep(0.05)
    await connection.close()


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
