"""A Kafka in memory with the topics of a group."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.plugin.operate.deadletters.letters import Shop

from ackwise.testing import MemoryKafka


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """Nothing is dead yet."""
    monkeypatch.chdir(tmp_path)
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic("orders")
        kafka.create_topic("billing.dlq", partitions=2, max_message_bytes=2_000_000)
        made = Shop(kafka, tmp_path)
        yield made
        sys.modules.pop(made.module, None)
