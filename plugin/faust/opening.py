"""Opening of the partitions that Faust was assigned: each waits until its position is known, and then has lanes.

The callback only notes what came, since aiokafka shows the group no sign of life while it runs. Each assignment of a partition has an
epoch, so that no answer to a question that was asked before it opens anything.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress

from aiokafka import TopicPartition

from ackwise.plugin.group.member import Member
from ackwise.plugin.group.positions import ASK_AGAIN, Position, Positions

__all__ = ["Opening"]


class Opening:
    """The assignment of one worker. `begin` makes the lanes of a partition."""

    def __init__(self, member: Member, positions: Positions, begin: Callable[[TopicPartition, Position], None]) -> None:
        self._member = member
        self._positions = positions
        self._begin = begin
        self._epochs = itertools.count(1)
        self._waiting: dict[TopicPartition, int] = {}
        self._noted = asyncio.Event()

    def note(self, assigned: Iterable[TopicPartition]) -> None:
        """These are ours from now on."""
        self._waiting.update((partition, next(self._epochs)) for partition in assigned)
        self._noted.set()

    def forget(self, revoked: Iterable[TopicPartition]) -> None:
        """These are not ours any more."""
        for partition in revoked:
            self._waiting.pop(partition, None)

    def awaits(self, partition: TopicPartition) -> bool:
        """Whether it is not known yet where `partition` goes on."""
        return partition in self._waiting

    async def keep(self) -> None:
        """Open what was noted, for as long as it is ours and not opened. Raises `ConfigurationError`."""
        if self._waiting:  # begun anew: what was noted before is cleared, and not opened
            self._noted.set()
        while True:
            await self._noted.wait()
            self._noted.clear()
            await self._open()
            if self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN):
                        await self._noted.wait()
                self._noted.set()
            else:
                self._member.spawn(self._member.begin(), "begin")

    async def _open(self) -> None:
        asked = dict(self._waiting)
        found = await self._positions.find(asked) if asked else {}
        may_begin = await self._member.announce(
            {partition: position for partition, position in found.items() if self._waiting.get(partition) == asked[partition]}
        )
        for partition, position in found.items():
            if partition in may_begin and self._waiting.get(partition) == asked[partition]:  # or it went meanwhile, and may have come again
                del self._waiting[partition]
                self._begin(partition, position)
