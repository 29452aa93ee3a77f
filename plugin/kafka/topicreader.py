"""Reading topics outside of any group: commits nothing, creates no topic, runs no consumer.

The next offset comes from the answer alone: it follows the last batch, whether that has records, aborted ones or the marker of a
transaction. An empty answer means that there is nothing up to the end that it names: compaction may have removed it, and waiting
would never end. Only if that part is in remote storage, which may answer late, is the broker asked again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    ReplicaNotAvailableError,
    UnknownError,
    UnknownTopicOrPartitionError,
    for_code,
)

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import said
from ackwise.plugin.kafka.aiokafkainternals import any_broker, learn_brokers, send
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.protocolrequests import FetchRequest, LocalStartRequest, MetadataRequest, OffsetRequest
from ackwise.plugin.kafka.recordbatches import RawBatches, fetch_raw

#: Seconds for which an error that may pass is asked again, and between two questions.
_PATIENCE, _ASK_AGAIN = 30.0, 0.2

#: Milliseconds that a broker waits for a record that may come at any time.
_WAIT: Final = 5_000

#: Bytes of one answer, as a client asks for by default.
_MOST: Final = 1024 * 1024

#: What is asked for in place of a time.
_LATEST, _EARLIEST = -1, -2

T = TypeVar("T")


class Unreadable(Unavailable):
    """A log does not have what is asked for any more, or it has something that can't be read, such as a damaged record."""


class Bounds(NamedTuple):
    """A log as it is now: offsets from `start` to before `end`, which is the first open transaction for who reads what is committed."""

    start: int
    end: int


