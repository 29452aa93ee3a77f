"""Message model: how a worker comes to its partitions, and who keeps its positions. RocketMQ's CLUSTERING; others are in `broadcast`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from ackwise.plugin.client.offsets import Asked, ask
from ackwise.plugin.consume.listener import GroupListener
from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.group.member import Client, Member
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["Clustering", "MessageModel"]


class MessageModel(Protocol):
    """What differs between the members of a group and the instances that broadcast."""

    @property
    def group_id(self) -> str | None:
        """The group that the client joins; `None`: none."""
        ...

    def opened(self, member: Member, consumer: AIOKafkaConsumer) -> AbstractAsyncContextManager[Client]:
        """With the positions at hand; gives whom commits go to. `consumer` is connected and has no partitions yet.

        Raises `ConfigurationError` where another worker is in the way.
        """
        ...

    async def ask(self, consumer: Any, partitions: Collection[TopicPartition]) -> Asked:
        """Where `partitions` go on, as `offsets.ask`."""
        ...

    def join(self, member: Member, consumer: AIOKafkaConsumer, topics: Sequence[str], opening: Opening) -> None:
        """Take partitions of `topics` from now on; `opening` is told which."""


class Clustering:
    """The members of one group share the messages; the positions are committed to the brokers."""

    def __init__(self, settings: HostSettings) -> None:
        self.group_id: str | None = settings.group
        self._group = settings.group

    @asynccontextmanager
    async def opened(self, member: Member, consumer: AIOKafkaConsumer) -> AsyncIterator[Client]:
        """See `MessageModel.opened`."""
        yield consumer

    async def ask(self, consumer: Any, partitions: Collection[TopicPartition]) -> Asked:
        """See `MessageModel.ask`."""
        return await ask(consumer, self._group, partitions)

    def join(self, member: Member, consumer: AIOKafkaConsumer, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`."""
        consumer.subscribe([*topics, member.names.retry], listener=GroupListener(member, opening))
