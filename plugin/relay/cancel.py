"""Cancelling of messages that wait in the delay topics: who they are is looked up there, and the relay reads what is written.

A message is cancelled if that is acknowledged before the message is due: whatever is due later is brought back by a relay that
reads the cancel topic to its end first.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from aiokafka import TopicPartition

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import said
from ackwise.middleware.message import Delivery, delivery_of
from ackwise.middleware.wire import Copy, ForeignCopy, OtherWire, parse_copy, waiting_copy
from ackwise.plugin.group.copyreader import CopyReader, reading
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.relay.cancellations import PARTITION
from ackwise.plugin.relay.hop import latest_due

__all__ = ["CancelAnswer", "cancel"]

CancelAnswer = Literal["accepted", "too late", "unknown"]
"""`accepted`: it does not come back. `too late`: it is due, or came back already. `unknown`: no message with that id waits."""

_MESSAGE_ID: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d{1,10})/(?P<offset>\d{1,19})")

_APPEND_TIME: Final = 1  #: of a record whose time the broker has set

#: What a cancellation says besides its key; whoever takes it back writes no value.
_CANCELLED: Final = b'{"version": 1}'


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
            await _write(publisher, group, in_time, _CANCELLED)
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
    for answer in await publisher.publish([Copy(group.names.cancel, PARTITION, key, value, ()) for key in keys]):
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

    async def waiting(self) -> _Found:
        """What is found. How far relay and group are is asked first: what moves on meanwhile is seen where it was, or where it is."""
        names, reader = self._group.names, self._reader
        committed = await reader.committed()
        delays = await reader.partitions(names.with_levels_of(await reader.topics()).delays)
        retries = await reader.partitions([names.retry])
        found: dict[str, _Copies] = {}
        for near in (True, False):  # a copy is where its first record was, unless its topic was narrower then
            for partition in self._chosen(delays, found, near=near):
                async for record, is_append_time in self._records(partition, committed):
                    self._take(record, found, is_append_time=is_append_time)
        returned: dict[str, _Copies] = {}
        for partition in self._chosen(retries, found, near=True):
            async for record, _ in self._records(partition, committed):
                self._take(record, returned, is_append_time=False)
        return _Found(found, returned.keys() - found.keys())

    def _chosen(self, partitions: Sequence[TopicPartition], found: Mapping[str, object], *, near: bool) -> Iterator[TopicPartition]:
        """Where what is not found yet should be, or the rest."""
        if not (missing := [number for message_id, number in self._wanted.items() if message_id not in found]):
            return
        widths: dict[str, int] = {}
        for partition in partitions:
            widths[partition.topic] = max(widths.get(partition.topic, 0), partition.partition + 1)
        for partition in partitions:
            if near == (partition.partition in {number % widths[partition.topic] for number in missing}):
                yield partition

    async def _records(self, partition: TopicPartition, committed: Mapping[TopicPartition, Any]) -> AsyncIterator[tuple[Delivery, bool]]:
        """What is behind the commit, up to the end as it is now, and whether the broker set its time."""
        left = (await self._reader.left([partition], committed))[partition]
        async for record in self._reader.records(partition, left.position, left.end):
            yield delivery_of(partition, record), record.timestamp_type == _APPEND_TIME

    def _take(self, record: Delivery, found: dict[str, _Copies], *, is_append_time: bool) -> None:
        settings = self._group.settings
        try:
            due, key = waiting_copy(record.headers, settings.group)
            message_id = b"/".join(key.split(b"/", 3)[:3]).decode(errors="replace")
            if message_id not in self._wanted:
                return
            attempt = parse_copy(record, settings.group).attempt
        except (ForeignCopy, OtherWire):
            return
        at, max_delay = record.timestamp_ms, self._group.slots.later.max_delay
        due = min(due, latest_due(at, at, max_delay, settings.clock_skew, is_append_time=is_append_time))
        copies = found.setdefault(message_id, {})
        copies[key] = max(copies.get(key, _Waiting(0, 0, key)), _Waiting(attempt, due, key))
