"""Producers that number what they send, and those whose records count together or never (KIP-98)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from typing import Final

from aiokafka.errors import InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState

from ackwise.testing.kafka.partition import PartitionLog

__all__ = ["Offsets", "Transactions"]

Partition = tuple[str, int]
Offsets = dict[Partition, tuple[int, str]]
"""Offset and metadata of each partition."""

_ONLY_EPOCH: Final = 0


class _Transactional:
    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.partitions: set[Partition] = set()
        self.offsets: dict[str, Offsets] = {}
        self.groups: set[str] = set()
        self.timeout = 60.0
        self.expiry: asyncio.TimerHandle | None = None


class Transactions:
    """The coordinator of all producers."""

    def __init__(
        self,
        log_of: Callable[[Partition], PartitionLog | None],
        commit: Callable[[str, Offsets], None],
        now_ms: Callable[[], int],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`log_of` returns `None` for a partition that is gone; `ended` is called when a transaction was ended."""
        self._log_of = log_of
        self._commit = commit
        self._now_ms = now_ms
        self._ended = ended
        self._ids = itertools.count(1000)
        self._producers: dict[str, _Transactional] = {}

    def begin_producer(self, transactional_id: str | None, timeout: float = 60.0) -> tuple[int, int]:
        """Return id and epoch of a producer. One with the same transactional id is fenced, and what it had open is aborted.

        A transaction that is open for `timeout` seconds is aborted, and its producer fenced.
        """
        if not transactional_id:
            return next(self._ids), _ONLY_EPOCH
        producer = self._producers.get(transactional_id)
        if producer is None:
            producer = self._producers[transactional_id] = _Transactional(next(self._ids))
        else:
            self._end(producer, commit=False)
        producer.epoch += 1
        producer.timeout = timeout
        return producer.producer_id, producer.epoch

    def close(self) -> None:
        """Nothing happens by itself any more."""
        for producer in self._producers.values():
            if producer.expiry is not None:
                producer.expiry.cancel()

    def add_partitions(self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition]) -> None:
        """Make `partitions` part of its open transaction."""
        producer = self._known(transactional_id, producer_id, epoch)
        producer.partitions |= set(partitions)
        self._begin(producer)

    def add_group(self, transactional_id: str, producer_id: int, epoch: int, group: str) -> None:
        """Make the offsets of `group` part of its open transaction."""
        producer = self._known(transactional_id, producer_id, epoch)
        producer.groups.add(group)
        self._begin(producer)

    def add_offsets(self, transactional_id: str, producer_id: int, epoch: int, group: str, offsets: Offsets) -> None:
        """Commit `offsets` with its open transaction."""
        producer = self._known(transactional_id, producer_id, epoch)
        if group not in producer.groups:
            raise InvalidTxnState(f"group {group} is not part of the transaction")
        producer.offsets.setdefault(group, {}).update(offsets)

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End its open transaction."""
        self._end(self._known(transactional_id, producer_id, epoch), commit=commit)

    def check(self, transactional_id: str | None, producer_id: int, epoch: int, partition: Partition) -> None:
        """Raise what refuses a batch of a transaction."""
        if partition not in self._known(transactional_id or "", producer_id, epoch).partitions:
            raise InvalidTxnState(f"{partition} is not part of the transaction")

    def _known(self, transactional_id: str, producer_id: int, epoch: int) -> _Transactional:
        producer = self._producers.get(transactional_id)
        if producer is None or producer.producer_id != producer_id:
            raise InvalidProducerIdMapping(f"{transactional_id} has another producer id")
        if producer.epoch != epoch:
            raise InvalidProducerEpoch(f"{transactional_id} is in epoch {producer.epoch}, not {epoch}")
        return producer

    def _begin(self, producer: _Transactional) -> None:
        if producer.expiry is None:
            producer.expiry = asyncio.get_running_loop().call_later(producer.timeout, self._expire, producer)

    def _expire(self, producer: _Transactional) -> None:
        self._end(producer, commit=False)
        producer.epoch += 1

    def _end(self, producer: _Transactional, *, commit: bool) -> None:
        partitions, offsets = sorted(producer.partitions), producer.offsets
        producer.partitions, producer.offsets, producer.groups = set(), {}, set()
        if producer.expiry is not None:
            producer.expiry.cancel()
            producer.expiry = None
        for partition in partitions:
            if (log := self._log_of(partition)) is not None:
                log.end_transaction(producer.producer_id, producer.epoch, commit=commit, now_ms=self._now_ms())
        if commit:
            for group, of_group in offsets.items():
                self._commit(group, of_group)
        self._ended()
