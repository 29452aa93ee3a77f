"""A Kafka in memory with a topic, a store in memory, and consumers of one group around them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ackwise import ConsumeLater, Dedup, Event, EventCode, Received, SimpleConsumer
from ackwise.middleware.store import ClaimStore
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka, Record, VirtualClock

GROUP, TOPIC = "billing", "orders"


class World:
    """`clock` is that by which receipts expire. What consumers record is in `events`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.clock = VirtualClock(1000.0)
        self.store: ClaimStore = MemoryStore()
        self.events: list[Event] = []

    def consumer(self, *things: Any, **options: Any) -> SimpleConsumer[bytes]:
        def take(event: Event) -> None:
            self.events.append(event)

        given = {"commit_interval": 0.05, "session_timeout": 6.0, "clock_skew": 0.0, "drain_timeout": 5.0, **options}
        store = given.pop("store", None if any(isinstance(thing, Dedup) for thing in things) else self.store)
        later = () if any(isinstance(thing, ConsumeLater) for thing in things) else (ConsumeLater(16),)
        return SimpleConsumer(GROUP, TOPIC, *things, *later, take, store=store, brokers=self.kafka.bootstrap, clock=self.clock, **given)

    def count(self, code: EventCode) -> int:
        return Counter(event.code for event in self.events)[code]

    def committed(self) -> int | None:
        found = self.kafka.committed(GROUP).get((TOPIC, 0))
        return None if found is None else found.offset

    @property
    def dead_letters(self) -> list[Record]:
        return self.kafka.records(f"{GROUP}.dlq")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.timeout(60), MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic(TOPIC)
        yield World(kafka)


async def eventually(condition: Callable[[], bool]) -> None:
    """Until `condition` is true; the world has the deadline."""
    while not condition():  # noqa: ASYNC110  # what happens in other tasks wakes nobody here
        await asyncio.sleep(0.01)


async def receive(consumer: SimpleConsumer[bytes], number: int, *, invisible: float | str = 10.0) -> list[Received[bytes]]:
    """Just `number` messages, however many calls that takes."""
    found: list[Received[bytes]] = []
    while len(found) < number:
        found += await consumer.receive(number - len(found), invisible=invisible, wait=20.0)
    return found
