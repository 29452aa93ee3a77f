"""What the host fetches with aiokafka, and from where: it feeds its member's lanes, as far as they have room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from ackwise.middleware.log import Log, said
from ackwise.plugin.member import Member

__all__ = ["Fetching"]

log = Log()

#: Records that one poll takes at most.
_FETCHED = 500

#: Seconds until it is polled again after an error.
_POLL_AGAIN = 1.0

#: Seconds that a full lane is only passed over; then its partition is paused. aiokafka throws away what it has fetched of a
#: paused partition and fetches a megabyte anew, so pausing is for handlers that take long.
_PASSED_OVER = 1.0

#: Seconds until other partitions are looked at again while one is full.
_LOOK_AGAIN = 0.02


class Fetching:
    """Polls `consumer` for the lanes of `member`. `begin_anew` gives a partition a new lane where `Positions` says."""

    def __init__(self, member: Member, consumer: AIOKafkaConsumer, begin_anew: Callable[[TopicPartition], Awaitable[None]]) -> None:
        self._member = member
        self._consumer = consumer
        self._begin_anew = begin_anew

    async def poll(self) -> None:
        """Feed the lanes until the member stops."""
        while not self._member.stop.is_set():
            polled, is_any_full = self._regulate()
            try:
                fetched = await self._fetch(polled, is_any_full)
            except KafkaError as error:
                log.warning("fetching failed, nothing is lost", group=self._member.settings.group, error=said(error), retry_in=_POLL_AGAIN)
                await asyncio.sleep(_POLL_AGAIN)
                continue
            for partition, records in fetched.items():
                self._member.offer(partition, records)

    def _regulate(self) -> tuple[list[TopicPartition], bool]:
        """The partitions to poll, and whether one is passed over; pauses lanes that stay full, lets go on what has room.

        What is paused is polled all the same: it answers nothing, and shows the group that this member is alive.
        """
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        polled = []
        passed_over = False
        for partition, (lane,) in self._member.lanes.items():
            if partition not in assigned:
                continue
            if not lane.is_full():
                if partition in paused:
                    self._consumer.resume(partition)
            elif partition not in paused:
                if not lane.is_full_for(_PASSED_OVER):
                    passed_over = True
                    continue
                self._consumer.pause(partition)
            polled.append(partition)
        return polled, passed_over

    async def _fetch(self, polled: Sequence[TopicPartition], is_any_full: bool) -> dict[TopicPartition, Any]:
        """What there is for the partitions that have room. While one is full the wait ends as soon as a lane has moved.

        The wait is not cancelled within aiokafka: only outside of it is it certain that no record is on its way to us.
        """
        if not is_any_full:
            return await self._ask(timeout_ms=200)
        self._member.has_moved.clear()
        fetched = await self._ask(*polled, timeout_ms=0) if polled else {}
        if not fetched:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._member.has_moved.wait()
        return fetched

    async def _ask(self, *partitions: TopicPartition, timeout_ms: int) -> dict[TopicPartition, Any]:
        try:
            fetched: dict[TopicPartition, Any] = await self._consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=_FETCHED)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            await self._reposition(error)
            return {}
        return fetched

    async def _reposition(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """The log does not have the position: settle what was read of it, and begin anew where `Positions` says."""
        named = error.args[0]  # one partition that has no position yet, or several that lost theirs
        for partition in [named] if isinstance(named, TopicPartition) else list(named):
            if not (lanes := self._member.lanes.get(partition, ())):
                continue
            start = (await self._consumer.beginning_offsets([partition]))[partition]
            end = (await self._consumer.end_offsets([partition]))[partition]
            if self._member.lanes.get(partition, ()) is not lanes:
                continue  # revoked meanwhile; a lane that is there now has a position of its own
            for lane in lanes:
                if start <= lane.position <= end:
                    self._consumer.seek(partition, lane.position)
                else:
                    await self._begin_anew(partition)
