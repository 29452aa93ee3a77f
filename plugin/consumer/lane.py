"""Lane: one assigned partition with the messages that are fetched and unsettled, and the task that works on it.

A lane lives as long as the assignment. It feeds the pipeline batch by batch, keeps what comes back undecided, and
tells its watermark what is settled. One lane never waits for another.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, Literal, NamedTuple

from ackwise.middleware.claims.isolation import LONGEST, Isolation, Suspects
from ackwise.middleware.flow.flowcontrol import PAUSED, FlowControl
from ackwise.middleware.flow.limits import Share, Thresholds
from ackwise.middleware.log import Log
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.progress.commitmetadata import FinishedMap, InPlace, Tried
from ackwise.middleware.progress.watermark import MAP_SPAN, Finished, Watermark, holds, is_of
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.run import Run, Stage, Taker, count, in_order, pick, ranges_of, size_of, sizes_of, time_of
from ackwise.plugin.consumer.backlog import BATCH_BYTES, LANE_BYTES, MAX_MESSAGES, Backlog, Budget, ByKey, InSequence, Parking
from ackwise.plugin.consumer.lag import Lag
from ackwise.plugin.kafka.brokeroffsets import Topic

log = Log()

#: Nor above this span of offsets, where what is finished of it can't be told to the next owner. RocketMQ: `consumeConcurrentlyMaxSpan`.
MAX_SPAN = 2000

#: Messages that wait in memory for their next attempt, above which it takes no more: a commit has room for that many.
MOST_IN_PLACE = 100

#: Seconds that one of those waits at most, whatever the clocks say.
LONGEST_IN_PLACE = 30.0

#: Seconds between alarms about a copy in another version of the wire format.
ALARM = 60.0


#: Seconds for which one lane alone may work, and after which it is tried again where the worker did not come to rest.
_ALONE = 30.0

#: Seconds until it is looked again whether a handler is still paused whose messages are suspect.
_HELD = 1.0


class Told(NamedTuple):
    """What the broker has of a partition."""

    offset: int
    finished: Finished | None = None
    in_place: Sequence[InPlace] = ()
    is_open: bool = True
    """Whether it has an owner who has not ended in order."""
    tried: Tried | None = None
    """What it may be ended at."""


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
        by_key: ByKey | None = None,
        in_order: bool = False,
        overlapping: bool = False,
        agent: str | None = None,
        handler: str | None = None,
        budget: Budget | None = None,
        share: Share | None = None,
        put_off: Callable[[Run], None] | None = None,
        flow: FlowControl | None = None,
        isolation: Isolation | None = None,
        commit: Callable[[Lane], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`generation`: of the partition's offset in a database, if it is kept there; then nothing overtakes what is held.

        `in_order` says the same of any other lane. `by_key` keeps what is new in the order `key`.
        `overlapping`: a batch starts while those before it are still at work, for handlers that take messages one by one.
        `agent` is whose messages it has, where they are all of one. `budget` is what all partitions of the process share, `share` what
        those of its agent do. `isolation` is that of all lanes of the worker, `commit` commits this one: both for what workers ended at.
        `handler` takes everything that it has, if one does; `flow` says what is paused, and `put_off` rules on copies that are too many.
        """
        self.topic = topic
        self.partition = partition
        self.place = TopicPartition(topic, partition)
        self.role = role
        self.agent = agent
        self.handler = handler
        self.position = position  #: the next offset that the broker is asked for
        self.left_at: int | None = None  #: where the client stands for it; `None`: to be sought back to `position` before the next fetch
        self.generation = generation
        self.log = Topic()  #: whose log it is, and how many partitions the topic had when the group started with it
        self.is_closed = False  #: nothing is at work here any more, and its end was in order
        self.told: Told | None = None  #: what the broker has accepted, with what stands beside it
        self.max_span = MAP_SPAN if generation is None else MAX_SPAN  #: of offsets in flight; commits report what is finished among them
        self._finished_before: FinishedMap | None = None  #: by the last owner
        self._in_place_before: dict[int, InPlace] = {}
        self._is_same_log = False  #: as far as the first record tells
        self.times: dict[int, int] = {}  #: of records finished above the watermark, the last one of each run; epoch milliseconds
        self.last_fetched: tuple[int, int] | None = None  #: offset and timestamp of the last record, behind a map that is believed
        self.watermark = Watermark(position)
        self.lag = Lag(position, clock, wall)
        self.cut_off = False
        self.is_stopping = False  #: it takes nothing new any more
        self.unreadable: str | None = None  #: why the client can't read on at `position`, while it is left alone for that
        self.task: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()  #: who holds it admits a batch
        self.capacity = MAX_MESSAGES  #: messages in flight above which it takes no more
        self.share = share or Share(lambda _: Thresholds())  #: what the settings say of that
        self.bytes = 0  #: raw bytes in flight
        self.budget = budget or Budget(2**63)
        self._overlapping = overlapping
        self._batches: set[asyncio.Task[None]] = set()
        self._make = make
        self._progressed = progressed
        self._clock = clock
        self._wall = wall
        self._backlog = Backlog(InSequence() if by_key is None else by_key, clock, in_order=in_order or generation is not None)
        flow = flow or FlowControl()
        self._flow = flow
        self._parking = Parking(flow, self.place, role, handler, self._backlog, put_off)
        self._burials = flow.burials
        self._by_key = by_key
        self._in_order = in_order
        self._isolation = isolation or Isolation()
        self._commit = commit
        self._suspects: Suspects | None = None  #: what the last owner may have ended at
        self._suspected_until = 0.0  #: where no death tells which of them, monotonic seconds
        self._is_alone = False  #: this lane alone works, on one message
        self._is_blocked = False  #: what was tried alone came back without having run
        self._try_at = 0.0  #: when suspects are tried again, monotonic seconds
        self._running: list[list[Run]] = []  #: the batches at work, which grow when messages fall out of a run
        self._lent: set[Run] = set()  #: what was taken out of its batch, and is settled or brought back in its own time
        self._full_since: float | None = None
        self._overflowed_at: int | None = None  #: the bytes in flight when something had no room
        self._measured: tuple[tuple[int, int, int], int] = (0, 0, 0), 0  #: which records were measured last, and their bytes
        self._next_alarm = 0.0
        self._wake = asyncio.Event()

    @property
    def keeps_order(self) -> bool:
        """Return whether a message may wait for another one: by partition, by key, or for an offset in a database."""
        return self._in_order or self.generation is not None or self._by_key is not None

    def start(self, *, after: Collection[asyncio.Task[None]] = ()) -> asyncio.Task[None]:
        """Start to work, once `after` have ended: lanes of this partition that it was taken from, whose handlers go on all the same."""
        self.task = asyncio.create_task(self._work(after), name=f"ackwise {self.topic}/{self.partition}")
        return self.task

    def resume(self, finished: FinishedMap | None, in_place: Sequence[InPlace]) -> None:
        """Where the last owner was. If the log is the same, what it had finished does not run again, what waited keeps its attempts.

        To be told before anything is offered.
        """
        self._finished_before, self._in_place_before = finished, {entry.offset: entry for entry in in_place}

    def suspect(self, suspects: Suspects | None) -> None:
        """What the last owner may have ended at. To be told before anything is offered."""
        self._suspects = suspects
        self._suspected_until = self._clock() + LONGEST

    @property
    def tried(self) -> Tried | None:
        """Return the messages that the next owner must try if this one ends now."""
        return None if self._suspects is None else self._suspects.tried

    def close(self) -> None:
        """Its end was in order: what was named is tried, or is not to be counted."""
        self.is_closed = True
        if self._suspects is not None and not self._is_trying:
            self._suspects.end()
        self.spare()

    def spare(self) -> None:
        """The worker lives, and gives the partition up: what was named does not count as tried."""
        if self._suspects is not None:
            self._suspects.give_up()

    @property
    def is_alone(self) -> bool:
        """Return whether it works on one message, and no other lane of its worker works."""
        return self._is_alone

    def offer(self, records: Sequence[Any], *, proved: bool = False) -> list[tuple[int, int]]:
        """Take what was fetched, in order; returns `(from, to)` for each range of offsets that the log does not have.

        `proved`: nothing was there that this fetch has not.
        """
        if records and records[0].offset < self.position:  # some of it was taken before
            records = [record for record in records if record.offset >= self.position]
        if not records:
            return []
        fetched = [*ranges_of(records)]
        ends = [self.position, *(end for _, end in fetched)]
        for first, end in fetched:
            self.watermark.track(first, end)
        self.position = ends[-1]
        self.lag.fetched(self.position, time_of(records[-1]))
        unfinished = records if self._finished_before is None else self._unfinished(records, self._finished_before, is_hole_proved=proved)
        if self._is_same_log:
            self.last_fetched = records[-1].offset, records[-1].timestamp
        runs = self._make(self.place, unfinished) if unfinished else []
        if self._in_place_before:
            runs = self._resumed(runs, self._in_place_before)
        into = self._backlog if self._suspects is None else self._suspects
        if count(runs) != len(records):
            taken = {record.offset for run in runs for record in run.records}
            for record in records:
                if record.offset not in taken:
                    self.watermark.finish(record.offset)
        size = 0
        for run in runs:
            run.size = self._measure(run.records)
            size += run.size
        into.add(runs)
        self.bytes += size
        self.budget.used += size
        self._wake.set()
        return [(end, first) for end, (first, _) in zip(ends, fetched, strict=False) if end < first]

    def skip(self, end: int) -> bool:
        """Pass over what a fetch has proved to be empty: the log has nothing to read from its position to before `end`.

        Returns whether that moved it. An offset that a database has goes only where that does.
        """
        self.lag.passed(end)
        if end <= self.position or self.is_stopping or self.generation is not None:
            return False
        self.position = end
        self.watermark.skip(end)
        return True

    def _unfinished(self, records: Sequence[Any], found: FinishedMap, *, is_hole_proved: bool) -> Sequence[Any]:
        """Those of `records` that the last owner has not finished. The first ones say whether it saw the same log."""
        if not self._is_same_log:
            if not is_of(found, records, is_hole_proved=is_hole_proved):
                self._finished_before, self._in_place_before = None, {}
                log.warning(
                    "log does not match the last commit",
                    topic=self.topic,
                    partition=self.partition,
                    offset=found.base,
                    messages=found.bits.bit_count(),
                )
                return records
            self._is_same_log = True
        if records[-1].offset >= found.base + found.bits.bit_length() - 1:
            self._finished_before = None
        finished = [record for record in records if holds(found, record.offset)]
        self.times.update((record.offset, record.timestamp) for record in finished[-1:])
        return [record for record in records if not holds(found, record.offset)] if finished else records

    def _resumed(self, runs: list[Run], before: dict[int, InPlace]) -> list[Run]:
        """`runs`, of which what had failed in place falls out with the attempts that it has had, and waits until its next one is due."""
        now, wall = self._clock(), self._wall()
        for run in list(runs):
            for single in pick(runs, run, [place for place, offset in enumerate(run.offsets) if offset in before]):
                entry = before.pop(single.first)
                single.in_place, single.due_ms = entry.attempts, entry.due_ms
                if not (self._burials and self._burials.places(single)):
                    single.not_before = now + min(max(0.0, entry.due_ms / 1000 - wall), LONGEST_IN_PLACE)
        return in_order(runs, runs)

    @property
    def in_hand(self) -> int:
        """Return how many messages were fetched and are not settled."""
        return self.watermark.count

    @property
    def committed(self) -> int | None:
        """The offset that the broker has accepted."""
        return None if self.told is None else self.told.offset

    @property
    def oldest_ms(self) -> int | None:
        """Return the timestamp of the oldest record in flight, epoch milliseconds, -1 if it has none; `None` without one. Thread-safe."""
        oldest = min((*self._lent.copy(), *self.running, *self.held, *self.queued), key=_first, default=None)
        return None if oldest is None else int(oldest.times()[0])

    def lag_seconds(self, end: int | None) -> float | None:
        """Return for how long the oldest unfinished record has been in the log, which ends at `end`; see `Lag.seconds`. Thread-safe."""
        return self.lag.seconds(self.oldest_ms, end)

    @property
    def is_at_work(self) -> bool:
        """Return whether it has something in a batch, or for the next one; what is held for later is neither."""
        return bool(self._running or self._backlog.fresh.head() is not None or self._suspects)

    @property
    def queued(self) -> tuple[Run, ...]:
        """What waits for a batch."""
        return (*self._backlog.fresh, *(self._suspects or ()))

    @property
    def running(self) -> tuple[Run, ...]:
        """What is in a batch now."""
        return tuple(run for batch in self._running for run in batch if not run.passed)

    @property
    def held(self) -> tuple[Run, ...]:
        """What came back undecided or unsettled, and comes up again."""
        return tuple(self._backlog.held)

    def is_full(self) -> bool:
        """Return whether fetching should pause; half of the bounds lets it go on. Where the budget is spent, one batch is enough.

        The span of what is in order is not counted (F04).
        """
        if self._overflowed_at is not None and 2 * self.bytes <= self._overflowed_at:
            self._overflowed_at = None
        in_hand = self.watermark.count
        is_full = (not self._flow.is_quiet and self._parking.is_shut) or (in_hand > 0 and self._is_filled(in_hand))
        if not is_full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = self._clock()
        return is_full

    def _is_filled(self, in_hand: int) -> bool:
        """Return whether what is in flight, `in_hand` messages, is as much as may be. Which of them count is looked at if that decides."""
        thresholds, share = self.share.thresholds, 1.0 if self._full_since is None else 0.5
        capacity = thresholds.messages or self.capacity
        span = max(self.max_span, 2 * capacity)
        if thresholds.span is not None and not self._in_order:
            span = min(span, thresholds.span)
        is_spent, counted = self.budget.used > self.budget.limit, 0
        if is_spent or in_hand > capacity * share:
            counted = self._backlog.counted + len(self._suspects or ()) + count(self.running) + count(self._lent)
        return (
            counted > capacity * share
            or (bool(self._backlog.held) and self._backlog.failed >= MOST_IN_PLACE)
            or self.bytes > (thresholds.bytes or LANE_BYTES) * share
            or self._overflowed_at is not None
            or (is_spent and counted > 0)
            or self.watermark.span > span * share
        )

    def fitting(self, records: Sequence[Any]) -> int:
        """How many of `records`, in order, there is room for: where nothing is in flight a batch in any case, and one message at least."""
        most = self.share.thresholds.bytes or LANE_BYTES
        room = min(most - self.bytes, self.budget.limit - self.budget.used)
        if is_empty := not self.watermark.count:
            room = max(room, min(most, BATCH_BYTES))
        if self._measure(records) <= room:
            return len(records)
        return max(bisect_right([*accumulate(sizes_of(records))], room), is_empty)

    def _measure(self, records: Sequence[Any]) -> int:
        """Return the bytes of `records` of this partition, which are counted once: for whether they fit, and when they are taken."""
        which = records[0].offset, records[-1].offset, len(records)
        if self._measured[0] != which:
            self._measured = which, size_of(records)
        return self._measured[1]

    def look_again(self) -> None:
        """Something was resumed, here or elsewhere."""
        self._parking.look_again()
        self._try_at = 0.0
        self._wake.set()

    def stir(self) -> None:
        """A message is to run alone, or does no more; each call is counted by itself."""
        self._wake.set()

    def time_left(self, now: float) -> float:
        """Seconds for which a message that is to run alone waits for the batches at work: while one is decoded or settled, for its end."""
        left = 0.0
        for batch in self._running:
            if batch:  # else all of it was lent, to who is present by itself
                calls = {run.call for run in batch if run.call is not None}
                left = max(left, *(call.time_left(now) for call in calls)) if calls else float("inf")
        return left

    def overflow(self) -> None:
        """Not all that was fetched had room: it is full until half of its bytes are done."""
        self._overflowed_at = self.bytes

    def is_full_for(self, seconds: float) -> bool:
        """Return whether it has been full for so long."""
        return self._full_since is not None and self._clock() >= self._full_since + seconds

    def stop(self) -> None:
        """Take nothing new; what is running, and what is decided, is still settled."""
        self.is_stopping = True
        for run in self.running:
            if run.call is not None:
                run.call.recall()
        self._isolation.look()
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
        """Everything that was fetched and is not settled, once the lane has end."""
        return [*self._backlog.held, *self.queued]

    def lend(self, run: Run) -> None:
        """Its pipeline takes `run` out of its batch: the lane neither waits for it nor gives its claim back, and counts it in flight.

        It is over with `pass_settled` or `take_back`.
        """
        self._lent.add(run)

    def take_back(self, runs: Sequence[Run]) -> bool:
        """Hold `runs`, which were lent; `False` once the lane has end, and they are whose who has them."""
        self._lent.difference_update(runs)
        if self.task is None or self.task.done():
            return False
        self._backlog.hold(runs)
        self._wake.set()
        return True

    def pass_settled(self, runs: Iterable[Run]) -> None:
        """Those of `runs` that are SETTLED may move the watermark, once."""
        settled = [run for run in runs if run.stage is Stage.SETTLED and not run.passed]
        self._lent.difference_update(settled)
        for run in settled:
            run.passed = True
            for first, end in ranges_of(run.records):
                self.watermark.finish(first, end)
        size = min(sum(run.size for run in settled), self.bytes)
        self.bytes -= size
        self.budget.used -= size
        if self.watermark.span and self.max_span > MAX_SPAN:
            self._keep_times(settled)
        if self._by_key is not None and self._by_key.finished(settled):
            self._wake.set()
        self._progressed(self)

    def _keep_times(self, settled: Iterable[Run]) -> None:
        """Those of what is finished above the watermark; the next owner may know the log by them."""
        passed = self.watermark.commit or 0
        self.times.update((run.last, run.time_of_last) for run in settled if run.last > passed)
        if len(self.times) > 2 * MAP_SPAN:
            self.forget_times(passed)

    def forget_times(self, passed: int) -> None:
        """Those below the offset that all have passed."""
        if self.times:
            self.times = {offset: time for offset, time in self.times.items() if offset > passed}

    def time_at(self, offset: int) -> int | None:
        """The timestamp of the record at `offset`, epoch milliseconds, if it is in flight."""
        for run in self._unsettled:
            if run.first <= offset <= run.last and offset in (offsets := run.offsets):
                return int(run.times()[offsets.index(offset)])
        return None

    @property
    def in_place(self) -> list[InPlace]:
        """What has failed and waits in memory, or is tried again; and what the last owner said of that, where it was not fetched again."""
        before = self.in_place_before if self._is_same_log else ()
        ahead = [entry for entry in before if entry.offset >= self.position]
        return [*(InPlace(run.first, run.in_place, run.due_ms) for run in self._unsettled if run.in_place), *ahead]

    @property
    def unread(self) -> FinishedMap | None:
        """What the last owner had finished, where nothing was fetched that shows whether it was this log: it is committed as it was."""
        return None if self._is_same_log else self._finished_before

    @property
    def in_place_before(self) -> list[InPlace]:
        """What the last owner said to wait in place, where it was not fetched again."""
        return [*self._in_place_before.values()]

    @property
    def finished_before(self) -> FinishedMap | None:
        """What the last owner had finished, as long as not all of that was fetched again: the next commit passes it on."""
        return self._finished_before if self._is_same_log else None

    @property
    def _unsettled(self) -> Iterator[Run]:
        return chain(self._lent, self.running, self._backlog.held, self.queued)

    async def _work(self, after: Collection[asyncio.Task[None]]) -> None:
        try:
            await self._wait_for(after)
            with self._isolation.beside(self):
                while True:
                    if self._batches:
                        self._reap()
                    if self._suspects is not None:
                        await self._try(self._suspects)
                    is_shut = self._is_blocked or self._isolation.is_shut()
                    if self.cut_off or (self._running and self._is_busy()) or (is_shut and not self.is_stopping):
                        batch = []
                    else:
                        batch = self._backlog.take(stopping=self.is_stopping)
                    if batch:
                        await self._work_on(batch)
                    elif self.is_stopping and not self._batches and (self.cut_off or not self._backlog.is_settleable()):
                        return
                    else:
                        await self._wait()
        finally:
            self.budget.used -= self.bytes
            self.bytes = 0
            for task in self._batches:
                task.cancel()

    async def _work_on(self, batch: list[Run]) -> None:
        if (pipeline := batch[0].pipeline) is None:
            self._alarm(batch)
            return
        if self._parking.puts_off or not self._flow.is_quiet:
            batch = self._parking.admit(batch)
        if any(run.in_place or run.stage is Stage.WITHHELD for run in batch):
            batch = self._backlog.in_turn(batch)
        if batch:
            self._running.append(batch)
            if self._overlaps(pipeline):
                self._begin(pipeline, batch)
            else:
                await self._run(pipeline, batch)

    async def _try(self, suspects: Suspects) -> None:
        """Take the next portion of what the last owner may have ended at, once the one before is tried."""
        if self.is_stopping or self._clock() < self._try_at or (self._is_trying and not self._is_blocked):
            return
        if self._parking.is_held:  # nothing would be tried, but parked
            self._try_at = self._clock() + _HELD
            return
        if self._is_blocked:
            await self._try_alone(suspects)
            return
        suspects.end()
        if suspects.is_over(self.position) or (not suspects.is_known and self._clock() >= self._suspected_until):
            self._suspects = None
            self._backlog.add([*suspects])
        elif suspects.is_alone:
            await self._try_alone(suspects)
        elif suspects.begin() and await self._commit_try(suspects):
            self._backlog.add(suspects.take())

    async def _try_alone(self, suspects: Suspects) -> None:
        """Take one message while no other lane of this worker works; it is over with the commit that records it."""
        trial = HandlerCall()
        async with self._isolation.exclusive(_ALONE, trial, is_over=lambda: self.is_stopping) as is_alone:
            self._try_at = 0.0
            if not is_alone or self.is_stopping:
                return
            self._is_alone = True  # from the commit on that names it
            try:
                is_named = suspects.again() if self._is_blocked else suspects.begin()
                if is_named and await self._commit_try(suspects):
                    with self._isolation.within(trial):
                        await self._work_on_one(suspects)
            finally:
                self._is_alone = False

    async def _work_on_one(self, suspects: Suspects) -> None:
        """Wait until it is tried, or comes back since nothing can be tried now, as while a store is unavailable; and that is committed."""
        if not self._is_blocked:
            self._backlog.add(suspects.take())
        self._is_blocked = False
        while not self.cut_off:
            self._reap()
            if batch := self._backlog.take(stopping=self.is_stopping):
                await self._work_on(batch)
            elif self._running or (self._backlog.fresh.ripe and not self.is_stopping):
                await self._wait()
            else:
                break
        if untried := list(filter(_is_untried, self._backlog.held)):
            self._is_blocked, self._try_at = True, min(run.not_before for run in untried)
            suspects.give_up()
        else:
            suspects.end()
        await self._commit_now()

    async def _commit_try(self, suspects: Suspects) -> bool:
        """Commit what is about to be tried; returns whether it may be. A broker that refuses commits does not stop the work."""
        await self._commit_now()
        if self.is_stopping:
            suspects.give_up()
        return not self.is_stopping

    async def _commit_now(self) -> None:
        if self._commit is not None and not self.cut_off:
            await self._commit(self)

    @property
    def _is_trying(self) -> bool:
        """Return whether something was taken that has not been tried: what another worker has, or what is paused, is not waited for."""
        return bool(self._running or self._backlog.fresh.ripe or any(map(_is_untried, self._backlog.held)))

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
            self._isolation.look()
            if held := [run for run in batch if run.stage is not Stage.SETTLED]:
                self._backlog.hold(held)
            self.pass_settled(batch)

    def _overlaps(self, pipeline: Taker) -> bool:
        """Return whether batches of `pipeline` may be at work side by side; an offset in a database passes everything before it."""
        return self.generation is None and (self._overlapping or pipeline.agent.overlaps)

    def _is_busy(self) -> bool:
        """Return whether as much is at work as may be, if something is."""
        pipelines = [batch[-1].pipeline for batch in self._running if batch]
        if not all(pipeline is None or self._overlaps(pipeline) for pipeline in pipelines):
            return True
        room = max((pipeline.agent.room for pipeline in pipelines if pipeline is not None), default=MAX_MESSAGES)
        return count(self.running) >= room

    async def _wait_for(self, before: Collection[asyncio.Task[None]]) -> None:
        """Wait until all of `before` have ended, or this lane stops."""
        for task in before:
            task.add_done_callback(lambda _: self._wake.set())
        while not self.is_stopping and not all(task.done() for task in before):
            self._wake.clear()
            await self._wake.wait()

    async def _wait(self) -> None:
        """Wait until something was offered, something held is due, or the lane stops."""
        is_shut = (self._running and self._is_busy()) or (not self.is_stopping and self._isolation.is_shut())
        at = None if is_shut else self._backlog.next_at(stopping=self.is_stopping)
        if not self.is_stopping and (self._is_blocked or (self._suspects and not self._is_trying)):
            at = self._try_at if self._is_blocked else self._try_at if at is None else min(self._try_at, at)
        self._wake.clear()
        if at is None:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, at - self._clock())):
                await self._wake.wait()

    def _alarm(self, batch: list[Run]) -> None:
        now = self._clock()
        if now >= self._next_alarm:
            self._next_alarm = now + ALARM
            log.error(
                "copy unreadable for this worker",
                topic=self.topic,
                partition=self.partition,
                offset=batch[0].first,
                error=batch[0].why,
            )
        for run in batch:
            run.not_before = now + ALARM
        self._backlog.hold(batch)


def _first(run: Run) -> int:
    return run.first


def _is_untried(run: Run) -> bool:
    """Return whether it is not yet known that a worker survives `run`, which is held."""
    is_undecided = run.stage in (Stage.FETCHED, Stage.WITHHELD) and run.disposition is None
    return is_undecided and not (run.in_place or run.elsewhere_since is not None or run.why == PAUSED or run.pipeline is None)
