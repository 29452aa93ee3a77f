"""Watermark: the offset of a partition that may be committed. Everything below it is finished. Pure.

Rule: the smallest unfinished offset, else the last one seen + 1; it never decreases. Only offsets that were really
fetched count, so gaps left by compaction and transaction markers are passed with the offset that follows them.
Source: RocketMQ `ProcessQueue.removeMessage`.
"""

from __future__ import annotations

__all__ = ["Watermark"]


class Watermark:
    """Offsets in flight of one partition, for as long as the partition is assigned."""

    __slots__ = ("_next", "_unfinished")

    def __init__(self, position: int | None = None) -> None:
        self._next = position  #: the smallest offset that was not seen yet
        self._unfinished: dict[int, None] = {}  #: ascending, since only larger offsets are taken

    def track(self, offset: int) -> bool:
        """Take a fetched offset; `False` if it is held already or lies below the watermark."""
        if self._next is not None and offset < self._next:
            return False
        self._unfinished[offset] = None
        self._next = offset + 1
        return True

    def finish(self, offset: int) -> None:
        """The message is done, parked or dead. An untracked offset is ignored."""
        self._unfinished.pop(offset, None)

    @property
    def commit(self) -> int | None:
        """The next offset to give to the broker; `None` while nothing is known."""
        return next(iter(self._unfinished), self._next)

    @property
    def count(self) -> int:
        """How many offsets are not finished."""
        return len(self._unfinished)

    @property
    def span(self) -> int:
        """How far the last offset is from the smallest unfinished one."""
        first = next(iter(self._unfinished), None)
        return 0 if first is None or self._next is None else self._next - 1 - first
