"""What is in a Kafka: topics with their logs, groups, transactions. It knows nothing of connections and requests."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from ackwise.testing.kafka.batch import Batch
from ackwise.testing.kafka.group import ConsumerGroup
from ackwise.testing.kafka.partition import PartitionLog
from ackwise.testing.kafka.transactions import Offsets, Transactions

__all__ = ["DEFAULTS", "Cluster", "Topic", "check_configs", "is_topic_name"]

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
        self.id = uuid.uuid4()  #: one that is made anew has another
        self.partitions = [PartitionLog() for _ in range(partitions)]
        self.configs = dict(configs)

    def config(self, name: str) -> str:
        """What holds for it."""
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
        """The group of that name, which is empty if nobody has joined it."""
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
    """Of the settings that count here, those that are numbers are numbers."""
    for name, value in configs.items():
        if name in _NUMBERS and not re.fullmatch(r"-?\d+", value or ""):
            raise InvalidConfigurationError(f"{name} is {value!r}, which is no number")
