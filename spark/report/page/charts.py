"""The charts of late retries and of verdicts over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from ackwise.spark.report.delays import Delays
from ackwise.spark.report.page.drawings import DelayRow, DelaysData, Lane, LateClass, TimelineData
from ackwise.spark.report.page.tone import tone_of
from ackwise.spark.report.page.words import are, counted, duration, late, messages, moment, span_of, were
from ackwise.spark.report.timeline import Buckets, Timeline
from ackwise.spark.vocabulary import Verdict

__all__ = ["delays_data", "timeline_data"]

_DAY: Final = 86_400_000_000
#: Upper ends of the classes of lateness, in milliseconds.
_LATE_CLASSES: Final = (0, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
#: Of the highest bar, in percent: a single message among thousands must still be seen.
_LOWEST_BAR: Final = 4


def delays_data(delays: Sequence[Delays], limit: int) -> DelaysData:
    """Return the retries in classes of lateness, and by handler."""
    total: Counter[int] = Counter()
    for each in delays:
        total.update(each.late)
    whole = Delays("", "", total)
    early = f" {whole.early:,} came before {'it was' if whole.early == 1 else 'they were'} due, by the clocks." if whole.early else ""
    sentence = (
        f"Of {messages(whole.messages)} that came again, half were at most {late(whole.percentile(0.5))} late, "
        f"99 % at most {late(whole.percentile(0.99))}, and the latest {late(whole.percentile(1.0))}.{early}"
    )
    return DelaysData(sentence, _classes(total), [_row(each) for each in delays[:limit]])


def timeline_data(timeline: Timeline, untimed: int) -> TimelineData:
    """Return one lane for each verdict. `untimed` offsets have no event, so no time is known."""
    number = max((len(counts) for counts in timeline.counts.values()), default=0)
    starts = [timeline.begin + place * timeline.width for place in range(number + 1)]
    begin, middle, end = span_of(Buckets(timeline.begin, timeline.width, number))
    with_day = starts[-1] - starts[0] > _DAY
    times = [moment(start, timeline.width, with_day=with_day) for start in starts]
    without = f" {counted(untimed, 'offset')} that no event is about {are(untimed)} not shown." if untimed else ""
    return TimelineData(
        sentence="A message is shown where its success was reported, else where its last event was written. "
        f"One bar is {duration(timeline.width)}; each row has a scale of its own.{without}",
        begin=begin,
        middle=middle,
        end=end,
        times=times[:-1],
        lanes=[_lane(verdict, counts, times, timeline.width) for verdict, counts in timeline.counts.items()],
    )


def _classes(numbers: Mapping[int, int]) -> list[LateClass]:
    labels = ["early", *(f"{late(low)} – {late(high)}" if low else f"up to {late(high)}" for low, high in pairwise(_LATE_CLASSES))]
    labels.append(f"over {late(_LATE_CLASSES[-1])}")
    found = [0] * len(labels)
    for milliseconds, number in numbers.items():
        found[sum(milliseconds >= end for end in _LATE_CLASSES)] += number
    used = [place for place, number in enumerate(found) if number]
    span = range(used[0], used[-1] + 1)
    return [LateClass(labels[i], found[i], round(found[i] / max(found), 4), "plain" if i else "doubt") for i in span]


def _row(each: Delays) -> DelayRow:
    p50, p90, p99, most = (late(each.percentile(share)) for share in (0.5, 0.9, 0.99, 1.0))
    return DelayRow(each.group, each.handler, each.messages, each.early, p50, p90, p99, most)


def _lane(verdict: Verdict, counts: Sequence[int], times: Sequence[str], width: int) -> Lane:
    total, most = sum(counts), max(counts)
    begin = times[list(counts).index(most)]
    return Lane(
        name=verdict.name,
        tone=tone_of(verdict),
        total=total,
        most=most,
        description=f"{messages(total)}; most of them, {most:,}, {were(most)} in the {duration(width)} from {begin} UTC on.",
        numbers=list(counts),
        heights=[max(_LOWEST_BAR, round(100 * number / most)) if number else 0 for number in counts],
    )
