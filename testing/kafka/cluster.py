"""The content of a Kafka: topics with their logs, groups, transactions, and producers that number their records (KIP-98).

It knows nothing of connections and requests.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiokafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTopicError,
    InvalidTxnState,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from ackwise.testing.kafka.group import ConsumerGroup
from ackwise.testing.kafka.partition import Batch, PartitionLog

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


#: What a topic says of itself where nothing else was set.
DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}

_NUMBERS: Final = frozenset({"max.message.bytes", "min.insync.replicas", "retention.bytes", "retention.ms"})

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Topic:
    """A topic with its partitions and what was set of it."""

    def __init__(self, partitions: int, configs: Mapping[str, str]) -> None:
        self.id = uuid.uuid4()  #: one that is made again has another
        self.partitions = [PartitionLog() for _ in range(partitions)]
        self.configs = dict(configs)

    def config(self, name: str) -> str:
        """Return its effective settings."""
        return self.configs.get(name, DEFAULTS.get(name, ""))


class Cluster:
    """The state of one broker. What Kafka refuses it raises, as the error that a client makes of the code."""

    def __init__(self, clock: Callable[[], float], *, auto_create: bool) -> None:
        """`clock`: epoch seconds. `auto_create`: topics that are asked for are made."""
        self.auto_create = auto_create
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, ConsumerGroup] = {}
        self.transactions = Transactions(self._log_of, self._commit, self.now_ms, self.wake)
        self.grown = asyncio.Event()  #: another one each time, set once there may be more to read
        self._clock = clock

    def close(self) -> None:
        """Nothing happens by itself any more."""
        self.transactions.close()
        for group in self.groups.values():
            group.close()

    def create(self, name: str, partitions: int, configs: Mapping[str, str], *, try_only: bool = False) -> None:
        """Make a topic."""
        if name in self.topics:
            raise TopicAlreadyExistsError(f"topic {name} exists")
        if not is_topic_name(name):
            raise InvalidTopicError(f"{name!r} is no name of a topic")
        check_configs(configs)
        if partitions < 1:
            raise InvalidPartitionsError(f"{partitions} partitions")
        if not try_only:
            self.topics[name] = Topic(partitions, configs)

    def delete(self, name: str) -> None:
        """Delete a topic, and what groups have committed of it."""
        self.topic(name)
        del self.topics[name]
        for group in self.groups.values():
            for partition in [each for each in group.offsets if each[0] == name]:
                del group.offsets[partition]
        self.wake()

    def append(self, topic: str, partition: int, batch: Batch) -> int:
        """Append a record batch; returns its offset."""
        log, its_topic = self.log(topic, partition), self.topics[topic]
        if len(batch) > (most := int(its_topic.config("max.message.bytes"))):
            raise MessageSizeTooLargeError(f"a record batch of {len(batch)} bytes, {topic} takes {most}")
        by_append = its_topic.config("message.timestamp.type") == "LogAppendTime"
        offset = log.append(batch, appended_ms=self.now_ms() if by_append else None)
        self.wake()
        return offset

    def topic(self, name: str) -> Topic:
        """The topic of that name."""
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(f"there is no topic {name}")
        return self.topics[name]

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition."""
        logs = self.topic(topic).partitions
        if not 0 <= partition < len(logs):
            raise UnknownTopicOrPartitionError(f"{topic} has no partition {partition}")
        return logs[partition]

    def group(self, name: str) -> ConsumerGroup:
        """The group of that name, which is empty if it has no members."""
        if name not in self.groups:
            self.groups[name] = ConsumerGroup(name)
        return self.groups[name]

    def _log_of(self, partition: tuple[str, int]) -> PartitionLog | None:
        topic = self.topics.get(partition[0])
        return None if topic is None else topic.partitions[partition[1]]

    def now_ms(self) -> int:
        """The time of the broker."""
        return round(self._clock() * 1000)

    def wake(self) -> None:
        """Let fetches that wait look again."""
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()

    def _commit(self, group: str, offsets: Offsets) -> None:
        for partition, (offset, metadata) in offsets.items():
            self.group(group).commit(partition, offset, metadata)


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called that."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def check_configs(configs: Mapping[str, str]) -> None:
    """Check that the numeric settings used here are numbers."""
    for name, value in configs.items():
        if name in _NUMBERS and not re.fullmatch(r"-?\d+", value or ""):
            raise InvalidConfigurationError(f"{name} is {value!r}, which is no number")
