"""Watermark: the offset of a partition that may be committed. Everything below it is finished. Pure.

Rule: the smallest unfinished offset, else the last one seen + 1; it never decreases. Only offsets that were really
fetched count, so gaps left by compaction and transaction markers are passed with the offset that follows them.
Source: RocketMQ `ProcessQueue.removeMessage`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["Watermark"]


class Watermark:
    """Offsets in flight of one partition, in ranges, for as long as the partition is assigned."""

    __slots__ = ("_ends", "_next", "_starts")

    def __init__(self, position: int | None = None) -> None:
        self._next = position  #: the smallest offset that was not seen yet
        self._starts: list[int] = []  #: of the unfinished ranges, ascending, since only larger offsets are taken
        self._ends: list[int] = []  #: behind the last offset of each

    def track(self, first: int, end: int | None = None) -> bool:
        """Take the fetched offsets from `first` to before `end`, or `first` alone; `False` if it is held or lies below the watermark."""
        if self._next is not None and first < self._next:
            return False
        self._next = first + 1 if end is None else end
        self._starts.append(first)
        self._ends.append(self._next)
        return True

    def skip(self, end: int) -> None:
        """The log has nothing to read before `end` that was not tracked: what control and aborted records leave."""
        if self._next is None or end > self._next:
            self._next = end

    def finish(self, first: int, end: int | None = None) -> None:
        """The messages from `first` to before `end`, or that at `first`, are done, parked or dead. Untracked offsets are ignored."""
        end = first + 1 if end is None else end
        at = max(0, bisect_right(self._starts, first) - 1)
        while at < len(self._starts) and self._starts[at] < end:
            start, stop = self._starts[at], self._ends[at]
            left = [(a, b) for a, b in ((start, min(stop, first)), (max(start, end), stop)) if a < b]
            self._starts[at : at + 1] = [a for a, _ in left]
            self._ends[at : at + 1] = [b for _, b in left]
            at += len(left)

    @property
    def next(self) -> int | None:
        """The smallest offset that was not seen yet; `None` while nothing is known."""
        return self._next

    @property
    def unfinished(self) -> Iterator[tuple[int, int]]:
        """The ranges of offsets that were seen and are not finished, ascending, as `(first, behind the last)`."""
        return zip(self._starts, self._ends, strict=True)

    @property
    def commit(self) -> int | None:
        """The next offset to give to the broker; `None` while nothing is known."""
        return self._starts[0] if self._starts else self._next

    @property
    def count(self) -> int:
        """How many offsets are not finished."""
        return sum(self._ends) - sum(self._starts)

    @property
    def span(self) -> int:
        """How far the last offset is from the smallest unfinished one."""
        return self._next - 1 - self._starts[0] if self._starts and self._next is not None else 0
