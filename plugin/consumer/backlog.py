"""Backlog: the messages of a lane that are fetched and in no batch, within a budget of raw bytes per process.

New messages are taken in the order of the log, retained ones when they are due again. With the order `key` only the first message of each
key may be in a batch; the others wait for it. Messages for a handler that is paused, or stopped by the breaker, are parked; in the retry
topic, those that are too many or wait for their codec too long go back to a delay topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, takewhile
from operator import attrgetter
from typing import Final, Literal, Protocol

from ackwise.middleware.errors import CodecUnavailable
from ackwise.middleware.flow.breaker import GRACE
from ackwise.middleware.flow.flowcontrol import PAUSED, FlowControl, is_withheld_letter
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.pipeline.decoding import CODEC_AWAY
from ackwise.middleware.runs.run import Run, Stage, Taker, apart, count

#: Bytes that one partition may hold: RocketMQ's `pullThresholdSizeForQueue`.
LANE_BYTES: Final = 100 * 2**20

#: Bytes that a partition with nothing in flight may take where the process holds as much as it may.
BATCH_BYTES: Final = 2**20


class Budget:
    """`used` of `limit` bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def is_spent(self) -> bool:
        """Return whether partitions take no more than one batch each."""
        return self.used > self.limit


#: A lane takes no more above this. RocketMQ: `pullThresholdForQueue`.
MAX_MESSAGES = 1000


