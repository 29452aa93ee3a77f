"""Partitions that the client can't read, beside others on a real broker: the others lose nothing, and nothing is passed over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from tests.servers import RawKafka, connected
from tests.waiting import PATIENCE, until

from ackwise import reliable
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

Given = dict[TopicPartition, list[int]]


@asynccontextmanager
async def host(raw: RawKafka, group: str, topics: Sequence[str], given: Given) -> AsyncIterator[None]:
    """A worker that consumes `topics` into `given`."""

    async def bill(batch: Batch[bytes]) -> None:
        for message in batch:
            given[TopicPartition(message.topic, message.partition)].append(message.offset)

    stop = asyncio.Event()
    settings = HostSettings(raw.bootstrap, group, commit_interval=0.1)
    agent = Agent("bill", tuple(topics), "batch", bill, lambda value: value, max_batch=200)
    running = asyncio.create_task(AiokafkaHost(settings, [agent], Parts(ConsumeLater(levels="1s"), DeadLetter())).run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


@asynccontextmanager
async def loop(raw: RawKafka, group: str, topics: Sequence[str], given: Given) -> AsyncIterator[None]:
    """As `host`, with a loop of the user's own."""

    async def consume(batches: Any) -> None:
        async for batch in batches:
            async with batch:
                for message in batch:
                    given[TopicPartition(message.topic, message.partition)].append(message.offset)

    options: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "none", "isolation_level": "read_committed"}
    consumer = AIOKafkaConsumer(bootstrap_servers=raw.bootstrap, group_id=group, **options)
    async with connected(consumer), reliable(consumer, topics, ConsumeLater(levels="1s"), commit_interval=0.1) as batches:
        running = asyncio.create_task(consume(batches))
        try:
            yield
        finally:
            batches.stop()
            await running


async def committed_at(raw: RawKafka, group: str, partition: TopicPartition, offset: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(KafkaError):  # a broker that has just come up knows no coordinator yet
                if (await raw.committed(group)).get(partition) == offset:
                    return
            await asyncio.sleep(0.1)


async def compacted(raw: RawKafka) -> tuple[TopicPartition, list[int]]:
    """A partition whose log has holes, and what is left of it; later it may be less still."""
    config = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 0}
    topic = await raw.new_topic(1, **config)
    await raw.produce(topic, b"first", key=b"other")
    async with asyncio.timeout(PATIENCE):
        while True:
            await raw.produce(topic, *[b"%d" % number for number in range(50)], key=b"same")
            await asyncio.sleep(0.5)
            left = [record.offset for record in await raw.records(topic)]
            if any(after > before + 40 for before, after in pairwise(left)):
                break
    return TopicPartition(topic, 0), left


async def aborted(raw: RawKafka) -> tuple[TopicPartition, list[int]]:
    """A partition with records of aborted transactions among the others, and what is left of it."""
    topic, given = await raw.new_topic(1), list[int]()
    producer = AIOKafkaProducer(bootstrap_servers=raw.bootstrap, transactional_id=f"tx-{topic}")
    async with connected(producer):
        for number in range(10):
            await producer.begin_transaction()
            sent = [await producer.send_and_wait(topic, b"%d" % each, partition=0) for each in range(20)]
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                given += [one.offset for one in sent]
    return TopicPartition(topic, 0), given


@pytest.mark.parametrize("consuming", [host, loop])
async def test_a_bad_an_aborted_and_a_compacted_partition_side_by_side_cost_no_healthy_message(
    consuming: Any, raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What happened with one topic in zstd beside others where the codec was not installed."""
    (holes, left), (transactions, kept) = await compacted(raw_kafka), await aborted(raw_kafka)
    plain, bad = TopicPartition(await raw_kafka.new_topic(1), 0), TopicPartition(await raw_kafka.new_topic(1), 0)
    producer = AIOKafkaProducer(bootstrap_servers=raw_kafka.bootstrap, compression_type="zstd")
    async with connected(producer):
        for number in range(500):
            await producer.send(bad.topic, b"%d" % number * 50, partition=0)
    for _ in range(8):
        await raw_kafka.produce(plain.topic, *[b"%d" % number for number in range(500)])
    given: Given = defaultdict(list)
    group = raw_kafka.new_group()
    with monkeypatch.context() as without:
        without.setattr("aiokafka.codec.cramjam", None)
        async with consuming(raw_kafka, group, [one.topic for one in (bad, holes, transactions, plain)], given):
            await until(lambda: (len(given[plain]), len(given[transactions]), given[holes][-1:]) == (4000, len(kept), left[-1:]))
            await committed_at(raw_kafka, group, plain, 4000)
            await until(lambda: "partition unreadable" in caplog.text)
    still_there = {record.offset for record in await raw_kafka.records(holes.topic)}
    assert still_there <= set(given[holes]) <= set(left)
    assert given == {plain: [*range(4000)], holes: sorted(set(given[holes])), transactions: kept}
    assert (await raw_kafka.committed(group)).get(bad, 0) == 0
    async with consuming(raw_kafka, group, [one.topic for one in (bad, holes, transactions, plain)], given):
        await until(lambda: len(given[bad]) == 500)
        await committed_at(raw_kafka, group, bad, 500)
    assert given.pop(holes)[-1] == left[-1]
    assert given == {plain: [*range(4000)], transactions: kept, bad: [*range(500)]}


async def send_with_header(raw: RawKafka, topic: str, name: bytes, value: bytes) -> None:
    """Send a record with a header of this name, in a batch between two others."""

    class Raw(str):
        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            return name

    producer = AIOKafkaProducer(bootstrap_servers=raw.bootstrap)
    async with connected(producer):
        batch: Any = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, 0, 2**20)
        batch.append(timestamp=None, key=b"k", value=b"before", headers=[])
        batch.append(timestamp=None, key=b"k", value=value, headers=[("trace", b"1"), (Raw("x"), b"2")])
        batch.append(timestamp=None, key=b"k", value=b"after", headers=[])
        await (await producer.send_batch(batch, topic, partition=0))


@pytest.mark.parametrize("consuming", [host, loop])
async def test_a_header_name_that_is_not_utf8_makes_a_dead_letter_and_stops_nobody(consuming: Any, raw_kafka: RawKafka) -> None:
    topic, other, group = await raw_kafka.new_topic(), await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"one", b"two")
    await send_with_header(raw_kafka, topic, b"caf\xe9", b"bad")
    await raw_kafka.produce(topic, b"three")
    await raw_kafka.produce(other, *[b"x"] * 100)
    given: Given = defaultdict(list)
    async with consuming(raw_kafka, group, [topic, other], given):
        await until(lambda: len(given[TopicPartition(topic, 0)]) == 5 and len(given[TopicPartition(other, 0)]) == 100)
        await committed_at(raw_kafka, group, TopicPartition(topic, 0), 6)
        await send_with_header(raw_kafka, f"{group}.retry", b"\xff\xfe", b"stray")
        await committed_at(raw_kafka, group, TopicPartition(f"{group}.retry", 0), 3)
    letters = {record.value: record for record in await raw_kafka.records(f"{group}.dlq")}
    assert given == {TopicPartition(topic, 0): [0, 1, 2, 4, 5], TopicPartition(other, 0): [*range(100)]}
    letter = letters[b"bad"]
    assert (letter.key, letter.headers[:2]) == (b"k", (("trace", b"1"), ("caf?", b"2")))
    headers = dict(letter.headers)
    assert (headers["ackwise-reason"], headers["ackwise-header-names"]) == (b"undecodable", b"1:636166e9")
    assert dict(letters[b"stray"].headers)["ackwise-header-names"] == b"1:fffe"
