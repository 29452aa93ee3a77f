"""The matrices by topic: verdicts of messages, and errors of failed runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ackwise.spark.report.details import Failures
from ackwise.spark.report.page.data import Cell, MatrixData, MatrixRow
from ackwise.spark.report.page.tone import Tone, tone_of
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import Verdict

__all__ = ["failures_data", "verdicts_data"]

_SHADES: Final = 4
_MOST_COLUMNS: Final = 12
_REST: Final = "other topics"


def verdicts_data(report: RunReport, limit: int) -> MatrixData | None:
    """Return the verdicts by topic and group, or None if there is only one topic."""
    numbers: dict[tuple[str, str], Counter[Verdict]] = defaultdict(Counter)
    for tally in report.tallies:
        numbers[tally.group, tally.topic][tally.verdict] += tally.messages
    for book in report.books:
        numbers[book.partition.group[1], book.partition.topic].update(book.absent)
    if len(numbers) < 2:
        return None
    columns = sorted({verdict for verdicts in numbers.values() for verdict, number in verdicts.items() if number})
    most = max(number for verdicts in numbers.values() for number in verdicts.values())
    rows = [
        MatrixRow(group, topic, _cells([verdicts[verdict] for verdict in columns], most, lambda place: tone_of(columns[place])))
        for (group, topic), verdicts in sorted(numbers.items())
    ]
    return MatrixData([verdict.name for verdict in columns], rows[:limit], max(0, len(rows) - limit))


def failures_data(failures: Sequence[Failures], limit: int) -> MatrixData | None:
    """Return the classes of errors by topic, the most frequent first."""
    if not failures:
        return None
    topics: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = defaultdict(Counter)
    for each in failures:
        topics[each.topic] += each.runs
        errors[each.error or "no class given"][each.topic] += each.runs
    columns = sorted(sorted(topics), key=lambda topic: -topics[topic])[:_MOST_COLUMNS]
    rest = len(topics) > len(columns)
    most = max(number for numbers in errors.values() for number in numbers.values())
    ordered = sorted(errors.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [MatrixRow("", error, _cells(_of_topics(numbers, columns, rest=rest), most, lambda _: "doubt")) for error, numbers in ordered]
    return MatrixData([*columns, *([_REST] if rest else [])], rows[:limit], max(0, len(rows) - limit))


def _of_topics(numbers: Mapping[str, int], columns: Sequence[str], *, rest: bool) -> list[int]:
    found = [numbers.get(topic, 0) for topic in columns]
    return [*found, sum(numbers.values()) - sum(found)] if rest else found


def _cells(numbers: Sequence[int], most: int, tone: Callable[[int], Tone]) -> list[Cell]:
    return [Cell(number, tone(place) if number else "plain", _shade(number, most)) for place, number in enumerate(numbers)]


def _shade(number: int, most: int) -> int:
    """Return the shade from 1 to 4, by the logarithm, or 0 for none: one among thousands must still be seen."""
    if number == 0:
        return 0
    return 1 + min(_SHADES - 1, math.floor(_SHADES * math.log(number) / math.log(most + 1)))
