"""Client: what a host gives. A member, its assignment and its fetching ask nothing else of whatever talks to Kafka.

It has three parts, since a host may have them in different event loops:

- `Broker`: what the member asks, in its own loop: commits, and what logs hold.
- `Assignment`: what is assigned to it, where that goes on, and what of it is fetched; in the same loop.
- `Source`: what is fetched, and from where; in the loop that the client lives in.

A partition is a `TopicPartition`, an offset an `int`, and the end of a log the offset behind its last record. Errors of brokers are
`KafkaError`, connections that break also `OSError`. What may pass is asked again by those who call; a refusal
(`plugin/kafka/kafkaerrors.py`) before the group was joined ends the worker. Nothing here is told of a record that was fetched and not
given: whatever moved the client's position, the next fetch starts where the last one that returned has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from ackwise.plugin.kafka.brokeroffsets import Asked, Topic
from ackwise.plugin.kafka.recordbatches import RawRecords


class Broker(Protocol):
    """What a member asks of the brokers. What waits may raise `KafkaError` or `OSError`."""

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        """Commit these next offsets, with what is beside them. Return once the coordinator has them.

        Raises `CommitFailedError` or `IllegalStateError` where the partitions are another member's by now.
        """

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The first offset that each log still has, without those of which no broker says it now."""
        ...

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The offset after the last that may be read of each log, without those of which no broker says it now."""
        ...

    def missing_topics(self) -> Sequence[str]:
        """The topics that are subscribed to and have no partitions, as far as the client knows. Raises nothing."""
        ...

    def is_gone(self, topic: str, /) -> bool:
        """Return whether `topic` has no partitions any more: no offset of it can be committed. Raises nothing."""
        ...


class Assignment(Protocol):
    """What is assigned to a member, and where that goes on. Nothing here raises for a partition that is assigned."""

    async def ask(self, partitions: Collection[TopicPartition], /) -> Asked:
        """What was committed of `partitions`, and what their logs hold; of the others why that is not known. Raises nothing."""
        ...

    async def topics_of(
        self, partitions: Collection[TopicPartition], /
    ) -> tuple[Mapping[TopicPartition, Topic], Mapping[TopicPartition, KafkaError]]:
        """The topic that each of `partitions` is of now, and of the others why that is not known. Raises nothing."""
        ...

    def assignment(self) -> AbstractSet[TopicPartition]:
        """The partitions that are this member's now."""
        ...

    def seek(self, partition: TopicPartition, offset: int, /) -> None:
        """Fetch from `offset` on, and forget what was fetched before and not given, an error too."""

    def pause(self, partition: TopicPartition, /) -> None:
        """Fetch nothing of it, and say nothing of a position that it does not have."""

    def resume(self, partition: TopicPartition, /) -> None:
        """Fetch of it again."""

    def paused(self) -> AbstractSet[TopicPartition]:
        """Those that are paused."""
        ...


class Source(Assignment, Protocol):
    """What is fetched. Only `Fetching` calls `take`, and never twice at a time."""

    def positions(self, partitions: Iterable[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The next offset that `take` gives of each, or of the log behind a hole. Without those that have none, and `raising`."""
        ...

    def raising(self) -> AbstractSet[TopicPartition]:
        """The partitions of which `take` raises an error next. Their position says nothing, and a seek would drop that error."""
        ...

    async def take(
        self, partitions: Collection[TopicPartition] | None, /, *, timeout: float, most: int | None
    ) -> Mapping[Any, Sequence[Any]]:
        """What there is of `partitions`, `None` for all that are assigned: at most `most` records of each, in order.

        Waits for the first for at most `timeout` seconds. Without a partition it gives nothing, shows the group that this member is
        alive, and raises what is about no partition. A record has `offset`, `timestamp` in milliseconds, `timestamp_type`, `key`,
        `value` and `headers`; of aborted transactions there is none.

        While it waits it alone moves positions, and where it returns nothing of a partition whose position has moved, there was nothing.

        Raises `ConsumerStoppedError` if the client was closed, `OffsetOutOfRangeError` or `NoOffsetForPartitionError` with the
        partitions that have no position in their logs, and whatever else the client raises; it may have moved positions before.
        """
        ...

    async def wait(self, timeout: float, /) -> bool:
        """Return whether `take` may have something to give or to raise; waits for that for at most `timeout` seconds. It moves no position.

        Raises what is about no partition.
        """
        ...

    async def read_past(self, partition: TopicPartition, position: int, /) -> RawRecords:
        """The first batch from `position` on, read without the client's parser. Raises anything."""
        ...

    def answered_at(self, partition: TopicPartition, /) -> int | None:
        """Return when a broker last answered for `partition`, in milliseconds; two answers within one are not told apart."""
        ...

    def revive(self) -> BaseException | None:
        """Start again the fetching that the client has ended, and return what ended that; `None` if nothing has ended."""
        ...

    def require_membership(self) -> None:
        """Raise `AckwiseError` if the client has left its group and does not come back, or another process has its place."""

    def rejoin_if_broken(self) -> None:
        """Join the group again if a task that keeps the membership has ended."""


class Joined(Broker, Assignment, Protocol):
    """What a member and the opening of its partitions ask."""


class Client(Broker, Source, Protocol):
    """All three, for a host whose client lives in the loop of its member and is polled (`plugin/consumer/polling.py`)."""

    def look_for_topics(self) -> asyncio.Future[bool]:
        """Let the client ask for topics that are missing; what is new makes the group join again. Returns whether a broker answered."""
        ...

    def expect(self, idle: int | None, /) -> None:
        """Nothing is expected of `idle` partitions, so that a fetch of all of them may last; `None`: of some of them something is."""
