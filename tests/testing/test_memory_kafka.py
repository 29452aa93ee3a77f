"""The Kafka in memory and a real one: the same tests, so that whoever tests with the first may trust it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    ProducerFenced,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import OffsetAndMetadata
from tests.servers import RawKafka
from tests.tables import each
from tests.waiting import PATIENCE, until

from ackwise.testing import MemoryKafka

START = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}


@pytest.fixture(params=["memory", pytest.param("real", marks=[pytest.mark.kafka, pytest.mark.nightly])])
async def raw(request: pytest.FixtureRequest) -> AsyncIterator[RawKafka]:
    if request.param == "real":
        raw = RawKafka(request.getfixturevalue("kafka").bootstrap)
        await raw.start()
        yield raw
        await raw.close()
        return
    async with MemoryKafka() as kafka:
        raw = RawKafka(kafka.bootstrap)
        await raw.start()
        yield raw
        await raw.close()


@asynccontextmanager
async def a_consumer(raw: RawKafka, *topics: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=raw.bootstrap, **{**START, **options})
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def a_producer(raw: RawKafka, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=raw.bootstrap, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def values(consumer: AIOKafkaConsumer, number: int, within: float = 60.0) -> list[bytes | None]:
    """The next `number` values, in the order in which they came."""
    found: list[bytes | None] = []
    async with asyncio.timeout(within):
        while len(found) < number:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [record.value for record in records]
    return found


async def test_what_is_produced_is_read_in_its_order(raw: RawKafka) -> None:
    topic = await raw.new_topic(2)
    await raw.produce(topic, b"a", b"b", partition=1, key=b"k", headers=[("h", b"1")])
    await raw.produce(topic, b"c", partition=1)
    await raw.produce(topic, None, partition=1, key=b"gone")
    found = await raw.records(topic)
    assert [(record.partition, record.offset, record.key, record.value) for record in found] == [
        (1, 0, b"k", b"a"),
        (1, 1, b"k", b"b"),
        (1, 2, None, b"c"),
        (1, 3, b"gone", None),
    ]
    assert found[0].headers == (("h", b"1"),)


async def test_a_compressed_batch_is_kept_as_it_came(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    async with a_producer(raw, compression_type="gzip", linger_ms=5) as producer:
        await asyncio.gather(*[producer.send_and_wait(topic, b"%d" % number) for number in range(20)])
    assert sorted(int(record.value or b"") for record in await raw.records(topic)) == list(range(20))


async def test_a_fetch_that_waits_returns_with_the_first_record(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    async with a_consumer(raw, topic, fetch_max_wait_ms=20_000) as consumer:
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        await raw.produce(topic, b"a")
        assert (await waiting).value == b"a"
        assert time.monotonic() - begun < 10


async def test_a_commit_is_kept_with_its_metadata_and_found_by_the_next_member(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(2), raw.new_group()
    await raw.produce(topic, b"a", b"b", b"c")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with a_consumer(raw, topic, group_id=group) as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit({first: OffsetAndMetadata(2, "what the next one is to know")})
    async with a_consumer(raw, topic, group_id=group) as consumer:
        assert await values(consumer, 1) == [b"c"]
        assert (await consumer.committed(first), await consumer.committed(second)) == (2, None)
        found: Any = await raw._admin.list_consumer_group_offsets(group)
        assert found[first] == OffsetAndMetadata(2, "what the next one is to know")


async def test_metadata_that_is_too_long_is_refused_and_changes_nothing(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    place = TopicPartition(topic, 0)
    await raw.produce(topic, b"a", b"b")
    async with a_consumer(raw, topic, group_id=group) as consumer:
        await values(consumer, 2)
        await consumer.commit({place: OffsetAndMetadata(1, "x" * 4096)})
        with pytest.raises(OffsetMetadataTooLargeError):
            await consumer.commit({place: OffsetAndMetadata(2, "x" * 4097)})
        assert await consumer.committed(place) == 1


async def test_two_members_share_the_partitions_and_the_one_that_stays_gets_them_all(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(4), raw.new_group()
    async with a_consumer(raw, topic, group_id=group, heartbeat_interval_ms=100) as first:
        async with a_consumer(raw, topic, group_id=group, heartbeat_interval_ms=100) as second:
            async with asyncio.timeout(PATIENCE):
                while len(first.assignment()) != 2:
                    await first.getmany(timeout_ms=50)
            assert len(second.assignment()) == 2
            assert first.assignment().isdisjoint(second.assignment())
        async with asyncio.timeout(PATIENCE):
            while len(first.assignment()) < 4:
                await first.getmany(timeout_ms=50)


@each(
    ("generation", "member_id", "code"),
    [(-1, None, 22), (0, "nobody", 25), (-1, "", 25)],
    ids=["the generation before", "somebody who is not in it", "nobody in particular"],
)
async def test_who_is_not_of_this_generation_may_not_commit(raw: RawKafka, generation: int, member_id: str | None, code: int) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    async with a_consumer(raw, topic, group_id=group) as member:
        coordinator: Any = member._coordinator
        who = coordinator.member_id if member_id is None else member_id
        when = -1 if member_id == "" else coordinator.generation + generation
        request = OffsetCommitRequest(group, when, who, -1, [(topic, [(0, 1, "")])])
        assert (await coordinator._send_req(request)).topics == [(topic, [(0, code)])]
    assert await raw.committed(group) == {}


async def test_an_empty_group_takes_the_commits_of_anybody(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    async with a_consumer(raw, group_id=group) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): 1})
    assert await raw.committed(group) == {TopicPartition(topic, 0): 1}


async def test_members_that_share_no_protocol_do_not_get_in(raw: RawKafka) -> None:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    topic, group = await raw.new_topic(), raw.new_group()
    async with a_consumer(raw, topic, group_id=group, partition_assignment_strategy=[RangePartitionAssignor]):
        other = AIOKafkaConsumer(
            topic, bootstrap_servers=raw.bootstrap, group_id=group, partition_assignment_strategy=[RoundRobinPartitionAssignor]
        )
        with pytest.raises(KafkaError):
            await asyncio.wait_for(other.start(), PATIENCE)
        await other.stop()


async def test_records_of_an_aborted_transaction_are_gaps_and_an_open_one_ends_the_log(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    place = TopicPartition(topic, 0)
    async with a_producer(raw, transactional_id=raw.new_group()) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"a", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"never", partition=0)
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"b", partition=0)
        async with a_consumer(raw, topic, isolation_level="read_committed") as consumer:
            assert await values(consumer, 1) == [b"a"]
            assert (await consumer.end_offsets([place]))[place] == 4
            await producer.commit_transaction()
            assert await values(consumer, 1) == [b"b"]
            assert (await consumer.end_offsets([place]))[place] == 6
        async with a_consumer(raw, topic) as consumer:
            assert await values(consumer, 3) == [b"a", b"never", b"b"]


async def test_offsets_that_are_sent_with_a_transaction_count_with_it_or_never(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    place = TopicPartition(topic, 0)
    async with a_producer(raw, transactional_id=raw.new_group()) as producer:
        for offset, commit in ((5, False), (7, True)):
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: offset}, group)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    assert await raw.committed(group) == {place: 7}


async def test_a_transactional_producer_fences_the_one_before(raw: RawKafka) -> None:
    topic, name = await raw.new_topic(), raw.new_group()
    async with a_producer(raw, transactional_id=name) as old:
        await old.begin_transaction()
        await old.send_and_wait(topic, b"never", partition=0)
        async with a_producer(raw, transactional_id=name) as new:
            async with new.transaction():
                await new.send_and_wait(topic, b"a", partition=0)
            with pytest.raises((ProducerFenced, KafkaError)):
                await old.send_and_wait(topic, b"late", partition=0)
    async with a_consumer(raw, topic, isolation_level="read_committed") as consumer:
        assert await values(consumer, 1) == [b"a"]


async def test_what_was_deleted_can_not_be_read_and_says_so(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    place = TopicPartition(topic, 0)
    for value in (b"a", b"b", b"c"):
        await raw.produce(topic, value)
    await raw._admin.delete_records({place: RecordsToDelete(2)})
    async with a_consumer(raw, auto_offset_reset="none") as consumer:
        consumer.assign([place])
        assert (await consumer.beginning_offsets([place]), await consumer.end_offsets([place])) == ({place: 2}, {place: 3})
        consumer.seek(place, 0)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getmany(timeout_ms=2_000)
        consumer.seek(place, 2)
        assert await values(consumer, 1) == [b"c"]


async def test_an_offset_is_found_by_its_time(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    place, first = TopicPartition(topic, 0), round(time.time() * 1000) - 60_000
    async with a_producer(raw) as producer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number, partition=0, timestamp_ms=first + number * 1000)
    async with a_consumer(raw) as consumer:
        consumer.assign([place])
        found = await consumer.offsets_for_times({place: first + 1500})
        assert found[place] is not None
        assert (found[place].offset, found[place].timestamp) == (2, first + 2000)
        assert (await consumer.offsets_for_times({place: first + 9000}))[place] is None


async def test_the_time_of_the_append_counts_where_the_topic_says_so(raw: RawKafka) -> None:
    topic = await raw.new_topic(message_timestamp_type="LogAppendTime")
    async with a_producer(raw) as producer:
        await producer.send_and_wait(topic, b"a", partition=0, timestamp_ms=1000)
    (record,) = await raw.records(topic)
    assert abs(record.timestamp / 1000 - time.time()) < 60
    assert record.timestamp_type == 1


async def test_a_record_that_is_too_large_is_refused_and_leaves_no_gap(raw: RawKafka) -> None:
    topic = await raw.new_topic(max_message_bytes=5000)
    with pytest.raises(MessageSizeTooLargeError):
        await raw.produce(topic, b"x" * 6000)
    assert await raw.produce(topic, b"a") == [0]


async def test_topics_have_settings_more_partitions_and_an_end(raw: RawKafka) -> None:
    topic = await raw.new_topic(1, retention_ms=1000)
    assert (await configs(raw, topic))["retention.ms"] == "1000"
    await raw.alter(topic, retention_ms=2000)
    assert (await configs(raw, topic))["retention.ms"] == "2000"
    await raw._admin.create_partitions({topic: NewPartitions(3)})
    assert len(await raw._partitions(topic)) == 3
    await raw._admin.delete_topics([topic])
    await until(raw.topics, lambda topics: topic not in topics)


async def configs(raw: RawKafka, topic: str) -> dict[str, str]:
    answer: Any
    (answer,) = await raw._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for _, _, _, _, entries in answer.resources for entry in entries}


@each(
    ("wanted", "code"),
    [
        (lambda name: NewTopic(name, 1, 1), 36),
        (lambda name: NewTopic(f"{name}!", 1, 1), 17),
        (lambda name: NewTopic(f"{name}-none", 0, 1), 37),
        (lambda name: NewTopic(f"{name}-copies", 1, 3), 38),
    ],
    ids=["there already", "no name", "no partitions", "more replicas than brokers"],
)
async def test_a_topic_that_can_not_be_made_is_refused(raw: RawKafka, wanted: Callable[[str], NewTopic], code: int) -> None:
    answer: Any = await raw._admin.create_topics([wanted(await raw.new_topic())])
    assert [error[1] for error in answer.topic_errors] == [code]


async def test_groups_are_listed_and_described_with_their_members(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    async with a_consumer(raw, topic, group_id=group):
        found: Any
        (found,) = await raw._admin.describe_consumer_groups([group])
        ((code, name, state, kind, _, members, *_),) = found.groups
        assert (code, name, state, kind, len(members)) == (0, group, "Stable", "consumer", 1)
        assert (group, "consumer") in await raw._admin.list_consumer_groups()


async def refused(raw: RawKafka, topic: str, **record: Any) -> int:
    """The code with which a record is refused."""
    async with a_producer(raw, acks="all") as producer:
        batch: Any = producer.create_batch()
        batch.append(**{"timestamp": None, "key": None, "value": b"a", **record})
        batch.close()
        client: Any = producer.client
        request = ProduceRequest(None, -1, 1000, [(topic, [(0, bytes(batch._build()))])])
        answer = await client.send(next(iter(client.cluster.brokers())).nodeId, request)
        return int(answer.topics[0][1][0][1])


@each(
    ("config", "record", "code"),
    [
        ({"min_insync_replicas": 2}, {}, 0),
        ({"cleanup_policy": "compact"}, {}, 87),
        ({}, {"timestamp": round(time.time() * 1000) + 86_400_000}, 32),
        ({"message_timestamp_type": "LogAppendTime"}, {"timestamp": round(time.time() * 1000) + 86_400_000}, 0),
        ({"cleanup_policy": "compact"}, {"key": b"k"}, 0),
    ],
    ids=[
        "more in sync than there are",
        "no key where it is compacted",
        "from tomorrow",
        "from tomorrow, which does not count",
        "with a key",
    ],
)
async def test_records_are_refused_for_what_their_topic_says(
    raw: RawKafka, config: dict[str, Any], record: dict[str, Any], code: int
) -> None:
    assert await refused(raw, await raw.new_topic(**config), **record) == code


async def test_nothing_is_deleted_behind_the_end(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    await raw.produce(topic, b"a")
    with pytest.raises(OffsetOutOfRangeError):
        await raw._admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(5)})
    assert len(await raw.records(topic)) == 1


async def test_what_is_only_tried_is_not_done(raw: RawKafka) -> None:
    topic = await raw.new_topic()
    await raw._admin.create_partitions({topic: NewPartitions(5)}, validate_only=True)
    assert len(await raw._partitions(topic)) == 1


async def test_a_setting_that_is_no_number_is_refused(raw: RawKafka) -> None:
    answer: Any = await raw._admin.create_topics([NewTopic(f"odd-{time.time_ns()}", 1, 1, topic_configs={"retention.ms": "soon"})])
    assert [error[1] for error in answer.topic_errors] == [40]


async def test_offsets_of_a_transaction_with_too_much_metadata_are_refused_before_its_end(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(), raw.new_group()
    async with a_producer(raw, transactional_id=raw.new_group()) as producer:
        await producer.begin_transaction()
        with pytest.raises(KafkaError):
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(1, "x" * 5000)}, group)
    assert await raw.committed(group) == {}


async def test_a_static_member_that_comes_again_finds_its_assignment_and_rebalances_nobody(raw: RawKafka) -> None:
    topic, group = await raw.new_topic(2), raw.new_group()
    options: dict[str, Any] = {"group_id": group, "heartbeat_interval_ms": 100, "session_timeout_ms": 10_000}
    async with a_consumer(raw, topic, **options), a_consumer(raw, topic, group_instance_id="one", **options) as before:
        coordinator: Any = before._coordinator
        assigned, generation = before.assignment(), coordinator.generation
        assert len(assigned) == 1
        async with a_consumer(raw, topic, group_instance_id="one", **options) as again:
            of_the_next: Any = again._coordinator
            assert (again.assignment(), of_the_next.generation) == (assigned, generation)
            assert coordinator.member_id != of_the_next.member_id
