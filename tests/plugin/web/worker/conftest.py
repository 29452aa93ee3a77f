"""A Kafka in memory with one topic of one partition."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ackwise.testing.kafka.broker import MemoryKafka


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic("orders", 1)
        yield kafka
