"""The lanes of the writers: exported events over time, and where events are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ackwise.spark.fold.facts import WriterFate
from ackwise.spark.report.exports import Exports
from ackwise.spark.report.page.drawings import ExportLane, ExportsData
from ackwise.spark.report.page.tone import Tone
from ackwise.spark.report.page.words import are, counted, duration, span_of
from ackwise.spark.report.timeline import Buckets

__all__ = ["exports_data"]

#: Lanes that are drawn; the table of writers has more.
_MOST_ROWS: Final = 12
#: Of the highest bar, in percent.
_LOWEST_BAR: Final = 6


def exports_data(exports: Sequence[Exports], time: Buckets) -> ExportsData | None:
    """Return the lanes: writers with missing events first, then dead ones."""
    if not exports:
        return None
    ordered = sorted(
        exports, key=lambda each: (-sum(each.missing), not each.writer.tail_is_unknown, each.writer.fate is not WriterFate.DEAD)
    )
    missing, incomplete = sum(sum(each.missing) for each in exports), sum(1 for each in exports if any(each.missing))
    lack = f"{counted(missing, 'event')} of {counted(incomplete, 'writer')} {are(missing)} missing" if missing else "no event is missing"
    everything = f"{counted(sum(map(_written, exports)), 'event')} of {counted(len(exports), 'writer')}"
    sentence = (
        f"Of {everything}, {lack}. One bar is {duration(time.width)}; "
        "each row has a scale of its own, and a line below it is where events are missing."
    )
    begin, middle, end = span_of(time)
    return ExportsData(sentence, begin, middle, end, [_lane(each) for each in ordered[:_MOST_ROWS]], max(0, len(ordered) - _MOST_ROWS))


def _written(each: Exports) -> int:
    return sum(each.events) + sum(each.missing)


def _lane(each: Exports) -> ExportLane:
    missing, most, writer = sum(each.missing), max(each.events, default=0), each.writer
    tone: Tone = "bad" if missing else "doubt" if writer.tail_is_unknown else "plain"
    there = f"{counted(sum(each.events), 'event')}, {missing:,} missing" if missing else counted(sum(each.events), "event")
    ending = "its last events are unknown" if writer.tail_is_unknown else str(writer.fate)
    return ExportLane(
        writer=f"{writer.writer_id & (2**64 - 1):016x}",
        client=writer.client,
        tone=tone,
        summary=f"{there}; {ending}",
        description=f"{there}; {ending}. {counted(sum(1 for n in each.events if n), 'bar')} of {len(each.events)} with events.",
        heights=[max(_LOWEST_BAR, round(100 * number / most)) if number else 0 for number in each.events],
        missing=[place for place, number in enumerate(each.missing) if number],
    )
