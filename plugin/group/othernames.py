"""Copies under other names: what waits in topics that the group made before its `topic_names` were changed. Nobody would bring it back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from ackwise.middleware.ladder import CANCELLATIONS
from ackwise.middleware.message import Delivery
from ackwise.middleware.wire import ForeignCopy, OtherWire, parse_copy
from ackwise.plugin.group.copyreader import CopyReader, Left, look
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topictemplate import TopicTemplate

__all__ = ["find_copies_elsewhere"]

#: Seconds for the whole look.
_TIMEOUT: Final = 15.0

_DEFAULT: Final = TopicTemplate()


#: Kinds of topics in which something waits to be brought on.
_WAIT: Final = ("retry", "delay")


async def find_copies_elsewhere(settings: HostSettings, names: TopicNames, sources: Collection[str]) -> tuple[list[str], str | None]:
    """A sentence for each topic under other names in which something of the group waits; and why not everything was looked at, if so.

    Looked at are topics that the group or its relay has committed, and those that it would have by default; `sources` are what it reads.
    An instance that broadcasts reads no copies at all: those of its group of before count, unless somebody is in that.
    Raises `Unavailable`.
    """
    read, nobody = names, f"with topic_names={names.template.text!r} nobody brings it back"
    advice = "let workers with the names before run the delay and retry topics dry, and change the names then"
    if settings.instance:
        read = TopicNames(settings.group.removesuffix(f"@{settings.instance}"), template=TopicTemplate(settings.topic_names))
        nobody = f"an app that broadcasts reads none of group {read.group!r}"
        advice = "let workers without Broadcasting run the delay and retry topics dry before"

    async def find(reader: CopyReader) -> list[_Waits]:
        there = {*await reader.topics()}.difference(sources)
        if settings.instance and (await reader.membership(read.group)).members:
            return []
        return await _look(reader, read, there, is_read=read.has_name_of_own if not settings.instance else _nothing)

    found, unread = await look(settings, read, find, within=_TIMEOUT)
    return [f"{waits.sentence(read.group)}, and {nobody}; {advice}" for waits in found or ()], unread


class _Waits(NamedTuple):
    """A topic in which something waits: the first of it, and how much."""

    first: TopicPartition
    offset: int
    records: int

    def sentence(self, group: str) -> str:
        topic, partition = self.first
        return (
            f"topic {topic!r} has something of group {group!r} that waits (partition {partition}, offset {self.offset}; "
            f"{self.records} in all)"
        )


async def _look(reader: CopyReader, names: TopicNames, there: set[str], *, is_read: Callable[[str], bool]) -> list[_Waits]:
    by_relay, committed = {each.topic for each in await reader.committed_by_relay()}, await reader.committed()
    own = {topic for topic in there if (of := names.template.of(topic)) is not None and of.group == names.group and of.kind in _WAIT}
    by_default = {topic for topic in there if (of := _DEFAULT.of(topic)) is not None and of.group == names.group and of.kind in _WAIT}
    certain = by_relay | by_default | own  # nothing else is in these
    delays = by_relay | {topic for topic in there for template in (names.template, _DEFAULT) if template.kind_of(topic) == "delay"}
    found = []
    for topic in sorted(topic for topic in (certain | {each.topic for each in committed}) & there if not is_read(topic)):
        left = await reader.left(await reader.partitions([topic]), committed)
        if topic in delays:  # nobody brings cancellations on
            left.pop(TopicPartition(topic, CANCELLATIONS), None)
        for partition, rest in sorted(left.items()):
            if (offset := await _first(reader, partition, rest, None if topic in certain else names.group)) is not None:
                found.append(_Waits(partition, offset, sum(each.end - each.position for each in left.values())))
                break
    return found


def _nothing(_: str) -> bool:
    return False


async def _first(reader: CopyReader, partition: TopicPartition, left: Left, group: str | None) -> int | None:
    """The offset of the first record that is left; with a `group` only if it is a copy of that, as those topics have nothing else."""
    if left.position >= left.end:
        return None
    is_unfinished = left.unfinished()
    async for record in reader.deliveries(partition, left):
        if is_unfinished(record.offset):
            return record.offset if group is None or _is_copy(record, group) else None
    return None


def _is_copy(record: Delivery, group: str) -> bool:
    try:
        parse_copy(record, group)
    except ForeignCopy:
        return False
    except OtherWire:
        return True
    return True
