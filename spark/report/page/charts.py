"""Lanes of bars over time: verdicts, exported events, anomalies by record hour; and the classes of lateness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ackwise.spark.fold.facts import WriterFate
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.exports import Exports
from ackwise.spark.report.timeline import Buckets, Timeline
from ackwise.spark.report.tone import Tone, tone_of
from ackwise.spark.report.words import are, counted, duration, hexadecimal, late, messages, moment, span_of, were

__all__ = ["Lane", "Lanes", "exports_lanes", "late_classes", "late_sentence", "timeline_lanes"]

_DAY: Final = 86_400_000_000
#: Upper ends of the classes of lateness, in milliseconds.
_LATE_CLASSES: Final = (0, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
#: Of the highest bar, in percent: a single message among thousands must still be seen.
_LOWEST_BAR: Final = 5
#: Writers that are drawn; the table of writers has more.
_MOST_WRITERS: Final = 12


class Lane(NamedTuple):
    """One row of bars: a number for each bucket of time, and the buckets that are marked below."""

    name: str
    about: str
    tone: Tone
    summary: str
    description: str
    numbers: Sequence[int]
    marks: Sequence[int] = ()

    @property
    def heights(self) -> list[int]:
        """The height of each bar, from 0 to 100."""
        most = max(self.numbers, default=0)
        return [max(_LOWEST_BAR, round(100 * number / most)) if number else 0 for number in self.numbers]


class Lanes(NamedTuple):
    """Lanes on one axis of time."""

    sentence: str
    axis: tuple[str, str, str]
    times: Sequence[str]
    """The beginnings of the buckets."""
    lanes: Sequence[Lane]
    hidden: int


def timeline_lanes(timeline: Timeline, sentence: str) -> Lanes:
    """Return one lane for each verdict."""
    number = max((len(counts) for counts in timeline.counts.values()), default=0)
    times = _times(Buckets(timeline.begin, timeline.width, number))
    lanes = [_of_verdict(verdict.name, tone_of(verdict), counts, times, timeline.width) for verdict, counts in timeline.counts.items()]
    whole = f"{sentence} One bar is {duration(timeline.width)}; each row has a scale of its own."
    return Lanes(whole, span_of(Buckets(timeline.begin, timeline.width, number)), times, lanes, 0)


def exports_lanes(exports: Sequence[Exports], time: Buckets) -> Lanes | None:
    """Return one lane for each writer: those with missing events first, then dead ones."""
    if not exports:
        return None
    ordered = sorted(
        exports, key=lambda each: (-sum(each.missing), not each.writer.tail_is_unknown, each.writer.fate is not WriterFate.DEAD)
    )
    missing, incomplete = sum(sum(each.missing) for each in exports), sum(1 for each in exports if any(each.missing))
    lack = f"{counted(missing, 'event')} of {counted(incomplete, 'writer')} {are(missing)} missing" if missing else "no event is missing"
    written = sum(sum(each.events) for each in exports) + missing
    sentence = (
        f"Of {counted(written, 'event')} of {counted(len(exports), 'writer')}, {lack}. One bar is {duration(time.width)}; "
        "each row has a scale of its own, and a line below it is where events are missing."
    )
    lanes = [_of_writer(each) for each in ordered[:_MOST_WRITERS]]
    return Lanes(sentence, span_of(time), _times(time), lanes, len(ordered) - len(lanes))


def late_sentence(delays: Sequence[Delays]) -> str:
    """Return how late all retries came."""
    whole = Delays("", "", _all(delays))
    early = f" {whole.early:,} came before {'it was' if whole.early == 1 else 'they were'} due, by the clocks." if whole.early else ""
    return (
        f"Of {messages(whole.messages)} that came again, half were at most {late(whole.percentile(0.5))} late, "
        f"99 % at most {late(whole.percentile(0.99))}, and the latest {late(whole.percentile(1.0))}.{early}"
    )


def late_classes(delays: Sequence[Delays]) -> list[tuple[str, int]]:
    """Return the classes of lateness, from the first to the last that has messages, and their numbers."""
    labels = ["early", *(f"{late(low)} – {late(high)}" if low else f"up to {late(high)}" for low, high in pairwise(_LATE_CLASSES))]
    labels.append(f"over {late(_LATE_CLASSES[-1])}")
    found = [0] * len(labels)
    for milliseconds, number in _all(delays).items():
        found[sum(milliseconds >= end for end in _LATE_CLASSES)] += number
    used = [place for place, number in enumerate(found) if number]
    return [(labels[place], found[place]) for place in range(used[0], used[-1] + 1)]


def _all(delays: Sequence[Delays]) -> Mapping[int, int]:
    total: Counter[int] = Counter()
    for each in delays:
        total.update(each.late)
    return total


def _times(time: Buckets) -> list[str]:
    with_day = time.number * time.width > _DAY
    return [moment(time.begin + place * time.width, time.width, with_day=with_day) for place in range(time.number)]


def _of_verdict(name: str, tone: Tone, counts: Sequence[int], times: Sequence[str], width: int) -> Lane:
    total, most = sum(counts), max(counts, default=0)
    begin = times[list(counts).index(most)]
    description = f"{messages(total)}; most of them, {most:,}, {were(most)} in the {duration(width)} from {begin} UTC on."
    return Lane(name, "", tone, f"{total:,} in all, at most {most:,}", description, counts)


def _of_writer(each: Exports) -> Lane:
    missing, writer = sum(each.missing), each.writer
    tone: Tone = "bad" if missing else "doubt" if writer.tail_is_unknown else "plain"
    there = f"{counted(sum(each.events), 'event')}, {missing:,} missing" if missing else counted(sum(each.events), "event")
    summary = f"{there}; {'its last events are unknown' if writer.tail_is_unknown else writer.fate}"
    description = f"{summary}. {counted(sum(1 for n in each.events if n), 'bar')} of {len(each.events)} with events."
    marks = [place for place, number in enumerate(each.missing) if number]
    return Lane(hexadecimal(writer.writer_id), writer.host or writer.client, tone, summary, description, each.events, marks)
