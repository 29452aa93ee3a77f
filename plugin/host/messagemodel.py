"""Message model: how a worker comes to its partitions, and who keeps its positions. RocketMQ's CLUSTERING; others are in `broadcast`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from ackwise.plugin.consume.consumer import AiokafkaClient
from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.group.member import Member
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["Clustering", "MessageModel"]


class MessageModel(Protocol):
    """What differs between the members of a group and the instances that broadcast."""

    @property
    def group_id(self) -> str | None:
        """The group that the client joins; `None`: none."""
        ...

    def opened(self, member: Member, client: AiokafkaClient) -> AbstractAsyncContextManager[AiokafkaClient]:
        """With the positions at hand; gives what asks for them. `client` is connected and has no partitions yet.

        Raises `ConfigurationError` where another worker is in the way.
        """
        ...

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """Take partitions of `topics` from now on; `opening` is told which."""


class Clustering:
    """The members of one group share the messages; the positions are committed to the brokers."""

    def __init__(self, settings: HostSettings) -> None:
        self.group_id: str | None = settings.group

    @asynccontextmanager
    async def opened(self, member: Member, client: AiokafkaClient) -> AsyncIterator[AiokafkaClient]:
        """See `MessageModel.opened`."""
        yield client

    def join(self, member: Member, client: AiokafkaClient, topics: Sequence[str], opening: Opening) -> None:
        """See `MessageModel.join`."""
        client.subscribe([*topics, member.names.retry], member, opening)
