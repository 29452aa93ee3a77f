"""`CopyReader`: the copies of a group that nobody has brought back yet, read from its topics by a consumer of no group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    KafkaError,
    NotCoordinatorForGroupError,
)

from ackwise.middleware.commitmetadata import decode, read_own
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import said
from ackwise.middleware.message import Delivery, delivery_of
from ackwise.middleware.progress import holds
from ackwise.plugin.client.internals import learn_topics
from ackwise.plugin.client.opening import opened
from ackwise.plugin.client.rawrecords import is_about_a_header, read_raw
from ackwise.plugin.group.membership import Membership, read_membership
from ackwise.plugin.group.topics import TopicNames, connected
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["CopyReader", "Left", "look", "reading"]

#: Milliseconds of one look for what was fetched, and how much of it is taken.
_FETCH_MS, _FETCH = 200, 5000

#: Seconds for which brokers may not know who coordinates a group, and until they are asked again.
_PATIENCE, _ASK_AGAIN = 15.0, 0.2

_APPEND_TIME: Final = 1

T = TypeVar("T")


class Left(NamedTuple):
    """What is left of a partition for whoever reads it: from the commit to before the end, as they are now."""

    position: int
    end: int
    metadata: str
    """Of the commit, if the group left it."""

    def unfinished(self) -> Callable[[int], bool]:
        """A test of whether an offset is unfinished, by the map of the commit."""
        told = decode(self.metadata)
        finished = None if told is None else told.finished
        return lambda offset: finished is None or not holds(finished, offset)


class CopyReader:
    """Reads what the relay and the group have not committed; made by `reading`. Each call may raise `KafkaError`."""

    def __init__(self, admin: AIOKafkaAdminClient, consumer: Any, names: TopicNames) -> None:
        self._admin = admin
        self._consumer = consumer
        self._names = names

    async def committed(self) -> dict[TopicPartition, Any]:
        """The commits of relay and group, by partition."""
        relay: Mapping[TopicPartition, Any] = await self._offsets(self._names.relay_group)
        group: Mapping[TopicPartition, Any] = await self._offsets(self._names.group)
        return {partition: found for partition, found in {**relay, **group}.items() if found.offset >= 0}

    async def committed_by_relay(self) -> dict[TopicPartition, Any]:
        """The commits of the relay alone."""
        found: Mapping[TopicPartition, Any] = await self._offsets(self._names.relay_group)
        return {partition: each for partition, each in found.items() if each.offset >= 0}

    async def _offsets(self, group: str) -> Any:
        return await self._once_known(lambda: self._admin.list_consumer_group_offsets(group))

    @staticmethod
    async def _once_known(ask: Callable[[], Awaitable[T]]) -> T:
        """A cluster that has just started knows no groups yet, and learns of them when it is asked."""
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            try:
                return await ask()
            except (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError, GroupLoadInProgressError):
                if asyncio.get_running_loop().time() > give_up_at:
                    raise
            await asyncio.sleep(_ASK_AGAIN)

    async def membership(self, group: str) -> Membership:
        """Who is in `group`."""
        return await self._once_known(lambda: self._describe(group))

    async def _describe(self, group: str) -> Membership:
        (answer,) = await self._admin.describe_consumer_groups([group])
        described: Any = answer.to_object()["groups"][0]
        return read_membership(described)

    async def topics(self) -> set[str]:
        """The names of all topics that this client may see."""
        return set(await self._admin.list_topics())

    async def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Those that are there. Asks for the list first: asking for a topic by its name may create it."""
        there = sorted(await self.topics() & set(topics))
        described: Any = await self._admin.describe_topics(there) if there else []
        return [TopicPartition(topic["topic"], each["partition"]) for topic in described for each in topic["partitions"]]

    async def left(self, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Left]:
        """What is left of each partition, of which `committed` are the commits."""
        if not partitions:
            return {}
        await learn_topics(self._consumer, {partition.topic for partition in partitions})
        starts: Mapping[TopicPartition, int] = await self._consumer.beginning_offsets(list(partitions))
        ends: Mapping[TopicPartition, int] = await self._consumer.end_offsets(list(partitions))
        found = {}
        for partition in partitions:
            if partition not in starts or partition not in ends:
                raise KafkaConnectionError("the broker's answer leaves out the partition")
            commit, start, end = committed.get(partition), starts[partition], ends[partition]
            position = start if commit is None or not start <= commit.offset <= end else commit.offset
            metadata = "" if commit is None else commit.metadata or ""
            found[partition] = Left(position, end, metadata if read_own(metadata, self._names.group) else "")
        return found

    async def records(self, partition: TopicPartition, left: Left) -> AsyncIterator[tuple[Delivery, bool]]:
        """What is `left` there, and of each whether the broker set its time."""
        consumer, position = self._consumer, left.position
        consumer.assign([partition])
        consumer.seek(partition, position)
        while position < left.end:
            try:
                records = (await consumer.getmany(partition, timeout_ms=_FETCH_MS, max_records=_FETCH)).get(partition, [])
                position = await consumer.position(partition)
            except Exception as error:
                if not is_about_a_header(error):
                    raise
                raw = await read_raw(consumer, partition, position)
                records, position = raw.records, raw.goes_on_at
                consumer.seek(partition, position)
            for record in records:
                yield delivery_of(partition, record), record.timestamp_type == _APPEND_TIME


@asynccontextmanager
async def reading(settings: HostSettings, names: TopicNames) -> AsyncIterator[CopyReader]:
    """With an admin client, and a consumer that is in no group. Raises what `connected` raises, and `KafkaError` from the consumer."""
    options: dict[str, Any] = {"enable_auto_commit": False, "isolation_level": "read_committed", **settings.client_options}
    client_id = f"{settings.client_id}-copies"
    async with connected(settings) as admin:  # first: a consumer that is made and never begun complains when it is collected
        consumer = AIOKafkaConsumer(bootstrap_servers=settings.brokers, client_id=client_id, auto_offset_reset="none", **options)
        async with opened(consumer):
            yield CopyReader(admin, consumer, names)


async def look(
    settings: HostSettings, names: TopicNames, what: Callable[[CopyReader], Awaitable[T]], *, within: float
) -> tuple[T | None, str | None]:
    """Return what `what` finds within so many seconds, or why it could not look at everything.

    A start looks, and no refusal or oddity of a client may keep a worker from it. Raises `Unavailable` or a retriable `KafkaError`
    if the brokers do not answer.
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
    except ConfigurationError as error:  # such as brokers that describe nothing
        return None, said(error)
    except (KafkaError, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001  # whatever a client raises
        return None, type(error).__name__
