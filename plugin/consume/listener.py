"""Listener of a consumer group: what its rebalances assign and take away is noted and drained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import ConsumerRebalanceListener, TopicPartition

from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.group.member import Member

__all__ = ["GroupListener"]


class GroupListener(ConsumerRebalanceListener):
    """aiokafka logs and swallows what a listener raises; a partition without a lane would then never be consumed."""

    def __init__(self, member: Member, opening: Opening) -> None:
        self._member = member
        self._opening = opening

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        await asyncio.wait({self._member.spawn(self._opening.give_up(revoked), "revoke")})

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        self._opening.note(assigned)
