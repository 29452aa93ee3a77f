"""`CopyReader`: the copies of a group that nobody has brought back yet, read from its topics in no group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from ackwise.middleware.commitmetadata import decode, read_own
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import said
from ackwise.middleware.message import Delivery, delivery_of
from ackwise.middleware.progress import holds
from ackwise.plugin.client.reading import TopicReader, Unreadable
from ackwise.plugin.group.lastcommits import committed_of, once_coordinated
from ackwise.plugin.group.membership import Membership, read_membership
from ackwise.plugin.group.topics import TopicNames, connected
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["CopyReader", "Left", "look", "reading"]

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
        """Who is in `group`."""
        return await once_coordinated(lambda: self._describe(group))

    async def _describe(self, group: str) -> Membership:
        (answer,) = await self._admin.describe_consumer_groups([group])
        described: Any = answer.to_object()["groups"][0]
        return read_membership(described)

    async def left(self, partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Left]:
        """What is left of each partition, of which `committed` are the commits."""
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
        """What is `left` of a partition."""
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
    """Return what `what` finds within so many seconds, or why it could not look at everything.

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
