"""Delay line: one assigned partition of a delay topic, and the task that moves its records on when they are due.

A topic holds one level, so the order in it is the order of being due, and its head alone is looked at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ackwise.middleware.disposition import Failure, Reason
from ackwise.middleware.errors import PublishRefused
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import MAX_DELAY, DelayLevels
from ackwise.middleware.watermark import Watermark
from ackwise.middleware.wire import Copy, ForeignCopy, NewerWire, dead_letter, due_ms, has_raw_names, parse_copy, shrink, with_due
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.relay.hop import Wait, latest_due, next_hop, written_at

__all__ = ["LONGEST_REST", "DelayLine"]

log = Log()

#: A line with this much in hand takes no more until half of it is gone.
_MAX_RECORDS: Final = 500
_MAX_BYTES: Final = 1024 * 1024

#: Seconds until a head is looked at again at the latest, since the wall clock may be set.
LONGEST_REST: Final = 5.0

#: Seconds between two alarms.
_ALARM = 60.0

#: Back-off of a move that failed: seconds at first, doubling up to the second.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0


class _WaitingRecord(NamedTuple):
    """A record that waits; `written` and `latest_due` are epoch milliseconds."""

    record: Delivery
    written: int
    latest_due: int


@dataclass(slots=True)
class _Parcel:
    """A record on its way, and what is published for it."""

    record: Delivery
    copy: Copy


class DelayLine:
    """Moves the records of one partition in order. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        topic: str,
        partition: int,
        position: int,
        *,
        names: TopicNames,
        levels: DelayLevels,
        publisher: Publisher,
        clock: Callable[[], float],
        max_delay: float = MAX_DELAY,
        clock_skew: float = 0.0,
        counts: DelayCounts | None = None,
        longest_rest: float = LONGEST_REST,
    ) -> None:
        """`longest_rest`: seconds until a head is looked at again at the latest, since the clock may be set."""
        self.watermark = Watermark(position)
        self.position = position  #: what is fetched next
        self.unreadable: str | None = None  #: why the client can't read on there, while it is left alone for that
        self.committed: int | None = None  #: what the broker has accepted
        self._topic = topic
        self._partition = partition
        self._level = names.delays.index(topic) + 1
        self._names = names
        self._levels = levels
        self._publisher = publisher
        self._clock = clock
        self._max_delay = max_delay
        self._clock_skew = clock_skew
        self._counts = counts or DelayCounts()
        self._longest_rest = longest_rest
        self._cut_since_alarm = 0
        self._waiting: deque[_WaitingRecord] = deque()
        self._moving: list[_Parcel] = []
        self._bytes = 0
        self._failures = 0
        self._next_alarm = self._next_cut_alarm = 0.0
        self._woken = asyncio.Event()
        self._stopping = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Work from now on, until it is stopped."""
        self.task = asyncio.create_task(self._work(), name=f"ackwise relay {self._topic}/{self._partition}")
        return self.task

    def stop(self) -> None:
        """Begin nothing more; what is being published is finished."""
        self._stopping = True
        self._woken.set()

    def offer(self, records: Iterable[Delivery], *, is_append_time: bool = False) -> None:
        """Take what was fetched, in order; what was taken before is passed over. `is_append_time`: the broker set the timestamps."""
        seen = int(self._clock() * 1000)
        for record in records:
            self.position = max(self.position, record.offset + 1)
            if self.watermark.track(record.offset):
                at = record.timestamp_ms
                latest = latest_due(at, seen, self._max_delay, self._clock_skew, is_append_time=is_append_time)
                self._waiting.append(_WaitingRecord(record, written_at(at, seen), latest))
                self._bytes += _size(record)
        if not self._moving:
            self._woken.set()

    def is_full(self, *, paused: bool) -> bool:
        """Whether fetching from the partition should pause, or stay `paused`."""
        share = 0.5 if paused else 1.0
        return len(self._waiting) + len(self._moving) >= _MAX_RECORDS * share or self._bytes >= _MAX_BYTES * share

    async def _work(self) -> None:
        while not self._stopping:
            self._woken.clear()
            rest = await self.turn()
            if not self._stopping and rest > 0:
                await self._rest(rest)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds if self._waiting or self._moving else None):  # an empty line is woken by what comes
                await self._woken.wait()
        except TimeoutError:
            return

    async def turn(self) -> float:
        """Move what is due at the head; returns the seconds until it is worth looking again.

        What could not be moved is tried again, the same records first: what follows them waits, and none is skipped.
        """
        rest = 0.0
        if not self._moving:
            rest = self._take_due()
        if self._moving:
            rest = await self._move()
        return rest

    def _take_due(self) -> float:
        """Put the records at the head that are due on their way; the seconds for which the next one stays."""
        while self._waiting:
            copy = self._next_copy(self._waiting[0])
            if not isinstance(copy, Copy):
                return copy
            self._moving.append(_Parcel(self._waiting.popleft().record, copy))
        return self._longest_rest

    def _next_copy(self, held: _WaitingRecord) -> Copy | float:
        """What to publish for `held` now, or the seconds for which it stays."""
        now_ms, record = int(self._clock() * 1000), held.record
        try:
            if has_raw_names(record.headers):
                raise ForeignCopy("the name of a header is no UTF-8, and no copy has one")
            asked = due_ms(record.headers, self._names.group)
        except ForeignCopy as error:
            log.error(
                "a record in a delay topic is not ours and goes to the dead letters",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=Reason.FOREIGN_COPY,
                dead_letters=self._names.dead_letter,
            )
            return self._letter(record, Reason.FOREIGN_COPY, error)
        except NewerWire as error:
            return self._wait_for_upgrade(record, error)
        due = min(asked, held.latest_due)
        hop = next_hop(now_ms, due, held.written, self._level, self._levels)
        if isinstance(hop, Wait):
            return min((hop.until - now_ms) / 1000, self._longest_rest)
        topic = self._names.delays[hop.level - 1] if hop.level else self._names.retry
        headers = record.headers if due == asked else with_due(record.headers, due)
        if due != asked:
            self._log_cut(record)
        return Copy(topic, record.partition, record.key, record.value, headers)

    def _log_cut(self, record: Delivery) -> None:
        """Once for each copy: what hops on has the due time that it was cut to."""
        self._counts.cut += 1
        self._cut_since_alarm += 1
        if self._clock() >= self._next_cut_alarm:
            self._next_cut_alarm = self._clock() + _ALARM
            log.error(
                "copies in a delay topic are due later than max_delay allows, they come back sooner",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                messages=self._cut_since_alarm,
                at_most=self._max_delay,
            )
            self._cut_since_alarm = 0

    def _wait_for_upgrade(self, record: Delivery, error: NewerWire) -> float:
        if self._clock() >= self._next_alarm:
            self._next_alarm = self._clock() + _ALARM
            log.error(
                "a copy in a delay topic can't be read by this worker, what follows it waits",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                error=said(error),
            )
        return _ALARM

    async def _move(self) -> float:
        answers = await self._publisher.publish([parcel.copy for parcel in self._moving])
        left = []
        for parcel, answer in zip(self._moving, answers, strict=True):
            if answer is None:
                self.watermark.finish(parcel.record.offset)
                self._bytes -= _size(parcel.record)
                continue
            if isinstance(answer, PublishRefused):
                parcel.copy = self._smaller(parcel, answer)
            left.append((parcel, answer))
        self._moving = [parcel for parcel, _ in left]
        if not left:
            self._failures = 0
            return 0.0
        rest: float = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._failures, 10))
        self._failures += 1
        log.warning(
            "copies that are due can't be moved, trying again",
            topic=self._topic,
            partition=self._partition,
            offset=left[0][0].record.offset,
            messages=len(left),
            error=said(left[0][1]),
            retry_in=rest,
        )
        return rest

    def _smaller(self, parcel: _Parcel, refusal: PublishRefused) -> Copy:
        """A copy that is refused for good becomes a dead letter, cut until it fits; what can't be cut is tried again as it is."""
        if parcel.copy.topic != self._names.dead_letter:
            return self._letter(parcel.record, Reason.TOO_LARGE, refusal)
        return shrink(parcel.copy) or parcel.copy

    def _letter(self, record: Delivery, reason: str, error: Exception) -> Copy:
        try:
            message = parse_copy(record, self._names.group)
        except (ForeignCopy, NewerWire):
            message = record
        return dead_letter(
            message,
            topic=self._names.dead_letter,
            partition=record.partition,
            group=self._names.group,
            handler=message.handler or "-",
            now_ms=int(self._clock() * 1000),
            reason=reason,
            failure=Failure.of(error),
        )


def _size(record: Delivery) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)
