"""Log throttle: a line that would repeat while a state lasts is logged the first time, and then once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

__all__ = ["LogThrottle"]


class LogThrottle:
    """Whether something is due to be said. `every` seconds it is, for each key by itself."""

    def __init__(self, every: float = 60.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._next: dict[Hashable, float] = {}

    def is_due(self, key: Hashable = None) -> bool:
        """Whether it was not said for so long; from now on it was."""
        now = self._clock()
        if now < self._next.get(key, now):
            return False
        self._next[key] = now + self._every
        return True

    def reset(self, key: Hashable = None) -> None:
        """It has ended; if it begins again, that is said at once."""
        self._next.pop(key, None)
