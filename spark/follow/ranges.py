"""Sets of findings: ranges of numbers by kind, so that a million alike offsets are a few pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ackwise.spark.events.numbers import joined

__all__ = ["NONE", "Findings", "Kind", "Range", "both", "minus", "place_of", "size", "together", "union"]

#: First and end, which is exclusive.
Range: TypeAlias = tuple[int, int]


class Kind(NamedTuple):
    """What alike findings share."""

    verdict: str
    group: str
    handler: str
    place: str
    """Topic and partition, such as `orders/3`; of a message that has no offset, its topic."""
    cluster: str = ""
    topic_id: str = ""
    dedup_epoch: int = 0
    has_offsets: bool = True
    """Whether its numbers are offsets; else they are hashes of ids, which nobody is shown."""


Findings: TypeAlias = Mapping[Kind, Sequence[Range]]
"""By kind, ranges in order that do not touch. Kinds without a range are left out."""

NONE: Final[Findings] = {}


def together(pieces: Iterable[tuple[Kind, Range]]) -> Findings:
    """Return the set of all these pieces."""
    found: defaultdict[Kind, list[Range]] = defaultdict(list)
    for kind, piece in pieces:
        found[kind].append(piece)
    return {kind: joined(ranges) for kind, ranges in found.items()}


def union(*sets: Findings) -> Findings:
    """Return what is in any of them."""
    return together((kind, piece) for each in sets for kind, ranges in each.items() for piece in ranges)


def minus(one: Findings, *others: Findings) -> Findings:
    """Return what is in `one`, and in none of the others."""
    gone = union(*others)
    left = {kind: list(_left(ranges, gone.get(kind, ()))) for kind, ranges in one.items()}
    return {kind: ranges for kind, ranges in left.items() if ranges}


def both(one: Findings, other: Findings) -> Findings:
    """Return what is in each of them."""
    return minus(one, minus(one, other))


def place_of(kind: Kind) -> Kind:
    """Return the kind of whatever is said about the same offsets."""
    return kind._replace(verdict="", handler="", dedup_epoch=0)


def size(findings: Findings) -> int:
    """Return how many numbers there are in all ranges."""
    return sum(end - start for ranges in findings.values() for start, end in ranges)


def _left(ranges: Sequence[Range], gone: Sequence[Range]) -> Iterator[Range]:
    """Both are in order. One walk over both: a set may have very many ranges."""
    place = 0
    for start, end in ranges:
        while place < len(gone) and gone[place][1] <= start:
            place += 1
        at = place
        while at < len(gone) and gone[at][0] < end:
            if start < gone[at][0]:
                yield start, gone[at][0]
            start = max(start, gone[at][1])
            at += 1
        if start < end:
            yield start, end
