"""A hostile client under an instance that broadcasts: whatever it does, what waited is read and what comes is read."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import LeaderNotAvailableError
from tests.plugin.broadcast.instances import FileOf, Instance

from ackwise.middleware.events import EventCode
from ackwise.testing import MemoryKafka, hostile_client

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
    sys.stdout.write(f"{fault}\n")  # the last one is what a failure is about
    async with MemoryKafka() as kafka:
        kafka.create_topic("changes", 2)
        async with Instance(kafka, "web-1", file) as one:
            await one.until(lambda: len(one.committed()) == 2)
        for partition in (0, 1):
            kafka.produce("changes", b"waited %d" % partition, partition=partition)
        expected = {b"waited 0", b"waited 1", b"after 0", b"after 1"}
        with hostile_client(fault) as plan:
            async with Instance(kafka, "web-1", file) as again:
                for partition in (0, 1):
                    kafka.produce("changes", b"after %d" % partition, partition=partition)
                await again.until(lambda: set(again.seen) == expected)
                await again.until(lambda: again.committed() == {0: 2, 1: 2})
                if not fault.startswith("worker.close"):
                    spent = asyncio.create_task(plan.wait_until_spent())
                    await again.until(spent.done)
        assert all(event.from_commit for event in again.codes(EventCode.ASSIGNED)), fault
        await asyncio.gather(*(client.close() for client in plan.clients), return_exceptions=True)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.nightly)], ids=["one way", "the other way"])
async def test_whatever_the_client_does_an_instance_misses_nothing(tmp_path: Path, turn: int) -> None:
    """Faults take turns at both ways to keep positions."""
    for place, fault in enumerate(ANY):
        await suffer(fault, tmp_path / f"{place}.offsets" if place % 2 == turn else None)


async def test_whatever_the_coordinator_answers_an_instance_misses_nothing() -> None:
    for fault in OF_A_GROUP:
        await suffer(fault, None)


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
