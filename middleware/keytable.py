"""A table of what is kept per key, such as the rate of each customer, without those of which nothing has to be kept. Time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["KeyTable"]

#: Keys that are looked at for each one that is asked for: the table shrinks faster than it grows, and nobody walks through it.
_LOOKS: Final = 2


class Kept(Protocol):
    """What is kept of one key."""

    def is_full(self, now: float) -> bool:
        """Whether it is as a new one."""
        ...


KeptT = TypeVar("KeptT", bound=Kept)


class KeyTable(Generic[KeptT]):
    """What `make` returns for each key, until it is as a new one again. A key is looked at every `seconds` after its first use."""

    def __init__(self, make: Callable[[float], KeptT], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._kept: dict[Hashable, KeptT] = {}
        self._looks: deque[tuple[float, Hashable]] = deque()  #: each key once, with when it is looked at, the next one first

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: Hashable, now: float) -> KeptT:
        """What is kept of `key`. It is to be used before another key is asked for."""
        self._forget_some(now)
        if (kept := self._kept.get(key)) is None:
            kept = self._kept[key] = self._make(now)
            self._looks.append((now + self._seconds, key))
        return kept

    def _forget_some(self, now: float) -> None:
        for _ in range(_LOOKS):
            if not self._looks or self._looks[0][0] > now:
                return
            _, key = self._looks.popleft()
            if self._kept[key].is_full(now):
                del self._kept[key]
            else:
                self._looks.append((now + self._seconds, key))
