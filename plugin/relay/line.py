"""Delay line: one assigned partition of a delay topic, and the task that moves its records on when they are due.

A topic holds one level, so the order in it is the order of being due, and its head alone is looked at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Final, NamedTuple, cast

from aiokafka.errors import KafkaError

from ackwise.middleware.disposition import Reason
from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery, TopicPartition
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import MAX_DELAY, DelayLevels
from ackwise.middleware.watermark import Watermark
from ackwise.middleware.wire import (
    Copy,
    ForeignCopy,
    OtherWire,
    due_ms,
    has_raw_names,
    shrink,
    waiting_copy,
    with_due,
)
from ackwise.plugin.group.budget import Budget
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.relay.cancellations import Cancellations
from ackwise.plugin.relay.hop import Wait, comes_back_from_here, latest_due, next_hop, written_at
from ackwise.plugin.relay.parcel import BatchPublisher, Parcel, Parcels
from ackwise.plugin.relay.single import Single, bytes_of, cancelled, letter, opened

__all__ = ["LONGEST_REST", "DelayLine", "WaitingRecord"]

log = Log()

#: A line with this much in hand takes no more until half of it is gone.
_MAX_RECORDS: Final = 500
_MAX_BYTES: Final = 1024 * 1024

#: Milliseconds before they are due that records are packed; what is due later takes room as above, and no more.
_PACKED_AHEAD: Final = 60_000

#: Bytes of parcels that go in one turn: whoever gives up the partition waits for it.
_TURN: Final = 8 * 1024 * 1024

#: Seconds until a head is looked at again at the latest, since the wall clock may be set.
LONGEST_REST: Final = 5.0

#: Seconds between two alarms.
_ALARM = 60.0

#: Back-off of a move that failed: seconds at first, doubling up to the second.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0


class WaitingRecord(NamedTuple):
    """A record that waits; `written` and `latest_due` are epoch milliseconds."""

    record: Delivery
    written: int
    latest_due: int


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
        cancellations: Cancellations | None = None,
        sink: EventSink | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`longest_rest`: seconds until a head is looked at again at the latest, since the clock may be set.

        Where `publisher` takes whole batches, records are packed into them ahead, as long as `budget`, which all lines share, has room.
        """
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
        self._cancellations = cancellations
        self._sink = sink
        self._parcels = Parcels(publisher, names.retry, budget or Budget(0)) if isinstance(publisher, BatchPublisher) else None
        self._cut_since_alarm = 0
        self._waiting: deque[WaitingRecord] = deque()  #: what comes behind all parcels
        self._moving: list[Single | Parcel] = []
        self._due_since: int | None = None  #: when the first of what is moving was due, epoch milliseconds
        self._is_checked = False  #: whether what is moving was held against the cancellations
        self._bytes = 0  #: of records that are in no parcel
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
        if self._parcels is not None:
            self._parcels.leave()
        self._woken.set()

    def offer(self, records: Iterable[Delivery], *, is_append_time: bool = False) -> None:
        """Take what was fetched, in order; what was taken before is passed over. `is_append_time`: the broker set the timestamps."""
        seen = int(self._clock() * 1000)
        first = end = self.position
        for record in records:
            if record.offset < self.position:
                continue
            if record.offset != end:
                self._track(first, end)
                first = record.offset
            self.position = end = record.offset + 1
            at = record.timestamp_ms
            latest = latest_due(at, seen, self._max_delay, self._clock_skew, is_append_time=is_append_time)
            self._waiting.append(WaitingRecord(record, written_at(at, seen), latest))
            self._bytes += bytes_of(record)
        self._track(first, end)
        self._pack(seen)
        if not self._moving:
            self._woken.set()

    @property
    def late(self) -> float:
        """Seconds for which the oldest copy that is due has waited to be moved; 0 if none is due."""
        return 0.0 if self._due_since is None or not self._moving else max(0.0, self._clock() - self._due_since / 1000)

    def _track(self, first: int, end: int) -> None:
        """In ranges: finishing each of many thousand by itself would take seconds."""
        if first < end:
            self.watermark.track(first, end)

    def is_full(self, *, paused: bool) -> bool:
        """Whether fetching from the partition should pause, or stay `paused`."""
        share = 0.5 if paused else 1.0
        singles = len(self._waiting) + sum(isinstance(moving, Single) for moving in self._moving)
        if singles >= _MAX_RECORDS * share or self._bytes >= _MAX_BYTES * share:
            return True
        return self._parcels is not None and self._parcels.bytes >= _MAX_BYTES * share and not self._parcels.has_room(share)

    async def _work(self) -> None:
        while not self._stopping:
            self._woken.clear()
            rest = await self.turn()
            if not self._stopping and rest > 0:
                await self._rest(rest)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if self._is_empty else seconds):  # an empty line is woken by what comes
                await self._woken.wait()
        except TimeoutError:
            return

    @property
    def _is_empty(self) -> bool:
        return not (self._waiting or self._moving or (self._parcels is not None and self._parcels.next_due is not None))

    async def turn(self) -> float:
        """Move what is due at the head; returns the seconds until it is worth looking again.

        What could not be moved is tried again, the same records first: what follows them waits, and none is skipped.
        """
        rest = 0.0
        if not self._moving:
            self._pack(int(self._clock() * 1000))
            rest, self._is_checked = self._take_due(), False
        if self._moving and not self._is_checked and (rest := await self._drop_cancelled()):
            return rest
        if self._moving:
            rest = await self._move()
        return rest

    def _pack(self, now_ms: int) -> None:
        """Pack the records at the head of those that wait, as far as they are due soon and come back from here."""
        while self._parcels is not None and self._waiting:
            held = self._waiting[0]
            try:
                due, key = waiting_copy(held.record.headers, self._names.group)
            except (ForeignCopy, OtherWire):
                return
            if due > min(held.latest_due, now_ms + _PACKED_AHEAD) or has_raw_names(held.record.headers):
                return
            if not comes_back_from_here(due, held.written, self._level, self._levels):
                return
            record = self._waiting.popleft().record
            self._bytes -= (size := bytes_of(record))
            self._parcels.put(record, due, key, size, now_ms)

    def _take_due(self) -> float:
        """Put the records at the head that are due on their way; the seconds for which the next one stays."""
        if self._parcels is not None:
            now_ms = int(self._clock() * 1000)
            self._moving += self._parcels.take_due(now_ms, _TURN)
            self._due_since = cast(Parcel, self._moving[0]).begins if self._moving else None
            if (next_due := self._parcels.next_due) is not None:
                return min((next_due - now_ms) / 1000, self._longest_rest)
        while self._waiting:
            copy = self._next_copy(self._waiting[0])
            if not isinstance(copy, Copy):
                return copy
            if not self._moving:
                self._due_since = self._due_of(self._waiting[0])
            self._moving.append(Single(self._waiting.popleft().record, copy))
        return self._longest_rest

    def _due_of(self, held: WaitingRecord) -> int:
        """When it was due; a record that nobody can read was when it was seen."""
        try:
            return min(due_ms(held.record.headers, self._names.group), held.latest_due)
        except (ForeignCopy, OtherWire):
            return int(self._clock() * 1000)

    async def _drop_cancelled(self) -> float:
        """Take out of what is moving what was cancelled before now; the seconds until that is tried again, if it can't be.

        All of it is due by now, and a cancellation that was accepted was acknowledged before: who reads to the end sees it.
        """
        if self._cancellations is None:
            return 0.0
        dropped: list[Single] = []
        try:
            await self._cancellations.read()
            if keys := self._cancellations.keys:
                self._open_those_with(self._cancellations.hashes)
                dropped = await self._record_cancelled(keys)
        except (KafkaError, OSError, EventLogUnavailable) as error:
            rest = self._back_off()
            log.warning(
                "cancellations can't be read or recorded now, what is due waits for it",
                topic=self._topic,
                partition=self._partition,
                error=said(error),
                retry_in=rest,
            )
            return rest
        for single in dropped:
            self._moving.remove(single)
            self._finish(single)
        self._counts.cancelled += len(dropped)
        self._is_checked = True
        return 0.0

    async def _record_cancelled(self, keys: AbstractSet[bytes]) -> list[Single]:
        """Those that `keys` cancel, once that is durable."""
        singles = [moving for moving in self._moving if isinstance(moving, Single)]
        found = [(single, event) for single in singles if (event := cancelled(single, keys, self._names.group)) is not None]
        if found and self._sink is not None:
            for _, event in found:
                self._sink.record(event)
            await self._sink.flush()
        return [single for single, _ in found]

    def _open_those_with(self, hashes: AbstractSet[int]) -> None:
        """Send what is in a parcel that may have a key with one of `hashes` alone."""
        moving, self._moving = self._moving, []
        for each in moving:
            if isinstance(each, Parcel) and not each.keys.isdisjoint(hashes):
                self._moving += self._opened(each)
            else:
                self._moving.append(each)

    def _opened(self, parcel: Parcel) -> list[Single]:
        singles = opened(parcel, TopicPartition(self._topic, self._partition))
        cast(Parcels, self._parcels).give_back(parcel)
        self._bytes += sum(bytes_of(single.record) for single in singles)
        return singles

    def _next_copy(self, held: WaitingRecord) -> Copy | float:
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
        except OtherWire as error:
            return self._wait_for_reader(record, error)
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

    def _wait_for_reader(self, record: Delivery, error: OtherWire) -> float:
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
        left: list[Single | Parcel] = []
        error: PublishUnavailable | PublishRefused | None = None
        for moving, answer in zip([*self._moving], await self._publish(), strict=True):
            if answer is None:
                self._finish(moving)
                continue
            error = error or answer
            if isinstance(moving, Parcel):  # it is sent once, so its records go on alone
                left += self._opened(moving)
                continue
            if isinstance(answer, PublishRefused):
                moving.copy = self._smaller(moving, answer)
            left.append(moving)
        self._moving = left
        if error is None:
            self._failures = 0
            return 0.0
        rest = self._back_off()
        log.warning(
            "copies that are due can't be moved, trying again",
            topic=self._topic,
            partition=self._partition,
            offset=self._moving[0].first,
            messages=sum(moving.end - moving.first for moving in self._moving),
            error=said(error),
            retry_in=rest,
        )
        return rest

    async def _publish(self) -> list[PublishUnavailable | PublishRefused | None]:
        """Send what is moving, whole parcels as batches; one answer for each, in order."""
        answers: list[PublishUnavailable | PublishRefused | None] = []
        for kind, several in groupby(self._moving, key=type):
            if kind is Parcel:
                answers += await cast(BatchPublisher, self._publisher).send([cast(Parcel, each).batch for each in several])
            else:
                answers += await self._publisher.publish([cast(Single, each).copy for each in several])
        return answers

    def _finish(self, moving: Single | Parcel) -> None:
        self.watermark.finish(moving.first, moving.end)
        if isinstance(moving, Parcel):
            cast(Parcels, self._parcels).give_back(moving)
        else:
            self._bytes -= bytes_of(moving.record)

    def _back_off(self) -> float:
        """Seconds until what failed is tried again; more each time."""
        rest: float = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._failures, 10))
        self._failures += 1
        return rest

    def _smaller(self, parcel: Single, refusal: PublishRefused) -> Copy:
        """A copy that is refused for good becomes a dead letter, cut until it fits; what can't be cut is tried again as it is."""
        if parcel.copy.topic != self._names.dead_letter:
            return self._letter(parcel.record, Reason.TOO_LARGE, refusal)
        return shrink(parcel.copy) or parcel.copy

    def _letter(self, record: Delivery, reason: str, error: Exception) -> Copy:
        return letter(record, self._names, reason, error, now_ms=int(self._clock() * 1000))
