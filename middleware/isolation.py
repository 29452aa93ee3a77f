"""Isolation: a message that killed workers runs as the only claim of its worker.

From the moment when it is its turn nothing else starts, and what others have claimed and not started is given back. It waits
for the calls that started before, each until its consume timeout at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from ackwise.middleware.handlercall import HandlerCall

__all__ = ["Company", "Isolation"]


#: Who runs alone, where what asks began: the lane and the message of one trial are one.
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
        self._parts: dict[object, object] = {}  #: what began within one that ran alone, and that one
        self._change: asyncio.Future[None] | None = None  #: somebody waits for the next one

    def is_shut(self, company: object = None) -> bool:
        """Whether `company` may start nothing, since a message of another one runs alone, or waits for the others to end.

        What begins `within` it is not another one.
        """
        return self._alone is not None and not self._is_part(company)

    async def wait(self) -> None:
        """Until something has ended, or may start."""
        await asyncio.wait({self._next_change()})

    def is_alone(self, company: Company) -> bool:
        """Whether nothing starts beside `company`."""
        return self._alone is not None and self._is_part(company)

    def _is_part(self, company: object) -> bool:
        """Whether `company` is the one that runs alone, or began within it; a loop of Faust, or a receiver, asks from elsewhere."""
        return self._alone is company or self._alone is _within.get() or self._parts.get(company) is self._alone

    @contextmanager
    def within(self, company: Company) -> Iterator[None]:
        """With what begins here as a part of `company`, which runs alone."""
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
        """A call has ended, or nobody waits for it any more, or a partition takes nothing new."""
        if self._alone is not None:
            self._has_changed()

    @asynccontextmanager
    async def exclusive(self, seconds: float, call: HandlerCall, *, is_over: Callable[[], bool] = lambda: False) -> AsyncIterator[bool]:
        """Run `call` alone, for at most `seconds`: after that others start beside it, so that a message that hangs can't stop a worker.

        Yields `False`, and lets the others go on, if `is_over` before it is its turn; `call` is stirred by whoever knows that.
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
        """Until a batch or a call has ended, somebody stirs `call`, or `seconds` are over."""
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
