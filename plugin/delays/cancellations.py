"""Cancellations of delayed messages: records in partition 0 of a group's delay topic.

The relay reads them to their end before each batch of moves. So a message is cancelled if its cancellation is acknowledged before
the message is due.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Any, Final, Literal, NamedTuple, Protocol

from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.message import Delivery, Headers, delivery_of
from ackwise.middleware.message.wire import Copy, ForeignCopy, OtherWire, parse_copy, waiting_copy
from ackwise.middleware.policies.delaytopic import CANCELLATIONS
from ackwise.plugin.delays.nexthop import cut_due
from ackwise.plugin.kafka.timeouts import answer
from ackwise.plugin.kafka.topicreader import TopicReader, Unreadable
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.leftovers import CopyReader, reading
from ackwise.plugin.topics.topicadmin import connected

log = Log()

#: The value of a cancellation; one that is taken back has no value.
CANCELLED: Final = b'{"version": 1}'

#: Seconds for reading what is new.
_READ_TIMEOUT: Final = 30.0


class Cancellations(Protocol):
    """What is cancelled."""

    @property
    def keys(self) -> AbstractSet[bytes]:
        """The keys of cancelled messages, as of the last `read`; see `waiting_copy`."""
        ...

    async def read(self) -> None:
        """Return once `keys` has everything that was acknowledged before this was called. Raises `AckwiseError` or `KafkaError`."""

    async def close(self) -> None:
        """Let go of what is open. Raises nothing."""


class CancelPartition:
    """The cancellations in the delay topic of a group. It has its own client: the relay's own connection waits for copies.

    A record without a value takes back what an earlier one with its key has cancelled. What the log does not have any more is forgotten: it
    is kept for longer than a copy waits on one rung.
    """

    def __init__(self, settings: HostSettings, topic: str) -> None:
        self._settings = settings
        self._partition = TopicPartition(topic, CANCELLATIONS)
        self._open = AsyncExitStack()
        self._reader: TopicReader | None = None
        self._position: int | None = None
        self._keys: dict[bytes, int] = {}  #: with the offset of each
        self._starts_at = 0  #: the first offset of the log
        self._throttle = LogThrottle()
        self._reading = asyncio.Lock()
        self._begun = self._done = 0

    @property
    def keys(self) -> AbstractSet[bytes]:
        """See `Cancellations`."""
        return self._keys.keys()

    async def read(self) -> None:
        """See `Cancellations`. Those who call while it is read share the next reading, since this one may have started too early."""
        wanted = self._begun + 1
        async with self._reading:
            if self._done >= wanted:
                return
            self._begun += 1
            number = self._begun
            try:
                await answer(self._read_to_end(), within=_READ_TIMEOUT)
            except BaseException as error:
                if isinstance(error, Unreadable):  # it was recreated, or what was there is deleted
                    self._position, self._starts_at = None, 0
                    self._keys.clear()
                await self.close()  # the next one finds who leads by then
                raise
            self._done = number

    async def close(self) -> None:
        """See `Cancellations`."""
        opened, self._open, self._reader = self._open, AsyncExitStack(), None
        await opened.aclose()

    async def _read_to_end(self) -> None:
        if self._reader is None:
            admin = await self._open.enter_async_context(connected(self._settings, "cancel-relay"))
            self._reader = TopicReader(admin, committed=False, patience=0.0)
        reader, place = self._reader, self._partition
        start, end = (await reader.bounds([place]))[place]
        if self._position is None:
            self._position = start
        if not start <= self._position <= end:
            raise Unreadable(f"{place.topic}/{place.partition} has offsets from {start} to {end}, and was read to {self._position}")
        self._forget(start)
        async for record in reader.records(place, self._position, end):
            self._take(record)
        self._position = end

    def _forget(self, starts_at: int) -> None:
        """Forget what stood before the first offset of the log."""
        if starts_at > self._starts_at:
            self._keys = {key: offset for key, offset in self._keys.items() if offset >= starts_at}
            self._starts_at = starts_at

    def _take(self, record: Any) -> None:
        if record.key is not None and record.value is None:
            self._keys.pop(record.key, None)
        elif record.key is not None and record.value == CANCELLED:
            self._keys[record.key] = record.offset
        elif self._throttle.is_due():
            log.error(
                "foreign record among cancellations skipped",
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=record.offset,
            )


CancelAnswer = Literal["accepted", "too late", "unknown"]
"""`accepted`: it does not come back. `too late`: it is due, or came back already. `unknown`: no message with that id waits."""

_MESSAGE_ID: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d{1,10})/(?P<offset>\d{1,19})")

#: Headers of a copy that a message id is made of.
_COORDINATES: Final = ("ackwise-origin-topic", "ackwise-origin-partition", "ackwise-origin-offset")

_APPEND_TIME: Final = 1  #: of a record whose time the broker has set


class _Waiting(NamedTuple):
    """A copy that waits: its attempt, when it is due at the earliest (epoch ms), and how it is cancelled."""

    attempt: int
    due: int
    key: bytes


_Copies = dict[bytes, _Waiting]  #: the newest of each handler, by what it is cancelled by


def refuse_without_delays(group: Group) -> None:
    """Refuse an instance that broadcasts. Raises `ConfigurationError`."""
    if not group.names.all:
        raise ConfigurationError(f"group {group.settings.group!r} broadcasts and sends nothing back, so nothing of it waits")


async def cancel(group: Group, message_ids: Collection[str], *, clock: Callable[[], float] = time.time) -> dict[str, CancelAnswer]:
    """Cancel the messages with these ids, `topic/partition/offset` of their first record; an answer for each.

    A message of several handlers is cancelled for those of them for which it waits. `clock`: epoch seconds. Raises
    `ConfigurationError` for what is no id, and another `AckwiseError` if the brokers do not answer: then nothing is known, and it
    may be called again.
    """
    refuse_without_delays(group)
    partitions = {message_id: _partition_of(message_id) for message_id in message_ids}
    skew = group.settings.clock_skew
    publisher = KafkaPublisher(group.settings)
    async with reading(group.settings, group.names) as reader:
        found = await _Search(reader, group, partitions).waiting()
        answers: dict[str, CancelAnswer] = dict.fromkeys(message_ids, "unknown")
        answers |= dict.fromkeys(found.returned, "too late")
        in_time = _in_time(found.waiting, clock() + skew)
        answers |= {message_id: "accepted" if message_id in in_time else "too late" for message_id in found.waiting}
        if not in_time:
            return answers
        await publisher.start()
        try:
            await _write(publisher, group, in_time, CANCELLED)
            late = in_time.keys() - _in_time(in_time, clock() + skew).keys()
            if late:
                await _write(publisher, group, {message_id: in_time[message_id] for message_id in late}, None)
        finally:
            await publisher.stop()
    answers.update(dict.fromkeys(late, "too late"))
    return answers


def _partition_of(message_id: str) -> int:
    if (found := _MESSAGE_ID.fullmatch(message_id)) is None:
        raise ConfigurationError(f"{message_id!r} is no message id; write topic/partition/offset of its first record, such as orders/3/120")
    return int(found["partition"])


def _in_time(waiting: Mapping[str, _Copies], now: float) -> dict[str, _Copies]:
    """Those of which no copy is due at `now`, epoch seconds."""
    return {message_id: copies for message_id, copies in waiting.items() if all(now * 1000 < copy.due for copy in copies.values())}


async def _write(publisher: KafkaPublisher, group: Group, waiting: Mapping[str, _Copies], value: bytes | None) -> None:
    keys = sorted({key for copies in waiting.values() for key in copies})
    for refusal in await publisher.publish([Copy(group.names.delay, CANCELLATIONS, key, value, ()) for key in keys]):
        if refusal is not None:
            raise Unavailable(f"the cancellation may be there or not: {said(refusal)}; cancel again")


class _Found(NamedTuple):
    waiting: dict[str, _Copies]
    returned: set[str]  #: those whose copy is in the retry topic


class _Search:
    """Looks for messages in what the relay and the group have not committed: `wanted` has their partitions, by their ids."""

    def __init__(self, reader: CopyReader, group: Group, wanted: Mapping[str, int]) -> None:
        self._reader = reader
        self._group = group
        self._wanted = wanted
        self._ids = {message_id.encode() for message_id in wanted}

    async def waiting(self) -> _Found:
        """What is found. How far relay and group are is asked first: what moves on meanwhile is seen where it was, or where it is."""
        names, reader = self._group.names, self._reader
        committed = await reader.committed()
        rungs = [each for each in await reader.partitions([names.delay]) if each.partition != CANCELLATIONS]
        retries = await reader.partitions([names.retry])
        found: dict[str, _Copies] = {}
        await self._search(rungs, committed, found)
        returned: dict[str, _Copies] = {}
        await self._search(self._chosen(retries, found), committed, returned)
        return _Found(found, returned.keys() - found.keys())

    def _chosen(self, partitions: Sequence[TopicPartition], found: Mapping[str, object]) -> list[TopicPartition]:
        """Those of the retry topic where what is not found yet would be, which is where its first record was."""
        missing = [number for message_id, number in self._wanted.items() if message_id not in found]
        wanted = {number % len(partitions) for number in missing} if partitions else set()
        return [partition for partition in partitions if partition.partition in wanted]

    async def _search(
        self, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, Any], found: dict[str, _Copies]
    ) -> None:
        """Look at what is behind the commits, up to the ends as they are now."""
        for partition, left in (await self._reader.left(partitions, committed)).items():
            async for record in self._reader.records(partition, left.position, left.end):
                if self._may_be_wanted(record.headers):
                    self._take(delivery_of(partition, record), found, is_append_time=record.timestamp_type == _APPEND_TIME)

    def _may_be_wanted(self, headers: Headers) -> bool:
        """Return whether a record is worth reading, as few of a million are. Our headers stand behind those of its producer."""
        found = dict(headers)
        return b"/".join([found.get(name) or b"" for name in _COORDINATES]) in self._ids

    def _take(self, record: Delivery, found: dict[str, _Copies], *, is_append_time: bool) -> None:
        settings = self._group.settings
        try:
            due, key, _ = waiting_copy(record.headers, settings.group)
            message_id = b"/".join(key.split(b"/", 3)[:3]).decode(errors="replace")
            if message_id not in self._wanted:
                return
            attempt = parse_copy(record, settings.group).attempt
        except (ForeignCopy, OtherWire):
            return
        at, max_delay = record.timestamp_ms, self._group.slots.later.max_delay
        due = cut_due(due, at, at, max_delay=max_delay, clock_skew=settings.clock_skew, is_append_time=is_append_time)
        copies = found.setdefault(message_id, {})
        copies[key] = max(copies.get(key, _Waiting(0, 0, key)), _Waiting(attempt, due, key))