class TopicReader:
    """Reads what this client may through `admin`, a started client.

    What may pass, such as a partition without a leader, is asked again for `patience` seconds. Then each call raises `Unavailable`;
    `Unreadable` if that is not for the broker to change, and `ConfigurationError` if the client may not read.
    """

    def __init__(self, admin: AIOKafkaAdminClient, *, committed: bool = True, patience: float = _PATIENCE) -> None:
        """`committed`: nothing of a transaction that is open or was aborted is read."""
        self._admin = admin
        self._isolation = int(committed)
        self._patience = patience
        self._leaders: dict[TopicPartition, int] = {}

    async def topics(self) -> set[str]:
        """The names of all topics that this client may see."""
        return set(await self._answer("the topics", self._admin.list_topics))

    async def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """The partitions of those of `topics` that are there, by name and number."""
        there = await self.topics() & set(topics)  # first: older brokers make a topic that is asked for by its name
        self._leaders.clear()  # it may have fewer now
        await self._answer("the topics", partial(self._learn, there))
        return sorted(partition for partition in self._leaders if partition.topic in there)

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The bounds of each log."""
        starts, ends = await asyncio.gather(self.offsets(partitions, _EARLIEST), self.ends(partitions))
        return {partition: Bounds(starts[partition][0], ends[partition]) for partition in partitions}

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each log. What was acknowledged before this was called is before it."""
        return {partition: offset for partition, (offset, _) in (await self.offsets(partitions, _LATEST)).items()}

    async def offsets(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, tuple[int, int]]:
        """Offset and time of the first record of each log that is of `time_ms` or later; an offset below zero where there is none."""
        return await self._answer("the ends of logs", partial(self._ask_leaders, partitions, time_ms))

    async def records(
        self, partition: TopicPartition, start: int, end: int | None = None, *, most: int = _MOST
    ) -> AsyncGenerator[Any, None]:
        """The records from `start` to before `end`, oldest first; without an `end` also those that come later, forever.

        About `most` bytes are asked for at once.
        """
        while end is None or start < end:
            found, start = await self.portion(partition, start, end, most=most)
            for record in found:
                yield record

    async def first(self, partition: TopicPartition, start: int, end: int) -> Any:
        """The first record from `start` to before `end`; `None` if there is none."""
        return await anext(self.records(partition, start, end, most=1), None)

    async def portion(self, partition: TopicPartition, start: int, end: int | None = None, *, most: int = _MOST) -> tuple[list[Any], int]:
        """Some records from `start` to before `end`, and where to go on: before that are no others. Without an `end` it may be `start`."""
        what = _place(partition, start)
        answer = await self._answer(what, partial(self._fetch, partition, start, end, most))
        end = answer.end if end is None else end
        try:
            records = [record for record in answer.parsed() if record.offset < end]
        except Exception as error:  # whatever a parser raises
            raise _ours(error, what) from error
        if answer.raw and answer.goes_on_at <= start:
            raise _ours(RecordTooLargeError("the broker gives half a batch"), what)
        return records, max(start, min(end, answer.goes_on_at))

    async def fetch(self, partition: TopicPartition, position: int) -> RawBatches:
        """Return the broker's batches from `position` on, not parsed."""
        return await self._answer(_place(partition, position), partial(self._fetch, partition, position, position, _MOST))

    async def try_to_read(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from the end of each log, with one request to each broker, and keep nothing of what comes."""
        ends = await self.ends(partitions)
        await self._answer("the newest records", partial(self._try_to_read, ends))

    async def _try_to_read(self, ends: Mapping[TopicPartition, int]) -> None:
        for leader, asked in (await self._led({partition: (end, _MOST) for partition, end in ends.items()})).items():
            answer = await send(self._admin, leader, FetchRequest(0, 1, _MOST, self._isolation, asked, rack_id=""))
            for topic, parts in answer.topics:
                for number, code, *_ in parts:
                    if code:
                        raise for_code(code)(_place(TopicPartition(topic, number)))

    async def _fetch(self, partition: TopicPartition, position: int, end: int | None, most: int) -> RawBatches:
        """An answer that is empty only where the log has nothing from `position` to `end`."""
        leader, wait = await self._leader(partition), _WAIT if end is None else 0
        answer = await fetch_raw(self._admin, leader, partition, position, wait_ms=wait, most=most, isolation=self._isolation)
        if not answer.raw and answer.end < (wanted := position if end is None else end):
            raise LeaderNotAvailableError(f"the log ends at {answer.end} for now, and ended at {wanted} before")
        if not answer.raw and position < answer.end and await self._is_remote(leader, partition, position):
            raise ReplicaNotAvailableError("the remote storage has not answered its broker yet")
        return answer

    async def _is_remote(self, leader: int, partition: TopicPartition, position: int) -> bool:
        """Return whether the leader has `position` in remote storage: an empty answer says nothing then. Older brokers have none."""
        try:
            answer = await send(self._admin, leader, LocalStartRequest(*partition))
        except (IncompatibleBrokerVersion, NotImplementedError):  # aiokafka raises either
            return False
        ((_, code, _, start, *_),) = (each for _, parts, *_ in answer.topics for each in parts)
        if code:
            raise for_code(code)(_place(partition))
        return bool(position < start)

    async def _ask_leaders(self, partitions: Collection[TopicPartition], time: int) -> dict[TopicPartition, tuple[int, int]]:
        found = {}
        for leader, asked in (await self._led(dict.fromkeys(partitions, (time,)))).items():
            answer = await send(self._admin, leader, OffsetRequest(-1, self._isolation, asked))
            for topic, answers in answer.topics:
                for number, code, at, offset in answers:
                    if code:
                        raise for_code(code)(_place(TopicPartition(topic, number)))
                    found[TopicPartition(topic, number)] = offset, at
        if missing := set(partitions) - found.keys():
            raise KafkaConnectionError(f"the broker's answer leaves out the partition {_place(min(missing))}")
        return {partition: found[partition] for partition in partitions}

    async def _led(self, asked: Mapping[TopicPartition, tuple[int, ...]]) -> dict[int, list[tuple[str, list[Any]]]]:
        """Return the questions about each partition, by its leader and its topic."""
        led: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for partition, what in asked.items():
            led[await self._leader(partition)][partition.topic].append((partition.partition, *what))
        return {leader: list(topics.items()) for leader, topics in led.items()}

    async def _leader(self, partition: TopicPartition) -> int:
        if partition not in self._leaders:
            await self._learn({partition.topic})
        if (leader := self._leaders.get(partition)) is None:
            raise UnknownTopicOrPartitionError(_place(partition))
        if leader < 0:
            raise LeaderNotAvailableError(_place(partition))
        return leader

    async def _learn(self, topics: Iterable[str]) -> None:
        """Ask who leads the partitions of `topics`."""
        if asked := sorted(topics):
            request = MetadataRequest(asked, allow_auto_topic_creation=False)
            answer = await send(self._admin, any_broker(self._admin), request)
            for topic in answer.to_object()["topics"]:
                if topic["error_code"]:
                    raise for_code(topic["error_code"])(topic["topic"])
                for each in topic["partitions"]:
                    self._leaders[TopicPartition(topic["topic"], each["partition"])] = each["leader"]
            learn_brokers(self._admin, answer)

    async def _answer(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`; after an error that may pass, ask the new leader."""
        now = asyncio.get_running_loop().time
        until = now() + self._patience
        while True:
            try:
                return await ask()
            except KafkaError as error:
                self._leaders.clear()
                if not _may_pass(error) or now() >= until:
                    raise _ours(error, what) from error
            await asyncio.sleep(_ASK_AGAIN)


def _place(partition: TopicPartition, offset: int | None = None) -> str:
    return f"{partition.topic}/{partition.partition}" + ("" if offset is None else f" at offset {offset}")


def _may_pass(error: Exception) -> bool:
    """Return whether asking again may help; an error that aiokafka has no class for may pass as well."""
    return isinstance(error, KafkaError) and (error.retriable or isinstance(error, ReplicaNotAvailableError | UnknownError))


def _ours(error: Exception, what: str) -> ConfigurationError | Unavailable:
    """`error` as our sentence about `what` was read."""
    if is_refusal(error):
        return ConfigurationError(f"this client may not read {what} ({said(error)}); allow it to")
    if isinstance(error, OffsetOutOfRangeError):
        return Unreadable(f"the log does not have {what} any more, retention took it or the topic was recreated; start again")
    if _may_pass(error):
        return Unavailable(f"{what} could not be read ({said(error)}); see that the brokers are there, and try again")
    return Unreadable(f"{what} can't be read ({said(error)}); look at the log of its broker")
