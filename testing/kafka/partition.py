"""The log of one partition: appended and trimmed record batches, and open transactions.

Batches have Kafka's message format version 2 (KIP-98).
"""

from __future__ import annotations

import bisect
import struct
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from aiokafka.errors import (
    CorruptRecordException,
    InvalidProducerEpoch,
    OutOfOrderSequenceNumber,
)

from ackwise.plugin.kafka.recordbatches import DefaultRecordBatchBuilder, MemoryRecords, calc_crc32c

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


#: Batches of each producer by which one that is sent again is known (Kafka: `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
_REMEMBERED = 5


class Aborted(NamedTuple):
    """An aborted transaction; hidden from read_committed consumers."""

    producer_id: int
    first: int
    end: int  #: the offset behind its marker


class _Producer:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[Batch] = deque(maxlen=_REMEMBERED)


class PartitionLog:
    """The log of one partition. Each offset is given once; what is removed leaves a gap."""

    def __init__(self) -> None:
        self.start = 0  #: the first offset that can be read
        self.end = 0  #: the next offset
        self.local_start = 0  #: what is before it is in remote storage
        self.is_storage_away = False  #: that storage, which then gives nothing
        self._batches: list[Batch] = []
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  #: the first offset of each producer's open transaction
        self._aborted: list[Aborted] = []

    @property
    def stable(self) -> int:
        """The end for those who read what is committed: where the first open transaction starts."""
        return min(self._open.values(), default=self.end)

    def append(self, batch: Batch, *, appended_ms: int | None = None) -> int:
        """Append `batch`; returns its offset, or the one it had if the producer sends it again.

        Raises what Kafka refuses: `InvalidProducerEpoch` of a producer that was replaced, `OutOfOrderSequenceNumber` where one of its
        batches is missing, `CorruptRecordException` for an empty batch.
        """
        if batch.count <= 0:
            raise CorruptRecordException("an empty record batch")
        if batch.producer_id >= 0 and (known := self._sent_before(batch)) is not None:
            return known
        offset = self.end
        self._add(batch.at(offset, appended_ms))
        if batch.is_transactional:
            self._open.setdefault(batch.producer_id, offset)
        return offset

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> None:
        """Write the marker that ends the transaction of a producer here."""
        first = self._open.pop(producer_id, None)
        self._add(control_batch(producer_id, epoch, commit=commit, now_ms=now_ms).at(self.end))
        if not commit and first is not None:
            self._aborted.append(Aborted(producer_id, first, self.end))

    def read(self, offset: int, most: int, *, committed: bool) -> bytes:
        """Whole batches from the one with `offset` on, of `most` bytes; the first one however large it is."""
        if offset < self.local_start and self.is_storage_away:
            return b""
        upto = self.stable if committed else self.end
        found = list[bytes]()
        size = 0
        for batch in self._batches[bisect.bisect_right(self._batches, offset, key=attrgetter("end")) :]:
            if batch.end > upto or (found and size + len(batch) > most):
                break
            found.append(bytes(batch))
            size += len(batch)
        return b"".join(found)

    def aborted(self, offset: int) -> list[Aborted]:
        """The aborted transactions that reach behind `offset`."""
        return [transaction for transaction in self._aborted if transaction.end > offset]

    def since(self, timestamp_ms: int) -> Record | None:
        """The first record of that time or later."""
        for batch in self._batches:
            if batch.max_timestamp >= timestamp_ms:
                for record in batch.records():
                    if record.offset >= self.start and record.timestamp >= timestamp_ms:
                        return record
        return None

    def records(self) -> Iterator[Record]:
        """Everything that can be read, what was aborted included."""
        for batch in self._batches:
            for record in batch.records():
                if record.offset >= self.start:
                    yield record

    def trim(self, before: int) -> None:
        """Nothing before this offset can be read any more, as after `DeleteRecords` or by retention."""
        self.start = max(self.start, min(before, self.end))
        self._batches = [batch for batch in self._batches if batch.end > self.start]

    def expire(self, before_ms: int) -> None:
        """Trim the batches at the start that are older than that."""
        kept = next((batch.offset for batch in self._batches if batch.max_timestamp >= before_ms), self.end)
        self.trim(kept)

    def remove(self, offsets: Collection[int]) -> None:
        """Take out the batches that consist of `offsets` alone, as compaction does; their offsets are gaps from then on."""
        gone = set(offsets)
        self._batches = [batch for batch in self._batches if not gone.issuperset(range(batch.offset, batch.end))]

    def _add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.end = batch.end
        if batch.producer_id >= 0 and not batch.is_control:
            producer = self._producers.get(batch.producer_id)
            if producer is None or producer.epoch < batch.producer_epoch:
                producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
            producer.batches.append(batch)

    def _sent_before(self, batch: Batch) -> int | None:
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if producer.epoch < batch.producer_epoch:
            if batch.sequence:
                raise OutOfOrderSequenceNumber(
                    f"producer {batch.producer_id} starts epoch {batch.producer_epoch} with batch {batch.sequence}"
                )
            return None
        if producer.epoch > batch.producer_epoch:
            raise InvalidProducerEpoch(f"producer {batch.producer_id} has epoch {producer.epoch}, not {batch.producer_epoch}")
        for sent in producer.batches:
            if (sent.sequence, sent.last_sequence) == (batch.sequence, batch.last_sequence):
                return sent.offset
        if batch.sequence != (expected := (producer.batches[-1].last_sequence + 1) % 2**31):
            raise OutOfOrderSequenceNumber(f"producer {batch.producer_id} sent batch {batch.sequence} where {expected} follows")
        return None
