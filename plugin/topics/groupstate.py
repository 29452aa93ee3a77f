"""State of consumer groups by the broker: members, their partitions, and their last commits with how far events were durable then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError, for_code

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.progress.commitmetadata import LastCommit, read_own
from ackwise.plugin.kafka.protocolrequests import ConsumerProtocol
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected


class GroupMember(NamedTuple):
    """One client in a consumer group."""

    client: str
    """Its `client_id`."""
    host: str
    id: str
    """As the broker named it."""
    partitions: tuple[TopicPartition, ...]


class Membership(NamedTuple):
    """A consumer group as its coordinator knows it."""

    state: str
    """`Stable`, `PreparingRebalance`, `CompletingRebalance`, `Empty` or `Dead`; also `Dead` for a group that does not exist."""
    members: tuple[GroupMember, ...]

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """The member of each partition; while a group rebalances no member has one."""
        return {partition: member for member in self.members for partition in member.partitions}


def read_membership(described: Any) -> Membership:
    """The group in a broker's answer. Raises the `KafkaError` that it names."""
    if described["error_code"]:
        raise for_code(described["error_code"])
    return Membership(described["state"], tuple(sorted(map(_member, described["members"]))))


def _member(described: Any) -> GroupMember:
    return GroupMember(
        described["client_id"],
        described["client_host"].removeprefix("/"),
        described["member_id"],
        _partitions(described["member_assignment"]),
    )


def _partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Those of an assignment as Kafka's own consumers write it; none of any other, since a group may agree on its own form."""
    if not assignment:  # the group rebalances
        return ()
    try:
        return tuple(sorted(ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions()))
    except (ValueError, UnicodeDecodeError):
        return ()


T = TypeVar("T")

#: Seconds for which brokers may not know who coordinates a group, and until they are asked again.
_PATIENCE, _ASK_AGAIN = 15.0, 0.2
_UNSETTLED: Final = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


async def last_commits(settings: HostSettings, groups: Collection[str]) -> list[LastCommit]:
    """What the brokers of `settings` keep of `groups`. Commits of others than Ackwise say nothing, and are passed over.

    Raises `Unavailable` if the brokers do not say it, and `ConfigurationError` if `settings` can't be used.
    """
    found = set[LastCommit]()
    async with connected(settings) as admin:
        for group in sorted(groups):
            try:
                committed = await committed_of(admin, group)
            except (KafkaError, OSError) as error:
                raise Unavailable(
                    f"the brokers {settings.brokers!r} do not say what group {group!r} has committed ({type(error).__name__}); see that "
                    "this client may describe the group"
                ) from error
            said = [read_own(each.metadata or "", group) for each in committed.values()]
            found |= {
                LastCommit(group, each.writer_id, each.last_seq)
                for each in said
                if each is not None and each.writer_id is not None and each.last_seq is not None
            }
    return sorted(found)


async def has_committed(settings: HostSettings, group: str) -> bool:
    """Return whether `group` has committed anything. Raises as `connected`."""
    async with connected(settings) as admin:
        return any(each.offset >= 0 for each in (await committed_of(admin, group)).values())


async def committed_of(admin: AIOKafkaAdminClient, group: str) -> Mapping[TopicPartition, Any]:
    """Return the commits of `group`."""
    return await once_coordinated(lambda: admin.list_consumer_group_offsets(group))


async def once_coordinated(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `ask` once the group has a coordinator: brokers that have just started need a moment."""
    until = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        try:
            return await ask()
        except _UNSETTLED:
            if asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(_ASK_AGAIN)
