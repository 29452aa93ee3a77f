"""A consumer group of the classic protocol: its members, generation and commits.

The states and their transitions are those of Kafka's `GroupCoordinator` (KIP-62, KIP-345, KIP-394).
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.errors import (
    BrokerResponseError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequired,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

#: Characters of the metadata of a commit at most (Kafka: `offset.metadata.max.bytes`).
_METADATA: Final = 4096


class FencedInstanceIdError(BrokerResponseError):
    """Another process has the instance id of a static member (KIP-345); aiokafka has no name for it."""

    errno = 82
    message = "FENCED_INSTANCE_ID"
    description = "The broker rejected this static consumer since another consumer with the same group.instance.id has registered."


def check_metadata(metadata: str) -> None:
    """Raises `OffsetMetadataTooLargeError`."""
    if len(metadata) > _METADATA:
        raise OffsetMetadataTooLargeError(f"{len(metadata)} characters of metadata, {_METADATA} may be")


class State(enum.Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Committed(NamedTuple):
    """The commit of a group for one partition."""

    offset: int
    metadata: str


class _Member:
    def __init__(self, member_id: str, client_id: str, instance: str | None) -> None:
        self.id = member_id
        self.client_id = client_id
        self.instance = instance
        self.protocols: dict[str, bytes] = {}
        self.session = self.rebalance = 0.0
        self.joining: asyncio.Future[dict[str, Any]] | None = None
        self.syncing: asyncio.Future[bytes] | None = None
        self.assignment = b""
        self.expiry: asyncio.TimerHandle | None = None

    def tell(self, waiting: asyncio.Future[Any] | None, answer: object) -> None:
        if waiting is not None and not waiting.done():
            if isinstance(answer, BaseException):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)


class ConsumerGroup:
    """One group. What it refuses it raises, as the error that a client makes of Kafka's code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.offsets: dict[tuple[str, int], Committed] = {}
        self._members: dict[str, _Member] = {}
        self._promised: set[str] = set()  #: ids that were given out, whose owners have not joined
        self._leader = ""
        self._patience: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)

    @property
    def members(self) -> list[str]:
        """The ids of its members, in the order in which they came."""
        return [*self._members]

    def described(self) -> dict[str, Any]:
        """Return the group as `DescribeGroups` reports it."""
        return {
            "error_code": 0,
            "group": self.name,
            "state": self.state.value,
            "protocol_type": self.protocol_type,
            "protocol": self.protocol,
            "members": [
                {
                    "member_id": member.id,
                    "client_id": member.client_id,
                    "client_host": "/127.0.0.1",
                    "member_metadata": member.protocols.get(self.protocol, b""),
                    "member_assignment": member.assignment,
                }
                for member in self._members.values()
            ],
        }

    async def join(
        self,
        *,
        member_id: str,
        instance: str | None,
        client_id: str,
        session: float,
        rebalance: float,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        asks_twice: bool,
    ) -> dict[str, Any]:
        """Take a member in, or in again; returns the answer to its `JoinGroup` once all have come. Times are seconds."""
        replaced = self._holder(instance) if not member_id else None
        others = [each for each in self._members.values() if each.id != member_id and each is not replaced]
        if others and (protocol_type != self.protocol_type or self._common(others).isdisjoint(name for name, _ in protocols)):
            self._promised.discard(member_id)
            raise InconsistentGroupProtocolError(f"group {self.name} speaks {self.protocol_type}")
        member = self._joining(member_id, instance, client_id, asks_twice=asks_twice)
        is_as_before = member.id in self._members and member.protocols == dict(protocols)
        self.protocol_type = protocol_type
        member.protocols, member.session, member.rebalance = dict(protocols), session, rebalance
        self._members[member.id] = member
        self._promised.discard(member.id)
        is_settled = self.state is State.STABLE and (member.id != self._leader or replaced is not None)
        if is_as_before and (self.state is State.COMPLETING or is_settled):
            self._renew(member)
            return self._joined(member)
        member.tell(member.joining, MemberIdRequired("it joined again"))
        joined: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        member.joining = joined
        self._stop_expiry(member)
        self._prepare()
        self._complete_join_if_all_came()
        return await joined

    async def sync(self, *, member_id: str, instance: str | None, generation: int, assignments: Mapping[str, bytes]) -> bytes:
        """Return what the leader assigned to a member, once it has."""
        member = self._known(member_id, instance, generation)
        if self.state is State.PREPARING:
            raise RebalanceInProgressError(self.name)
        if self.state is State.STABLE:
            self._renew(member)
            return member.assignment
        if member_id != self._leader:
            assigned: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            member.syncing = assigned
            self._stop_expiry(member)  # members that wait for the leader are answered in any case
            return await assigned
        self.state = State.STABLE
        for each in self._members.values():
            each.assignment = assignments.get(each.id, b"")
            each.tell(each.syncing, each.assignment)
            each.syncing = None
            self._renew(each)
        return member.assignment

    def heartbeat(self, *, member_id: str, instance: str | None, generation: int) -> None:
        """A member lives. Raises `RebalanceInProgressError` if it has to join again."""
        self._renew(self._known(member_id, instance, generation))
        if self.state is State.PREPARING:
            raise RebalanceInProgressError(self.name)

    def leave(self, member_id: str) -> None:
        """A member goes by itself."""
        if member_id in self._promised:
            self._promised.discard(member_id)
        elif member_id not in self._members:
            raise UnknownMemberIdError(member_id)
        else:
            self._remove(self._members[member_id])

    def expire(self, member_id: str) -> None:
        """The session of a member ends now, as if its heartbeats had stayed away."""
        if member_id in self._members:
            self._remove(self._members[member_id])

    def rebalance(self) -> None:
        """Let all members join again."""
        if self._members:
            self._prepare()

    def check_commit(self, *, member_id: str, instance: str | None, generation: int) -> None:
        """Raise what refuses a commit of this member."""
        if generation < 0 and not self._members:
            return
        self._renew(self._known(member_id, instance, generation))
        if self.state is State.COMPLETING:
            raise RebalanceInProgressError(self.name)

    def commit(self, partition: tuple[str, int], offset: int, metadata: str) -> None:
        """Keep an offset."""
        check_metadata(metadata)
        self.offsets[partition] = Committed(offset, metadata)

    def close(self) -> None:
        """Nothing happens by itself any more."""
        if self._patience is not None:
            self._patience.cancel()
        for member in self._members.values():
            self._stop_expiry(member)
            for waiting in (member.joining, member.syncing):
                if waiting is not None:
                    waiting.cancel()

    # Who is in it.

    def _joining(self, member_id: str, instance: str | None, client_id: str, *, asks_twice: bool) -> _Member:
        holder = self._holder(instance)
        if member_id:
            if holder is not None and holder.id != member_id:
                raise FencedInstanceIdError(f"instance {instance} is {holder.id} by now")
            if member_id not in self._members and member_id not in self._promised:
                raise UnknownMemberIdError(member_id)
            return self._members.get(member_id) or _Member(member_id, client_id, instance)
        new = f"{instance or client_id}-{self.name}-{next(self._numbers)}"
        if holder is not None:  # the same instance, started again: it takes the place of the one before
            return self._replace(holder, new)
        if asks_twice and instance is None:
            self._promised.add(new)
            raise MemberIdRequired(new)
        return _Member(new, client_id, instance)

    def _holder(self, instance: str | None) -> _Member | None:
        return next((each for each in self._members.values() if instance is not None and each.instance == instance), None)

    def _replace(self, holder: _Member, new: str) -> _Member:
        """A member with the protocols and the assignment of the one that has its instance so far, in its place."""
        self._stop_expiry(holder)
        member = _Member(new, holder.client_id, holder.instance)
        member.protocols, member.assignment = holder.protocols, holder.assignment
        self._members = {new if each is holder else key: member if each is holder else each for key, each in self._members.items()}
        for waiting in (holder.joining, holder.syncing):
            holder.tell(waiting, FencedInstanceIdError(f"instance {holder.instance} is {new} by now"))
        if self._leader == holder.id:
            self._leader = new
        return member

    def _common(self, members: Sequence[_Member]) -> set[str]:
        return set.intersection(*(set(member.protocols) for member in members))

    def _known(self, member_id: str, instance: str | None, generation: int) -> _Member:
        holder = self._holder(instance)
        if holder is not None and holder.id != member_id:
            raise FencedInstanceIdError(f"instance {instance} is {holder.id} by now")
        if (member := self._members.get(member_id)) is None:
            raise UnknownMemberIdError(member_id)
        if generation != self.generation:
            raise IllegalGenerationError(f"generation {generation}, and the group is in {self.generation}")
        return member

    def _remove(self, member: _Member) -> None:
        self._stop_expiry(member)
        del self._members[member.id]
        for waiting in (member.joining, member.syncing):
            member.tell(waiting, UnknownMemberIdError(member.id))
        if not self._members:
            self._empty()
            return
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        self._complete_join_if_all_came()

    def _empty(self) -> None:
        self.state, self.protocol, self._leader = State.EMPTY, "", ""
        self.generation += 1
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _renew(self, member: _Member) -> None:
        self._stop_expiry(member)
        member.expiry = asyncio.get_running_loop().call_later(member.session, self.expire, member.id)

    def _stop_expiry(self, member: _Member) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
            member.expiry = None

    # Generations.

    def _prepare(self) -> None:
        if self.state is State.PREPARING:
            return
        for member in self._members.values():
            if member.syncing is not None:
                member.tell(member.syncing, RebalanceInProgressError(self.name))
                member.syncing = None
                self._renew(member)
        self.state = State.PREPARING
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        patience = max(member.rebalance for member in self._members.values())
        self._patience = asyncio.get_running_loop().call_later(patience, self._complete_join)

    def _complete_join_if_all_came(self) -> None:
        if self.state is State.PREPARING and all(member.joining is not None for member in self._members.values()):
            self._complete_join()

    def _complete_join(self) -> None:
        """Start the next generation with those who came; the others are out."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for member in [each for each in self._members.values() if each.joining is None and each.instance is None]:
            self._stop_expiry(member)
            del self._members[member.id]
        if not self._members:
            self._empty()
            return
        if all(member.joining is None for member in self._members.values()):  # static ones, which may come until their sessions end
            self._wait_for_all()
            return
        self.generation += 1
        self.state = State.COMPLETING
        if self._leader not in self._members or self._members[self._leader].joining is None:
            self._leader = next(member.id for member in self._members.values() if member.joining is not None)
        common = self._common([*self._members.values()])
        self.protocol = next(name for name in self._members[self._leader].protocols if name in common)
        for member in self._members.values():
            if member.joining is not None:
                member.tell(member.joining, self._joined(member))
                member.joining = None
                self._renew(member)

    def _joined(self, member: _Member) -> dict[str, Any]:
        of_all = [
            {"member_id": each.id, "group_instance_id": each.instance, "member_metadata": each.protocols[self.protocol]}
            for each in self._members.values()
        ]
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "group_protocol": self.protocol,
            "leader_id": self._leader,
            "member_id": member.id,
            "members": of_all if member.id == self._leader else [],
        }
