"""The ranges of events that are missing, with the writer that wrote them and the time in which it did."""

from __future__ import annotations

from dataclasses import dataclass

from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.report.exports import Exports
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.timeline import Buckets

__all__ = ["MissingRange", "missing_ranges"]


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Sequence numbers of one writer, from `first` to `last`, and the events between which they were written."""

    writer_id: int
    client: str
    host: str
    """Host and process; empty if the writer's session does not name them."""
    group: str
    first: int
    last: int
    since: int | None
    """Microseconds, at or before the event before the range; None: there is no such event."""
    until: int | None
    """Microseconds, at or after the event behind the range."""


def missing_ranges(report: RunReport) -> list[MissingRange]:
    """Return the ranges, in the order of `report.holes`."""
    writers = {writer.writer_id: writer for writer in report.writers}
    exported = {each.writer.writer_id: each for each in report.details.exports}
    return [
        _of_hole(hole, writers[hole.writer_id], exported.get(hole.writer_id), report.details.time)
        if hole.writer_id in writers
        else MissingRange(hole.writer_id, "", "", report.absent.get(hole.writer_id, ""), hole.first, hole.after - 1, None, None)
        for hole in report.holes
    ]


def _of_hole(hole: Hole, writer: Writer, exported: Exports | None, time: Buckets) -> MissingRange:
    """Return the range of a writer that has other events. Buckets of its exported events tell the time better than its first and last."""
    since = None if hole.first == 0 else writer.last_ts if hole.first > writer.last_seq else writer.first_ts
    until = None if hole.after > writer.last_seq else writer.last_ts
    for written in () if exported is None else exported.written:
        begin = time.begin + written.bucket * time.width
        if since is not None and written.first < hole.first <= writer.last_seq:
            since = max(since, begin)
        if until is not None and written.last >= hole.after:
            until = min(until, begin + time.width)
    return MissingRange(hole.writer_id, writer.client, writer.host, writer.group[1], hole.first, hole.after - 1, since, until)
