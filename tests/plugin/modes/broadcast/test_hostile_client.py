"""A hostile client under an instance that broadcasts: whatever it does, what waited is read and what comes is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import LeaderNotAvailableError
from tests.plugin.modes.broadcast.instances import FileOf, Instance

from ackwise.middleware.events import EventCode
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import install, under
from ackwise.testing.hostile.plan import Plan

#: What any client may suffer, with positions in Kafka or in a file.
ANY = [
    "worker.Fetch:raises", "worker.Fetch:raises-after", "worker.Fetch:corrupt", "worker.Fetch:not-leader-one",
    "worker.Fetch:no-topic-one", "worker.Fetch:out-of-range", "worker.Fetch:unknown", "worker.Fetch:empty",
    "worker.drain:raises-after", "worker.drain:cancelled-after", "worker.drain:raises-oddly",
    "worker.ListOffsets:raises", "worker.ListOffsets:short", "worker.ListOffsets:empty", "worker.ListOffsets:not-leader-one",
    "worker.ListOffsets:cancelledx2", "worker.close:raises-after"
]  # fmt: skip

#: What only a member of a group can suffer.
OF_A_GROUP = [
    "worker.OffsetFetch:raises", "worker.OffsetFetch:loadingx4", "worker.OffsetFetch:shortx4", "worker.OffsetFetch:emptyx4",
    "worker.OffsetCommit:raises", "worker.OffsetCommit:rebalancing", "worker.Heartbeat:unknown-member", "worker.JoinGroup:raises-after",
    "topics.DescribeGroups:raises", "topics.DescribeGroups:late"
]  # fmt: skip


async def suffer(fault: str, file: Path | None) -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("changes", 2)
        async with Instance(kafka, "web-1", file) as one:
            await one.until(lambda: len(one.committed()) == 2)
        for partition in (0, 1):
            kafka.produce("changes", b"waited %d" % partition, partition=partition)
        expected = {b"waited 0", b"waited 1", b"after 0", b"after 1"}
        plan = Plan.parse(fault)
        passing = under.set(plan)
        async with Instance(kafka, "web-1", file) as again:
            for partition in (0, 1):
                kafka.produce("changes", b"after %d" % partition, partition=partition)
            await again.until(lambda: set(again.seen) == expected)
            await again.until(lambda: again.committed() == {0: 2, 1: 2})
            if not fault.startswith("worker.close"):
                spent = asyncio.create_task(plan.wait_until_spent())
                await again.until(spent.done)
        under.reset(passing)
        assert all(event.from_commit for event in again.codes(EventCode.ASSIGNED)), fault
        await asyncio.gather(*(client.close() for client in plan.clients), return_exceptions=True)


async def suffer_each(faults: Iterable[tuple[str, Path | None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side, since each of them mostly waits."""
    install(monkeypatch)
    tasks = [asyncio.create_task(suffer(fault, file), name=fault) for fault, file in faults]
    await asyncio.wait(tasks)
    failed = {task.get_name(): task.exception() for task in tasks if task.exception() is not None}
    assert not failed


@pytest.mark.slow  # waits until each fault has struck
@pytest.mark.parametrize("turn", [0, 1], ids=["one way", "the other way"])
async def test_whatever_the_client_does_an_instance_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """Faults take turns at both ways to keep positions."""
    files = [tmp_path / f"{place}.offsets" if place % 2 == turn else None for place in range(len(ANY))]
    await suffer_each(zip(ANY, files, strict=True), monkeypatch)


@pytest.mark.slow  # waits until each fault has struck
async def test_whatever_the_coordinator_answers_an_instance_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    await suffer_each(((fault, None) for fault in OF_A_GROUP), monkeypatch)


async def test_a_topic_that_is_away_for_a_moment_is_read_on_where_it_was(kafka: MemoryKafka, file_of: FileOf) -> None:
    soon: dict[str, Any] = {"client_options": {"metadata_max_age_ms": 100}}
    async with Instance(kafka, "web-1", file_of("web-1"), **soon) as one:
        await one.until(lambda: len(one.committed()) == 2)
        kafka.produce("changes", b"a", partition=1)
        await one.until(lambda: one.committed() == {0: 0, 1: 1})
        away = kafka.faults.refuse("Metadata", LeaderNotAvailableError, times=None)
        await one.until(lambda: away.met >= 3)
        kafka.produce("changes", b"b", partition=1)
        away.end()
        await one.until(lambda: one.committed() == {0: 0, 1: 2})
    assert one.seen == [b"a", b"b"]
