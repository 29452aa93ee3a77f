"""Lane: one assigned partition with the messages that are fetched and unsettled, and the task that works on it.

A lane lives as long as the assignment. It feeds the pipeline batch by batch, keeps what comes back undecided, and
tells its watermark what is settled. One lane never waits for another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.log import Log
from ackwise.middleware.message import Delivery
from ackwise.middleware.pipeline import Pipeline
from ackwise.middleware.watermark import Watermark
from ackwise.plugin.group.budget import LANE_BYTES, Budget, size_of

__all__ = ["Lane", "LaneEntry"]

log = Log()

#: A lane takes no more above this, or above twice as large a span of offsets.
#: RocketMQ: `pullThresholdForQueue`, `consumeConcurrentlyMaxSpan`.
MAX_MESSAGES = 1000

#: Batches of an overlapping lane that may be at work: one that is consumed, one that is admitted or settled meanwhile.
_OVERLAP = 2

#: Seconds between alarms about a copy that only a newer Ackwise can read.
ALARM = 60.0


@dataclass(slots=True, eq=False)
class LaneEntry:
    """An entry with the pipeline that it belongs to; `None` for a copy that this worker must not touch."""

    entry: Entry
    pipeline: Pipeline | None
    at_most: int | None = None  #: messages in a batch with it, where that is fewer than its handler takes
    size: int = 0  #: raw bytes

    @property
    def limit(self) -> int:
        """How many messages may be in a batch with it, itself included."""
        if self.pipeline is None:
            return 1
        return self.pipeline.agent.max_batch if self.at_most is None else self.at_most


class Lane:
    """The messages of one assigned partition.

    `make` turns a delivery into an entry and names its pipeline; `None` is passed over, since another lane has it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        role: Literal["source", "retry"],
        position: int,
        *,
        make: Callable[[Delivery], LaneEntry | None],
        progressed: Callable[[Lane], None],
        generation: int | None = None,
        overlapping: bool = False,
        agent: str | None = None,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`generation`: of the partition's offset in a database, if it is kept there; then nothing overtakes what is held.

        `overlapping`: a batch begins while those before it are still at work, for handlers that take messages one by one.
        `agent` is whose messages it has, where they are all of one. `budget` is what all partitions of the process share.
        """
        self.topic = topic
        self.partition = partition
        self.role = role
        self.agent = agent
        self.position = position  #: the next offset that the broker is asked for
        self.generation = generation
        self.committed: int | None = None  #: what the broker has accepted
        self.watermark = Watermark(position)
        self.cut_off = False
        self.unreadable: str | None = None  #: why the client can't read on at `position`, while it is left alone for that
        self.task: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()  #: who holds it admits a batch
        self.capacity = MAX_MESSAGES  #: messages in hand above which it takes no more
        self.bytes = 0  #: raw bytes in hand
        self.budget = budget or Budget(2**63)
        self._overlapping = overlapping
        self._batches: set[asyncio.Task[None]] = set()
        self._make = make
        self._progressed = progressed
        self._clock = clock
        self._queue: deque[LaneEntry] = deque()
        self._held: list[LaneEntry] = []
        self._running: list[LaneEntry] = []
        self._full_since: float | None = None
        self._overflowed_at: int | None = None  #: the bytes in hand when something had no room
        self._arrived = 0.0  #: when the queue began to fill
        self._next_alarm = 0.0
        self._stopping = False
        self._wake = asyncio.Event()

    def start(self) -> asyncio.Task[None]:
        """Begin to work."""
        self.task = asyncio.create_task(self._work(), name=f"ackwise {self.topic}/{self.partition}")
        return self.task

    def offer(self, deliveries: Iterable[Delivery]) -> list[tuple[int, int]]:
        """Take what was fetched, in order; returns `(from, to)` for each range of offsets that the log does not have."""
        gaps, taken = [], 0
        for delivery in deliveries:
            if delivery.offset > self.position:
                gaps.append((self.position, delivery.offset))
            self.position = max(self.position, delivery.offset + 1)
            if not self.watermark.track(delivery.offset):
                continue
            if (item := self._make(delivery)) is None:
                self.watermark.finish(delivery.offset)
                continue
            if not self._queue:
                self._arrived = self._clock()
            item.size = size_of(delivery)
            taken += item.size
            self._queue.append(item)
        self.bytes += taken
        self.budget.used += taken
        self._wake.set()
        return gaps

    @property
    def in_hand(self) -> int:
        """How many messages were fetched and are not settled."""
        return len(self._queue) + len(self._held) + len(self._running)

    @property
    def is_at_work(self) -> bool:
        """Whether it has something in a batch, or for the next one; what is held for later is neither."""
        return bool(self._queue or self._running)

    @property
    def queued(self) -> tuple[LaneEntry, ...]:
        """What waits for a batch."""
        return tuple(self._queue)

    @property
    def running(self) -> tuple[LaneEntry, ...]:
        """What is in a batch now."""
        return tuple(self._running)

    @property
    def held(self) -> tuple[LaneEntry, ...]:
        """What came back undecided or unsettled, and comes up again."""
        return tuple(self._held)

    def is_full(self) -> bool:
        """Whether fetching should pause; half of the bounds lets it go on. Where the budget is spent, one batch is enough."""
        share, in_hand = 1.0 if self._full_since is None else 0.5, self.in_hand
        if self._overflowed_at is not None and 2 * self.bytes <= self._overflowed_at:
            self._overflowed_at = None
        has_bytes = self.bytes > LANE_BYTES * share or self._overflowed_at is not None or (in_hand > 0 and self.budget.is_spent)
        has_much = in_hand > self.capacity * share or has_bytes
        if not (has_much or self.watermark.span > 2 * self.capacity * share):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = self._clock()
        return self._full_since is not None

    def overflow(self) -> None:
        """Not all that was fetched had room: it is full until half of its bytes are done."""
        self._overflowed_at = self.bytes

    def is_full_for(self, seconds: float) -> bool:
        """Whether it has been full for so long."""
        return self._full_since is not None and self._clock() >= self._full_since + seconds

    @property
    def is_stopping(self) -> bool:
        """Whether it takes nothing new any more."""
        return self._stopping

    def stop(self) -> None:
        """Take nothing new; what is running, and what is decided, is still settled."""
        self._stopping = True
        for item in self._running:
            if item.entry.run is not None:
                item.entry.run.recall()
        self._wake.set()

    def cut(self) -> None:
        """From now on nothing is published or committed for this partition."""
        self.cut_off = True
        self.stop()

    def call_off(self) -> None:
        """Cancel the handler that is running."""
        for item in list(self._running):
            if item.entry.run is not None:
                item.entry.run.call_off()

    def unsettled(self) -> list[Entry]:
        """Everything that was fetched and is not settled, once the lane has come to its end."""
        return [item.entry for item in (*self._held, *self._queue)]

    def pass_settled(self, entries: Iterable[Entry]) -> None:
        """Those of `entries` that are SETTLED may move the watermark."""
        for entry in entries:
            if entry.stage is Stage.SETTLED:
                self.watermark.finish(entry.delivery.offset)
        self._progressed(self)

    async def _work(self) -> None:
        try:
            while True:
                self._reap()
                pipeline, batch = self._take()
                if not batch:
                    settleable = self._held if self.generation is None else self._held[:1]
                    if self._stopping and not self._batches and (self.cut_off or not any(map(_is_decided, settleable))):
                        return
                    await self._wait()
                elif pipeline is None:
                    self._alarm(batch)
                else:
                    self._running += batch
                    if self._overlapping:
                        self._begin(pipeline, batch)
                    else:
                        await self._run(pipeline, batch)
        finally:
            self._release(self.bytes)
            for task in self._batches:
                task.cancel()

    def _release(self, size: int) -> None:
        size = min(size, self.bytes)
        self.bytes -= size
        self.budget.used -= size

    def _begin(self, pipeline: Pipeline, batch: list[LaneEntry]) -> None:
        task = asyncio.create_task(self._run(pipeline, batch), name=f"ackwise {self.topic}/{self.partition} {pipeline.agent.name}")
        self._batches.add(task)
        task.add_done_callback(lambda _: self._wake.set())

    def _reap(self) -> None:
        """Forget the batches that have ended; what one of them raised ends the lane."""
        for task in [task for task in self._batches if task.done()]:
            self._batches.discard(task)
            task.result()

    async def _run(self, pipeline: Pipeline, batch: list[LaneEntry]) -> None:
        try:
            await pipeline([item.entry for item in batch], self)
        finally:
            done = set(map(id, batch))
            self._running = [item for item in self._running if id(item) not in done]
            self._release(sum(item.size for item in batch if item.entry.stage is Stage.SETTLED))
            self._held += [item for item in batch if item.entry.stage is not Stage.SETTLED]
            self._held.sort(key=lambda item: item.entry.delivery.offset)
            self.pass_settled(item.entry for item in batch)

    def _take(self) -> tuple[Pipeline | None, list[LaneEntry]]:
        """The next batch: held messages that are due, then new ones, all of one pipeline."""
        now = self._clock()
        due = [item for item in self._held if item.entry.not_before <= now and (not self._stopping or _is_decided(item))]
        if self.cut_off or self._is_busy():
            return None, []
        waits = self.generation is not None and len(due) < len(self._held)
        if waits:
            ready = set(map(id, due))
            due = list(takewhile(lambda item: id(item) in ready, self._held))
        if alone := next((item for item in due if item.entry.alone and item.entry.stage is Stage.FETCHED), None):
            batch = [alone]
        else:
            head = due[0] if due else self._queue[0] if self._queue and not (self._stopping or waits) else None
            if head is None:
                return None, []
            batch = _fitting(item for item in due if item.pipeline is head.pipeline)
            if not (self._stopping or waits) and (due or self._is_ripe(head, now)):
                self._dequeue(head.pipeline, batch)
        taken = set(map(id, batch))
        self._held = [item for item in self._held if id(item) not in taken]
        return (batch[0].pipeline if batch else None), batch

    def _is_busy(self) -> bool:
        """Whether as much is at work as may be."""
        if not self._running or not self._overlapping:
            return bool(self._running)
        pipeline = self._running[-1].pipeline
        return pipeline is not None and len(self._running) >= _OVERLAP * pipeline.agent.max_batch

    def _is_ripe(self, head: LaneEntry, now: float) -> bool:
        if head.pipeline is None:
            return True
        agent = head.pipeline.agent
        return len(self._queue) >= agent.max_batch or now >= self._arrived + agent.within

    def _dequeue(self, pipeline: Pipeline | None, batch: list[LaneEntry]) -> None:
        """Fill `batch` with new messages of `pipeline`, as far as each of them allows."""
        others: list[LaneEntry] = []
        limit = min((item.limit for item in batch), default=MAX_MESSAGES)
        while self._queue and len(batch) < limit:
            item = self._queue.popleft()
            if item.pipeline is not pipeline:
                others.append(item)
                continue
            limit = min(limit, item.limit)
            if len(batch) >= limit:
                self._queue.appendleft(item)
                break
            batch.append(item)
        self._queue.extendleft(reversed(others))
        self._arrived = self._clock()

    async def _wait(self) -> None:
        """Until something was offered, something held is due, or the lane stops."""
        blocked = self.generation is not None and bool(self._held)
        due = [item.entry.not_before for item in (self._held[:1] if blocked else self._held) if not self._stopping or _is_decided(item)]
        if self._queue and not (self._stopping or blocked) and (pipeline := self._queue[0].pipeline) is not None:
            due.append(self._arrived + pipeline.agent.within)
        if self._is_busy():
            due = []
        self._wake.clear()
        try:
            async with asyncio.timeout(None if not due else max(0.0, min(due) - self._clock())):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _alarm(self, batch: list[LaneEntry]) -> None:
        now = self._clock()
        if now >= self._next_alarm:
            self._next_alarm = now + ALARM
            log.error(
                "a copy can't be read by this worker, its partition is not committed past it",
                topic=self.topic,
                partition=self.partition,
                offset=batch[0].entry.delivery.offset,
                error=batch[0].entry.why,
            )
        for item in batch:
            item.entry.not_before = now + ALARM
            self._held.append(item)


def _fitting(items: Iterable[LaneEntry]) -> list[LaneEntry]:
    """As many of `items`, in order, as each of them allows."""
    batch: list[LaneEntry] = []
    limit = MAX_MESSAGES
    for item in items:
        limit = min(limit, item.limit)
        if len(batch) >= limit:
            break
        batch.append(item)
    return batch


def _is_decided(item: LaneEntry) -> bool:
    """Whether settling it needs no more user code: it must not be thrown away while there is time."""
    entry = item.entry
    return item.pipeline is not None and (entry.succeeded or Stage.RULED <= entry.stage < Stage.SETTLED)
