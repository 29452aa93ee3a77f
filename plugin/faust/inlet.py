"""Inlet of one channel: the messages that wait for its streams. Several actors may take from it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from faust.types import TP

from ackwise.middleware.inflight import InFlight, Where

__all__ = ["Inlet"]

#: Seconds that a loop which waits for nothing may have the event loop to itself. Stock Faust lets others run after each message.
_STRETCH: Final = 0.01


class Inlet:
    """`active`: the partitions that it serves, a set that Faust may change; `None` for all."""

    def __init__(self, active: set[TP] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.active = active
        self._clock = clock
        self._breathe_at = 0.0
        self._waiting: deque[InFlight] = deque()
        self._again: deque[InFlight] = deque()  #: what failed in larger company: it is in no batch with others
        self._thrown: deque[BaseException] = deque()
        self._wakers: set[asyncio.Future[None]] = set()

    def put(self, members: Iterable[InFlight]) -> None:
        """Let `members` wait here, behind those that do; what runs again comes first."""
        for member in members:
            if member.again_until is None:
                self._waiting.append(member)
            else:
                self._again.append(member)
        self._wake()

    def throw(self, error: BaseException) -> None:
        """Raise `error` in one of those who take from here, before anything else is taken."""
        self._thrown.append(error)
        self._wake()

    async def get(self) -> InFlight:
        """Take the next one, waiting for it. Raises what was thrown."""
        while True:
            self._raise_thrown()
            if (now := self._clock()) >= self._breathe_at:
                now = await self._breathe()
            seconds: float | None = None
            while seconds is None and (queue := self._again or self._waiting):
                if queue[0].where is Where.WAITING and (due_in := queue[0].due_in()) > 0:
                    seconds = due_in
                elif (member := queue.popleft()).where is Where.WAITING and member.take(now):
                    return member
            await self._sleep(seconds)

    async def gather_flight(self) -> list[InFlight]:
        """Take the next one, waiting for it, and those that were handed over with it. Raises what was thrown.

        Of what runs again, as many as each of them allows.
        """
        first = await self.get()
        flight = [first]
        queue, most = (self._waiting, None) if first.again_until is None else (self._again, first.limit)
        while (
            queue and len(flight) != most and (queue[0].where is not Where.WAITING or (queue[0].is_with(first) and not queue[0].due_in()))
        ):
            member = queue.popleft()
            if member.where is Where.WAITING and member.take(first.run.started_at):
                flight.append(member)
        return flight

    async def flight(self) -> list[InFlight]:
        """Wait for the next one and return it with those that were handed over with it; until each is taken it may still be recalled.

        Of what runs again, as many as each of them allows. Raises what was thrown.
        """
        while True:
            self._raise_thrown()
            await self._breathe()
            self._waiting, self._again = _still(self._waiting), _still(self._again)
            queue = self._again or self._waiting
            seconds = queue[0].due_in() if queue else None
            if seconds is None or seconds > 0:
                await self._sleep(seconds)
                continue
            first = queue.popleft()
            flight, most = [first], None if first.again_until is None else first.limit
            while queue and len(flight) != most and queue[0].is_with(first):
                flight.append(queue.popleft())
            return flight

    async def gather(self, count: int, within: float | None) -> list[InFlight]:
        """Take up to `count`, waiting for the first, and from then on at most `within` seconds for the others.

        Until they are taken all of them may still be recalled. Each says how many may be in a batch with it. Raises what
        was thrown.
        """
        deadline: float | None = None
        await self._breathe()
        while True:
            self._raise_thrown()
            queue, batch, is_full = self._fitting(count)
            now = self._clock()
            if batch and within is not None:
                deadline = now + within if deadline is None else deadline
            elif not batch:
                deadline = None
            if is_full or (deadline is not None and now >= deadline):
                taken: list[InFlight] = []
                seconds = 0.0
                for member in batch:
                    if (seconds := member.due_in()) > 0:
                        break
                    queue.popleft()
                    if member.take(now):
                        taken.append(member)
                if taken:
                    return taken
                if seconds > 0:
                    await self._sleep(seconds)
                else:
                    deadline = None
                continue
            await self._sleep(None if deadline is None else deadline - now)

    def _fitting(self, count: int) -> tuple[deque[InFlight], list[InFlight], bool]:
        """Whence the next batch comes, the first that may be in it, and whether no further one fits in or is to be waited for."""
        self._waiting, self._again = _still(self._waiting), _still(self._again)
        queue = self._again or self._waiting
        batch: list[InFlight] = []
        limit = count
        for member in queue:
            limit = min(limit, member.limit)
            if len(batch) >= limit:
                return queue, batch, True
            batch.append(member)
        return queue, batch, len(batch) >= limit or (queue is self._again and bool(batch))

    def _raise_thrown(self) -> None:
        if self._thrown:
            raise self._thrown.popleft()

    def _wake(self) -> None:
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)

    async def _breathe(self) -> float:
        """Let others run; returns what time it is then."""
        await asyncio.sleep(0)
        now = self._clock()
        self._breathe_at = now + _STRETCH
        return now

    async def _sleep(self, seconds: float | None) -> None:
        """Until something was put or thrown, for at most `seconds`."""
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.add(waker)
        try:
            await asyncio.wait({waker}, timeout=seconds)
        finally:
            self._wakers.discard(waker)


def _still(queue: deque[InFlight]) -> deque[InFlight]:
    """Those of `queue` that nobody has recalled."""
    if all(member.where is Where.WAITING for member in queue):
        return queue
    return deque(member for member in queue if member.where is Where.WAITING)
