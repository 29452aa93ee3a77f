"""What is taken out of aiokafka's fetcher, over prefabricated record batches: every record once and in order, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchError
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from tests.plugin.logs import Logs, batch, buffers, corrupt, reading

from ackwise.plugin.kafka import fetchbuffer
from ackwise.plugin.kafka.aiokafkainternals import positions_of
from ackwise.plugin.kafka.fetchbuffer import Taking, is_known

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("other", 0)

TEN = [b"%d" % number for number in range(10)]


def sparse(first: int, offsets: Sequence[int], after: int) -> tuple[int, bytes]:
    """A compacted batch: of its records `offsets` are left."""
    builder: Any = DefaultRecordBatchBuilder(2, 0, False, -1, 0, 0, 2**31 - 1)
    for offset in offsets:
        builder.append(offset - first, 1_700_000_000_000, b"k", b"%d" % offset, [])
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")
    raw[23:27] = (after - first - 1).to_bytes(4, "big")
    return after, _summed(raw)


def control(first: int, producer: int, kind: int) -> tuple[int, bytes]:
    """A control batch: an abort marker for `kind` 0, a commit marker for 1."""
    builder: Any = DefaultRecordBatchBuilder(2, 0, True, producer, 0, 0, 2**31 - 1)
    builder.append(0, 1_700_000_000_000, (0).to_bytes(2, "big") + kind.to_bytes(2, "big"), b"\0" * 6, [])
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")
    raw[22] |= 0x20
    return first + 1, _summed(raw)


def _summed(raw: bytearray) -> bytes:
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


@asynccontextmanager
async def client(logs: Logs) -> AsyncIterator[tuple[Any, Taking]]:
    consumer: Any = reading(logs)
    for partition in logs.logs:
        consumer.seek(partition, 0)
    try:
        yield consumer, Taking(consumer)
    finally:
        await consumer._fetcher.close()
        consumer._closed = True


def position_of(consumer: Any, partition: TopicPartition) -> int | None:
    return positions_of(consumer, [partition]).get(partition)


async def offsets(taker: Taking, most: int = 500, partition: TopicPartition = ORDERS) -> list[int]:
    found = await taker.take(partition, timeout_ms=1000, most=most)
    return [record.offset for record in found.get(partition, [])]


def test_the_installed_aiokafka_is_known() -> None:
    assert fetchbuffer._KNOWN
    for path, names in fetchbuffer._KNOWN.items():
        assert fetchbuffer._names(path) == set(names.split()), path


async def test_dense_batches_are_taken_in_order_and_the_position_is_behind_them() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN), batch(10, *TEN)]})) as (consumer, taker):
        found = (await taker.take(timeout_ms=1000, most=500))[ORDERS]
        assert [(record.offset, record.key, record.value) for record in found] == [(n, b"k", b"%d" % (n % 10)) for n in range(20)]
        assert position_of(consumer, ORDERS) == 20
        assert is_known(consumer._fetcher)


async def test_a_batch_that_is_cut_goes_on_behind_the_cut_also_where_it_is_compressed() -> None:
    for most, codec in [(most, 0) for most in (1, 3, 7, 10, 11, 19)] + [(6, codec) for codec in (1, 2, 3, 4)]:
        async with client(Logs({ORDERS: [batch(0, *TEN, codec=codec), batch(10, *TEN, codec=codec)]})) as (consumer, taker):
            taken: list[int] = []
            while len(taken) < 20:
                part = await offsets(taker, most)
                assert 0 < len(part) <= most
                taken += part
                assert position_of(consumer, ORDERS) == taken[-1] + 1
            assert taken == [*range(20)], (most, codec)


async def test_holes_of_compaction_are_passed_with_the_batch_they_are_in() -> None:
    for most in (1, 2, 500):
        async with client(Logs({ORDERS: [sparse(0, [1, 4, 5], 10), sparse(10, [12], 20)]})) as (consumer, taker):
            taken: list[int] = []
            while len(taken) < 4:
                taken += await offsets(taker, most)
            assert (taken, position_of(consumer, ORDERS)) == ([1, 4, 5, 12], 20)


async def test_aborted_transactions_and_control_records_are_never_given() -> None:
    logs = Logs(
        {
            ORDERS: [
                batch(0, *TEN, producer=7), control(10, 7, 0), batch(11, *TEN, producer=7), control(21, 7, 1),
                batch(22, *TEN, producer=8), control(32, 8, 0), batch(33, b"last"),
            ]
        }
    )  # fmt: skip
    logs.aborted[ORDERS] = [(7, 0), (8, 22)]
    for most in (1, 500):
        async with client(logs) as (consumer, taker):
            taken: list[int] = []
            while len(taken) < 11:
                taken += await offsets(taker, most)
            assert (taken, position_of(consumer, ORDERS)) == ([*range(11, 21), 33], 34)


async def test_what_is_before_a_bad_checksum_is_given_before_the_error_is_raised() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN), corrupt(batch(10, *TEN)), batch(20, *TEN)]})) as (consumer, taker):
        assert await offsets(taker) == [*range(10)]
        assert position_of(consumer, ORDERS) == 10
        for _ in range(3):
            with pytest.raises(CorruptRecordException):
                await offsets(taker)
            assert position_of(consumer, ORDERS) == 10


async def test_what_is_before_a_header_that_cannot_be_read_is_given_before_the_error_is_raised() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN, header=b"\xff")]})) as (consumer, taker):
        assert await offsets(taker) == [*range(9)]
        with pytest.raises(UnicodeDecodeError):
            await offsets(taker)
        assert position_of(consumer, ORDERS) == 9


async def test_an_error_of_one_partition_never_takes_the_records_of_another_along() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN)], OTHER: [corrupt(batch(0, *TEN))]})) as (consumer, taker):
        await buffers(consumer, 2)
        consumer._fetcher._records.move_to_end(OTHER)
        assert [*await taker.take(timeout_ms=0, most=500)] == [ORDERS]
        with pytest.raises(CorruptRecordException):
            await taker.take(timeout_ms=0, most=500)
        assert (position_of(consumer, ORDERS), position_of(consumer, OTHER)) == (10, 0)


async def test_a_seek_between_takes_is_where_the_next_begins() -> None:
    for to in (0, 2, 5, 15):
        async with client(Logs({ORDERS: [batch(0, *TEN), batch(10, *TEN)]})) as (consumer, taker):
            assert await offsets(taker, 4) == [*range(4)]
            consumer.seek(ORDERS, to)
            assert await offsets(taker) == [*range(to, 20)]


async def test_a_partition_paused_in_the_middle_of_a_batch_gives_nothing_and_goes_on_where_it_was() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN)]})) as (consumer, taker):
        assert await offsets(taker, 4) == [*range(4)]
        consumer.pause(ORDERS)
        assert await taker.take(ORDERS, timeout_ms=0, most=500) == {}
        assert position_of(consumer, ORDERS) == 4
        consumer.resume(ORDERS)
        assert await offsets(taker) == [*range(4, 10)]


async def test_a_partition_revoked_in_the_middle_of_a_batch_gives_nothing_more() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN)], OTHER: [batch(0, *TEN)]})) as (consumer, taker):
        assert await offsets(taker, 4) == [*range(4)]
        consumer._subscription.unsubscribe()
        consumer._subscription.assign_from_user([OTHER])
        consumer.seek(OTHER, 0)
        assert [*await taker.take(timeout_ms=1000, most=500)] == [OTHER]


async def test_the_records_wanted_are_counted_for_each_partition() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN)], OTHER: [batch(0, *TEN)]})) as (consumer, taker):
        await buffers(consumer, 2)
        found = await taker.take(timeout_ms=0, most=8)
        assert {partition: len(records) for partition, records in found.items()} == {ORDERS: 8, OTHER: 8}


async def test_a_cancelled_wait_has_taken_nothing_and_leaves_no_waiter() -> None:
    logs = Logs({ORDERS: []})
    async with client(logs) as (consumer, taker):
        waiting = asyncio.create_task(taker.take(timeout_ms=10_000, most=500))
        await asyncio.sleep(0.01)
        logs.logs[ORDERS] = [batch(0, *TEN)]
        waiting.cancel()
        await asyncio.wait({waiting})
        await asyncio.sleep(0)
        assert waiting.cancelled()
        assert not consumer._fetcher._fetch_waiters
        assert await offsets(taker) == [*range(10)]


async def test_who_takes_with_getmany_goes_on_where_a_batch_was_cut_and_the_other_way_round() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN), corrupt(batch(10, *TEN))]})) as (consumer, taker):
        assert await offsets(taker, 4) == [*range(4)]
        found = (await consumer.getmany(timeout_ms=1000, max_records=3))[ORDERS]
        assert [(record.topic, record.offset) for record in found] == [("orders", offset) for offset in range(4, 7)]
        assert await offsets(taker) == [*range(7, 10)]
        with pytest.raises(CorruptRecordException):
            await consumer.getmany(timeout_ms=1000)
        consumer._closed = True
        with pytest.raises(ConsumerStoppedError):
            await taker.take(timeout_ms=0, most=1)


async def test_a_getmany_that_somebody_overrides_is_asked() -> None:
    async with client(Logs({ORDERS: [batch(0, *TEN)]})) as (consumer, _):
        getmany, seen = consumer.getmany, []

        async def traced(*partitions: TopicPartition, **options: Any) -> Any:
            seen.append(await getmany(*partitions, **options))
            return seen[-1]

        consumer.getmany = traced
        assert await offsets(Taking(consumer)) == [*range(10)]
        assert len(seen) == 1


async def test_of_an_aiokafka_that_is_not_known_records_are_taken_with_getmany_and_none_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("another name", "reads otherwise"):
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            if name == "another name":
                patch.delattr(FetchError, "check_raise")
            else:
                patch.setitem(fetchbuffer._KNOWN, "PartitionRecords._unpack_records", "next_batch")
            async with client(Logs({ORDERS: [batch(0, *TEN), batch(10, *TEN)]})) as (consumer, taker):
                taken: list[int] = []
                while len(taken) < 20:
                    taken += await offsets(taker, 7)
                assert (taken, position_of(consumer, ORDERS)) == ([*range(20)], 20)
        assert caplog.text.count("getmany used with an unknown aiokafka") == 1, name
