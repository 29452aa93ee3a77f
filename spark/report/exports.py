"""The events that each writer exported over time, and how many are missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.report.timeline import Buckets

__all__ = ["Exports", "Written", "exports"]


class Written(NamedTuple):
    """The least and the largest sequence number that a writer wrote in one bucket of time."""

    writer_id: int
    bucket: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Exports:
    """One writer: events by bucket of time, and how many are missing there. A hole counts where the event before it is."""

    writer: Writer
    events: Sequence[int]
    missing: Sequence[int]
    written: Sequence[Written] = ()


def exports(writers: Iterable[Writer], holes: Iterable[Hole], written: Iterable[Written], time: Buckets) -> list[Exports]:
    """Return one for each writer. A number counts once, even if a clock went back and it is in two buckets."""
    of_writer: dict[int, list[Written]] = {}
    for row in written:
        of_writer.setdefault(row.writer_id, []).append(row)
    gone: dict[int, list[Hole]] = {}
    for hole in holes:
        gone.setdefault(hole.writer_id, []).append(hole)
    return [_of_writer(writer, of_writer.get(writer.writer_id, []), gone.get(writer.writer_id, []), time) for writer in writers]


def _of_writer(writer: Writer, written: Iterable[Written], holes: Sequence[Hole], time: Buckets) -> Exports:
    events, missing, spans = [0] * time.number, [0] * time.number, list[tuple[int, int, int]]()
    in_order = sorted(written, key=lambda row: (row.last, row.bucket))
    # Numbers before the first that was read are in a hole, or were not to be read.
    reached = min((row.first for row in in_order), default=0)
    for row in in_order:
        spans.append((reached, row.last + 1, row.bucket))
        reached = row.last + 1
    for first, end, bucket in spans:
        hidden = sum(max(0, min(hole.after, end) - max(hole.first, first)) for hole in holes)
        events[bucket] += end - first - hidden
    for hole in holes:
        bucket = next((bucket for first, _, bucket in reversed(spans) if first < hole.first), spans[0][2] if spans else 0)
        missing[bucket] += hole.after - hole.first
    return Exports(writer, events, missing, in_order)
