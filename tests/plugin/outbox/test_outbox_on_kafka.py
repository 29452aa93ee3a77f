"""Relays on a real PostgreSQL and a real Kafka, killed, stopped, and with either of the two away."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.server import Server
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import App, Dedup, Message
from ackwise.middleware.message.outgoing import Outgoing, message_id
from ackwise.middleware.policies.policies import Outbox
from ackwise.plugin.local.localkafka import LocalKafka
from ackwise.plugin.outbox.outboxrelay import AloneSettings, relay_outbox_apart
from ackwise.stores.postgres.outbox import PostgresOutbox

pytestmark = [pytest.mark.timeout(120)]

#: Seconds between two looks at what tells nobody of itself.
LOOK = 0.05

ROOT = Path(__file__).parents[3]


class Shop:
    """A database with an outbox, and relays of it."""

    def __init__(self, url: str, brokers: str, topic: str) -> None:
        self.url, self.brokers, self.topic = url, brokers, topic
        self.outbox = PostgresOutbox(url)

    async def order(self, *messages: Outgoing) -> None:
        """Commit these messages in one business transaction."""
        connection = await asyncpg.connect(self.url)
        try:
            async with self.outbox.transaction(connection) as transaction:
                for message in messages:
                    transaction.add(message)
        finally:
            await connection.close()

    def messages(self, keys: int, each: int, first: int = 0) -> list[Outgoing]:
        return [Outgoing(self.topic, b"%d" % number, b"key-%d" % key) for number in range(first, first + each) for key in range(keys)]

    async def rows(self) -> int:
        status = await self.outbox.status()
        return status.waiting + status.parked

    async def is_empty(self) -> bool:
        return await self.rows() == 0

    @contextmanager
    def relay(self, *, lease: float = 1.0, batch: int = 50, halt: Sequence[Any] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A relay in its own process, killed at the end of the block."""
        told = {"url": self.url, "brokers": self.brokers, "lease": lease, "batch": batch, "halt": halt}
        process = subprocess.Popen([sys.executable, "-m", "tests.plugin.outbox.relaying", json.dumps(told)], cwd=ROOT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @asynccontextmanager
    async def relaying(self, **policy: Any) -> AsyncIterator[None]:
        """A relay in this process."""
        stop = asyncio.Event()
        settings = Outbox(self.url, **{"poll": 0.1, "lease": 5.0, **policy})
        running = asyncio.create_task(relay_outbox_apart(PostgresOutbox(self.url), settings, AloneSettings(self.brokers), stop))
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(PATIENCE):
                await running


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is stopped here."""
    return own_kafka


@pytest.fixture
def postgres(own_postgres: Server) -> Server:
    """One that no other test uses, since it is stopped here."""
    return own_postgres


@pytest.fixture
async def shop(postgres: Server, kafka: LocalKafka, raw_kafka: RawKafka) -> AsyncIterator[Shop]:
    name = f"outbox_{os.urandom(6).hex()}"
    admin = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres")
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    shop = Shop(f"postgresql://{USER}@127.0.0.1:{postgres.port}/{name}", kafka.bootstrap, await raw_kafka.new_topic(3))
    await shop.outbox.open()
    yield shop
    await shop.outbox.close()


def by_key(records: Sequence[Any]) -> dict[bytes, list[bytes]]:
    """What a consumer of each key sees that suppresses repeated ids."""
    found: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for record in records:
        found[record.key].setdefault(dict(record.headers)["message-id"], record.value)
    return {key: [*values.values()] for key, values in found.items()}


def ids(records: Sequence[Any]) -> Counter[bytes]:
    return Counter(dict(record.headers)["message-id"] for record in records)


async def _gone(process: subprocess.Popen[bytes], state: str = "") -> None:
    """Wait until the process has ended, or is in this state of the system's."""
    await until(lambda: process.poll() is not None or (state and _state(process.pid) == state))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_relay_killed_between_acknowledgement_and_delete_sends_the_same_ids_again_and_a_consumer_runs_them_once(
    shop: Shop, raw_kafka: RawKafka
) -> None:
    await shop.order(*shop.messages(5, 4))
    with shop.relay(halt=["sent", "before", signal.SIGKILL]) as killed:
        await _gone(killed)
    assert await shop.rows() == 20
    async with shop.relaying():
        await until(shop.is_empty)
    records = await raw_kafka.records(shop.topic)
    assert set(ids(records).values()) == {2}
    assert all(values == [b"0", b"1", b"2", b"3"] for values in by_key(records).values())

    app, seen, stop = App(raw_kafka.new_group(), brokers=shop.brokers, commit_interval=0.1), Counter[str](), asyncio.Event()
    app.use(Dedup("memory://", key=message_id))

    @app.agent(shop.topic)
    async def count(message: Message[bytes]) -> None:
        seen[message_id(message) or ""] += 1

    serving = asyncio.create_task(app.serve(stop))
    try:
        await until(lambda: len(seen) == 20)
        await until(lambda: _all_committed(raw_kafka, app.settings.group, shop.topic, len(records)))
    finally:
        stop.set()
        await serving
    assert set(seen.values()) == {1}


async def _all_committed(raw_kafka: RawKafka, group: str, topic: str, records: int) -> bool:
    return sum(offset for place, offset in (await raw_kafka.committed(group)).items() if place.topic == topic) == records


@pytest.mark.parametrize(("halt", "most"), [(("pending", "after"), 1), (("sent", "before"), 2)], ids=["unsent", "undeleted"])
async def test_a_relay_that_was_stopped_sends_and_deletes_nothing_once_its_lease_is_over(
    shop: Shop, raw_kafka: RawKafka, halt: tuple[str, str], most: int
) -> None:
    await shop.order(*shop.messages(5, 4))
    with shop.relay(halt=[*halt, signal.SIGSTOP]) as zombie:
        await _gone(zombie, "T")
        async with shop.relaying():
            await until(shop.is_empty)
            os.kill(zombie.pid, signal.SIGCONT)
            await shop.order(*shop.messages(5, 1, first=4))
            await until(shop.is_empty)
    records = await raw_kafka.records(shop.topic)
    assert (len(ids(records)), max(ids(records).values())) == (25, most)
    assert all(values == [b"0", b"1", b"2", b"3", b"4"] for values in by_key(records).values())


async def test_a_row_that_is_too_large_holds_its_key_and_nothing_else_until_it_is_requeued(
    shop: Shop, raw_kafka: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    shop.topic = await raw_kafka.new_topic(1, max_message_bytes=2000)
    large = random.Random(1).randbytes(4000)
    await shop.order(*(Outgoing(shop.topic, value, b"a") for value in (b"1", large, b"3")), Outgoing(shop.topic, b"1", b"b"))
    async with shop.relaying():
        await until(lambda: _is_parked(shop, 1))
        await shop.order(Outgoing(shop.topic, b"4", b"a"), Outgoing(shop.topic, b"2", b"b"))
        await until(lambda: _has(raw_kafka, shop.topic, b"b", [b"1", b"2"]))
        assert by_key(await raw_kafka.records(shop.topic))[b"a"] == [b"1"]
        (parked,) = await shop.outbox.parked()
        assert "MessageSizeTooLarge" in parked.cause
        await raw_kafka.alter(shop.topic, max_message_bytes=100_000)
        await shop.outbox.requeue()
        await until(shop.is_empty)
    assert by_key(await raw_kafka.records(shop.topic))[b"a"] == [b"1", large, b"3", b"4"]
    assert large.hex()[:20] not in caplog.text


async def _is_parked(shop: Shop, rows: int) -> bool:
    return (await shop.outbox.status()).parked == rows


async def _has(raw_kafka: RawKafka, topic: str, key: bytes, values: list[bytes]) -> bool:
    return by_key(await raw_kafka.records(topic)).get(key) == values


async def test_rows_wait_while_kafka_is_away_and_no_attempt_is_used_up(
    shop: Shop, kafka: LocalKafka, raw_kafka: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ackwise")
    await shop.order(*shop.messages(5, 2))
    async with shop.relaying(max_attempts=1):
        await until(shop.is_empty)
        kafka.stop()
        try:
            await shop.order(*shop.messages(5, 2, first=2))
            await until(lambda: "no broker answers the outbox relay" in caplog.text)
            assert await shop.rows() == 10
            assert not await shop.outbox.parked()
        finally:
            kafka.start()
        await until(shop.is_empty)
    assert all(values == [b"0", b"1", b"2", b"3"] for values in by_key(await raw_kafka.records(shop.topic)).values())


async def test_a_database_that_restarts_loses_no_row(
    shop: Shop, postgres: Server, raw_kafka: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ackwise")
    await shop.order(*shop.messages(5, 2))
    async with shop.relaying():
        await until(shop.is_empty)
        await asyncio.to_thread(postgres.stop)
        await until(lambda: "outbox relay interrupted" in caplog.text)
        await asyncio.to_thread(postgres.start)
        await shop.order(*shop.messages(5, 2, first=2))
        await until(shop.is_empty)
    assert all(values == [b"0", b"1", b"2", b"3"] for values in by_key(await raw_kafka.records(shop.topic)).values())


@pytest.mark.parametrize(("signals", "codes"), [([signal.SIGTERM], {0}), ([signal.SIGINT, signal.SIGTERM], {130, 143})])
async def test_the_command_relays_and_ends_at_a_signal(
    shop: Shop, raw_kafka: RawKafka, signals: list[signal.Signals], codes: set[int]
) -> None:
    await shop.order(*shop.messages(3, 2))
    command = [sys.executable, "-m", "ackwise.plugin.cli", "relay", "--outbox", shop.url, "--brokers", shop.brokers]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: ASYNC220  # it starts at once
    try:
        await until(shop.is_empty)
        for number in signals:
            process.send_signal(number)
        _, said = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in codes, said
    assert b"Traceback" not in said
    assert (await shop.outbox.status()).owners == {}
    assert len(await raw_kafka.records(shop.topic)) == 6
