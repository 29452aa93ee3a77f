"""How much one poll takes: what agents read goes into lanes that are bounded, what tables recover from does not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

from ackwise.plugin.faust.thread import Cursor, ReliableThread

ORDERS, CHANGES = TopicPartition("orders", 0), TopicPartition("shop-stock-changelog", 0)


class Client:
    """What is asked of aiokafka's consumer, which stands at the beginning of everything."""

    def __init__(self, assigned: Sequence[TopicPartition]) -> None:
        self._assigned = set(assigned)
        self._closed = False
        self._coordinator = SimpleNamespace()
        self._fetcher = SimpleNamespace(_fetch_task=SimpleNamespace(done=lambda: False), _records={})
        state = SimpleNamespace(position=0, has_valid_position=True)
        assignment = SimpleNamespace(state_value=lambda partition: state)
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))

    def assignment(self) -> set[TopicPartition]:
        return self._assigned


@pytest.mark.parametrize(
    ("polled", "configured", "most"),
    [(ORDERS, None, 500), (ORDERS, 50, 50), (CHANGES, None, None)],
    ids=["agents-read-it", "configured", "a-table-recovers-from-it"],
)
async def test_a_poll_takes_no_more_than_its_bound(
    monkeypatch: pytest.MonkeyPatch, polled: TopicPartition, configured: int | None, most: int | None
) -> None:
    asked = []

    async def fetch(
        self: object, consumer: object, partitions: object, *, timeout: float | None, max_records: int | None
    ) -> dict[Any, Any]:
        asked.append(max_records)
        return {}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    thread: Any = ReliableThread.__new__(ReliableThread)
    cursor = Cursor(0)
    cursor.expected = 0
    thread.app = SimpleNamespace(ackwise=SimpleNamespace(cursors={ORDERS: cursor}, lanes={}))
    await thread._fetch_records(Client([ORDERS, CHANGES]), {polled}, timeout=0.0, max_records=configured)
    assert asked == [most]
