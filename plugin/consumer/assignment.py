"""Opening of assigned partitions: each waits, paused, until its position is known, and then has a lane.

The client's callbacks only note what came and what went, since aiokafka shows the group no sign of life while they run.
Each assignment of a partition has an epoch, so that no answer to a question that was asked before opens anything.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from aiokafka import TopicPartition

from ackwise.plugin.consumer.clientprotocol import Joined
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startpositions import ASK_AGAIN, Positions
from ackwise.plugin.kafka.brokeroffsets import Standing

Role = Literal["source", "retry"]


class Opening:
    """The assignment of one client. It gets what is assigned and what is revoked."""

    def __init__(
        self, member: Member, client: Joined, lanes: Callable[[TopicPartition, Role, Position], Sequence[Lane]] | None = None
    ) -> None:
        """`lanes` makes those of a partition that starts; one of the member by default."""
        self._member = member
        self._client = client
        self._make_lanes = lanes or self._one_lane
        self._positions = Positions(member, client.ask)
        self._epochs = itertools.count(1)
        self._assigned: dict[TopicPartition, int] = {}
        self._waiting: set[TopicPartition] = set()
        self._looked_after: set[TopicPartition] = set()
        self._made_anew: set[TopicPartition] = set()  #: those of them that start again, wherever their position is
        self.ignored: frozenset[TopicPartition] = frozenset()  #: what is assigned and never consumed
        self._noted = asyncio.Event()

    def note(self, assigned: Iterable[TopicPartition]) -> None:
        """These are ours from now on."""
        if self._member.stop.is_set():
            return
        partitions = list(assigned)
        self._halt(partitions)
        for partition in partitions:
            if partition not in self.ignored:
                self._assigned[partition] = next(self._epochs)
                self._waiting.add(partition)
        self._noted.set()

    async def give_up(self, revoked: Iterable[TopicPartition], *, stopping: bool = False) -> None:
        """These were ours: drain them, and start with none of them any more. With `stopping` there is as much time as a stop has."""
        partitions, settings = list(revoked), self._member.settings
        for partition in partitions:
            self._assigned.pop(partition, None)
            self._waiting.discard(partition)
        await self._member.drain(partitions, settings.drain_timeout if stopping else settings.revoke_timeout, stopping=stopping)

    async def keep(self) -> None:
        """Open what was noted, for as long as it is ours and not opened. Raises `ConfigurationError`."""
        if self._waiting:  # started again: what was noted before is cleared, and not opened
            self._noted.set()
        while True:
            await self._noted.wait()
            self._noted.clear()
            opened = await self._open()
            if not self._waiting or (opened and self._member.settings.start == "earliest"):
                self._member.has_joined.set()  # what is written from now on is read
            if opened or not self._waiting:
                self._member.spawn(self._member.begin(), "begin")
            if self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN):
                        await self._noted.wait()
                self._noted.set()

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """The client has no position that the log still has. See whether the lane's is one, or start again."""
        for partition in partitions:
            if partition in self._member.lanes and partition not in self._looked_after and partition in self._assigned:
                self._looked_after.add(partition)
                self._halt([partition])
                self._member.spawn(self._look_after(partition, self._assigned[partition]), "position")

    def begin_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Their log is another one now: settle what is in flight, and open them again."""
        ours = {each: self._assigned[each] for each in partitions if each in self._assigned}
        self._made_anew.update(ours.keys() & self._looked_after)
        if ours := {each: epoch for each, epoch in ours.items() if each not in self._looked_after}:
            self._looked_after.update(ours)
            self._halt(ours)
            self._member.spawn(self._open_anew(ours), "position")

    def is_halted(self, partition: TopicPartition) -> bool:
        """Return whether nothing must be fetched of it now, whatever room its lane has."""
        return partition in self._looked_after or partition in self._waiting

    async def _open(self) -> int:
        """Open what can be opened now; returns how many lanes that made."""
        asked = {partition: self._assigned[partition] for partition in self._waiting}
        found = await self._positions.find(asked) if asked else {}
        awaiting = self._awaiting(asked)
        may_begin = await self._member.announce({each: position for each, position in found.items() if each in awaiting})
        awaiting = self._awaiting(asked)
        begins = [each for each in found if each in may_begin and each in awaiting]
        for partition in begins:
            self._begin(partition, found[partition])
        return len(begins)

    def _awaiting(self, epochs: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Those that are ours as they were in these epochs, and have no lane yet."""
        ours = self._client.assignment()
        return {each for each, epoch in epochs.items() if self._assigned.get(each) == epoch and each in self._waiting and each in ours}

    def _begin(self, partition: TopicPartition, position: Position) -> None:
        """The lane and the seek to its position are one step without an await, so that nothing that was fetched can be missing from it."""
        self._waiting.discard(partition)
        self._seek(partition, position.next)
        lanes = self._make_lanes(partition, self._role(partition), position)
        self._member.add_lanes(
            partition, tuple(lanes), from_commit=position.committed, metadata=position.metadata, topic=position.topic, end=position.end
        )

    def _role(self, partition: TopicPartition) -> Role:
        return "retry" if partition.topic == self._member.names.retry else "source"

    def _one_lane(self, partition: TopicPartition, role: Role, position: Position) -> Sequence[Lane]:
        return [self._member.lane(*partition, role, position.next, generation=position.generation)]

    def _halt(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing of these. A client that has some position asks no broker for one, and reports none as missing."""
        ours = self._client.assignment()
        for partition in partitions:
            if partition in ours:
                self._client.pause(partition)
                self._client.seek(partition, 0)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._client.seek(partition, offset)
        self._client.resume(partition)

    async def _look_after(self, partition: TopicPartition, epoch: int) -> None:
        try:
            lanes = self._member.lanes.get(partition)
            standing = await self._insist(partition, epoch)
            if standing is None or self._assigned.get(partition) != epoch or self._member.lanes.get(partition) is not lanes or not lanes:
                return  # revoked meanwhile; a lane that is there now has its own position
            if standing.start <= lanes[0].position <= standing.end and partition not in self._made_anew:
                self._seek(partition, lanes[0].position)
                return
            await self._open_anew({partition: epoch})
        finally:
            self._looked_after.discard(partition)
            self._made_anew.discard(partition)

    async def _open_anew(self, epochs: Mapping[TopicPartition, int]) -> None:
        try:
            await self._member.drain(epochs, self._member.settings.revoke_timeout)
            self.note([partition for partition, epoch in epochs.items() if self._assigned.get(partition) == epoch])
        finally:
            self._looked_after.difference_update(epochs)
            self._made_anew.difference_update(epochs)

    async def _insist(self, partition: TopicPartition, epoch: int) -> Standing | None:
        """What is known of it; `None` once it is no longer ours, or ours again, and it is not needed."""
        while self._assigned.get(partition) == epoch:
            known, _ = await self._client.ask([partition])
            if partition in known:
                return known[partition]
            await asyncio.sleep(ASK_AGAIN)
        return None
