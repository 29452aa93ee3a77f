"""A database with an outbox or a table, a relay of its log, and a Kafka that fails when it is told to."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from tests.fakes import Sink
from tests.waiting import PATIENCE, until

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.storage.changes import Change
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.plugin.outbox.cdcroutes import MappedRows, OutboxRows, Route
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.postgres.replication import PostgresChanges

__all__ = ["Kafka", "World", "close_outbox", "database_of", "until"]

AWAY = SendFailed("Kafka is unavailable", retriable=True, error="KafkaConnectionError")
MISSING = SendFailed("no such topic", retriable=True, error="UnknownTopicOrPartitionError")
BEHIND = SendFailed("an earlier message was not acknowledged", retriable=True)


class Kafka:
    """What was acknowledged, in order. `refuse` names what is refused for good, `down` refuses all for a while."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.asked = 0
        self.largest = 0
        self.down = False
        self.refuse: Callable[[Outgoing], bool] = lambda _: False
        self.missing: set[str] = set()  #: topics that no message is acknowledged of
        self.gate: asyncio.Event | None = None

    @property
    def values(self) -> list[bytes | None]:
        return [message.value for message in self.sent]

    @property
    def ids(self) -> list[str]:
        return [message.message_id for message in self.sent]

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def answers(self) -> bool:
        return not self.down

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        self.asked += 1
        self.largest = max(self.largest, len(messages))
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        answers: list[SendAnswer] = []
        stopped: set[tuple[str, bytes | None]] = set()
        for message in messages:
            if self.down:
                answers.append(AWAY)
            elif message.key is not None and (message.topic, message.key) in stopped:
                answers.append(BEHIND)
            elif message.topic in self.missing:
                answers.append(MISSING)
                if stop_keys:
                    stopped.add((message.topic, message.key))
            elif self.refuse(message):
                answers.append(SendFailed("the message is too large", retriable=False, error="MessageSizeTooLargeError"))
                if stop_keys:
                    stopped.add((message.topic, message.key))
            else:
                self.sent.append(message)
                answers.append(Acked(message.topic, 0, len(self.sent) - 1, 1_700_000_000_000, message.message_id))
        return answers


