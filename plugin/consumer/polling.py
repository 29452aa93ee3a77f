"""Polling: the loop of a host that fetches itself. It feeds the lanes of a member as far as they have room, until the member stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aiokafka import TopicPartition

from ackwise.middleware.log import Log
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.clientprotocol import Client
from ackwise.plugin.consumer.deletedtopics import TopicWatch
from ackwise.plugin.consumer.fetching import Fetching, give
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.kafka.timeouts import until

log = Log()

#: Seconds that a fetch of all partitions waits for records.
_WAIT: Final = 0.2

#: Seconds until all partitions are looked at again while nothing is at work: they may be thousands.
_REST: Final = 30.0

#: Seconds that a full lane is only passed over; then its partition is paused. aiokafka throws away what it has fetched of a
#: paused partition and fetches a megabyte again, so pausing is for handlers that take long.
_PASSED_OVER = 1.0

#: Seconds until other partitions are looked at again while one is full.
_LOOK_AGAIN = 0.02

#: Seconds between two looks for topics that are missing.
_LOOK_FOR_TOPICS = 5.0

#: Seconds for which a poll that has started may go on after a stop.
_GRACE: Final = 1.5


class Polling:
    """Polls `client` for the lanes of `member`. `opening` opens them, and handles a position that was lost."""

    def __init__(self, member: Member, client: Client, opening: Opening, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._member = member
        self._client = client
        self._opening = opening
        self._clock = clock
        self.fetching = Fetching(client, member, group=member.settings.group, clock=clock)
        self._is_idle = False  #: nothing is at work, and all partitions are fetched
        self._next_look = 0.0  #: when it is looked again whether topics are missing
        self._sought: Sequence[str] = ()  #: topics that the client was asked to look for
        self._answer: asyncio.Future[bool] | None = None  #: to that
        self._missing: Sequence[str] = ()  #: topics that the log has named as missing

    async def run(self) -> None:
        """Open what is assigned and feed it until the member stops, which works; then settle what runs, commit and let go."""
        member = self._member
        member.keep(self._opening.keep, "assignment")
        member.keep(TopicWatch(lambda: member.lanes, self._client.topics_of, self._opening.begin_again).keep, "topic ids")
        await until(member.stop, self.poll(), grace=_GRACE)
        await member.drain(set(member.lanes), member.settings.drain_timeout, stopping=True)

    async def poll(self) -> None:
        """Feed the lanes until the member stops. Raises as `Fetching.fetch`."""
        while not self._member.stop.is_set():
            self._look_for_topics()
            self._member.has_moved.clear()
            if not await self._poll_once(*self._regulate()) and self._is_at_rest():
                await self._rest()

    def _is_at_rest(self) -> bool:
        """Whether all partitions are fetched from where their lanes are, and none is at work or has to show that it can be read again."""
        if not self._is_idle or self.fetching.is_searching:
            return False
        return all(lane.left_at is not None and lane.unreadable is None for (lane,) in self._member.lanes.values())

    async def _rest(self) -> None:
        """Until the client may have something, or a lane has moved. No position changes meanwhile: nothing is done for each partition."""
        until = self._clock() + _REST
        while not (self._member.has_moved.is_set() or self._member.stop.is_set() or self._clock() >= until):
            self._look_for_topics()
            if await self.fetching.wait(_WAIT):
                return

    async def _poll_once(self, polled: Sequence[TopicPartition], is_any_full: bool) -> bool:
        """Take what there is for the partitions that have room; returns whether there was anything.

        While one is full the next look is once a lane has moved, or a moment later.

        The wait is not cancelled within the client: only outside of it is it certain that no record is on its way to us.
        """
        fetched = await self.fetching.fetch(polled if is_any_full else None, timeout=0.0 if is_any_full else _WAIT)
        for partition in give(self._member, fetched, self._opening.is_halted):
            self.fetching.seek_back(partition)  # now, or the client would fetch on behind it meanwhile
        if fetched.lost:
            self._opening.lost(fetched.lost)
        if not fetched.has_waited:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._member.has_moved.wait()
        return bool(fetched or fetched.lost)

    def _look_for_topics(self) -> None:
        """Ask for what is subscribed and missing, which may have been away for a moment or be created later.

        It gets them once they were asked for: a client that has just subscribed knows no topic, and a broker learns late of a new one.
        """
        if (now := self._clock()) < self._next_look:
            return
        self._next_look = now + _LOOK_FOR_TOPICS
        if self._answer is not None and not self._answer.done():
            return
        unknown = self._member.missing_topics()
        looked_for = self._sought if _has_answered(self._answer) else self._missing
        missing = [topic for topic in unknown if topic in looked_for]
        self._sought, self._answer = unknown, self._client.look_for_topics() if unknown else None
        if missing and missing != self._missing:
            log.warning(
                "topics missing",
                group=self._member.settings.group,
                topics=", ".join(missing),
                retry_in=_LOOK_FOR_TOPICS,
            )
        self._missing = missing

    def _regulate(self) -> tuple[list[TopicPartition], bool]:
        """The partitions to poll, and whether one is passed over; pauses lanes that stay full, lets go on what has room.

        What is paused is polled all the same: it answers nothing, and shows the group that this member is alive.
        """
        paused, assigned = ({*each} - self._opening.ignored for each in (self._client.paused(), self._client.assignment()))
        polled = []
        passed_over = is_any_at_work = False
        for partition, (lane,) in self._member.lanes.items():
            if partition not in assigned or lane.is_stopping or self._opening.is_halted(partition):
                continue
            if self.fetching.quarantine.holds(partition, lane):
                if partition not in paused:
                    self._client.pause(partition)
                continue
            is_any_at_work = is_any_at_work or lane.is_at_work
            if not lane.is_full():
                if partition in paused:
                    self._client.resume(partition)
            elif partition not in paused:
                if not lane.is_full_for(_PASSED_OVER):
                    passed_over = True
                    continue
                self._client.pause(partition)
                paused.add(partition)  # it may have room as time passes, and no event reports that
            polled.append(partition)
        self._is_idle = len(polled) == len(assigned) and not paused and not is_any_at_work
        self._client.expect(len(assigned) if self._is_idle else None)
        return polled, passed_over


def _has_answered(looking: asyncio.Future[bool] | None) -> bool:
    return looking is not None and not looking.cancelled() and looking.exception() is None and looking.result()
