"""Backlog: what a lane has fetched and no batch has now. New messages in the order of the log, and held ones that come up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from ackwise.middleware.run import Run, Stage, Taker, count

__all__ = ["MAX_MESSAGES", "Backlog", "Fresh", "InSequence", "is_decided"]

#: A lane takes no more above this. RocketMQ: `pullThresholdForQueue`.
MAX_MESSAGES = 1000


class Fresh(Protocol):
    """The messages of a lane that were in no batch yet."""

    def __len__(self) -> int:
        """How many there are."""
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
        """How many may be in a batch now."""
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
        """How many may be in a batch now."""
        return len(self)

    def fill(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Add messages of `pipeline` to `batch`, as far as each of those in it allows."""
        others: list[Run] = []
        size, limit = count(batch), min(map(limit_of, batch), default=MAX_MESSAGES)
        while self._runs and size < limit:
            run = self._runs.popleft()
            if run.pipeline is not pipeline:
                others.append(run)
                continue
            limit = min(limit, limit_of(run))
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
        self._arrived = 0.0  #: when the new ones began to arrive

    def __len__(self) -> int:
        return len(self.fresh) + count(self.held)

    @property
    def counted(self) -> int:
        """How many wait neither for their next attempt in place nor for another one to be finished: of those only the bytes count."""
        return self.fresh.ripe + sum(len(run) for run in self.held if not run.in_place)

    @property
    def failed(self) -> int:
        """How many have failed and wait for their next attempt in place."""
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
        """Those of `batch` that may begin now: of what failed before its key was known, only what need not wait for others of its key.

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
        """When there may be another batch, monotonic seconds; `None`: not before something else has happened."""
        blocked = self._in_order and bool(self.held)
        due = [run.not_before for run in (self.held[:1] if blocked else self.held) if not stopping or is_decided(run)]
        head = None if stopping or blocked else self.fresh.head()
        if head is not None and head.pipeline is not None:
            due.append(self._arrived + head.pipeline.agent.max_wait)
        return min(due, default=None)

    def is_settleable(self) -> bool:
        """Whether something held can still be settled without user code."""
        return any(map(is_decided, self.held[:1] if self._in_order else self.held))


_first = attrgetter("first")


def limit_of(run: Run) -> int:
    """How many messages may be in a batch with `run`, itself included."""
    if run.pipeline is None:
        return 1
    return run.batch_limit or run.pipeline.agent.max_batch


def fitting(runs: Iterable[Run]) -> list[Run]:
    """As many of `runs`, in order, as each of them allows; the first in any case."""
    batch: list[Run] = []
    size, limit = 0, MAX_MESSAGES
    for run in runs:
        limit = min(limit, limit_of(run))
        if batch and size + len(run) > limit:
            break
        batch.append(run)
        size += len(run)
    return batch


def is_decided(run: Run) -> bool:
    """Whether settling it needs no more user code: it must not be thrown away while there is time."""
    return run.pipeline is not None and (run.succeeded or Stage.RULED <= run.stage < Stage.SETTLED)
