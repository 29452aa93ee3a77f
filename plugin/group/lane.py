"""Lane: one assigned partition with the messages that are fetched and unsettled, and the task that works on it.

A lane lives as long as the assignment. It feeds the pipeline batch by batch, keeps what comes back undecided, and
tells its watermark what is settled. One lane never waits for another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from typing import Any, Literal

from ackwise.middleware.log import Log
from ackwise.middleware.message import TopicPartition
from ackwise.middleware.run import Run, Stage, Taker, count, ranges_of
from ackwise.middleware.watermark import Watermark
from ackwise.plugin.group.budget import LANE_BYTES, Budget, size_of

__all__ = ["Lane"]

log = Log()

#: A lane takes no more above this, or above twice as large a span of offsets.
#: RocketMQ: `pullThresholdForQueue`, `consumeConcurrentlyMaxSpan`.
MAX_MESSAGES = 1000

#: Batches of an overlapping lane that may be at work: one that is consumed, one that is admitted or settled meanwhile.
_OVERLAP = 2

#: Seconds between alarms about a copy that only a newer Ackwise can read.
ALARM = 60.0


class Lane:
    """The messages of one assigned partition.

    `make` turns records of this partition into runs, which name their pipeline; a record in none of them is passed over, since
    another lane has it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        role: Literal["source", "retry"],
        position: int,
        *,
        make: Callable[[TopicPartition, Sequence[Any]], list[Run]],
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
        self.place = TopicPartition(topic, partition)
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
        self._queue: deque[Run] = deque()
        self._held: list[Run] = []
        self._running: list[list[Run]] = []  #: the batches at work, which grow when messages fall out of a run
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

    def offer(self, records: Sequence[Any]) -> list[tuple[int, int]]:
        """Take what was fetched, in order; returns `(from, to)` for each range of offsets that the log does not have."""
        if records and records[0].offset < self.position:  # some of it was taken before
            records = [record for record in records if record.offset >= self.position]
        if not records:
            return []
        fetched = [*ranges_of(records)]
        ends = [self.position, *(end for _, end in fetched)]
        for first, end in fetched:
            self.watermark.track(first, end)
        self.position = ends[-1]
        runs = self._make(self.place, records)
        if count(runs) != len(records):
            taken = {record.offset for run in runs for record in run.records}
            for record in records:
                if record.offset not in taken:
                    self.watermark.finish(record.offset)
        if not self._queue:
            self._arrived = self._clock()
        for run in runs:
            run.sizes = [*map(size_of, run.records)]
        size = sum(run.size for run in runs)
        self._queue.extend(runs)
        self.bytes += size
        self.budget.used += size
        self._wake.set()
        return [(end, first) for end, (first, _) in zip(ends, fetched, strict=False) if end < first]

    @property
    def in_hand(self) -> int:
        """How many messages were fetched and are not settled."""
        return count(self._queue) + count(self._held) + sum(map(count, self._running))

    @property
    def is_at_work(self) -> bool:
        """Whether it has something in a batch, or for the next one; what is held for later is neither."""
        return bool(self._queue or self._running)

    @property
    def queued(self) -> tuple[Run, ...]:
        """What waits for a batch."""
        return tuple(self._queue)

    @property
    def running(self) -> tuple[Run, ...]:
        """What is in a batch now."""
        return tuple(run for batch in self._running for run in batch)

    @property
    def held(self) -> tuple[Run, ...]:
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
        for run in self.running:
            if run.call is not None:
                run.call.recall()
        self._wake.set()

    def cut(self) -> None:
        """From now on nothing is published or committed for this partition."""
        self.cut_off = True
        self.stop()

    def call_off(self) -> None:
        """Cancel the handler that is running."""
        for run in self.running:
            if run.call is not None:
                run.call.call_off()

    def unsettled(self) -> list[Run]:
        """Everything that was fetched and is not settled, once the lane has come to its end."""
        return [*self._held, *self._queue]

    def pass_settled(self, runs: Iterable[Run]) -> None:
        """Those of `runs` that are SETTLED may move the watermark."""
        for run in runs:
            if run.stage is Stage.SETTLED:
                for first, end in run.ranges():
                    self.watermark.finish(first, end)
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
                    self._running.append(batch)
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

    def _begin(self, pipeline: Taker, batch: list[Run]) -> None:
        task = asyncio.create_task(self._run(pipeline, batch), name=f"ackwise {self.topic}/{self.partition} {pipeline.agent.name}")
        self._batches.add(task)
        task.add_done_callback(lambda _: self._wake.set())

    def _reap(self) -> None:
        """Forget the batches that have ended; what one of them raised ends the lane."""
        for task in [task for task in self._batches if task.done()]:
            self._batches.discard(task)
            task.result()

    async def _run(self, pipeline: Taker, batch: list[Run]) -> None:
        try:
            await pipeline(batch, self)
        finally:
            self._running = [other for other in self._running if other is not batch]
            self._release(sum(run.size for run in batch if run.stage is Stage.SETTLED))
            self._held += [run for run in batch if run.stage is not Stage.SETTLED]
            self._held.sort(key=_first)
            self.pass_settled(batch)

    def _take(self) -> tuple[Taker | None, list[Run]]:
        """The next batch: held messages that are due, then new ones, all of one pipeline."""
        now = self._clock()
        due = [run for run in self._held if run.not_before <= now and (not self._stopping or _is_decided(run))]
        if self.cut_off or self._is_busy():
            return None, []
        waits = self.generation is not None and len(due) < len(self._held)
        if waits:
            ready = set(due)
            due = list(takewhile(ready.__contains__, self._held))
        if alone := next((run for run in due if run.alone and run.stage is Stage.FETCHED), None):
            batch = [alone]
        else:
            head = due[0] if due else self._queue[0] if self._queue and not (self._stopping or waits) else None
            if head is None:
                return None, []
            batch = _fitting(run for run in due if run.pipeline is head.pipeline)
            if not (self._stopping or waits) and (due or self._is_ripe(head, now)):
                self._dequeue(head.pipeline, batch)
        if self._held:
            taken = set(batch)
            self._held = [run for run in self._held if run not in taken]
        return (batch[0].pipeline if batch else None), batch

    def _is_busy(self) -> bool:
        """Whether as much is at work as may be."""
        if not self._running or not self._overlapping:
            return bool(self._running)
        batch = self._running[-1]
        pipeline = batch[-1].pipeline if batch else None
        return pipeline is not None and sum(map(count, self._running)) >= _OVERLAP * pipeline.agent.max_batch

    def _is_ripe(self, head: Run, now: float) -> bool:
        if head.pipeline is None:
            return True
        agent = head.pipeline.agent
        return count(self._queue) >= agent.max_batch or now >= self._arrived + agent.within

    def _dequeue(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Fill `batch` with new messages of `pipeline`, as far as each of them allows."""
        others: list[Run] = []
        size, limit = count(batch), min(map(_limit, batch), default=MAX_MESSAGES)
        while self._queue and size < limit:
            run = self._queue.popleft()
            if run.pipeline is not pipeline:
                others.append(run)
                continue
            limit = min(limit, _limit(run))
            if size >= limit:
                self._queue.appendleft(run)
                break
            if size + len(run) > limit:
                self._queue.appendleft(run)
                run = run.cut(limit - size)
            batch.append(run)
            size += len(run)
        self._queue.extendleft(reversed(others))
        self._arrived = self._clock()

    async def _wait(self) -> None:
        """Until something was offered, something held is due, or the lane stops."""
        blocked = self.generation is not None and bool(self._held)
        due = [run.not_before for run in (self._held[:1] if blocked else self._held) if not self._stopping or _is_decided(run)]
        if self._queue and not (self._stopping or blocked) and (pipeline := self._queue[0].pipeline) is not None:
            due.append(self._arrived + pipeline.agent.within)
        if self._is_busy():
            due = []
        self._wake.clear()
        if not due:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(due) - self._clock())):
                await self._wake.wait()

    def _alarm(self, batch: list[Run]) -> None:
        now = self._clock()
        if now >= self._next_alarm:
            self._next_alarm = now + ALARM
            log.error(
                "a copy can't be read by this worker, its partition is not committed past it",
                topic=self.topic,
                partition=self.partition,
                offset=batch[0].first,
                error=batch[0].why,
            )
        for run in batch:
            run.not_before = now + ALARM
            self._held.append(run)


_first = attrgetter("first")


def _limit(run: Run) -> int:
    """How many messages may be in a batch with `run`, itself included."""
    if run.pipeline is None:
        return 1
    return run.batch_limit or run.pipeline.agent.max_batch


def _fitting(runs: Iterable[Run]) -> list[Run]:
    """As many of `runs`, in order, as each of them allows; the first in any case."""
    batch: list[Run] = []
    size, limit = 0, MAX_MESSAGES
    for run in runs:
        limit = min(limit, _limit(run))
        if batch and size + len(run) > limit:
            break
        batch.append(run)
        size += len(run)
    return batch


def _is_decided(run: Run) -> bool:
    """Whether settling it needs no more user code: it must not be thrown away while there is time."""
    return run.pipeline is not None and (run.succeeded or Stage.RULED <= run.stage < Stage.SETTLED)
