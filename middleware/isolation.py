"""Who may run beside whom: a message that killed workers runs as the only claim of this worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Isolation"]


class Isolation:
    """Any number of ordinary batches at a time, or one message alone."""

    def __init__(self) -> None:
        self._running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

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

    @asynccontextmanager
    async def exclusive(self, seconds: float) -> AsyncIterator[bool]:
        """Keep others from starting for at most `seconds`; answers whether the worker was idle in that time.

        When it answers `False` nothing may run: the others did not come to an end. After `seconds` the others go
        on beside it, so that a message that hangs can't stop a worker.
        """
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._open.set)
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
