"""The latency section: a curve of the share that took longer, and a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from ackwise.spark.report.latency import GROWTH, Latency
from ackwise.spark.report.words import duration, messages, were

__all__ = ["LEFT", "Curve", "Curves", "Tick", "latency_curves", "latency_sentence", "ordered"]

#: The drawing is 400 by 230; so much of it is for the labels beside the grid.
LEFT: Final = 46
_RIGHT: Final = 392
_TOP, _BOTTOM = 8, 204
#: More would look alike.
_MOST_CURVES: Final = 6
_MOST_LABELS: Final = 7
_LOWEST: Final = 7  # decades of the share that are drawn at most
_MILLI, _SECOND, _MINUTE, _HOUR, _DAY = 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
#: What is round to a person.
_TIMES: Final = (
    *(_MILLI, 10 * _MILLI, 100 * _MILLI, _SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY),
    365 * _DAY,
)


class Curve(NamedTuple):
    """The share of one topic's messages that took longer, in a drawing of 400 by 230: `path` is its line."""

    name: str
    path: str
    description: str


class Tick(NamedTuple):
    """A line of the grid, and its label."""

    at: float
    label: str


class Curves(NamedTuple):
    """The curves on their grid."""

    curves: Sequence[Curve]
    across: Sequence[Tick]
    up: Sequence[Tick]


def ordered(latencies: Sequence[Latency]) -> list[Latency]:
    """Return the latencies, those with the most messages first."""
    return sorted(latencies, key=lambda each: (-each.messages, each.group, each.topic))


def latency_curves(latencies: Sequence[Latency]) -> Curves:
    """Return the curves of those with the most messages."""
    drawn = [each for each in ordered(latencies) if len(each.survival()) > 0][:_MOST_CURVES]
    grid, is_one_group = _Grid(drawn), len({each.group for each in latencies}) == 1
    names = [each.topic if is_one_group else f"{each.topic} of {each.group}" for each in drawn]
    return Curves([Curve(name, grid.path(each), _description(each)) for name, each in zip(names, drawn, strict=True)], grid.across, grid.up)


class _Grid:
    """The grid of the drawing: times and shares by their logarithms."""

    def __init__(self, drawn: Sequence[Latency]) -> None:
        ends = [micros for each in drawn for micros, _ in each.survival()] or [_SECOND]
        self._first = max((time for time in _TIMES if time <= min(ends)), default=_MILLI)
        self._last = min((time for time in _TIMES if time >= max(ends) and time > self._first), default=max(*ends, 10 * self._first))
        most = max((each.messages for each in drawn), default=1)
        self._decades = min(_LOWEST, max(1, math.ceil(math.log10(most))))

    @property
    def across(self) -> list[Tick]:
        """Times."""
        within = [time for time in _TIMES if self._first <= time <= self._last]
        step = -(-len(within) // _MOST_LABELS)
        return [Tick(round(self._x(time), 1), duration(time)) for time in within[::step]]

    @property
    def up(self) -> list[Tick]:
        """Shares."""
        return [Tick(round(self._y(10.0**-power), 1), f"{100 / 10**power:.{max(0, power - 2)}f} %") for power in range(self._decades + 1)]

    def path(self, of: Latency) -> str:
        """Return the line from the first time, where none is done, to where all are."""
        path, reached, height = f"M{self._x(self._first):.1f} {_TOP}", float(self._first), float(_TOP)
        for end, share in of.survival():
            begin, beyond = end / GROWTH, self._y(share)
            # Where no class lies between, the share stays what it was; what is below the grid is not drawn again and again.
            if begin > reached * 1.001 and beyond != height:
                path += f"H{self._x(begin):.1f}"
            if beyond != height:
                path += f"L{self._x(end):.1f} {beyond:.1f}"
            reached, height = end, beyond
        return path

    def _x(self, micros: float) -> float:
        share = math.log(max(micros, self._first) / self._first) / math.log(self._last / self._first)
        return LEFT + share * (_RIGHT - LEFT)

    def _y(self, share: float) -> float:
        down = min(1.0, -math.log10(share) / self._decades) if share > 0 else 1.0
        return _TOP + down * (_BOTTOM - _TOP)


def latency_sentence(latencies: Sequence[Latency]) -> str:
    """Return how long all messages took."""
    total: Counter[int] = Counter()
    for each in latencies:
        total.update(each.classes)
    whole = Latency("", "", total)
    early = f" {whole.negative:,} {were(whole.negative)} done before {'its record was' if whole.negative == 1 else 'their records were'} "
    early = f"{early}written, by the clocks of two machines." if whole.negative else ""
    half, most, last = (duration(whole.percentile(share)) for share in (0.5, 0.99, 1.0))
    return (
        f"Of {messages(whole.messages)} that {were(whole.messages)} run successfully, half took at most {half} from the record’s "
        f"timestamp on, 99 % at most {most}, and the longest {last}.{early}"
    )


def _description(each: Latency) -> str:
    half, tail, last = (duration(each.percentile(share)) for share in (0.5, 0.99, 1.0))
    return f"{messages(each.messages)}: half took more than {half}, 1 % more than {tail}, none more than {last}."
