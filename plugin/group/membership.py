"""`Membership`: who is in a consumer group, and which partitions each has, as the broker says."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import for_code

from ackwise.plugin.client.requests import ConsumerProtocol

__all__ = ["GroupMember", "Membership", "read_membership"]


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
    """`Stable`, `PreparingRebalance`, `CompletingRebalance`, `Empty` or `Dead`; the last is said of a group that does not exist, too."""
    members: tuple[GroupMember, ...]

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """The member of each partition; while a group rebalances nobody has one."""
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
    """Those of an assignment as Kafka's own consumers write it; none of any other, since a group may agree on a form of its own."""
    if not assignment:  # the group rebalances
        return ()
    try:
        return tuple(sorted(ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions()))
    except (ValueError, UnicodeDecodeError):
        return ()
