"""The timeline: messages by verdict, in equal and round buckets of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ackwise.spark.vocabulary import Verdict

__all__ = ["Buckets", "Timeline", "buckets", "timeline"]

_SECOND: Final = 1_000_000
#: Widths that a person can count in, in seconds.
_WIDTHS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_WEEK: Final = 604800 * _SECOND


class Buckets(NamedTuple):
    """`number` buckets of `width` from `begin` on, a multiple of the width. Microseconds."""

    begin: int
    width: int
    number: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Messages by verdict, one number for each bucket. A message is where its first success was reported, else its last event."""

    begin: int
    """Microseconds, as is the next one."""
    width: int
    counts: Mapping[Verdict, Sequence[int]]


def buckets(first: int, last: int, most: int, *, narrowest: float = 0.0) -> Buckets:
    """Return at most `most` buckets from microsecond `first` to `last`, as narrow as possible, but at least `narrowest` seconds wide."""
    widths = (round(seconds * _SECOND) for seconds in _WIDTHS if seconds >= narrowest)
    width = next((width for width in widths if _number(first, last, width) <= most), None)
    if width is None:
        # One more than fit: the first and the last may be cut.
        width = ((last - first) // (_WEEK * max(1, most - 1)) + 1) * _WEEK
    return Buckets(first - first % width, width, _number(first, last, width))


def timeline(spans: Buckets, counted: Iterable[tuple[Verdict, int, int]]) -> Timeline:
    """Return the timeline of rows of verdict, number of the bucket and messages; worst verdict first."""
    counts: dict[Verdict, list[int]] = {}
    for verdict, bucket, messages in sorted(counted):
        counts.setdefault(verdict, [0] * spans.number)[bucket] += messages
    return Timeline(spans.begin, spans.width, counts)


def _number(first: int, last: int, width: int) -> int:
    return last // width - first // width + 1
