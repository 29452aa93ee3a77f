"""`Seen`: the last answer of a remote source that may not answer now."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, Generic, NamedTuple, TypeVar

from ackwise.middleware.errors import AckwiseError

T = TypeVar("T")

#: Seconds that a page waits for an answer.
PATIENCE: Final = 15.0

#: Seconds for which an answer is reused, or longer if it took longer: reloading a page must not load the brokers.
_FRESH: Final = 2.0

#: Maximum numbers of cached sources and of concurrent requests.
_KEPT: Final = 16
_AT_A_TIME: Final = 4

_SLOW: Final = "there is no answer yet; the request is still running; reload in a moment"


class Sight(NamedTuple, Generic[T]):
    """The last answer. `problem` is a sentence why it is not current; empty if it is."""

    value: T | None
    as_of: str
    """Time of the answer in UTC, and its age; empty without a value."""
    problem: str


class Seen(Generic[T]):
    """Calls `look`, one call at a time for all callers, and keeps the last answer."""

    def __init__(self, look: Callable[[], Awaitable[T]], patience: float = PATIENCE, clock: Callable[[], float] = time.time) -> None:
        self._look = look
        self._patience = patience
        self._clock = clock
        self._value: T | None = None
        self._seen_at = self._asked_at = self._answered_at = float("-inf")
        self._problem = ""
        self._looking: asyncio.Task[None] | None = None

    async def now(self) -> Sight[T]:
        """Return the last answer, after a new call unless it is fresh. Raises errors of `look` other than `AckwiseError`."""
        problem = self._problem
        if not self._is_fresh():
            if self._looking is None:
                self._looking = asyncio.create_task(self._ask(), name="ackwise ui")
            looking = self._looking
            await asyncio.wait({looking}, timeout=self._patience)
            if looking.done():
                looking.result()
            problem = self._problem if looking.done() else _SLOW
        return Sight(self._value, self._as_of(), problem)

    def _is_fresh(self) -> bool:
        took = self._answered_at - self._asked_at
        return self._looking is None and 0 <= self._clock() - self._answered_at < max(_FRESH, took)

    async def _ask(self) -> None:
        self._asked_at = self._clock()
        try:
            self._value, self._problem = await self._look(), ""
            self._seen_at = self._clock()
        except AckwiseError as error:
            self._problem = str(error)
        finally:
            self._answered_at = self._clock()
            self._looking = None

    def _as_of(self) -> str:
        if self._value is None:
            return ""
        ago = max(0, round(self._clock() - self._seen_at))
        return f"as of {datetime.fromtimestamp(self._seen_at, UTC):%Y-%m-%d %H:%M:%S} UTC, {ago} s ago"


class SeenByName(Generic[T]):
    """A `Seen` for each name, such as each dead letter; the most recently used ones are kept."""

    def __init__(self, look: Callable[[str], Awaitable[T]]) -> None:
        self._look = look
        self._free = asyncio.Semaphore(_AT_A_TIME)
        self._kept: OrderedDict[str, Seen[T]] = OrderedDict()

    async def now(self, name: str) -> Sight[T]:
        """Return `Seen.now` of this name."""
        if name not in self._kept:
            self._kept[name] = Seen(lambda: self._ask(name))
        self._kept.move_to_end(name)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return await self._kept[name].now()

    async def _ask(self, name: str) -> T:
        async with self._free:
            return await self._look(name)