class Fresh(Protocol):
    """The messages of a lane that were in no batch yet."""

    def __len__(self) -> int:
        """Return the number of messages."""
        ...

    def __iter__(self) -> Iterator[Run]:
        """All of them."""
        ...

    def add(self, runs: Iterable[Run]) -> None:
        """Take what was fetched, in order."""

    def head(self) -> Run | None:
        """The first that may be in a batch now."""
        ...

    @property
    def ripe(self) -> int:
        """Return how many may be in a batch now."""
        ...

    def fill(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Add messages of `pipeline` to `batch`, as far as each of those in it allows."""

    def come_up(self, runs: Iterable[Run]) -> list[Run]:
        """These come up again, and their keys were not known. Take those among them that have to wait for their turn, and return them."""
        ...


class InSequence:
    """Runs in the order of the log: whatever is first may be in the next batch."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()

    def __len__(self) -> int:
        return count(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def add(self, runs: Iterable[Run]) -> None:
        """Take what was fetched, in order."""
        self._runs.extend(runs)

    def head(self) -> Run | None:
        """The first that may be in a batch now."""
        return self._runs[0] if self._runs else None

    @property
    def ripe(self) -> int:
        """Return how many may be in a batch now."""
        return len(self)

    def fill(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Add messages of `pipeline` to `batch`, as far as each of those in it allows."""
        others: list[Run] = []
        size, limit = count(batch), min((run.batch_limit for run in batch), default=MAX_MESSAGES)
        while self._runs and size < limit:
            run = self._runs.popleft()
            if run.pipeline is not pipeline:
                others.append(run)
                continue
            limit = min(limit, run.batch_limit)
            if size >= limit:
                self._runs.appendleft(run)
                break
            if size + len(run) > limit:
                self._runs.appendleft(run)
                run = run.cut(limit - size)
            batch.append(run)
            size += len(run)
        self._runs.extendleft(reversed(others))

    def come_up(self, runs: Iterable[Run]) -> list[Run]:
        """All of them have their place in the log."""
        return []


class Backlog:
    """`fresh` has what was in no batch yet. `in_order`: nothing overtakes what is held."""

    def __init__(self, fresh: Fresh, clock: Callable[[], float], *, in_order: bool) -> None:
        self.fresh = fresh
        self.held: list[Run] = []
        self._clock = clock
        self._in_order = in_order
        self._arrived = 0.0  #: when the new ones started to arrive

    @property
    def counted(self) -> int:
        """How many wait neither for their next attempt in place nor for another one to be finished: of those only the bytes count."""
        return self.fresh.ripe + sum(len(run) for run in self.held if not run.in_place)

    @property
    def failed(self) -> int:
        """Return how many have failed and wait for their next attempt in place."""
        return count(run for run in self.held if run.in_place)

    def add(self, runs: Sequence[Run]) -> None:
        """Take what was fetched."""
        if not len(self.fresh):
            self._arrived = self._clock()
        self.fresh.add(runs)

    def hold(self, runs: Iterable[Run]) -> None:
        """These come up again when they are due, before what is new."""
        self.held += runs
        self.held.sort(key=_first)

    def take(self, *, stopping: bool) -> list[Run]:
        """The next batch, of one pipeline: held messages that are due, then new ones. `stopping`: only what needs no more user code."""
        now = self._clock()
        due = [run for run in self.held if run.not_before <= now and (not stopping or is_decided(run))]
        waits = stopping or (self._in_order and len(due) < len(self.held))
        if self._in_order:
            due = self._in_front(due)
        if alone := next((run for run in due if run.alone and run.stage in (Stage.WITHHELD, Stage.FETCHED)), None):
            batch = [alone]
        else:
            head = due[0] if due else None if waits else self.fresh.head()
            if head is None:
                return []
            batch = fitting(run for run in due if run.pipeline is head.pipeline) if due else []
            is_cut = self._in_order and len(batch) < len(due)
            agent = None if head.pipeline is None else head.pipeline.agent
            is_ripe = due or agent is None or self.fresh.ripe >= agent.max_batch or now >= self._arrived + agent.max_wait
            if is_ripe and not (waits or is_cut):
                self.fresh.fill(head.pipeline, batch)
                self._arrived = now
        if self.held:
            taken = set(batch)
            self.held = [run for run in self.held if run not in taken]
        return self._without_late(batch, now) if any(run.not_before > now for run in batch) else batch

    def in_turn(self, batch: list[Run]) -> list[Run]:
        """Those of `batch` that may start now: of what failed before its key was known, only what need not wait for others of its key.

        It is asked once nothing is paused, since finding a key runs user code, and may fail once more.
        """
        again = [run for run in batch if run.in_place or run.stage is Stage.WITHHELD]
        if not (unknown := [run for run in again if not run.prepared and run.stage in (Stage.WITHHELD, Stage.FETCHED)]):
            return batch
        moved = self.fresh.come_up(unknown)
        left, now = [run for run in batch if run not in moved], self._clock()
        return self._without_late(left, now) if any(run.not_before > now for run in left) else left

    def _in_front(self, due: list[Run]) -> list[Run]:
        """Those of `due` that nothing waits in front of; one that has to run alone is the only one, or behind them."""
        ready = set(due)
        due = list(takewhile(ready.__contains__, self.held))
        if due and due[0].alone:
            return due[:1]
        return list(takewhile(lambda run: not run.alone, due))

    def _without_late(self, batch: list[Run], now: float) -> list[Run]:
        """What another worker has tried a moment ago waits here until it is due, and what must not overtake it as well."""
        late = [run for run in batch if run.not_before > now]
        if self._in_order:
            late = [run for run in batch if run.first >= late[0].first]
        self.hold(late)
        return [run for run in batch if run not in late]

    def next_at(self, *, stopping: bool) -> float | None:
        """Return when there may be another batch, monotonic seconds; `None`: not before something else has happened."""
        blocked = self._in_order and bool(self.held)
        due = [run.not_before for run in (self.held[:1] if blocked else self.held) if not stopping or is_decided(run)]
        head = None if stopping or blocked else self.fresh.head()
        if head is not None and head.pipeline is not None:
            due.append(self._arrived + head.pipeline.agent.max_wait)
        return min(due, default=None)

    def is_settleable(self) -> bool:
        """Return whether something held can still be settled without user code."""
        return any(map(is_decided, self.held[:1] if self._in_order else self.held))


_first = attrgetter("first")


def fitting(runs: Iterable[Run]) -> list[Run]:
    """As many of `runs`, in order, as each of them allows; the first in any case."""
    batch: list[Run] = []
    size, limit = 0, MAX_MESSAGES
    for run in runs:
        limit = min(limit, run.batch_limit)
        if batch and size + len(run) > limit:
            break
        batch.append(run)
        size += len(run)
    return batch


def is_decided(run: Run) -> bool:
    """Return whether settling it needs no more user code: it must not be thrown away while there is time."""
    return run.pipeline is not None and (run.succeeded or Stage.RULED <= run.stage < Stage.SETTLED)


class ByKey:
    """Runs of one. A key is taken while one of its messages is ready, in a batch or held; once that is settled the next one is ready.

    What has no key is ready at once, and what is decided already: it never runs.
    """

    def __init__(self, find_order: Callable[[list[Run]], None]) -> None:
        """`find_order` finds the keys of runs; what falls out of one is added to the list."""
        self._find_order = find_order
        self._ready: list[tuple[int, Run]] = []  #: a heap, by offset
        self._behind: dict[Hashable, deque[Run]] = {}  #: of each key that is taken, what waits behind
        self._taken: dict[int, Hashable] = {}  #: by the offset of the message that has taken it
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Run]:
        return chain((run for _, run in self._ready), *self._behind.values())

    def add(self, runs: Iterable[Run]) -> None:
        """Take what was fetched, in order."""
        singles = list(runs)
        self._find_order(singles)
        for run in [*singles]:
            apart(singles, run)
        self._number += len(singles)
        for run in sorted(singles, key=lambda run: run.first):
            if (key := run.order_key) is None:
                heappush(self._ready, (run.first, run))
            elif key in self._behind:
                self._behind[key].append(run)
            else:
                self._behind[key] = deque()
                self._let_run(key, run)

    def come_up(self, runs: Iterable[Run]) -> list[Run]:
        """Find the keys of `runs` again. Take those that have another one now, and return them: they run at its turn, and not before.

        Others of that key may have run meanwhile, so these are out of order. Where a key can't be found again, all stays as it was.
        """
        unknown = list(runs)
        self._find_order(unknown)
        moved = [run for run in unknown if run.prepared and run.order_key != self._taken.get(run.first)]
        self.finished(moved)
        for run in moved:
            run.out_of_order = run.out_of_order or run.order_key is not None
            self._queue(run)
        return moved

    def _queue(self, run: Run) -> None:
        if (behind := self._behind.get(run.order_key)) is None:
            self.add([run])
            return
        behind.insert(sum(other.first < run.first for other in behind), run)
        self._number += 1

    def _let_run(self, key: Hashable, run: Run) -> None:
        self._taken[run.first] = key
        heappush(self._ready, (run.first, run))

    def head(self) -> Run | None:
        """The first that may be in a batch now."""
        return self._ready[0][1] if self._ready else None

    @property
    def ripe(self) -> int:
        """Return how many may be in a batch now."""
        return len(self._ready)

    def fill(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Add messages of `pipeline` to `batch`, as far as each of those in it allows; no two of them have the same key."""
        size, limit = count(batch), min((run.batch_limit for run in batch), default=MAX_MESSAGES)
        while self._ready and self._ready[0][1].pipeline is pipeline:
            limit = min(limit, self._ready[0][1].batch_limit)
            if size >= limit:
                break
            batch.append(heappop(self._ready)[1])
            size += 1
            self._number -= 1

    def finished(self, runs: Iterable[Run]) -> bool:
        """These are finished. Return whether that lets others be taken."""
        lets_others = False
        for run in runs:
            for offset in run.offsets:
                if (key := self._taken.pop(offset, None)) is None:
                    continue
                if behind := self._behind[key]:
                    self._let_run(key, behind.popleft())
                    lets_others = True
                else:
                    del self._behind[key]
        return lets_others

    def waiting(self) -> Iterator[tuple[Hashable, int, int]]:
        """Of each key that others wait for: the key, the offset of the message that has taken it, and how many wait."""
        for offset, key in self._taken.items():
            if behind := self._behind[key]:
                yield key, offset, len(behind)


#: Copies for paused handlers that a partition of the retry topic keeps in memory; those above go back to a delay topic.
MOST_COPIES: Final = 200

#: Tries to decode a copy while its codec is unavailable, some 16 seconds in all; then it goes back to a delay topic.
_MOST_TRIES: Final = 8


class Parking:
    """The paused messages of the lane of `place`, which are held in its `backlog`. `handler` takes everything that it has, if one does."""

    def __init__(
        self,
        flow: FlowControl,
        place: TopicPartition,
        role: Literal["source", "retry"],
        handler: str | None,
        backlog: Backlog,
        put_off: Callable[[Run], None] | None = None,
    ) -> None:
        """`put_off` rules that a copy goes to a delay topic, at no attempt; without it all copies stay here."""
        self._flow = flow
        self._put_off = put_off if role == "retry" else None
        self.puts_off = self._put_off is not None  #: what waits too long, even while nothing is paused
        self._place = place
        self._handler = handler if role == "source" else None
        self._backlog = backlog

    @property
    def is_shut(self) -> bool:
        """Return whether nothing more is to be fetched. A partition of the retry topic has copies for others than one paused handler."""
        return self._flow.is_shut(self._handler, self._place)

    @property
    def is_held(self) -> bool:
        """Return whether nothing may start: the one handler is paused or stopped, or it is not known yet what is paused."""
        return self._flow.held_until(self._handler or "", self._place) is not None

    def admit(self, batch: list[Run]) -> list[Run]:
        """Those of `batch`, all of one pipeline, that go on now: all, unless they are paused. What is decided needs no more user code."""
        if (pipeline := batch[0].pipeline) is None or all(map(is_decided, batch)):
            return batch
        until = self._flow.held_until(pipeline.agent.name, self._place)
        if until is None:
            if self._put_off is not None:
                self._spare_others(batch, self._put_off)
            return batch
        decided = [run for run in batch if is_decided(run)]
        aside = [run for run in batch if not is_decided(run)]
        if self._put_off is not None and aside:
            room = max(0, MOST_COPIES - count(run for run in self._backlog.held if run.why == PAUSED))
            aside, surplus = aside[:room], aside[room:]  # each is a copy, and so a run of one
            for run in surplus:
                self._put_off(run)
            decided += surplus
        self._set_aside(aside, until)
        return decided

    def _spare_others(self, batch: Sequence[Run], put_off: Callable[[Run], None]) -> None:
        """Copies that wait for their codec for long go back: they would stop a partition that has copies for other handlers, too."""
        for run in batch:
            if run.why == CODEC_AWAY and run.stage is Stage.WITHHELD and run.tries >= _MOST_TRIES:
                put_off(run)
                run.error = CodecUnavailable.__name__

    def look_again(self) -> None:
        """Something was resumed: what was set aside comes up at once."""
        for run in self._backlog.held:
            if run.why == PAUSED or is_withheld_letter(run):
                run.not_before = 0.0

    def _set_aside(self, runs: Sequence[Run], until: float) -> None:
        for run in runs:
            if is_withheld_letter(run):
                run.not_before = until + GRACE
            else:
                run.postpone(max(until, run.not_before), PAUSED)
        self._backlog.hold(runs)
