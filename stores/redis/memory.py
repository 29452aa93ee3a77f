"""`Memory`: since when a Redis remembers, kept in a key of its own; it tells when that is gone, or older than it was.

A fail-over, a flush or a start from a snapshot answers as if nothing had happened: what was finished is simply unknown.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from ackwise.middleware.log import Log

log = Log()

#: Seconds between two looks.
_EVERY: Final = 10.0

#: Seconds that the clocks of workers may differ by; a memory that is older by more was put back.
_TOLERANCE: Final = 30.0


class Since(NamedTuple):
    """What stands under the key, in seconds since 1970."""

    born: int
    """When it was first written."""
    seen: int
    """When a worker last found it there."""

    def __str__(self) -> str:
        return f"{self.born} {self.seen}"

    @classmethod
    def of(cls, found: bytes | None) -> Since | None:
        """What was found, if it can be read."""
        words = (found or b"").split()
        return cls(*map(int, words)) if len(words) == 2 and all(word.isdigit() for word in words) else None


def judge(found: Since | None, known: Since | None, now: float) -> tuple[Since, int | None]:
    """What is to be written, and since when what was finished is forgotten, if it is; `known` is what this process saw last."""
    if found is None:
        return Since(int(now), int(now)), None if known is None else known.born
    written = found._replace(seen=max(found.seen, int(now)))
    if known is not None and found.born > known.born:
        return written, known.born
    if known is not None and found.seen < known.seen - _TOLERANCE:
        return written, found.seen
    return written, None


class Memory:
    """The memory of one namespace, as this process knows it."""

    def __init__(self, key: bytes, where: str, clock: Callable[[], float] = time.time) -> None:
        self._key, self._where, self._clock = key, where, clock
        self._known: Since | None = None
        self._looked_at: float | None = None

    def is_due(self) -> bool:
        """Return whether it is time for another look."""
        return self._looked_at is None or abs(self._clock() - self._looked_at) >= _EVERY

    async def look(self, command: Callable[..., Awaitable[Any]]) -> bool:
        """Look whether the memory is still there, write that it is, and log if it is not; return whether it was."""
        now = self._looked_at = self._clock()
        before = self._known
        written, since = judge(Since.of(await command("GET", self._key)), before, now)
        await command("SET", self._key, str(written))
        self._known = written
        if since is None or before is None:
            return True
        log.warning(
            "Redis has forgotten what was finished, it runs again if it is delivered again",
            server=self._where,
            since=_told(since),
            last_seen=_told(before.seen),
        )
        return False


def _told(instant: int) -> str:
    return datetime.datetime.fromtimestamp(instant, datetime.UTC).isoformat()
