"""The matrices by topic: verdicts of messages, and errors of failed runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ackwise.spark.report.details import Failures
from ackwise.spark.report.report import RunReport
from ackwise.spark.report.tone import Tone, tone_of
from ackwise.spark.vocabulary import Verdict

__all__ = ["Matrix", "failures_matrix", "shade", "verdicts_matrix"]

_SHADES: Final = 4
_MOST_COLUMNS: Final = 12
_REST: Final = "other topics"


class Matrix(NamedTuple):
    """The number of each kind by topic, with the tone of each column; the rows begin with group and name."""

    columns: Sequence[str]
    tones: Sequence[Tone]
    rows: Sequence[tuple[str, str, Sequence[int]]]
    most: int


def verdicts_matrix(report: RunReport) -> Matrix | None:
    """Return the verdicts by topic and group, or None if there is only one topic."""
    numbers: dict[tuple[str, str], Counter[Verdict]] = defaultdict(Counter)
    for tally in report.tallies:
        numbers[tally.group, tally.topic][tally.verdict] += tally.messages
    for account in report.accounts:
        numbers[account.partition.group[1], account.partition.topic].update(account.absent)
    if len(numbers) < 2:
        return None
    columns = sorted({verdict for verdicts in numbers.values() for verdict, number in verdicts.items() if number})
    rows = [(*name, [verdicts[verdict] for verdict in columns]) for name, verdicts in sorted(numbers.items())]
    return _matrix([verdict.name for verdict in columns], [tone_of(verdict) for verdict in columns], rows)


def failures_matrix(failures: Sequence[Failures]) -> Matrix | None:
    """Return the classes of errors by topic, the most frequent first."""
    if not failures:
        return None
    topics: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = defaultdict(Counter)
    for each in failures:
        topics[each.topic] += each.runs
        errors[each.error or "no class given"][each.topic] += each.runs
    columns = sorted(sorted(topics), key=lambda topic: -topics[topic])[:_MOST_COLUMNS]
    rest = [_REST] if len(topics) > len(columns) else []
    by_number = sorted(errors.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [("", error, _of_topics(numbers, columns, rest=bool(rest))) for error, numbers in by_number]
    tones: list[Tone] = ["doubt" for _ in (*columns, *rest)]
    return _matrix([*columns, *rest], tones, rows)


def shade(number: int, most: int) -> int:
    """Return the shade from 1 to 4, by the logarithm, or 0 for none: one among thousands must still be seen."""
    if number == 0:
        return 0
    return 1 + min(_SHADES - 1, math.floor(_SHADES * math.log(number) / math.log(most + 1)))


def _matrix(columns: Sequence[str], tones: Sequence[Tone], rows: Sequence[tuple[str, str, Sequence[int]]]) -> Matrix:
    return Matrix(columns, tones, rows, max((max(numbers, default=0) for _, _, numbers in rows), default=0))


def _of_topics(numbers: Mapping[str, int], columns: Sequence[str], *, rest: bool) -> list[int]:
    found = [numbers.get(topic, 0) for topic in columns]
    return [*found, sum(numbers.values()) - sum(found)] if rest else found
