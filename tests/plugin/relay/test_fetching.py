"""What the relay fetches beside a partition that can't be read: that one stays alone, whatever becomes of its probation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.plugin.relay.client import Cluster

from ackwise.plugin.group import quarantine
from ackwise.plugin.relay import fetching as delayfetch
from ackwise.plugin.relay.fetching import DelayFetch

GOOD, BAD = TopicPartition("billing.delay.1", 0), TopicPartition("billing.delay.1", 1)


class Line:
    """A line that takes everything."""

    def __init__(self) -> None:
        self.position = 0
        self.unreadable: str | None = None

    def offer(self, deliveries: Iterable[Any], *, is_append_time: bool) -> None:
        for delivery in deliveries:
            self.position = delivery.offset + 1

    def is_full(self, *, paused: bool) -> bool:
        return False


class Scene:
    """A fetch that has left `BAD` alone; `now` is the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delayfetch, "_ROUND", 0.0)
        self.cluster = Cluster(["billing.delay.1"], 2)
        client: Any = self.cluster.client()
        self.client = client
        self.lines: dict[TopicPartition, Any] = {GOOD: Line(), BAD: Line()}
        self.now = 100.0
        self.fetch = DelayFetch(self.client, "billing", self.lines, reopen=lambda partition: None, clock=lambda: self.now)
        for partition in self.lines:
            self.cluster.write(partition, b"", (), 0)
            self.client.seek(partition, 0)

    async def feed(self) -> None:
        await self.fetch.feed(0.0, only_lines=False)

    async def isolate(self) -> None:
        self.cluster.unreadable[BAD, 0] = ValueError("odd")
        for _ in range(3):
            await self.feed()
        assert (self.client.paused(), self.lines[BAD].unreadable) == ({BAD}, "ValueError")


async def test_a_partition_whose_probation_ends_undecided_is_left_alone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    await scene.isolate()
    monkeypatch.setattr(scene.client, "last_poll_timestamp", lambda partition: 7)  # its broker answers nothing
    records = scene.cluster.logs.pop(BAD)
    scene.now += 11.0
    await scene.feed()
    assert scene.client.paused() == set(), "it is asked again"
    scene.now += 5.0
    await scene.feed()
    assert (scene.client.paused(), scene.lines[BAD].unreadable) == ({BAD}, "ValueError")
    scene.cluster.logs[BAD] = records
    scene.cluster.write(GOOD, b"", (), 0)
    await scene.feed()
    assert scene.lines[GOOD].position == 2


async def test_an_error_that_the_client_had_for_a_partition_left_alone_is_not_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_BACK_OFF", (1000.0, 1000.0))
    scene = Scene(monkeypatch)
    await scene.isolate()
    getmany, kept = scene.client.getmany, [ValueError("odd"), ValueError("odd")]

    async def raising(*partitions: TopicPartition, **options: Any) -> Any:
        if not partitions and kept:
            raise kept.pop()
        return await getmany(*partitions, **options)

    monkeypatch.setattr(scene.client, "getmany", raising)
    while kept:
        scene.now += 11.0  # the search of the one before is over
        await scene.feed()
        await scene.feed()
    scene.cluster.write(GOOD, b"", (), 0)
    scene.now += 11.0
    await scene.feed()
    assert scene.lines[GOOD].position == 2
