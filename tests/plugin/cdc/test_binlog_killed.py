"""`ackwise cdc` as a process between a real MariaDB and a real Kafka, while relay and database are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncmy
import pytest
from asyncmy.errors import MySQLError
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.server import Server, skip_if_missing
from tests.plugin.cdc.test_killed import KEYS, Relay, eventually
from tests.servers import RawKafka
from tests.shared import SharedKafka

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.outgoing import MESSAGE_ID
from ackwise.stores.mysql.outbox import MySQLOutbox

pytestmark = [pytest.mark.kafka, pytest.mark.servers, pytest.mark.slow]


@pytest.fixture(scope="module")
def own_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MariaDB that this module kills."""
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb-killed"), *WITH_LOG) as server:
        yield server


class Shop:
    """Writes transactions of one to three rows, numbered by key, and remembers which committed; each third one is rolled back."""

    def __init__(self, server: Server, topic: str) -> None:
        self.topic = topic
        self.url = f"mariadb://root@127.0.0.1:{server.port}/shop"
        self.connecting = {"host": "127.0.0.1", "port": server.port, "user": "root", "autocommit": True}
        self.outbox = MySQLOutbox(self.url)
        self.committed: list[str] = []
        self.undecided: set[str] = set()
        self.rolled_back: set[str] = set()
        self._numbers: dict[int, int] = defaultdict(int)
        self._count = 0

    async def sell(self, times: int) -> None:
        """So many transactions. A database that is away is waited for."""
        while times:
            with suppress(AckwiseError, MySQLError, OSError):
                async with asyncmy.connect(**self.connecting, database="shop") as connection:
                    while times:
                        await self._transact(connection)
                        times -= 1
            await asyncio.sleep(0.05)

    async def _transact(self, connection: asyncmy.connection.Connection) -> None:
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


async def test_whatever_is_killed_every_committed_row_is_sent_and_nothing_else(
    own_mariadb: Server, kafka: SharedKafka, raw_kafka: RawKafka, tmp_path: Path
) -> None:
    shop = Shop(own_mariadb, await raw_kafka.new_topic(2))
    async with asyncmy.connect(**shop.connecting, database="mysql") as connection, connection.cursor() as cursor:
        await cursor.execute("CREATE DATABASE shop")
    await shop.outbox.open()
    await shop.outbox.close()
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
        for end in (own_mariadb.kill, own_mariadb.stop):  # of the database, at once and in order
            selling = asyncio.create_task(shop.sell(60))
            before = len(shop.committed)
            await eventually(lambda at=before: len(shop.committed) >= at + 10)  # type: ignore[misc]
            await asyncio.to_thread(end)
            await asyncio.to_thread(own_mariadb.start)
            await selling
        await _until_empty(shop)
        assert relay.end(signal.SIGTERM) == 0
    finally:
        with suppress(ProcessLookupError):
            relay.end(signal.SIGKILL)
    await _judge(shop, raw_kafka)


async def _until_empty(shop: Shop) -> None:
    async with asyncio.timeout(120), asyncmy.connect(**shop.connecting, database="shop") as connection, connection.cursor() as cursor:
        while True:
            await cursor.execute("SELECT COUNT(*) FROM ackwise_outbox")
            if (await cursor.fetchone())[0] == 0:
                return
            await asyncio.sleep(0.05)


async def _judge(shop: Shop, raw_kafka: RawKafka) -> None:
    records = await raw_kafka.records(shop.topic)
    ids = [dict(record.headers)[MESSAGE_ID].decode() for record in records]
    assert set(shop.committed) <= set(ids)
    assert set(ids) <= set(shop.committed) | shop.undecided
    assert not set(ids) & shop.rolled_back
    first: dict[bytes | None, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for record, id_ in zip(records, ids, strict=True):
        if id_ not in seen and record.value is not None:
            first[record.key].append(int(record.value))
        seen.add(id_)
    assert len(first) == KEYS
    for numbers in first.values():  # without what was sent again, which its id tells, each key is in its order
        assert numbers == sorted(numbers)
