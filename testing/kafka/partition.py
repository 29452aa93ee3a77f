"""The log of one partition: what was appended, what was trimmed, whose transactions are open."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import NamedTuple

from aiokafka.errors import (
    CorruptRecordException,
    InvalidProducerEpoch,
    OutOfOrderSequenceNumber,
)

from ackwise.testing.kafka.batch import Batch, Record, control_batch

__all__ = ["Aborted", "PartitionLog"]

#: Batches of each producer by which one that is sent again is known (Kafka: `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
_REMEMBERED = 5


class Aborted(NamedTuple):
    """A transaction whose records nobody is to see who reads what is committed."""

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
        """The end for those who read what is committed: where the first open transaction begins."""
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
        """Trim the batches at the beginning that are older than that."""
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
                    f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with batch {batch.sequence}"
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
