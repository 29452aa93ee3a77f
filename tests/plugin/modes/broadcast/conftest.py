"""A Kafka in memory with a topic, and both ways to keep positions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.plugin.modes.broadcast.instances import FileOf

from ackwise.testing import MemoryKafka


@pytest.fixture(params=["group", "file"])
def file_of(request: pytest.FixtureRequest, tmp_path: Path) -> FileOf:
    return lambda name: None if request.param == "group" else tmp_path / f"{name}.offsets"


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("changes", 2)
        yield kafka
