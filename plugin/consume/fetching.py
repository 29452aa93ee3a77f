"""Fetching with aiokafka: positions, polls and quarantine. It feeds the member's lanes, as far as they have room.

A fetch that raises may have moved the client's position over what it drained and never gave. So the position is remembered after
each fetch that returned, and no fetch begins anywhere else: what moved meanwhile is sought back to its lane's own position.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import (
    has_answered,
    has_left_the_group,
    idle_wait,
    keep_awake,
    look_for_topics,
    positions_of,
    raise_group_errors,
    rejoin_if_broken,
    revive,
    set_fetch_wait,
    standing_before_errors,
)
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.rawrecords import is_about_a_header, read_raw
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.client.taking import Taking
from ackwise.plugin.consume.opening import Opening
from ackwise.plugin.consume.staticmember import StaticMember
from ackwise.plugin.group.budget import size_of
from ackwise.plugin.group.lane import Lane
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.quarantine import Quarantine

__all__ = ["Fetching"]

log = Log()

#: Records that one poll takes of a partition at most.
_FETCHED = 500

#: Seconds until it is polled again after an error.
_POLL_AGAIN = 1.0

#: Seconds that a full lane is only passed over; then its partition is paused. aiokafka throws away what it has fetched of a
#: paused partition and fetches a megabyte anew, so pausing is for handlers that take long.
_PASSED_OVER = 1.0

#: Seconds until other partitions are looked at again while one is full.
_LOOK_AGAIN = 0.02

#: Seconds between two looks for topics that are missing.
_LOOK_FOR_TOPICS = 5.0

#: Seconds that all partitions are asked singly after an error, to find the one that raises. Its bytes are fetched anew before.
_SEARCH = 10.0

#: Seconds for reading a record batch past the client.
_RAW_TIMEOUT = 15.0

#: The log does not have the position of a partition, or the client has none; what was drained is given before either is raised.
_NO_POSITION = (OffsetOutOfRangeError, NoOffsetForPartitionError)

#: Asked where nobody has anything: what is raised then is about no partition.
_NOBODYS = TopicPartition("", -1)


class _FetchFailed(Exception):
    """The client raised `error`. Whatever it had drained is not known here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Fetching:
    """Polls `consumer` for the lanes of `member`. `opening` opens them, and looks after a position that was lost."""

    def __init__(
        self,
        member: Member,
        consumer: AIOKafkaConsumer,
        opening: Opening,
        *,
        wait: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait`: milliseconds that the broker keeps a fetch which finds nothing, while a lane is at work; `None` leaves it as it is."""
        self._member = member
        self._consumer = consumer
        self._taking = Taking(consumer)
        self._opening = opening
        self._wait = wait
        self._clock = clock
        self._quarantine = Quarantine(clock)
        self._searching_until = 0.0
        self._doubted = WeakSet[Lane]()  #: those that raised once in this search
        self._next_look = 0.0  #: when it is looked again whether topics are missing
        self._sought: Sequence[str] = ()  #: topics that the client was asked to look for
        self._answer: asyncio.Future[bool] | None = None  #: to that
        self._missing: Sequence[str] = ()  #: topics that the log has named as missing
        self._has_joined = False  #: the group; nothing is fetched before
        #: The client's positions after the fetch that returned last. It keeps no lane alive that is gone.
        self._left_at = WeakKeyDictionary[Lane, int]()
        self._throttle = LogThrottle(clock=clock)
        self._static = StaticMember.of(consumer)

    async def poll(self) -> None:
        """Feed the lanes until the member stops.

        Raises `AckwiseError` if the client has left the group for good, or another process has its place, and what Kafka refuses a
        member with that has never joined.
        """
        keep_awake(self._consumer)
        if self._static is not None:
            self._member.keep(self._static.keep_covered, "static membership")
        while not self._member.stop.is_set():
            self._look_for_topics()
            polled, is_any_full = self._regulate()
            try:
                await self._fetch(polled, is_any_full)
            except _FetchFailed as failed:
                await self._recover(failed.error)

    def _look_for_topics(self) -> None:
        """Ask for what is subscribed and missing, which may have been away for a moment or be created later.

        It is told once they were asked for: a client that has just subscribed knows no topic, and a broker learns late of a new one.
        """
        if (now := self._clock()) < self._next_look:
            return
        self._next_look = now + _LOOK_FOR_TOPICS
        if self._answer is not None and not self._answer.done():
            return
        unknown = self._member.missing_topics()
        looked_for = self._sought if self._answer is not None and has_answered(self._answer) else self._missing
        missing = [topic for topic in unknown if topic in looked_for]
        self._sought, self._answer = unknown, look_for_topics(self._consumer) if unknown else None
        if missing and missing != self._missing:
            log.warning(
                "topics are missing, they are looked for until they are there",
                group=self._member.settings.group,
                topics=", ".join(missing),
                retry_in=_LOOK_FOR_TOPICS,
            )
        self._missing = missing

    def _regulate(self) -> tuple[list[TopicPartition], bool]:
        """The partitions to poll, and whether one is passed over; pauses lanes that stay full, lets go on what has room.

        What is paused is polled all the same: it answers nothing, and shows the group that this member is alive.
        """
        paused, assigned = ({*each} - self._opening.ignored for each in (self._consumer.paused(), self._consumer.assignment()))
        polled = []
        passed_over = is_any_at_work = False
        for partition, (lane,) in self._member.lanes.items():
            if partition not in assigned or lane.is_stopping or self._opening.is_halted(partition):
                continue
            if self._quarantine.holds(partition, lane):
                if partition not in paused:
                    self._consumer.pause(partition)
                continue
            is_any_at_work = is_any_at_work or lane.is_at_work
            if not lane.is_full():
                if partition in paused:
                    self._consumer.resume(partition)
            elif partition not in paused:
                if not lane.is_full_for(_PASSED_OVER):
                    passed_over = True
                    continue
                self._consumer.pause(partition)
            polled.append(partition)
        self._set_wait(len(assigned), is_idle=len(polled) == len(assigned) and not paused and not is_any_at_work)
        return polled, passed_over

    def _set_wait(self, partitions: int, *, is_idle: bool) -> None:
        """Let a fetch that finds nothing last, while it is for all partitions: whatever is written to one of them ends it at once.

        While a lane is at work the client may fetch for some of them alone, and what the others have waits for that answer.
        """
        if self._wait is not None:
            set_fetch_wait(self._consumer, idle_wait(partitions) if is_idle else self._wait)

    async def _fetch(self, polled: Sequence[TopicPartition], is_any_full: bool) -> None:
        """Take what there is for the partitions that have room. While one is full the wait ends as soon as a lane has moved.

        The wait is not cancelled within aiokafka: only outside of it is it certain that no record is on its way to us.
        """
        if (ended := revive(self._consumer)) is not None:
            raise _FetchFailed(ended)
        singly = self._quarantine.asked_again(self._member.lanes)
        if is_searching := self._clock() < self._searching_until:
            singly = [*polled]
        if not (singly or is_searching or is_any_full):
            await self._ask(timeout_ms=200)
            return
        self._member.has_moved.clear()
        came = await self._ask_singly(singly) if singly or is_searching else False
        if not is_searching and (polled or not is_any_full):
            came = await self._ask(*(polled if is_any_full else ()), timeout_ms=0) or came
        if not came:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._member.has_moved.wait()

    async def _ask_singly(self, partitions: Sequence[TopicPartition]) -> bool:
        """Ask each of `partitions` by itself: the one that raises can't be read. Returns whether one had anything."""
        await self._ask(_NOBODYS, timeout_ms=0)
        came = False
        for partition in partitions:
            if not (lanes := self._member.lanes.get(partition)) or self._quarantine.holds(partition, lanes[0]):
                continue
            try:
                came = await self._ask_one(partition, lanes[0]) or came
            except _FetchFailed as failed:
                if isinstance(failed.error, _NO_POSITION):
                    raise
                if not await self._read_raw(partition, lanes[0], failed.error):
                    self._doubt(partition, lanes[0], failed.error)
            else:
                self._quarantine.answered(partition, self._consumer.last_poll_timestamp(partition))
        return came

    async def _ask_one(self, partition: TopicPartition, lane: Lane) -> bool:
        """As `_ask`. Of a partition that raised, record by record: what is before the one that raises is given."""
        if lane.unreadable is None and lane not in self._doubted:
            return await self._ask(partition, timeout_ms=0)
        came = False
        for _ in range(_FETCHED):
            if not await self._ask(partition, timeout_ms=0, most=1):
                break
            came = True
        return came

    async def _read_raw(self, partition: TopicPartition, lane: Lane, error: BaseException) -> bool:
        """Whether the record batch that the client can't read could be read past it, and was given: it is about a header's name alone."""
        self._return(partition, lane)
        if not is_about_a_header(error):
            return False
        try:
            found = await answer(read_raw(self._consumer, partition, lane.position), within=_RAW_TIMEOUT)
        except Exception as another:  # noqa: BLE001  # whatever a parser raises: then nobody can read it
            log.debug("a record batch can't be read past the client either", topic=partition.topic, raised=another)
            return False
        if self._member.lanes.get(partition, ())[:1] != (lane,) or partition not in self._consumer.assignment():
            return True  # revoked meanwhile
        if found.records:
            self._member.offer(partition, found.records, proved=True)
        self._consumer.seek(partition, found.goes_on_at)
        self._left_at[lane] = found.goes_on_at
        self._doubted.discard(lane)
        return True

    async def _ask(self, *partitions: TopicPartition, timeout_ms: int, most: int = _FETCHED) -> bool:
        """Take what the client has of `partitions`, or of all; returns whether it had anything. Raises `_FetchFailed`."""
        self._require_membership()
        begun = self._stand(partitions or self._member.lanes)
        try:
            raise_group_errors(self._consumer)
            fetched = await self._taking.take(*partitions, timeout_ms=timeout_ms, most=most)
        except ConsumerStoppedError:
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise _FetchFailed(error) from error  # from within the client: nobody asked us to end
        except Exception as error:
            raise _FetchFailed(error) from error
        self._has_joined = True
        self._throttle.reset()
        for partition, records in fetched.items():
            self._feed(partition, records, begun.get(partition))
        self._remember(begun)
        return bool(fetched)

    def _stand(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Lane]:
        """Return the lanes of `partitions`; the client stands where the last fetch left it, or where the lane is."""
        begun = {}
        assigned = self._consumer.assignment()
        positions, before_errors = positions_of(self._consumer, partitions), standing_before_errors(self._consumer)
        for partition in partitions:
            if not (lanes := self._member.lanes.get(partition)) or partition not in assigned:
                continue
            lane = lanes[0]
            if self._quarantine.holds(partition, lane):
                continue
            begun[partition] = lane
            if partition in before_errors:
                continue  # it is raised first; what raised is sought back then
            if positions.get(partition) != self._left_at.get(lane, lane.position):
                self._return(partition, lane)
        return begun

    def _return(self, partition: TopicPartition, lane: Lane) -> None:
        """Seek back to where `lane` is; the client forgets what it has fetched beyond."""
        if partition in self._consumer.assignment():
            self._consumer.seek(partition, lane.position)
            self._left_at[lane] = lane.position

    def _feed(self, partition: TopicPartition, records: Sequence[Any], begun: Lane | None) -> None:
        """Give `records` to their lane. What begins behind a hole that this fetch does not prove is fetched again."""
        if not (lanes := self._member.lanes.get(partition)):
            return  # the assignment seeks back to its start
        if lanes[0] is not begun and records[0].offset > lanes[0].position:
            self._return(partition, lanes[0])
            return
        lane = lanes[0]
        room = lane.budget.room(lane.bytes, is_empty=not lane.in_hand, most=lane.thresholds.bytes)
        kept = _fitting(records, room, at_least=0 if lane.in_hand else 1)
        if kept:
            self._member.offer(partition, records[:kept], proved=True)
        if kept < len(records):  # fetched again once there is room
            lane.overflow()
            self._return(partition, lane)

    def _remember(self, begun: Mapping[TopicPartition, Lane]) -> None:
        """Where this fetch has left the client: beyond a lane too, where the log has nothing that is given to anybody."""
        positions, before_errors = positions_of(self._consumer, begun), standing_before_errors(self._consumer)
        for partition, lane in begun.items():
            if partition in before_errors:
                continue
            position = positions.get(partition)
            if position is not None and self._member.lanes.get(partition, ())[:1] == (lane,):
                self._left_at[lane] = position
                self._member.skip(partition, position)
            else:
                self._left_at.pop(lane, None)

    async def _recover(self, error: BaseException) -> None:
        """Lose nothing of what the client may have drained, then look for the partition that raises."""
        if isinstance(error, _NO_POSITION):
            named = error.args[0]  # one partition that has no position yet, or several that lost theirs
            self._opening.lost([named] if isinstance(named, TopicPartition) else named)
            return
        for partition, (lane, *_) in self._member.lanes.items():
            self._return(partition, lane)
        self._require_membership()
        rejoin_if_broken(self._consumer)
        if not self._has_joined and not self._consumer.assignment():
            if is_refusal(error):
                raise error
            await self._back_off(error)
            return
        was_searching = self._clock() < self._searching_until
        self._searching_until = self._clock() + _SEARCH
        if was_searching:  # asked singly, none of them raises it
            await self._back_off(error)
        else:
            self._doubted.clear()
            log.warning(
                "fetching failed, nothing is lost and partitions are asked singly", group=self._member.settings.group, error=_spoken(error)
            )

    def _require_membership(self) -> None:
        """The client's task that keeps the membership may have ended, though nobody asked it to; nothing begins it anew.

        And another process may have the id of a static member.
        """
        if self._static is not None:
            self._static.require()
        if has_left_the_group(self._consumer):
            raise AckwiseError(
                f"the Kafka client of group {self._member.settings.group!r} has left the group and does not come back; the worker stops, "
                "start it again"
            )

    async def _back_off(self, error: BaseException) -> None:
        """Rest, and say why: at once, and then once in a minute for as long as nothing is fetched."""
        if self._throttle.is_due():
            group = self._member.settings.group
            if is_refusal(error):
                log.error(
                    "Kafka refuses a member that it had let in, nothing is fetched or lost until it lets it in again",
                    group=group,
                    error=said(error),
                    retry_in=_POLL_AGAIN,
                )
            else:
                log.warning("fetching failed, nothing is lost", group=group, error=_spoken(error), retry_in=_POLL_AGAIN)
        await asyncio.sleep(_POLL_AGAIN)

    def _doubt(self, partition: TopicPartition, lane: Lane, error: BaseException) -> None:
        """It raised, asked by itself. Asked for a single record it raises of that one, and is left alone."""
        self._return(partition, lane)
        if lane.unreadable is None and lane not in self._doubted:
            self._doubted.add(lane)
            return
        if partition in self._consumer.assignment():
            self._consumer.pause(partition)
        self._quarantine.admit(partition, lane, error)


def _fitting(records: Sequence[Any], room: int, *, at_least: int) -> int:
    """How many of `records`, in order, fit into `room` bytes."""
    fitting = 0
    for record in records:
        room -= size_of(record)
        if room < 0:
            break
        fitting += 1
    return max(fitting, at_least)


def _spoken(error: BaseException) -> str:
    """What the client raised, without the bytes that a parser repeats."""
    return said(error) if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException) else type(error).__name__
