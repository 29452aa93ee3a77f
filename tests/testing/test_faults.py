"""Faults of the Kafka in memory, and what clients make of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NotLeaderForPartitionError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4
from tests.waiting import PATIENCE, until

from ackwise.testing import MemoryKafka, VirtualClock
from ackwise.testing.kafka.group import ConsumerGroup


async def send(kafka: MemoryKafka, *values: bytes, idempotent: bool = True) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=idempotent, retry_backoff_ms=1, request_timeout_ms=5000
    )
    try:
        await producer.start()
        for value in values:
            await producer.send_and_wait("orders", value, partition=0)
    finally:
        await producer.stop()


def values(kafka: MemoryKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("orders")]


async def test_a_refused_request_has_no_effect_and_the_next_one_has(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    fault = memory_kafka.faults.refuse("Produce", NotLeaderForPartitionError, times=2)
    await send(memory_kafka, b"a")
    assert (fault.met, values(memory_kafka)) == (2, [b"a"])


async def test_what_is_refused_for_good_is_the_clients_error(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.faults.refuse("Produce", TopicAuthorizationFailedError, times=None)
    with pytest.raises(TopicAuthorizationFailedError):
        await send(memory_kafka, b"a")
    assert values(memory_kafka) == []


async def test_after_a_lost_answer_an_idempotent_producer_writes_once_and_another_one_twice(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.faults.lose_answer("Produce")
    await send(memory_kafka, b"a")
    assert values(memory_kafka) == [b"a"]
    memory_kafka.faults.lose_answer("Produce")
    await send(memory_kafka, b"b", idempotent=False)
    assert values(memory_kafka) == [b"a", b"b", b"b"]


async def test_a_lost_request_is_sent_again(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    fault = memory_kafka.faults.lose_request("Produce")
    await send(memory_kafka, b"a")
    assert (fault.met, values(memory_kafka)) == (1, [b"a"])


async def test_what_is_held_goes_on_once_the_fault_is_ended(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    fault = memory_kafka.faults.hold("Produce")
    sending = asyncio.create_task(send(memory_kafka, b"a"))
    await until(lambda: fault.met)
    assert values(memory_kafka) == []
    fault.end()
    await sending
    assert values(memory_kafka) == [b"a"]


async def test_a_fault_about_a_topic_leaves_the_others_alone(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    fault = memory_kafka.faults.refuse("Produce", TopicAuthorizationFailedError, topic="refunds")
    await send(memory_kafka, b"a")
    assert (fault.met, values(memory_kafka)) == (0, [b"a"])


def test_a_fault_of_a_request_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'Prodcue' is no request .* Produce, Fetch"):
        MemoryKafka().faults.lose_request("Prodcue")
    with pytest.raises(ValueError, match="times is 0"):
        MemoryKafka().faults.lose_request("Produce", times=0)


def test_a_kafka_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with MemoryKafka"):
        _ = MemoryKafka().bootstrap


async def test_a_broker_that_was_away_comes_back_with_what_it_had_at_the_address_that_it_had(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    await send(memory_kafka, b"a")
    where = memory_kafka.bootstrap
    await memory_kafka.stop()
    with pytest.raises(KafkaConnectionError):
        await send(memory_kafka, b"b")
    await memory_kafka.start()
    await send(memory_kafka, b"c")
    assert (memory_kafka.bootstrap, values(memory_kafka)) == (where, [b"a", b"c"])


async def test_retention_goes_by_the_clock_and_takes_whole_batches(memory_kafka: MemoryKafka, virtual_clock: VirtualClock) -> None:
    memory_kafka.create_topic("orders", retention_ms=3_600_000)
    memory_kafka.produce("orders", b"a", b"b")
    virtual_clock.advance("59m")
    memory_kafka.produce("orders", b"c")
    virtual_clock.advance("2m")
    memory_kafka.apply_retention()
    assert [record.offset for record in memory_kafka.records("orders")] == [2]
    assert (memory_kafka.log("orders").start, memory_kafka.log("orders").end) == (2, 3)


async def test_removed_batches_leave_gaps_that_a_reader_passes_over(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    for value in (b"a", b"b", b"c"):
        memory_kafka.produce("orders", value)
    memory_kafka.log("orders").remove([1])
    consumer = AIOKafkaConsumer(bootstrap_servers=memory_kafka.bootstrap)
    await consumer.start()
    try:
        place = TopicPartition("orders", 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        found = [await consumer.getone() for _ in range(2)]
        assert [(record.offset, record.value) for record in found] == [(0, b"a"), (2, b"c")]
    finally:
        await consumer.stop()


async def test_a_member_whose_session_ends_is_out_and_joins_anew(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    consumer = AIOKafkaConsumer("orders", bootstrap_servers=memory_kafka.bootstrap, group_id="billing", heartbeat_interval_ms=20)
    await consumer.start()
    try:
        group = memory_kafka.group("billing")
        (before,) = group.members
        group.expire(before)
        assert group.members == []
        async with asyncio.timeout(PATIENCE):
            while not group.members:
                await consumer.getmany(timeout_ms=20)
        assert group.members != [before]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("api", ["OffsetCommit", "Heartbeat", "OffsetFetch", "ListOffsets", "FindCoordinator"])
async def test_each_request_of_a_member_can_be_refused(memory_kafka: MemoryKafka, api: str) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.produce("orders", b"a")
    fault = memory_kafka.faults.refuse(api, TopicAuthorizationFailedError, times=None)
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=memory_kafka.bootstrap, group_id="billing", heartbeat_interval_ms=20, auto_offset_reset="earliest",
        enable_auto_commit=False, retry_backoff_ms=5,
    )  # fmt: skip

    async def consume() -> None:
        await consumer.start()
        while True:
            await consumer.getone()
            await consumer.commit()

    try:
        with pytest.raises((KafkaError, TimeoutError)):
            await asyncio.wait_for(consume(), 1)
        assert fault.met
    finally:
        memory_kafka.faults.clear()
        await consumer.stop()


async def test_a_transaction_that_stays_open_is_aborted_and_its_producer_fenced(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    producer = AIOKafkaProducer(bootstrap_servers=memory_kafka.bootstrap, transactional_id="t", transaction_timeout_ms=100)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"never", partition=0)
        log = memory_kafka.log("orders")
        await until(lambda: log.stable > 0)
        assert [each.first for each in log.aborted(0)] == [0]
        with pytest.raises(KafkaError):
            await producer.commit_transaction()
    finally:
        await producer.stop()


async def test_a_producer_whose_topic_was_deleted_in_its_transaction_starts_again(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.create_topic("refunds")
    first = AIOKafkaProducer(bootstrap_servers=memory_kafka.bootstrap, transactional_id="t")
    await first.start()
    await first.begin_transaction()
    await first.send_and_wait("orders", b"never", partition=0)
    await first.send_and_wait("refunds", b"never", partition=0)
    admin = AIOKafkaAdminClient(bootstrap_servers=memory_kafka.bootstrap)
    await admin.start()
    await admin.delete_topics(["orders"])
    await admin.close()
    second = AIOKafkaProducer(bootstrap_servers=memory_kafka.bootstrap, transactional_id="t")
    try:
        await asyncio.wait_for(second.start(), PATIENCE)
        assert memory_kafka.log("refunds").stable == memory_kafka.log("refunds").end == 2
    finally:
        await second.stop()
        await first.stop()


async def test_a_broker_that_is_away_answers_nobody_and_what_it_had_not_sent_is_lost(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    for _ in range(20):
        memory_kafka.produce("orders", b"x" * 900_000)
    host, port = memory_kafka.bootstrap.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1000)
    fetch = FetchRequest(100, 1, 1 << 30, 0, [("orders", [(0, 0, 1 << 30)])]).build(FetchRequest_v4)
    frame = fetch.build_request_header(1, "slow").encode() + fetch.encode()
    writer.write(len(frame).to_bytes(4, "big") + frame)
    await reader.readexactly(1000)
    await memory_kafka.stop()
    rest = 0
    with suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            rest += len(data)
    assert rest < 18_000_000
    writer.close()


async def test_a_mistake_of_the_broker_fails_the_test_that_met_it() -> None:
    async def meet() -> None:
        async with MemoryKafka() as kafka:
            kafka.create_topic("orders")
            kafka._cluster.topics["orders"].configs["max.message.bytes"] = "soon"
            producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, request_timeout_ms=200, retry_backoff_ms=10)
            await producer.start()
            with pytest.raises(KafkaError):
                await producer.send_and_wait("orders", b"a", partition=0)
            await producer.stop()

    with pytest.raises(ValueError, match="invalid literal"):
        await meet()


async def test_members_that_wait_for_a_leader_who_dies_join_anew_and_stay() -> None:
    group = ConsumerGroup("billing")

    async def join(name: str, member_id: str = "") -> dict[str, Any]:
        return await group.join(
            member_id=member_id, instance=None, client_id=name, session=0.2, rebalance=5.0, protocol_type="consumer",
            protocols=[("range", b"")], asks_twice=False,
        )  # fmt: skip

    first = await join("a")
    await group.sync(member_id=first["member_id"], instance=None, generation=1, assignments={})
    second = asyncio.create_task(join("b"))
    await asyncio.sleep(0)
    await join("a", first["member_id"])
    follower = (await second)["member_id"]
    with pytest.raises(RebalanceInProgressError):  # the leader never comes to assign
        await group.sync(member_id=follower, instance=None, generation=2, assignments={})
    assert group.members == [follower]
    assert (await join("b", follower))["leader_id"] == follower
    group.close()
