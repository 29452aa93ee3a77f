"""A Kafka in memory with a topic, a store in memory, and consumers of one group around them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.waiting import PATIENCE

from ackwise import ConsumeLater, Dedup, Event, EventCode, Received, SimpleConsumer
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import retry_copy
from ackwise.middleware.progress.commitmetadata import decode
from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka, Record, VirtualClock

GROUP, TOPIC, HANDLER = "billing", "orders", "receiver"


class Store:
    """Claims in memory, which a test can count, and take away from one process or from all."""

    def __init__(self, claims: MemoryStore) -> None:
        self.claims = claims
        self.is_away = False
        self.answers = asyncio.Event()  #: claims wait for it, once they are made
        self.answers.set()
        self.exchanges: list[Exchange] = []

    async def open(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if self.is_away:
            raise StoreUnavailable("away")
        self.exchanges.append(exchange)
        result = await self.claims.exchange(exchange)
        if exchange.claims:
            await self.answers.wait()
        return result

    async def close(self) -> None: ...


class World:
    """`clock` is that by which receipts and leases expire. What consumers record is in `events`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.clock = VirtualClock(1000.0)
        self.claims = MemoryStore(clock=self.clock)
        self.store = Store(self.claims)
        self.events: list[Event] = []
        self.gone = 10_000  #: the last origin of a message that was sent back

    def consumer(self, *things: Any, **options: Any) -> SimpleConsumer[bytes]:
        def take(event: Event) -> None:
            self.events.append(event)

        given = {"commit_interval": 0.05, "session_timeout": 6.0, "clock_skew": 0.0, "drain_timeout": 5.0, **options}
        store = given.pop("store", None if any(isinstance(thing, Dedup) for thing in things) else self.store)
        later = () if any(isinstance(thing, ConsumeLater) for thing in things) else (ConsumeLater(16),)
        topics = given.pop("topics", TOPIC)
        return SimpleConsumer(GROUP, topics, *things, *later, take, store=store, brokers=self.kafka.bootstrap, clock=self.clock, **given)

    def sent_back(self, reconsume_times: int, value: bytes = b"m") -> None:
        """Write a message as it is when it was sent back so often: the copy in the retry topic, whose origin is gone."""
        self.gone += 1
        origin = Origin(TOPIC, 0, self.gone, 0)
        delivery = Delivery(*origin, None, value, (), origin, attempt=reconsume_times)
        copy = retry_copy(delivery, topic=f"{GROUP}.retry", partition=0, group=GROUP, handler=HANDLER, due=0, now_ms=0, reason="")
        self.kafka.produce(copy.topic, copy.value, headers=copy.headers)

    def count(self, code: EventCode) -> int:
        return Counter(event.code for event in self.events)[code]

    def levels(self) -> list[int | None]:
        """The delay levels at which messages were sent back."""
        return [event.level for event in self.events if event.code is EventCode.SENT_BACK]

    def committed(self, partition: int = 0) -> int | None:
        found = self.kafka.committed(GROUP).get((TOPIC, partition))
        return None if found is None else found.offset

    def finished_above(self) -> int:
        """How many messages a commit has told of that are finished above its offset."""
        found = self.kafka.committed(GROUP).get((TOPIC, 0))
        metadata = None if found is None else decode(found.metadata)
        return 0 if metadata is None or metadata.finished is None else metadata.finished.bits.bit_count()

    @property
    def dead_letters(self) -> list[Record]:
        return self.kafka.records(f"{GROUP}.dlq")

    def reasons(self) -> list[bytes | None]:
        return [dict(letter.headers)["ackwise-reason"] for letter in self.dead_letters]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic(TOPIC)
        yield World(kafka)


async def receive(consumer: SimpleConsumer[bytes], number: int, *, invisible: float | str = 10.0) -> list[Received[bytes]]:
    """Just `number` messages, in the order of their offsets, however many calls that takes."""
    found: list[Received[bytes]] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < number:
            found += await consumer.receive(number - len(found), invisible=invisible, wait=20.0)
    return sorted(found, key=lambda each: each.offset)


async def nothing_comes(consumer: SimpleConsumer[bytes]) -> bool:
    """Whether there is nothing to receive now."""
    return await consumer.receive(10, invisible=10, wait=0.3) == []
