"""Leftovers of earlier configurations in a group's topics, read outside of any group.

Three kinds: copies from before a handler had an order, which would run out of order, so its start is refused; copies in topics with
the group's earlier names, which would never be redelivered; dead letters in a topic that the app no longer names, which no operator would
look at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.flow.controlrecords import letters_topic
from ackwise.middleware.log import said
from ackwise.middleware.message.message import Delivery, delivery_of
from ackwise.middleware.message.wire import ForeignCopy, OtherWire, parse_copy, reason_of
from ackwise.middleware.policies.delaytopic import CANCELLATIONS
from ackwise.middleware.progress.commitmetadata import decode, read_own
from ackwise.middleware.progress.watermark import holds
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.kafka.topicreader import TopicReader, Unreadable
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.groupstate import Membership, committed_of, once_coordinated, read_membership
from ackwise.plugin.topics.topicadmin import connected
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topictemplate import TopicTemplate

T = TypeVar("T")


class Left(NamedTuple):
    """What is left of a partition for a reader: from the commit to before the end, as they are now."""

    position: int
    end: int
    metadata: str
    """Of the commit, if the group left it."""

    def unfinished(self) -> Callable[[int], bool]:
        """A test of whether an offset is unfinished, by the map of the commit."""
        told = decode(self.metadata)
        finished = None if told is None else told.finished
        return lambda offset: finished is None or not holds(finished, offset)


class CopyReader(TopicReader):
    """Reads what the relay and the group have not committed; made by `reading`."""

    def __init__(self, admin: AIOKafkaAdminClient, names: TopicNames) -> None:
        super().__init__(admin)
        self._names = names

    async def committed(self) -> dict[TopicPartition, Any]:
        """The commits of relay and group, by partition."""
        return {**await self.committed_by_relay(), **await self._offsets_of(self._names.group)}

    async def committed_by_relay(self) -> dict[TopicPartition, Any]:
        """The commits of the relay alone."""
        return await self._offsets_of(self._names.relay_group)

    async def _offsets_of(self, group: str) -> dict[TopicPartition, Any]:
        return {partition: found for partition, found in (await committed_of(self._admin, group)).items() if found.offset >= 0}

    async def membership(self, group: str) -> Membership:
        """Return the members of `group`."""
        return await once_coordinated(lambda: self._describe(group))

    async def _describe(self, group: str) -> Membership:
        (answer,) = await self._admin.describe_consumer_groups([group])
        described: Any = answer.to_object()["groups"][0]
        return read_membership(described)

    async def left(self, partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Left]:
        """Return the unread part of each partition, by its commit in `committed`."""
        found = {}
        for partition, (start, end) in (await self.bounds(partitions)).items():
            commit = committed.get(partition)
            position = start if commit is None or not start <= commit.offset <= end else commit.offset
            metadata = "" if commit is None else commit.metadata or ""
            found[partition] = Left(position, end, metadata if read_own(metadata, self._names.group) else "")
        return found

    async def open_transactions(self, topic: str) -> dict[TopicPartition, int]:
        """The partitions of `topic` in which a transaction is open, and the offset before which each is read."""
        partitions = await self.partitions([topic])
        ends = await TopicReader(self._admin, committed=False).ends(partitions)  # first: what is written meanwhile is no transaction
        stable = await self.ends(partitions)
        return {partition: stable[partition] for partition in partitions if stable[partition] < ends[partition]}

    async def deliveries(self, partition: TopicPartition, left: Left) -> AsyncGenerator[Delivery, None]:
        """Yield the deliveries in the part `left` of a partition."""
        async for record in self.records(partition, left.position, left.end):
            yield delivery_of(partition, record)


@asynccontextmanager
async def reading(settings: HostSettings, names: TopicNames) -> AsyncIterator[CopyReader]:
    """A reader while the block runs. Raises what `connected` raises."""
    async with connected(settings) as admin:
        yield CopyReader(admin, names)


async def look(
    settings: HostSettings, names: TopicNames, what: Callable[[CopyReader], Awaitable[T]], *, within: float
) -> tuple[T | None, str | None]:
    """Return what `what` finds in that time (seconds), or why it could not look at everything.

    A start looks, and no refusal or oddity of a client may keep a worker from it. Raises `Unavailable` if the brokers do not answer.
    """
    try:
        async with reading(settings, names) as reader:
            try:
                async with asyncio.timeout(within):
                    return await what(reader), None
            except TimeoutError:
                return None, f"not everything could be read within {within:g} s"
            except KafkaError as error:  # here, since `reading` takes any for brokers that are unavailable
                if error.retriable:
                    raise
                return None, said(error)
    except (ConfigurationError, Unreadable) as error:  # such as brokers that describe nothing
        return None, said(error)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a client raises
        return None, type(error).__name__


#: Seconds for the whole look: a start must not wait for as long as others have copies to read.
_TIMEOUT: Final = 15.0

#: How the reason of a copy starts that a repair plan sent. The operator who sends one has decided that it runs now.
REPAIR: Final = "repair of "


class Leftover(NamedTuple):
    """The first copy found of a handler that has an order."""

    handler: str
    order: str
    topic: str
    partition: int
    offset: int

    @property
    def sentence(self) -> str:
        """Return a sentence with the meaning and what to do."""
        return (
            f"topic {self.topic!r} has a copy for agent {self.handler!r} from before it had order={self.order!r} (partition "
            f"{self.partition}, offset {self.offset}), and it would run out of order; let workers without the order run the delay and "
            "retry topics dry, or cancel what waits (ackwise cancel), and switch the order on then"
        )


class Leftovers(NamedTuple):
    """What was found. `unread` says why not everything was looked at, if so."""

    found: Sequence[Leftover]
    unread: str | None = None


async def find_leftovers(settings: HostSettings, names: TopicNames, agents: Iterable[Agent], *, within: float = _TIMEOUT) -> Leftovers:
    """Look for copies that wait for those of `agents` with an order, in the delay and retry topics, for at most `within` seconds.

    A replay has its own position, and a repair was asked for: neither counts. Raises `Unavailable` if the brokers do not answer.
    """
    orders = {agent.name: agent.order for agent in agents if agent.order is not None}
    if not orders or not names.all:
        return Leftovers(())
    found: dict[str, Leftover] = {}
    _, unread = await look(settings, names, lambda reader: _look(reader, names, orders, found), within=within)
    return Leftovers([*found.values()], unread)


async def _look(reader: CopyReader, names: TopicNames, orders: Mapping[str, str], found: dict[str, Leftover]) -> None:
    """Add the first copy of each handler to `found`. The relay's topics come first: what moves on meanwhile is seen where it goes."""
    committed = await reader.committed()
    for topic in (names.delay, names.retry):
        partitions = [each for each in await reader.partitions([topic]) if each != (names.delay, CANCELLATIONS)]
        for partition, left in (await reader.left(partitions, committed)).items():
            if left.position < left.end and len(found) < len(orders):
                await _search(reader, partition, left, names.group, orders, found)


