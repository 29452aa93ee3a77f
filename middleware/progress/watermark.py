"""Watermark and progress above it: the offset of a partition that may be committed, and the later offsets that are finished. Pure.

The watermark is the smallest unfinished offset, otherwise the last one seen + 1; it never decreases. Only offsets that were really
fetched count, so gaps left by compaction and transaction markers are passed with the offset that follows them. Source: RocketMQ
`ProcessQueue.removeMessage`.

An owner writes the progress into the metadata of each commit (`measure`). The next owner compares the first records that it fetches, and if
the log is still the same (`is_of`), runs none of the finished ones again. In doubt a message runs: only repeats depend on it.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.progress.commitmetadata import FinishedMap


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
        """Return the number of unfinished offsets."""
        return sum(self._ends) - sum(self._starts)

    @property
    def span(self) -> int:
        """Return the distance from the smallest unfinished offset to the last one."""
        return self._next - 1 - self._starts[0] if self._starts and self._next is not None else 0


#: Offsets that a map may stand for, whatever it looks like: it fits into the metadata that brokers allow.
MAP_SPAN: Final = 16_000


class Finished(NamedTuple):
    """What is finished above an offset that is not."""

    base_ts: int
    """Of the record at that offset; epoch milliseconds."""
    last_ts: int
    """Of the highest finished record; epoch milliseconds."""
    bits: int
    """Bit n stands for the n-th offset behind it."""


def measure(
    watermarks: Sequence[Watermark], base: int, base_ts: int, times: Mapping[int, int], before: FinishedMap | None = None
) -> Finished:
    """What all of `watermarks`, which are of one partition, have finished from `base` on: the smallest offset that one of them has not.

    `times` has the timestamps of some finished records, epoch milliseconds, by offset: the highest of them that may be told ends the map.
    Offsets that the log does not have count as finished. `before`: the last owner's map, where it stands for more than was seen.
    """
    end = min(*(watermark.next or base for watermark in watermarks), base + MAP_SPAN)
    bits = (1 << max(0, end - base)) - 1
    for watermark in watermarks:
        for first, stop in watermark.unfinished:
            if first >= end:
                break
            bits &= ~(((1 << stop - first) - 1) << first - base)
    if before is not None and (ahead := before.bits >> end - before.base):
        return Finished(base_ts, before.last_ts, bits | ahead << end - base)
    last = max((offset for offset in times if base <= offset < end and bits >> offset - base & 1), default=None)
    if last is None:
        return Finished(base_ts, base_ts, 0)
    return Finished(base_ts, times[last], bits & (1 << last - base + 1) - 1)


def is_of(found: FinishedMap, records: Sequence[Any], *, is_hole_proved: bool) -> bool:
    """Return whether `found` is about the log that `records` come from, the first that were fetched from its base on.

    The record at its base has the timestamp that it had. Where the log has no such record any more, since it was compacted, the
    highest finished one must be among `records` with its own.
    """
    first = records[0]
    if first.offset == found.base:
        return bool(first.timestamp == found.base_ts)
    last = found.base + found.bits.bit_length() - 1
    return is_hole_proved and any(record.offset == last and record.timestamp == found.last_ts for record in records)


def holds(found: FinishedMap, offset: int) -> bool:
    """Return whether `found` says that `offset` is finished."""
    return offset >= found.base and bool(found.bits >> offset - found.base & 1)


def agents_hash(names: Iterable[str]) -> str:
    """What stands for the agents of a partition: what one of them has finished, another has not seen."""
    return hashlib.blake2b(json.dumps(sorted(names)).encode(), digest_size=8).hexdigest()
