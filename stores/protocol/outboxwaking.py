"""`Wakes`: a commit in this process wakes the relays of this process that wait for rows of the same outbox, in any event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

_ALL: Final[dict[str, Wakes]] = {}
_LOCK: Final = threading.Lock()


class Wakes:
    """The commits of one outbox, counted; and who waits for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def count(self) -> int:
        """How many commits there were."""
        return self._count

    def wake(self) -> None:
        """There was one more. Any thread may call it."""
        with self._lock:
            self._count += 1
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # its loop was closed while it waited
                continue

    def begin(self, seen: int) -> Waiter:
        """Return what waits for a commit beyond those that were `seen`."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._count != seen:
                event.set()
            else:
                self._waiting.add(entry)
        return Waiter(self, entry)

    def forget(self, entry: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Nobody waits there any more."""
        with self._lock:
            self._waiting.discard(entry)


class Waiter:
    """One wait; `event` is set by the next commit."""

    def __init__(self, wakes: Wakes, entry: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        self._wakes, self._entry = wakes, entry
        self.event = entry[1]

    async def wait(self, at_most: float) -> bool:
        """Wait `at_most` seconds; returns whether a commit came."""
        try:
            async with asyncio.timeout(at_most):
                await self.event.wait()
        except TimeoutError:
            return False
        finally:
            self._wakes.forget(self._entry)
        return True


def wakes_of(place: str) -> Wakes:
    """Return the `Wakes` of the outbox at `place`, a text that is the same for all who name the same one in this process."""
    with _LOCK:
        return _ALL.setdefault(place, Wakes())
