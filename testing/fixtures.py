"""Fixtures for pytest: `pytest_plugins = ["ackwise.testing.fixtures"]` in `conftest.py`. They need pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ackwise.testing.app import VirtualClock
from ackwise.testing.kafka.broker import MemoryKafka


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that is stalled until the test moves it."""
    return VirtualClock()


@pytest_asyncio.fixture
async def memory_kafka(virtual_clock: VirtualClock) -> AsyncIterator[MemoryKafka]:
    """A Kafka in memory of this test alone, by the time of `virtual_clock`."""
    async with MemoryKafka(clock=virtual_clock) as kafka:
        yield kafka