async def _search(
    reader: CopyReader, partition: TopicPartition, left: Left, group: str, orders: Mapping[str, str], found: dict[str, Leftover]
) -> None:
    is_unfinished = left.unfinished()
    async for record in reader.deliveries(partition, left):
        handler = _waits_for(record, group) if is_unfinished(record.offset) else None
        if handler is not None and handler in orders:
            found.setdefault(handler, Leftover(handler, orders[handler], *partition, record.offset))
            if len(found) == len(orders):
                return


def _waits_for(record: Delivery, group: str) -> str | None:
    """The handler of a copy that was not asked for; `None` for a replay, a repair, and what this group did not write."""
    try:
        copy = parse_copy(record, group)
        asked_for = copy.replay_id is not None or reason_of(record.headers, group).startswith(REPAIR)
    except (ForeignCopy, OtherWire):
        return None
    return None if asked_for else copy.handler


#: Seconds for the whole look.

_DEFAULT: Final = TopicTemplate()


#: Kinds of topics in which something waits to be brought on.
_WAIT: Final = ("retry", "delay")


async def find_copies_elsewhere(settings: HostSettings, names: TopicNames, sources: Collection[str]) -> tuple[list[str], str | None]:
    """A sentence for each topic under other names in which something of the group waits; and why not everything was looked at, if so.

    Looked at are topics that the group or its relay has committed, and those that it would have by default; `sources` are what it reads.
    An instance that broadcasts reads no copies at all: those of its group of before count, unless that group has members.
    Raises `Unavailable`.
    """
    read, why = names, f"with topic_names={names.template.text!r} no worker brings it back"
    advice = "let workers with the names before run the delay and retry topics dry, and change the names then"
    if settings.instance:
        read = TopicNames(settings.group.removesuffix(f"@{settings.instance}"), template=TopicTemplate(settings.topic_names))
        why = f"an app that broadcasts reads none of group {read.group!r}"
        advice = "let workers without Broadcasting run the delay and retry topics dry before"

    async def find(reader: CopyReader) -> list[_Waits]:
        there = {*await reader.topics()}.difference(sources)
        if settings.instance and (await reader.membership(read.group)).members:
            return []
        return await _find_waiting(reader, read, there, is_read=read.has_name_of_own if not settings.instance else _nothing)

    found, unread = await look(settings, read, find, within=_TIMEOUT)
    return [f"{waits.sentence(read.group)}, and {why}; {advice}" for waits in found or ()], unread


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


