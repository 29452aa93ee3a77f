"""Gaps in the events: missing sequence numbers, and the offsets that are unknown because of them.

A writer numbers its events without holes. Where one is missing, its log was damaged or a file is gone, and what was
read or settled meanwhile may be fine. How far the numbers went is known from commits: each leaves beside its offset which
events were durable. Two ranges of offsets follow for each partition that the writer had: those that it may have *read* in
the hole, and those that were *open* when it began, since their end may lie in the hole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ackwise.spark.events.schema import NO_OFFSET
from ackwise.spark.fold.facts import Facts, GroupName, SurveyRow, merged

__all__ = ["Around", "Blindness", "Hole", "Span", "blindness", "pieces", "unwritten"]

Span = tuple[int, int]
"""Offsets from the first to before the second."""


class Hole(NamedTuple):
    """Sequence numbers of a writer that are missing: from `first` to before `after`."""

    writer_id: int
    first: int
    after: int


class Around(NamedTuple):
    """The positions of a writer in one partition before and after a hole; `None`: unknown."""

    pk: int
    reached: int | None
    """The position after the last record that it had read before."""
    settled_to: int | None
    """The largest position that was committed before."""
    resumed: int | None
    """The smallest position beyond `reached` at which it read afterwards."""


@dataclass(frozen=True, slots=True)
class Blindness:
    """The unknown spans of offsets by `pk`, ordered and disjoint, and the groups concerned."""

    unread: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    unsettled: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    groups: frozenset[GroupName] = frozenset()


def blindness(facts: Facts, holes: Sequence[Hole], around: Iterable[Around], unreported_commits: Iterable[Around] = ()) -> Blindness:
    """Return all unknown offsets: those that holes hide, and the last ones of writers that died.

    `unreported_commits` are commits without an event; in a group with holes, one may have been made in a hole.
    """
    groups_of = {writer_id: group for writer_id, (group, _) in facts.absent.items()}
    groups_of |= {writer.writer_id: writer.group for writer in facts.writers}
    groups_with_holes = {groups_of[hole.writer_id] for hole in holes}
    blind_groups = groups_with_holes | {writer.group for writer in facts.writers if writer.tail_is_unknown}
    found = [*around, *_tails(facts), *(each for each in unreported_commits if facts.partitions[each.pk].group in groups_with_holes)]
    unread: dict[int, list[Span]] = defaultdict(list)
    unsettled: dict[int, list[Span]] = defaultdict(list)
    for pk, reached, settled_to, resumed in found:
        until = NO_OFFSET if resumed is None else resumed
        unread[pk].append((reached or 0, until))
        unsettled[pk].append((settled_to or 0, until))
    return Blindness(_merged(unread), _merged(unsettled), frozenset(blind_groups))


def unwritten(facts: Facts) -> list[Hole]:
    """Return the last numbers that commits name and that are missing: of writers without their last file, and without any."""
    cut = [
        Hole(writer.writer_id, writer.last_seq + 1, writer.named_to + 1)
        for writer in facts.writers
        if writer.named_to is not None and writer.named_to > writer.last_seq
    ]
    return cut + [Hole(writer_id, 0, last_seq + 1) for writer_id, (_, last_seq) in sorted(facts.absent.items())]


def pieces(unsettled: Mapping[int, Sequence[Span]], rewound: Mapping[int, Sequence[Span]]) -> list[tuple[int, int, int, bool, bool]]:
    """Return disjoint ranges as `pk`, start, end, and whether the offsets are unsettled and rewound: one of them at least."""
    found = []
    for pk in sorted({*unsettled, *rewound}):
        both = unsettled.get(pk, ()), rewound.get(pk, ())
        edges = sorted({edge for spans in both for span in spans for edge in span})
        for start, end in pairwise(edges):
            inside = [any(first <= start < after for first, after in spans) for spans in both]
            if any(inside):
                found.append((pk, start, end, inside[0], inside[1]))
    return found


def _tails(facts: Facts) -> Iterator[Around]:
    """Yield the last positions of writers whose last events are unknown; a successor has reported everything from its own position on."""
    died_at = {writer.writer_id: writer.last_ts for writer in facts.writers if writer.tail_is_unknown}
    read: dict[tuple[int, int], list[SurveyRow]] = defaultdict(list)
    for row in facts.rows:
        if row.writer_id in died_at and (row.reached is not None or row.settled_to is not None):
            read[row.writer_id, row.pk].append(row)
    for (writer_id, pk), about in read.items():
        successors = [
            row for row in facts.rows if row.pk == pk and row.writer_id != writer_id and (row.assigned_ts or 0) > died_at[writer_id]
        ]
        yield Around(
            pk,
            _largest(row.reached for row in about),
            _largest(row.settled_to for row in about),
            _largest(row.assigned_to for row in successors),
        )


def _largest(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def _merged(spans: Mapping[int, Sequence[Span]]) -> dict[int, list[Span]]:
    return {key: apart for key, each in spans.items() if (apart := merged(each))}
