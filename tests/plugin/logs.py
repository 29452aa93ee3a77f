"""Partition logs of record batches, and a real consumer of aiokafka that reads them without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy


class _Raw(str):
    """A header name of these bytes, which need not be UTF-8."""

    raw: bytes

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw


def batch(
    first: int, *values: bytes, codec: int = 0, producer: int = -1, header: bytes | None = None, last: int | None = None
) -> tuple[int, bytes]:
    """A record batch from offset `first` on, as a broker keeps it, and the offset after it; `header` names one of its last."""
    transactional = producer >= 0
    make: Any = DefaultRecordBatchBuilder if header is None else _DefaultRecordBatchBuilderPy  # the other takes texts alone
    builder = make(2, codec, transactional, producer, 0, 0, 2**31 - 1)
    for number, value in enumerate(values):
        name = _Raw("h")
        name.raw = header or b"h"
        headers: Any = [(name, b"1")] if header is not None and number == len(values) - 1 else []
        assert builder.append(number, 1_700_000_000_000, b"k", value, headers) is not None
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")  # neither base offset nor length are under the checksum
    return first + len(values) if last is None else last, bytes(raw)


def corrupt(made: tuple[int, bytes]) -> tuple[int, bytes]:
    """The batch with a byte that is not what the checksum says."""
    after, raw = made
    return after, raw[:-1] + bytes([raw[-1] ^ 0xFF])


def endless(made: tuple[int, bytes]) -> tuple[int, bytes]:
    """The batch as if it were longer than all that follows: the client can't cut it out."""
    after, raw = made
    return after, raw[:8] + (2**30).to_bytes(4, "big") + raw[12:]


class Logs:
    """What a broker has: by partition, batches by the offset after them. `aborted` are `(producer, first offset)`."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[tuple[int, bytes]]]) -> None:
        self.logs = {partition: list(batches) for partition, batches in logs.items()}
        self.aborted: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.errors: dict[TopicPartition, int] = {}
        self.asked: list[TopicPartition] = []
        self.cluster = SimpleNamespace(leader_for_partition=lambda partition: 0, broker_metadata=lambda node: None)
        self._loop = asyncio.get_running_loop()
        self._metadata_max_age_ms = 300_000

    def force_metadata_update(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    async def send(self, node: int, request: Any) -> Any:
        await asyncio.sleep(0)
        topics = []
        for topic, partitions in request.topics:
            topics.append((topic, [self._answer(TopicPartition(topic, number), offset) for number, offset, _ in partitions]))
        if not any(part[-1] for _, parts in topics for part in parts) and not self.errors:
            await asyncio.sleep(0.001)
        return SimpleNamespace(API_VERSION=4, topics=topics)

    def _answer(self, partition: TopicPartition, offset: int) -> tuple[Any, ...]:
        self.asked.append(partition)
        batches = self.logs[partition]
        end = batches[-1][0] if batches else 0
        found = b"".join(raw for after, raw in batches if after > offset)
        return partition.partition, self.errors.get(partition, 0), end, end, self.aborted.get(partition, []), found


def reading(logs: Logs) -> AIOKafkaConsumer:
    """A consumer of aiokafka, all of it real but the connection, that has all partitions and no position."""
    consumer: Any = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="none", group_id="billing")
    subscription = consumer._subscription
    subscription.assign_from_user(list(logs.logs))
    consumer._fetcher = Fetcher(logs, subscription, auto_offset_reset="none", isolation_level="read_committed", prefetch_backoff=0.0)
    consumer._client = logs
    consumer._coordinator = SimpleNamespace(check_errors=lambda: None)
    consumer._closed = False
    return consumer  # type: ignore[no-any-return]


async def buffers(consumer: Any, partitions: int) -> None:
    """Wait until the client has records, or an error, of so many partitions."""
    while True:
        if len(consumer._fetcher._records) >= partitions:
            return
        await asyncio.sleep(0)