class World:
    """`url` is a database of this test alone, `database` a connection to it."""

    def __init__(self, url: str, database: asyncpg.Connection, slot: str) -> None:
        self.url, self.database, self.slot = url, database, slot
        self.kafka = Kafka()
        self.sink: Sink | None = None
        self.task: asyncio.Task[None]
        self.outbox = PostgresOutbox(url)
        self.keep_sent = 0.0

    def source(self, **options: Any) -> PostgresChanges:
        return PostgresChanges(self.url, **{"name": self.slot, "create": True, **options})

    def relay(self, mapping: Callable[[Change], Outgoing | None] | None = None, *, on_error: str = "block", **options: Any) -> CdcRelay:
        source = self.source(**options)
        route: Route = (
            MappedRows(mapping)
            if mapping is not None
            else OutboxRows(
                PostgresOutbox(self.url, keep_sent=self.keep_sent),
                source.outbox_row,
                owner=f"cdc/{self.slot}",
                name="shop",
                on_error=on_error,
            )
        )
        kafka = self.kafka
        return CdcRelay(source, route, new_sender=lambda: kafka, brokers_answer=kafka.answers, sink=self.sink)

    @asynccontextmanager
    async def running(self, relay: CdcRelay | None = None) -> AsyncIterator[CdcRelay]:
        """A relay while the block runs, stopped in order; raises what it raises."""
        relay, stop = relay or self.relay(), asyncio.Event()
        self.task = task = asyncio.create_task(relay.run(stop))
        try:
            reading = asyncio.create_task(until(lambda: relay.counts.status is not None))
            await asyncio.wait({task, reading}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            if task.done():
                task.result()
            yield relay
        finally:
            stop.set()
            await asyncio.wait({task})
            await close_outbox(relay)
        task.result()

    async def drop_slot(self) -> None:
        """Drop it, once PostgreSQL has seen that its reader is gone."""
        is_active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
        await until(lambda: self.database.fetchval(is_active, self.slot), operator.not_)
        await self.database.execute("SELECT pg_drop_replication_slot($1)", self.slot)

    @asynccontextmanager
    async def ends_with(
        self, error: type[Exception] | tuple[type[Exception], ...], match: str, relay: CdcRelay | None = None
    ) -> AsyncIterator[pytest.ExceptionInfo[Exception]]:
        """A relay that ends by this error after what is done in the block."""
        with pytest.raises(error, match=match) as caught:  # noqa: PT012  # it ends where the relay is awaited
            async with self.running(relay):
                yield caught
                await self._over()

    async def refuses(self, error: type[Exception], match: str, relay: CdcRelay | None = None) -> None:
        """A relay ends by this error, and nothing has to be done for it."""
        with pytest.raises(error, match=match):
            async with self.running(relay):
                await self._over()

    async def _over(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({self.task})

    def silence(self, relay: CdcRelay) -> None:
        """Let it report nothing any more."""
        relay._source._report = lambda: None  # type: ignore[attr-defined]

    @asynccontextmanager
    async def killed(self, relay: CdcRelay | None = None) -> AsyncIterator[CdcRelay]:
        """A relay while the block runs, of which nothing is closed in order and nothing reported any more."""
        relay = relay or self.relay()
        self.silence(relay)
        task = asyncio.create_task(relay.run(asyncio.Event()))
        try:
            await until(lambda: relay.counts.status is not None or task.done())
            yield relay
        finally:
            task.cancel()
            await asyncio.wait({task})
            await close_outbox(relay)

    async def write(self, *values: bytes, key: bytes | None = None, topic: str = "orders") -> None:
        """One transaction with a row for each of `values`."""
        async with self.outbox.transaction(self.database) as outbox:
            for value in values:
                outbox.send(topic, value, key=key)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """Another connection of the business."""
        connection = await asyncpg.connect(self.url)
        yield connection
        await connection.close()

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.database.fetch(query)]

    async def cut_off(self) -> None:
        """End the connection that reads the log."""
        question = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1"
        await self.database.execute(question, self.slot)

    async def waiting(self) -> int:
        return int((await self.rows("SELECT count(*) FROM ackwise_outbox WHERE state = 2"))[0][0])

    async def confirmed(self) -> str:
        return str(
            await self.database.fetchval("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", self.slot)
        )

    async def is_sent_and_deleted(self, *values: bytes, by: asyncio.Task[None] | None = None) -> None:
        """Wait until these values are in Kafka, and the table is empty; `by` is the relay that sends them."""
        await until(lambda: set(values) <= set(self.kafka.values), by=by)
        await self.waits(0)

    async def waits(self, rows: int) -> None:
        """Wait until so many rows wait in the table."""
        await until(self.waiting, lambda waiting: waiting == rows)


async def close_outbox(relay: CdcRelay) -> None:
    if isinstance(relay._route, OutboxRows):
        await relay._route._store.close()


@asynccontextmanager
async def database_of(server_url: str, name: str) -> AsyncIterator[World]:
    """A new database with an outbox; it goes with its slots."""
    admin = await asyncpg.connect(f"{server_url}/postgres")
    await admin.execute(f"CREATE DATABASE {name}")
    database = await asyncpg.connect(f"{server_url}/{name}")
    world = World(f"{server_url}/{name}", database, name)
    try:
        await world.outbox.open()
        yield world
    finally:
        await world.outbox.close()
        await database.close()
        if admin.is_closed():
            admin = await asyncpg.connect(f"{server_url}/postgres")
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(asyncpg.ObjectInUseError):
                    question = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1"
                    await admin.fetch(question, name)
                    break
                await asyncio.sleep(0.05)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
