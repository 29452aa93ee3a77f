"""Record batches as they travel and as a log keeps them: Kafka's message format version 2 (KIP-98)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ackwise.plugin.client.rawrecords import DefaultRecordBatchBuilder, MemoryRecords, calc_crc32c

__all__ = ["Batch", "Record", "control_batch"]

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_AT: Final = struct.calcsize(">qiib")
_ATTRIBUTES_AT: Final = struct.calcsize(">qiibI")
_MAX_TIMESTAMP_AT: Final = struct.calcsize(">qiibIhiq")

_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20


class Record(NamedTuple):
    """One record of a log. Times are epoch milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Batch:
    """One record batch. It never changes once it is in a log."""

    __slots__ = (
        "_bytes",
        "count",
        "is_control",
        "is_transactional",
        "length",
        "max_timestamp",
        "offset",
        "producer_epoch",
        "producer_id",
        "sequence",
    )

    def __init__(self, data: bytes | bytearray) -> None:
        """Raises `ValueError` if it is no whole batch of version 2, or its checksum is wrong."""
        if len(data) < _HEADER.size:
            raise ValueError(f"a record batch of {len(data)} bytes is shorter than its header")
        offset, length, _, magic, crc, attributes, last_delta, _, max_timestamp, producer_id, epoch, sequence, count = _HEADER.unpack_from(
            data
        )
        if magic != 2:
            raise ValueError(f"a record batch of version {magic}; this Kafka takes version 2 alone")
        if length + 12 != len(data) or crc != calc_crc32c(data[_ATTRIBUTES_AT:]):
            raise ValueError("a record batch is cut short, or its checksum is wrong")
        self._bytes = bytes(data)
        self.offset: int = offset
        self.length: int = last_delta + 1  #: offsets that it takes
        self.count: int = count
        self.max_timestamp: int = max_timestamp
        self.producer_id: int = producer_id
        self.producer_epoch: int = epoch
        self.sequence: int = sequence
        self.is_transactional = bool(attributes & _TRANSACTIONAL)
        self.is_control = bool(attributes & _CONTROL)

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.offset + self.length

    @property
    def last_sequence(self) -> int:
        """The producer's number of its last record."""
        return (self.sequence + self.length - 1) % 2**31

    def __bytes__(self) -> bytes:
        return self._bytes

    def __len__(self) -> int:
        return len(self._bytes)

    def at(self, offset: int, appended_ms: int | None = None) -> Batch:
        """It with `offset` as its first one, and with the time of the append if the log says that that counts."""
        data = bytearray(self._bytes)
        struct.pack_into(">qii", data, 0, offset, len(data) - 12, 0)
        if appended_ms is not None:
            attributes = struct.unpack_from(">h", data, _ATTRIBUTES_AT)[0] | _LOG_APPEND_TIME
            struct.pack_into(">h", data, _ATTRIBUTES_AT, attributes)
            struct.pack_into(">q", data, _MAX_TIMESTAMP_AT, appended_ms)
            struct.pack_into(">I", data, _CRC_AT, calc_crc32c(bytes(data[_ATTRIBUTES_AT:])))
        return Batch(data)

    def records(self) -> Iterator[Record]:
        """Its records, read as a client reads them; of a control batch none."""
        if self.is_control:
            return
        found: Any = MemoryRecords(self._bytes).next_batch()
        for record in found:
            yield Record(record.offset, record.timestamp, record.key, record.value, record.headers)


def control_batch(producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> Batch:
    """The marker that ends a transaction in a partition (KIP-98, "Control Messages")."""
    builder: Any = DefaultRecordBatchBuilder(2, 0, 1, producer_id, epoch, -1, 1_000)
    builder.append(0, now_ms, struct.pack(">hh", 0, 1 if commit else 0), struct.pack(">hi", 0, 0), [])
    data = bytearray(builder.build())
    struct.pack_into(">h", data, _ATTRIBUTES_AT, struct.unpack_from(">h", data, _ATTRIBUTES_AT)[0] | _CONTROL)
    struct.pack_into(">I", data, _CRC_AT, calc_crc32c(bytes(data[_ATTRIBUTES_AT:])))
    return Batch(data)
