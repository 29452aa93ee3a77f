"""Isolation: a message that killed workers runs as the only claim of its worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

__all__ = ["Isolation"]


class Isolation:
    """Any number of ordinary batches at a time, or one message alone."""

    def __init__(self) -> None:
        self._running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._recalls: set[Callable[[], None]] = set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait while a message runs alone, then run beside others."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    @contextmanager
    def recallable(self, recall: Callable[[], None]) -> Iterator[None]:
        """A batch can give back what it has not begun: it is asked to when a message is to run alone, which would wait for all of it."""
        self._recalls.add(recall)
        try:
            yield
        finally:
            self._recalls.discard(recall)

    @asynccontextmanager
    async def exclusive(self, seconds: float) -> AsyncIterator[bool]:
        """Keep others from starting for at most `seconds`; returns whether the worker was idle in that time.

        When it returns `False` nothing may run: the others did not come to an end. After `seconds` the others go
        on beside it, so that a message that hangs can't stop a worker.
        """
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._open.set)
        for recall in [*self._recalls]:
            recall()
        try:
            try:
                async with asyncio.timeout(seconds / 2):
                    await self._idle.wait()
            except TimeoutError:
                yield False
            else:
                yield True
        finally:
            timer.cancel()
            self._open.set()