async def _find_waiting(reader: CopyReader, names: TopicNames, there: set[str], *, is_read: Callable[[str], bool]) -> list[_Waits]:
    by_relay, committed = {each.topic for each in await reader.committed_by_relay()}, await reader.committed()
    own = {topic for topic in there if (of := names.template.of(topic)) is not None and of.group == names.group and of.kind in _WAIT}
    by_default = {topic for topic in there if (of := _DEFAULT.of(topic)) is not None and of.group == names.group and of.kind in _WAIT}
    certain = by_relay | by_default | own  # nothing else is in these
    delays = by_relay | {topic for topic in there for template in (names.template, _DEFAULT) if template.kind_of(topic) == "delay"}
    found = []
    for topic in sorted(topic for topic in (certain | {each.topic for each in committed}) & there if not is_read(topic)):
        left = await reader.left(await reader.partitions([topic]), committed)
        if topic in delays:  # cancellations are not carried on
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


#: Seconds for the whole look.


class Stray(NamedTuple):
    """A topic of an earlier configuration, and how many records are left in it."""

    topic: str
    records: int
    group: str

    @property
    def sentence(self) -> str:
        """Return a sentence with the meaning and what to do."""
        has = f"topic {self.topic!r} has {self.records} {'record' if self.records == 1 else 'records'}"
        return (
            f"{has} of dead letters of group {self.group!r}, which go to another topic now; ackwise dlq list {self.group} "
            f"--dlq {self.topic} shows them, and dlq export and import send them again"
        )


class Strays(NamedTuple):
    """What was found. `unread` says why not everything was looked at, if so."""

    found: Sequence[Stray]
    unread: str | None = None


async def find_strays(settings: HostSettings, names: TopicNames) -> Strays:
    """Look for topics of an earlier configuration in which records are left. Raises `Unavailable` if the brokers do not answer."""
    if not names.all:
        return Strays(())
    found, unread = await look(settings, names, lambda reader: _find_strays(reader, names), within=_TIMEOUT)
    return Strays(found or (), unread)


async def _find_strays(reader: CopyReader, names: TopicNames) -> list[Stray]:
    letters = sorted(await other_letter_topics(reader, names, await reader.topics()))
    records = dict.fromkeys(letters, 0)
    for partition, rest in (await reader.left(await reader.partitions(letters), {})).items():
        records[partition.topic] += rest.end - rest.position
    return [Stray(topic, number, names.group) for topic, number in records.items() if number]


async def other_letter_topics(reader: CopyReader, names: TopicNames, there: Collection[str]) -> set[str]:
    """The topics among those that are `there` which had the dead letters of the group before; its control topic remembers their names."""
    known = {names.default_dead_letter}
    if names.control in there:
        place = TopicPartition(names.control, 0)
        left = await reader.left([place], {})
        async for record in reader.deliveries(place, left[place]):
            if (topic := letters_topic(record.key)) is not None:
                known.add(topic)
    return (known & {*there}) - {names.dead_letter}
