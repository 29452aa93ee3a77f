"""Topics that are deleted and made again, that grow, and groups that are copied or new: nothing is passed over that nobody has read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import GroupAuthorizationFailedError
from tests.waiting import PATIENCE, until

from ackwise import App, Broadcasting, Message
from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, group_hash, read_own
from ackwise.middleware.progress.watermark import agents_hash
from ackwise.plugin.consumer import deletedtopics
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka

QUICK: dict[str, Any] = {"commit_interval": 0.05, "session_timeout": 6.0, "drain_timeout": 5.0}
SOON: dict[str, Any] = {"client_options": {"metadata_max_age_ms": 200}}

#: How a group of one comes to its partitions.
Kind = Callable[[Path], list[Any]]
KINDS: dict[str, Kind] = {
    "group": lambda _: [],
    "instance": lambda _: [Broadcasting("web-1")],
    "file": lambda folder: [Broadcasting("web-1", offsets_file=folder / "offsets")],
}


class Worker:
    """A worker of a group, and what it has handled."""

    def __init__(self, kafka: MemoryKafka, policies: list[Any] | None = None, *, group: str = "billing", **settings: Any) -> None:
        self.kafka = kafka
        self.group = group
        self.ran: list[bytes] = []
        self.app = App(group, brokers=kafka.bootstrap, config=Config(), **{**QUICK, **settings})
        self.app.use(*(policies or []))

        @self.app.agent("orders", name="bill")
        async def bill(message: Message[bytes]) -> None:
            self.ran.append(message.value)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.app.running() as worker, asyncio.timeout(PATIENCE):
            await worker.ready()
            yield

    async def has_run(self, *values: bytes) -> None:
        await until(lambda: set(values) <= {*self.ran})


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as made:
        made.create_topic("orders", 2)
        yield made


@pytest.fixture(params=KINDS)
def policies(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    return KINDS[request.param](tmp_path)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


async def widen(kafka: MemoryKafka, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_partitions({"orders": NewPartitions(partitions)})
    await admin.close()


async def test_a_topic_that_is_made_again_while_its_partition_is_paused_is_read_from_its_start(
    kafka: MemoryKafka, policies: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletedtopics, "_EVERY", 0.05)
    worker = Worker(kafka, policies, start="earliest")
    old, new = numbered("old", 5), numbered("new", 8)
    kafka.produce("orders", *old)
    async with worker.running():
        await worker.has_run(*old)
        await worker.app.pause("bill")
        await asyncio.sleep(1.5)  # until it is paused with the client too
        kafka.delete_topic("orders")
        kafka.create_topic("orders", 2)
        kafka.produce("orders", *new)
        await worker.app.resume("bill")
        await worker.has_run(*new)


async def test_a_topic_that_is_made_again_while_its_group_is_down_is_read_from_its_start(kafka: MemoryKafka, policies: list[Any]) -> None:
    worker, new = Worker(kafka, policies, start="earliest"), numbered("new", 8)
    kafka.produce("orders", *numbered("old", 5))
    async with worker.running():
        await worker.has_run(*numbered("old", 5))
    kept = {group: dict(kafka.group(group).offsets) for group in ("billing", "billing@web-1")}
    kafka.delete_topic("orders")
    kafka.create_topic("orders", 2)
    kafka.produce("orders", *new)
    for group, offsets in kept.items():  # another tool has kept them
        kafka.group(group).offsets.update(offsets)
    again = Worker(kafka, policies, start="latest")
    async with again.running():
        await again.has_run(*new)


async def test_what_was_copied_from_another_group_begins_at_its_offset_and_skips_nothing(kafka: MemoryKafka) -> None:
    values = numbered("v", 6)
    for value in values:
        kafka.produce("orders", value, timestamp=1000.0)
    finished = FinishedMap(2, 1_000_000, 1_000_000, agents_hash(["bill"]), 0b1110)
    metadata = CommitMetadata(finished=finished, group=group_hash("shipping"), cluster="in-memory-kafka").encode()
    kafka.group("billing").commit(("orders", 0), 2, metadata)
    worker = Worker(kafka, start="earliest")
    async with worker.running():
        await worker.has_run(*values[2:])
    assert sorted(worker.ran) == values[2:]


async def test_a_partition_that_is_new_is_read_from_its_start_also_if_it_was_made_while_the_group_was_down(
    kafka: MemoryKafka, policies: list[Any]
) -> None:
    kafka.produce("orders", b"before")
    worker = Worker(kafka, policies, start="latest", **SOON)
    async with worker.running():
        await widen(kafka, 3)
        kafka.produce("orders", b"new", partition=2)
        await worker.has_run(b"new")
    await widen(kafka, 5)
    for partition in (3, 4):
        kafka.produce("orders", b"newer %d" % partition, partition=partition)
    again = Worker(kafka, policies, start="latest")
    async with again.running():
        await again.has_run(b"newer 3", b"newer 4")
    assert b"before" not in worker.ran + again.ran


async def test_a_worker_is_ready_once_what_is_written_from_then_on_is_read(kafka: MemoryKafka, policies: list[Any]) -> None:
    worker = Worker(kafka, policies, start="latest")
    async with worker.running():
        for partition in (0, 1):
            kafka.produce("orders", b"at once %d" % partition, partition=partition)
        await worker.has_run(b"at once 0", b"at once 1")


async def test_a_first_start_commits_where_it_begins_in_one_request_before_it_is_ready(kafka: MemoryKafka) -> None:
    commits = 0

    async def watch(request: str, topics: frozenset[str], client: str, when: str) -> None:
        nonlocal commits
        commits += request == "OffsetCommit" and when == "after" and "relay" not in client

    kafka.watch = watch
    kafka.produce("orders", b"before", b"before")
    worker = Worker(kafka, start="latest", commit_interval=60.0)
    async with worker.running():
        assert commits == 1
        found = kafka.committed("billing")
    assert {place: each.offset for place, each in found.items()} == {
        ("orders", 0): 2,
        ("orders", 1): 0,
        ("billing.retry", 0): 0,
        ("billing.retry", 1): 0,
    }
    left = read_own(found["orders", 0].metadata, "billing")
    assert left is not None
    assert (left.partitions, left.is_open) == (2, True)


async def test_a_worker_that_is_killed_after_its_first_start_has_passed_over_nothing_more(kafka: MemoryKafka) -> None:
    kafka.produce("orders", b"before")
    worker = Worker(kafka, start="latest", commit_interval=60.0)
    async with worker.running():
        kept = dict(kafka.group("billing").offsets)
        kafka.produce("orders", b"a")
        await worker.has_run(b"a")
    kafka.group("billing").offsets.update(kept)  # as if it had been killed
    again = Worker(kafka, start="latest")
    async with again.running():
        await again.has_run(b"a")
    assert again.ran == [b"a"]


async def test_while_a_first_start_can_not_be_committed_nothing_begins_and_nobody_is_ready(kafka: MemoryKafka) -> None:
    kafka.faults.refuse("OffsetCommit", GroupAuthorizationFailedError, times=3)
    kafka.produce("orders", b"before")
    worker = Worker(kafka, start="latest")
    async with worker.running():
        assert kafka.committed("billing")["orders", 0].offset == 1
        kafka.produce("orders", b"a")
        await worker.has_run(b"a")
    assert worker.ran == [b"a"]


async def test_a_partition_that_is_left_in_order_says_so_beside_its_last_commit(kafka: MemoryKafka) -> None:
    worker = Worker(kafka, start="earliest")
    async with worker.running():
        left = read_own(kafka.committed("billing")["orders", 1].metadata, "billing")
        assert left is not None
        assert left.is_open
    left = read_own(kafka.committed("billing")["orders", 1].metadata, "billing")
    assert left is not None
    assert left.is_open is False
