"""Raw records: what aiokafka's parser refuses for the name of a header alone, read from the broker again and parsed without that rule.

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

#: Where a record batch says which version of the format it has, and how long its head is in the version of today.
_MAGIC: Final = 16
_HEAD: Final = 61

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


async def fetch_raw(consumer: Any, partition: TopicPartition, position: int, *, wait_ms: int | None = None) -> RawBatches:
    """What the broker has from `position` on, not parsed; it may wait for so many milliseconds until there is something.

    By default that is as long as the client's own fetches wait. Raises `KafkaError`, or `TimeoutError`.
    """
    fetcher, client = consumer._fetcher, consumer._client
    node = client.cluster.leader_for_partition(partition)
    if node in (None, -1):
        raise StaleMetadata(partition)
    topics = [(partition.topic, [(partition.partition, position, fetcher._max_partition_fetch_bytes)])]
    longest: int = fetcher._fetch_max_wait_ms if wait_ms is None else wait_ms
    request = FetchRequest(longest, 1, fetcher._fetch_max_bytes, fetcher._isolation_level, topics, rack_id="")
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

    def is_cut(self) -> bool:
        """Whether there are bytes, and not one whole batch: the client never gives any of them."""
        return bool(self.raw) and not _Batches(self.raw).has_next()

    def claim(self, at: int) -> tuple[int, int] | None:
        """The first offset and the one behind the last that the batch at byte `at` says it has; `None` if its head is not there.

        Who can't read a batch may not believe it: no checksum holds of what it says.
        """
        if len(self.raw) < at + _HEADER.size:
            return None
        base, _, magic, delta = _HEADER.unpack_from(self.raw, at)
        return base, base + delta + 1 if magic >= 2 else base + 1  # the old formats say no more

    def next_whole(self, at: int, beyond: int) -> int | None:
        """The smallest first offset greater than `beyond` of all batches behind byte `at` whose checksum holds; `None` without one.

        They are looked for byte by byte, since the length of a broken batch may be what is broken.
        """
        found = None
        magic = self.raw.find(2, at + 1 + _MAGIC)
        while magic >= 0:
            base = self._whole_at(magic - _MAGIC)
            if base is not None and base > beyond and (found is None or base < found):
                found = base
            magic = self.raw.find(2, magic + 1)
        return found

    def _whole_at(self, at: int) -> int | None:
        """The first offset of the batch at byte `at`, if there is one whose checksum holds."""
        if len(self.raw) < at + _HEAD:
            return None
        base, length, _, delta = _HEADER.unpack_from(self.raw, at)
        end = at + _LENGTH + length
        if base < 0 or delta < 0 or length < _HEAD - _LENGTH or end > len(self.raw):
            return None
        return int(base) if _Batch(bytearray(self.raw[at:end])).validate_crc() else None


class _Batches(_Memory):  # type: ignore[misc]
    """What a broker answered, batch by batch, up to the one that is at work when `is_last` is set."""

    is_last = False
    at = 0  #: where the batch begins that is at work, or that can't be cut out
    _next_at = 0

    def _cache_next(self, *args: Any) -> None:
        self._next_at = self._pos
        super()._cache_next(*args)

    def has_next(self) -> bool:
        return not self.is_last and bool(super().has_next())

    def next_batch(self) -> Any:
        raw, self.at = self._next_slice, self._next_at
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
