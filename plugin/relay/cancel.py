"""Cancelling of messages that wait in the delay topic: who they are is looked up there, and the relay reads what is written.

A message is cancelled if that is acknowledged before the message is due: whatever is due later is brought back by a relay that
reads the cancellations to their end first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.ladder import CANCELLATIONS
from ackwise.middleware.log import said
from ackwise.middleware.message import Delivery, Headers, delivery_of
from ackwise.middleware.wire import Copy, ForeignCopy, OtherWire, parse_copy, waiting_copy
from ackwise.plugin.group.copyreader import CopyReader, reading
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.relay.cancellations import CANCELLED
from ackwise.plugin.relay.hop import cut_due

__all__ = ["CancelAnswer", "cancel"]

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
    for answer in await publisher.publish([Copy(group.names.delay, CANCELLATIONS, key, value, ()) for key in keys]):
        if answer is not None:
            raise Unavailable(f"the cancellation may be there or not: {said(answer)}; cancel again")


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
        """Whether a record is worth reading, as few of a million are. Our headers stand behind those of its producer."""
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
