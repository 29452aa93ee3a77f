"""The offset that may be committed for one partition: everything below it is finished. Pure.

Rule: the smallest unfinished offset, else the last one seen + 1; it never decreases. Only offsets that were really
fetched count, so gaps left by compaction and transaction markers are passed with the offset that follows them.
Source: RocketMQ `ProcessQueue.removeMessage`.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Watermark"]


class Watermark:
    """Offsets in flight of one partition, for as long as the partition is assigned."""

    __slots__ = ("_commit", "_finished", "_known", "_last", "_order")

    def __init__(self, position: int | None = None) -> None:
        self._order: deque[int] = deque()
        self._known: set[int] = set()
        self._finished: set[int] = set()
        self._last: int | None = None
        self._commit = position

    def hold(self, offset: int) -> bool:
        """Take a fetched offset; `False` if it is held already or lies below the watermark."""
        passed = self._commit is not None and offset < self._commit
        if passed or (self._last is not None and offset <= self._last):
            return False
        self._order.append(offset)
        self._known.add(offset)
        self._last = offset
        return True

    def finish(self, offset: int) -> None:
        """The message is done, parked or dead. An offset that is not held changes nothing."""
        if offset not in self._known:
            return
        self._finished.add(offset)
        while self._order and self._order[0] in self._finished:
            first = self._order.popleft()
            self._finished.discard(first)
            self._known.discard(first)
            self._commit = self._order[0] if self._order else first + 1

    @property
    def commit(self) -> int | None:
        """The next offset to give to the broker; `None` while nothing is known."""
        if self._order:
            return self._order[0] if self._commit is None else max(self._commit, self._order[0])
        return self._commit

    @property
    def count(self) -> int:
        """How many offsets are not finished."""
        return len(self._known) - len(self._finished)

    @property
    def span(self) -> int:
        """How far the last offset is from the smallest unfinished one."""
        return 0 if not self._order or self._last is None else self._last - self._order[0]
