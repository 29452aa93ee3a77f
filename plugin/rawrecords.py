"""Records that aiokafka's parser refuses for the name of a header alone: read from the broker once more, and parsed without that rule.

Kafka's header names are UTF-8 by agreement only; no broker looks. aiokafka decodes them strictly, and one that can't be decoded
hides every record of its batch.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher as aiokafka_fetcher
from aiokafka.errors import StaleMetadata, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record import default_records, memory_records

__all__ = ["RawBatches", "RawRecords", "fetch_raw", "is_about_a_header", "read_raw"]

#: Seconds that the broker has to answer.
_TIMEOUT: Final = 10.0

#: Of the head of a record batch: first offset, length of what follows that, version of the format, last offset less the first.
_HEADER: Final = struct.Struct(">qi4xb4x2xi")
_LENGTH: Final = 12

#: Where a record batch says which version of the format it has.
_MAGIC: Final = 16

_Batch: Any = default_records._DefaultRecordBatchPy  # final for type checkers alone
_Memory: Any = memory_records._MemoryRecordsPy


class RawRecords(NamedTuple):
    """The records of one batch, and the offset to go on at, which may be beyond the last of them."""

    records: list[Any]
    goes_on_at: int


def is_about_a_header(error: BaseException) -> bool:
    """Whether the parser stumbled over bytes that are no UTF-8; in a record only the names of headers have to be."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


async def read_raw(consumer: Any, partition: TopicPartition, position: int) -> RawRecords:
    """The first batch with records from `position` on. What of a header's name is no UTF-8 becomes lone surrogates in it.

    Raises `KafkaError`, `TimeoutError`, or what the parser finds besides.
    """
    reading = (await fetch_raw(consumer, partition, position)).records()
    records = []
    for record in reading:
        reading._records.is_last = True
        records.append(record)
    return RawRecords(records, reading.next_fetch_offset)


async def fetch_raw(consumer: Any, partition: TopicPartition, position: int) -> RawBatches:
    """What the broker has from `position` on, not parsed. Raises `KafkaError`, or `TimeoutError`."""
    fetcher, client = consumer._fetcher, consumer._client
    node = client.cluster.leader_for_partition(partition)
    if node in (None, -1):
        raise StaleMetadata(partition)
    topics = [(partition.topic, [(partition.partition, position, fetcher._max_partition_fetch_bytes)])]
    request = FetchRequest(fetcher._fetch_max_wait_ms, 1, fetcher._fetch_max_bytes, fetcher._isolation_level, topics, rack_id="")
    async with asyncio.timeout(_TIMEOUT):
        answer = await client.send(node, request)
    ((_, ((_, code, _, *more),)),) = answer.topics
    if code:
        raise for_code(code)(partition)
    aborted = more[2] if answer.API_VERSION >= 11 else more[-2] if answer.API_VERSION >= 4 else None
    return RawBatches(partition, position, more[-1], aborted, fetcher._isolation_level)


class RawBatches(NamedTuple):
    """Record batches as a broker keeps them, from the one that has `position` on."""

    partition: TopicPartition
    position: int
    raw: bytes
    aborted: Any
    isolation: int

    def records(self) -> Any:
        """A reader of aiokafka over the records, which raises where it can't go on; its `next_fetch_offset` is behind what was read."""
        make: Any = aiokafka_fetcher.PartitionRecords
        return make(self.partition, _Batches(self.raw), self.aborted, self.position, None, None, True, self.isolation)

    def bounds(self, offset: int) -> tuple[int, int]:
        """Of the batch with `offset`, the first offset and the one behind the last, by its header alone."""
        at = 0
        while at + _HEADER.size <= len(self.raw):
            base, length, magic, delta = _HEADER.unpack_from(self.raw, at)
            end = base + delta + 1 if magic >= 2 else base + 1  # the old formats say no more
            if offset < end:
                return min(base, offset), end
            if length <= 0:
                break
            at += _LENGTH + length
        return offset, offset + 1


class _Batches(_Memory):  # type: ignore[misc]
    """What a broker answered, batch by batch, up to the one that is at work when `is_last` is set."""

    is_last = False

    def has_next(self) -> bool:
        return not self.is_last and bool(super().has_next())

    def next_batch(self) -> Any:
        raw = self._next_slice
        made = super().next_batch()
        return _LenientBatch(raw) if raw is not None and raw[_MAGIC] >= 2 else made


class _LenientBatch(_Batch):  # type: ignore[misc]
    """A batch whose header names may be any bytes."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Text(self._buffer)


class _Text(bytearray):
    """Bytes whose slices decode whatever they are."""

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _Text(part) if isinstance(key, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, "surrogateescape")
