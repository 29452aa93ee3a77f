"""Kafka as plain lists, and a client of it that is no aiokafka: what `plugin/consumer/clientprotocol.py` asks for, and nothing else."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.errors import AckwiseError, PublishRefused, PublishUnavailable
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.policies.delaytopic import ladder_of
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Standing, Topic
from ackwise.plugin.kafka.recordbatches import RawRecords

_APPEND_TIME = 1


class Lists:
    """Logs, commits and groups. It is a `Publisher` of copies as well. `clock`: epoch seconds."""

    def __init__(self, clock: Callable[[], float], **widths: int) -> None:
        """`widths`: the number of partitions of each topic; `_` in a name is a dot."""
        self.widths = {topic.replace("_", "."): width for topic, width in widths.items()}
        self.logs: dict[TopicPartition, list[Any]] = {
            TopicPartition(topic, number): [] for topic, width in self.widths.items() for number in range(width)
        }
        self.commits: dict[str, dict[TopicPartition, Committed]] = defaultdict(dict)
        self.groups: dict[str, list[ListClient]] = defaultdict(list)
        self.grown = asyncio.Event()
        self._clock = clock

    def write(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None, headers: Any = ()) -> int:
        """Append a record; returns its offset."""
        log, now = self.logs[TopicPartition(topic, partition)], round(self._clock() * 1000)
        log.append(
            SimpleNamespace(offset=len(log), timestamp=now, timestamp_type=_APPEND_TIME, key=key, value=value, headers=tuple(headers))
        )
        self.grown.set()
        self.grown = asyncio.Event()
        return len(log) - 1

    def values(self, topic: str) -> list[bytes | None]:
        """What is in `topic`."""
        return [record.value for number in range(self.widths[topic]) for record in self.logs[TopicPartition(topic, number)]]

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        """See `Publisher`."""
        for copy in copies:
            partition, width = copy.partition, self.widths[copy.topic]
            if copy.until is not None:
                partition = next(ladder_of(width).ways(copy.until / 1000 - self._clock(), sends=copy.is_send))
            self.write(copy.topic, partition % width, copy.value, copy.key, copy.headers)
        return [None] * len(copies)

    async def rebalance(self, group: str) -> None:
        """Give each member of `group` its share: what others had is given up first."""
        members = list(self.groups[group])
        topics = {topic for member in members for topic in member.topics}
        partitions = sorted(partition for partition in self.logs if partition.topic in topics)
        shares = {member: partitions[number :: len(members)] for number, member in enumerate(members)}
        await asyncio.gather(*(member.lose(member.assignment() - {*shares[member]}) for member in members))
        for member, share in shares.items():
            member.gain(share)


class ListClient:
    """A member of `group`. `harms` are raised by its next fetches, which have moved its positions by then."""

    def __init__(self, lists: Lists, group: str) -> None:
        self.lists = lists
        self.group = group
        self.topics: tuple[str, ...] = ()
        self.harms: list[BaseException] = []
        self.sought: list[tuple[TopicPartition, int]] = []
        self._positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._answers = 0
        self._is_gone = False

    async def join(self, topics: Iterable[str], opening: Opening) -> None:
        """Consume `topics` in the group from now on."""
        self.topics, self._opening = tuple(topics), opening
        self.lists.groups[self.group].append(self)
        await self.lists.rebalance(self.group)

    async def leave(self) -> None:
        """Leave the group, or be thrown out of it: what was not given up before is another member's."""
        self._positions.clear()
        self._is_gone = True
        self.lists.groups[self.group].remove(self)
        await self.lists.rebalance(self.group)

    async def lose(self, revoked: Collection[TopicPartition]) -> None:
        """The group takes these away."""
        await self._opening.give_up(revoked)
        for partition in revoked:
            self._positions.pop(partition, None)

    def gain(self, assigned: Iterable[TopicPartition]) -> None:
        """The group gives these, of which it had some."""
        new = [partition for partition in assigned if partition not in self._positions]
        self._positions.update(dict.fromkeys(new))
        self._opening.note(new)

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        await asyncio.sleep(0)
        if self._is_gone or not offsets.keys() <= self._positions.keys():
            raise CommitFailedError("not a member any more")
        self.lists.commits[self.group].update({each: Committed(*found) for each, found in offsets.items()})
        return None

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {partition: len(self.lists.logs[partition]) for partition in partitions}

    async def ask(self, partitions: Collection[TopicPartition], /) -> Asked:
        await asyncio.sleep(0)
        commits, logs, widths = self.lists.commits[self.group], self.lists.logs, self.lists.widths
        return Asked({each: Standing(commits.get(each), 0, len(logs[each]), Topic("id", widths[each.topic])) for each in partitions}, {})

    async def topics_of(
        self, partitions: Collection[TopicPartition], /
    ) -> tuple[Mapping[TopicPartition, Topic], Mapping[TopicPartition, KafkaError]]:
        return {partition: Topic("id", self.lists.widths[partition.topic]) for partition in partitions}, {}

    def missing_topics(self) -> Sequence[str]:
        return ()

    def is_gone(self, topic: str, /) -> bool:
        return False

    def assignment(self) -> set[TopicPartition]:
        return {*self._positions}

    def seek(self, partition: TopicPartition, offset: int, /) -> None:
        self.sought.append((partition, offset))
        self._positions[partition] = offset

    def pause(self, partition: TopicPartition, /) -> None:
        self._paused.add(partition)

    def resume(self, partition: TopicPartition, /) -> None:
        self._paused.discard(partition)

    def paused(self) -> set[TopicPartition]:
        return self._paused & self._positions.keys()

    def positions(self, partitions: Iterable[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {partition: position for partition in partitions if (position := self._positions.get(partition)) is not None}

    def raising(self) -> set[TopicPartition]:
        return set()

    async def take(
        self, partitions: Collection[TopicPartition] | None, /, *, timeout: float, most: int | None
    ) -> Mapping[Any, Sequence[Any]]:
        now = asyncio.get_running_loop().time
        until = now() + timeout
        while not (taken := self._drain(partitions, most)) and (left := until - now()) > 0:
            await asyncio.wait({grown := asyncio.ensure_future(self.lists.grown.wait())}, timeout=left)
            grown.cancel()
        if taken and self.harms:
            raise self.harms.pop()
        return taken

    def _drain(self, partitions: Collection[TopicPartition] | None, most: int | None) -> dict[TopicPartition, list[Any]]:
        taken: dict[TopicPartition, list[Any]] = {}
        for partition in {*self._positions}.intersection(self._positions if partitions is None else partitions) - self._paused:
            position, log = self._positions[partition], self.lists.logs[partition]
            if position is None:
                raise NoOffsetForPartitionError(partition)
            if position > len(log):
                raise OffsetOutOfRangeError({partition: position})
            if records := log[position : None if most is None else position + most]:
                taken[partition] = records
                self._positions[partition] = position + len(records)
        self._answers += 1
        return taken

    async def wait(self, timeout: float, /) -> bool:
        return True

    async def read_past(self, partition: TopicPartition, position: int, /) -> RawRecords:
        raise AssertionError("lists have no parser to read past")

    def answered_at(self, partition: TopicPartition, /) -> int | None:
        return self._answers

    def revive(self) -> BaseException | None:
        return None

    def require_membership(self) -> None:
        if self._is_gone:
            raise AckwiseError(f"group {self.group!r} has thrown this member out")

    def rejoin_if_broken(self) -> None: ...

    def look_for_topics(self) -> asyncio.Future[bool]:
        raise AssertionError("no topic is missing")

    def expect(self, idle: int | None, /) -> None: ...
