"""Record batches: aiokafka's classes for them, and a reader for batches with header names that are not UTF-8.

Kafka's header names are UTF-8 by agreement only; no broker checks them. aiokafka decodes them strictly, so one invalid name hides
every record of its batch.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ReplicaNotAvailableError, StaleMetadata, for_code

from ackwise.plugin.kafka.aiokafkainternals import fetch_options, leader_of, send
from ackwise.plugin.kafka.protocolrequests import AIOKAFKA, FetchRequest

with AIOKAFKA.imports():
    from aiokafka.consumer.fetcher import PartitionRecords
    from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchPy
    from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
    from aiokafka.record.util import calc_crc32c

__all__ = [
    "NAMES",
    "DefaultRecordBatchBuilder",
    "MemoryRecords",
    "RawBatches",
    "RawRecords",
    "at_byte",
    "calc_crc32c",
    "fetch_raw",
    "is_about_a_header",
    "read_raw",
]

#: What is used here; with its parameters where another function takes its place, or where it is called by position.
NAMES: Final[Mapping[type[Any], str]] = {
    PartitionRecords: """_records next_fetch_offset
        __init__(tp,records,aborted_transactions,fetch_offset,key_deserializer,value_deserializer,check_crcs,isolation_level,...)""",
    _MemoryRecordsPy: "_cache_next(len_offset,log_overhead) _next_slice _pos has_next next_batch",
    _DefaultRecordBatchPy: "_buffer _maybe_uncompress() validate_crc",
}

#: Seconds that the broker has to answer.
_TIMEOUT: Final = 10.0

#: Of the head of a record batch: first offset, length of what follows that, version of the format, last offset less the first.
_HEADER: Final = struct.Struct(">qi4xb4x2xi")
_LENGTH: Final = 12

#: Where a record batch says which version of the format it has, and how long its head is in the version of today.
_MAGIC: Final = 16
_HEAD: Final = 61

_Batch: Any = _DefaultRecordBatchPy  # final for type checkers alone
_Memory: Any = _MemoryRecordsPy


class RawRecords(NamedTuple):
    """The records of one batch, and the offset to go on at, which may be beyond the last of them."""

    records: list[Any]
    goes_on_at: int


def is_about_a_header(error: BaseException) -> bool:
    """Return whether the parser stumbled over bytes that are no UTF-8; in a record only the names of headers have to be."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


async def read_raw(consumer: Any, partition: TopicPartition, position: int) -> RawRecords:
    """The first batch with records from `position` on. What of a header's name is no UTF-8 becomes lone surrogates in it.

    Raises `KafkaError`, `TimeoutError`, or what else the parser raises.
    """
    if (leader := leader_of(consumer, partition)) in (None, -1):
        raise StaleMetadata(partition)
    async with asyncio.timeout(_TIMEOUT):
        reading = (await fetch_raw(consumer, leader, partition, position, **fetch_options(consumer))).records()
    records = []
    for record in reading:
        reading._records.is_last = True
        records.append(record)
    return RawRecords(records, reading.next_fetch_offset)


async def fetch_raw(
    client: Any, leader: int | None, partition: TopicPartition, position: int, *, wait_ms: int, most: int, isolation: int
) -> RawBatches:
    """Return the batches of `leader` from `position` on: about `most` bytes, and at least one batch if any. Raise `KafkaError`."""
    asked = [(partition.topic, [(partition.partition, position, most)])]
    answer = await send(client, leader, FetchRequest(wait_ms, 1, most, isolation, asked, rack_id=""))
    parts = [part for _, parts in answer.topics for part in parts]
    if not parts:  # a broker answers so that throttles the client
        raise KafkaConnectionError("the broker's answer leaves out the partition")
    ((_, code, high, *more),) = parts
    if code:
        raise for_code(code)(partition)
    if answer.API_VERSION >= 11 and more[-2] >= 0 and not more[-1]:
        raise ReplicaNotAvailableError("the leader sends its readers to another replica")
    aborted = more[2] if answer.API_VERSION >= 11 else more[-2] if answer.API_VERSION >= 4 else None
    end = more[0] if isolation else high
    return RawBatches(partition, position, more[-1], aborted, isolation, end)


class RawBatches(NamedTuple):
    """Record batches as a broker keeps them, from the one that has `position` on."""

    partition: TopicPartition
    position: int
    raw: bytes
    aborted: Any
    isolation: int
    end: int
    """Where the log ended as the broker answered: who reads what is committed sees nothing behind the first open transaction."""

    @property
    def goes_on_at(self) -> int:
        """The offset to go on at: behind the last batch, or behind all of the log if it has nothing there."""
        at, after = 0, self.position if self.raw else self.end
        while (claimed := self.claim(at)) is not None:
            at += _LENGTH + int(_HEADER.unpack_from(self.raw, at)[1])
            if at > len(self.raw):  # it is not whole, and comes again
                break
            after = claimed[1]
        return after

    def parsed(self) -> Iterator[Any]:
        """The records, as fast as aiokafka reads them, or more slowly from one with a header whose name is no UTF-8 on."""
        reading = self._reading(MemoryRecords(self.raw))
        try:
            yield from reading
        except Exception as error:
            if not is_about_a_header(error):
                raise
            before = reading.next_fetch_offset
            yield from (record for record in self.records() if record.offset >= before)

    def records(self) -> Any:
        """A reader of aiokafka over the records, which raises where it can't go on; its `next_fetch_offset` is behind what was read."""
        return self._reading(_Batches(self.raw))

    def _reading(self, batches: Any) -> Any:
        make: Any = PartitionRecords
        return make(self.partition, batches, self.aborted, self.position, None, None, True, self.isolation)

    def is_cut(self) -> bool:
        """Return whether there are bytes, and not one whole batch: the client never gives any of them."""
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


def at_byte(reading: Any) -> int:
    """Return the byte at which the batch starts that `reading`, made by `RawBatches.records`, is at or can't cut out."""
    return int(reading._records.at)


class _Batches(_Memory):  # type: ignore[misc]
    """What a broker answered, batch by batch, up to the one that is at work when `is_last` is set."""

    is_last = False
    at = 0  #: where the batch starts that is at work, or that can't be cut out
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
