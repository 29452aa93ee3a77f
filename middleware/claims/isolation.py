"""Isolation: a message that may kill workers runs as the only claim of its worker. Suspects are the messages that might be it.

When its turn comes, nothing else starts, claims that have not started are given back, and it waits for the running calls, each until its
consume timeout at most.

The last commit of an owner that died names the messages it was trying, if any. The next owner tries them in portions, each committed
before anything of it is decoded, so that another death narrows it down, at last to one message. Only tries alone count: no neighbour
becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Final, Protocol

from ackwise.middleware.message.disposition import Dead, Reason
from ackwise.middleware.progress.commitmetadata import CommitMetadata, Tried
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.run import Run, Stage, count

#: Who runs alone, where what asks started: the lane and the message of one trial are one.
_within: ContextVar[object] = ContextVar("ackwise_alone", default=None)


class Company(Protocol):
    """Claims that are held beside those of others."""

    def stir(self) -> None:
        """Something may start, or may not, that was otherwise before: give back what is not started, or go on."""

    def time_left(self, now: float) -> float:
        """Seconds for which a message that is to run alone waits at most, from `now` (monotonic seconds); 0: not any more."""
        ...


class Isolation:
    """Any number of ordinary batches at a time, or one message alone. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._alone: object | None = None  #: who runs alone, or is the next to
        self._present: dict[Company, None] = {}  #: who has claims, or may have some soon
        self._parts: dict[object, object] = {}  #: what started within one that ran alone, and that one
        self._change: asyncio.Future[None] | None = None  #: set while a caller waits for the next change

    def is_shut(self, company: object = None) -> bool:
        """Return whether `company` may start nothing, since a message of another one runs alone, or waits for the others to end.

        What starts `within` it is not another one.
        """
        return self._alone is not None and not self._is_part(company)

    async def wait(self) -> None:
        """Wait until something has ended, or may start."""
        await asyncio.wait({self._next_change()})

    def is_alone(self, company: Company) -> bool:
        """Return whether nothing starts beside `company`."""
        return self._alone is not None and self._is_part(company)

    def _is_part(self, company: object) -> bool:
        """Whether `company` is the one that runs alone, or started within it; a loop of Faust, or a receiver, asks from elsewhere."""
        return self._alone is company or self._alone is _within.get() or self._parts.get(company) is self._alone

    @contextmanager
    def within(self, company: Company) -> Iterator[None]:
        """With what starts here as a part of `company`, which runs alone."""
        before = _within.set(company)
        try:
            yield
        finally:
            _within.reset(before)

    @contextmanager
    def beside(self, company: Company) -> Iterator[None]:
        """With `company`, for whose claims a message that is to run alone waits. It is stirred whenever something may start, or may not."""
        if company in self._present:
            yield
            return
        self._present[company] = None
        if (alone := _within.get()) is not None:
            self._parts[company] = alone
        try:
            yield
        finally:
            del self._present[company]
            self._parts.pop(company, None)
            if self._change is not None:
                self._has_changed()

    def look(self) -> None:
        """A call has ended or was abandoned, or a partition takes nothing new."""
        if self._alone is not None:
            self._has_changed()

    @asynccontextmanager
    async def exclusive(self, seconds: float, call: HandlerCall, *, is_over: Callable[[], bool] = lambda: False) -> AsyncIterator[bool]:
        """Run `call` alone, for at most `seconds`: after that others start beside it, so that a message that hangs can't stop a worker.

        Yields `False`, and lets the others go on, if `is_over` before it is its turn; the caller that knows stirs `call`.
        """
        if self.is_alone(call):
            with self.beside(call):
                yield True
            return
        while self._alone is not None:
            if is_over():
                yield False
                return
            await self._wait(call)
        self._alone = call
        self.stir()
        timer: asyncio.TimerHandle | None = None
        try:
            while (left := self._time_left()) > 0:
                if is_over():
                    yield False
                    return
                await self._wait(call, left)
            timer = asyncio.get_running_loop().call_later(seconds, self._open, call)
            with self.beside(call):
                yield True
        finally:
            if timer is not None:
                timer.cancel()
            self._open(call)

    def _time_left(self) -> float:
        now = self.clock()
        return max((company.time_left(now) for company in self._present), default=0.0)

    async def _wait(self, call: HandlerCall, seconds: float = float("inf")) -> None:
        """Wait until a batch or a call has ended, `call` is stirred, or `seconds` are over."""
        await call.wait(self._next_change(), timeout=None if seconds == float("inf") else seconds)

    def _next_change(self) -> asyncio.Future[None]:
        """Shared by all who wait, and never cancelled: an event could be cleared by one of them before another one looks."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _has_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    def _open(self, company: Company) -> None:
        """Let others start, unless another one runs alone by now."""
        if self._alone is company:
            self._alone = None
            self._has_changed()
            self.stir()

    def stir(self) -> None:
        """Something may start, or may not, that was otherwise before."""
        for company in [*self._present]:
            company.stir()


#: Messages that are tried at once after the first death: as many as a batch has by default. While no worker dies of them each portion
#: is twice the one before, up to what a lane holds, so that a partition is soon as fast as ever.
FIRST_PORTION: Final = 200
LARGEST_PORTION: Final = 1000

#: How many portions are made of one at which a worker ended.
_PARTS: Final = 32

#: Seconds for which that goes on where there is a backlog. In that time a worker comes further than it can have come since its last commit.
LONGEST: Final = 30.0

#: Tries alone after which a message is a dead letter.
DEAD_AFTER: Final = 10


class Suspects:
    """Those of one lane, from `first` to before `end`: what is fetched of them waits here."""

    def __init__(
        self, first: int, end: int, *, portion: int, tries: int = 0, is_known: bool = False, agent: str = "", only: str = ""
    ) -> None:
        """`tries` are those of the first, if it is a single one. `is_known`: a worker ended while it tried these.

        `agent` is whose lane it is, a hash; `only` the one agent that tried them.
        """
        self._first = first
        self._end = end
        self._portion = portion
        self._tries = tries
        self.is_known = is_known
        self._agent = agent
        self._only = only
        self._waiting: deque[Run] = deque()
        self._until = first  #: what is before it may be taken now
        self._trying: Tried | None = None
        self._given_up: Tried | None = None

    @classmethod
    def after(cls, left: CommitMetadata, position: int, log_end: int | None, agent: str = "") -> Suspects | None:
        """Return the suspects in the lane of `agent` from `position` on, by what the last owner `left`; `None` if there are none."""
        end = sys.maxsize if log_end is None else log_end
        if (tried := left.tried) is not None:
            is_of_another = bool(tried.agent and agent) and tried.agent != agent
            if is_of_another or tried.end <= position:
                return None
            number = tried.end - tried.first
            return cls(
                tried.first, tried.end, portion=max(1, number // _PARTS), tries=tried.tries, is_known=True, agent=agent, only=tried.agent
            )
        return cls(position, end, portion=FIRST_PORTION, agent=agent) if left.is_open and position < end else None

    def __len__(self) -> int:
        return count(self._waiting)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._waiting)

    @property
    def is_alone(self) -> bool:
        """Return whether the next one runs as the only message of its worker."""
        return self._portion == 1 and bool(self._waiting) and self._first <= self._waiting[0].first < self._end

    @property
    def tried(self) -> Tried | None:
        """Return the messages that the next owner must try if this one ends now."""
        if self._trying is not None:
            return self._trying
        return Tried(self._first, self._end, self._tries, self._only) if self.is_known and self._first < self._end else None

    def add(self, runs: Iterable[Run]) -> None:
        """Take what was fetched, in order."""
        self._waiting.extend(runs)

    def begin(self) -> bool:
        """Name the next portion; returns whether there is one now. What is before all suspects is one, and needs no name."""
        if not self._waiting or (first := self._waiting[0].first) >= self._end:
            return False
        if first < self._first:
            self._until = self._first
            return True
        if first > self._first:
            self._tries = 0  # what was tried is gone, or finished
        offsets = chain.from_iterable(run.offsets for run in self._waiting)
        last = [offset for offset, _ in zip(offsets, range(self._portion), strict=False) if offset < self._end][-1]
        self._until = last + 1
        self._trying = Tried(first, last + 1, self._tries + 1, self._agent) if self.is_alone else Tried(first, last + 1, 0)
        return True

    def take(self) -> list[Run]:
        """The messages of the portion that was named. One that was tried too often is dead."""
        is_dead = self.is_alone and self._tries >= DEAD_AFTER
        taken: list[Run] = []
        while self._waiting and self._waiting[0].first < self._until:
            run = self._waiting.popleft()
            inside = sum(offset < self._until for offset in run.offsets)
            if inside < len(run):
                self._waiting.appendleft(run)
                run = run.cut(inside)
            taken.append(run)
        for run in (run for run in taken if is_dead and run.stage is Stage.FETCHED and run.pipeline is not None):
            run.rule(Dead(Reason.CRASHED_WORKER))
        return taken

    def give_up(self) -> None:
        """The portion that was named is not being tried: the worker is about to do something else, or nothing."""
        self._given_up, self._trying = self._trying or self._given_up, None

    def again(self) -> bool:
        """Name once more what was given up."""
        self._trying = self._given_up
        return self._trying is not None

    def end(self) -> None:
        """The portion was tried, and the worker lives."""
        if self._trying is not None:
            self._first = self._until = self._trying.end
            self._tries, self._trying, self._given_up = 0, None, None
            if not self.is_known:
                self._portion = min(2 * self._portion, LARGEST_PORTION)

    def is_over(self, position: int) -> bool:
        """Return whether nothing is suspect any more in a lane that has fetched up to `position`."""
        return self._trying is None and (self._waiting[0].first if self._waiting else position) >= self._end


def agent_hash(name: str | None) -> str:
    """Return the hash that identifies the agent of a lane; of `None` that of its whole group."""
    return "" if name is None else hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
