"""Progress above the watermark: what of a partition is finished although an earlier offset is not. Pure.

It goes from one owner of a partition to the next in the metadata of a commit. An owner writes with each commit which offsets from
the committed one on are finished (`measure`); the next one looks at the first records that it fetches, and if the log is still the
same (`is_of`), it runs none of those again. Nothing but repeats depends on it: whatever is in doubt is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ackwise.middleware.commitmetadata import FinishedMap
from ackwise.middleware.watermark import Watermark

__all__ = ["MAP_SPAN", "Finished", "agents_hash", "holds", "is_of", "measure"]

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
    """Whether `found` is about the log that `records` come from, the first that were fetched from its base on.

    The record at its base has the timestamp that it had. Where the log has no such record any more, since it was compacted, the
    highest finished one must be among `records` with its own.
    """
    first = records[0]
    if first.offset == found.base:
        return bool(first.timestamp == found.base_ts)
    last = found.base + found.bits.bit_length() - 1
    return is_hole_proved and any(record.offset == last and record.timestamp == found.last_ts for record in records)


def holds(found: FinishedMap, offset: int) -> bool:
    """Whether `found` says that `offset` is finished."""
    return offset >= found.base and bool(found.bits >> offset - found.base & 1)


def agents_hash(names: Iterable[str]) -> str:
    """What stands for the agents of a partition: what one of them has finished, another has not seen."""
    return hashlib.blake2b(json.dumps(sorted(names)).encode(), digest_size=8).hexdigest()
