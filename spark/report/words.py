"""Numbers, durations and times in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from ackwise.spark.instants import as_datetime
from ackwise.spark.report.timeline import Buckets
from ackwise.spark.vocabulary import Verdict

__all__ = [
    "are",
    "clock",
    "counted",
    "date",
    "duration",
    "hexadecimal",
    "instant",
    "late",
    "listed",
    "messages",
    "moment",
    "span_of",
    "were",
]

_SECOND: Final = 1_000_000
_MINUTE, _HOUR, _DAY = 60 * _SECOND, 3600 * _SECOND, 86400 * _SECOND


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 key` and `2,000 keys`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def messages(number: int) -> str:
    """Return a number of messages in words."""
    return counted(number, "message")


def are(number: int) -> str:
    """Return `is` or `are`."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """Return `was` or `were`."""
    return "was" if number == 1 else "were"


def listed(numbers: Mapping[Verdict, int]) -> str:
    """Return verdicts with their numbers, such as `LOST 2, STUCK 1`."""
    return ", ".join(f"{verdict.name} {number:,}" for verdict, number in numbers.items())


def duration(micros: int) -> str:
    """Return a duration in two units at most: `430 ms`, `2.5 s`, `3 min 5 s`, `4 h`, `2 d 6 h`."""
    if micros < _SECOND:
        return f"{micros / 1000:.0f} ms"
    if micros < _MINUTE:
        return f"{micros / _SECOND:.1f}".removesuffix(".0") + " s"
    if micros < _HOUR:
        return _two_units(micros // _SECOND, 60, "min", "s")
    if micros < _DAY:
        return _two_units(micros // _MINUTE, 60, "h", "min")
    return _two_units(micros // _HOUR, 24, "d", "h")


def late(milliseconds: int) -> str:
    """Return a lateness, with a minus if it was early."""
    return f"-{duration(-milliseconds * 1000)}" if milliseconds < 0 else duration(milliseconds * 1000)


def hexadecimal(writer_id: int) -> str:
    """Return the number of a writer as in the names of its files."""
    return f"{writer_id & (2**64 - 1):016x}"


def instant(micros: int) -> str:
    """Return date and time, in UTC."""
    return f"{_at(micros):%Y-%m-%d %H:%M:%S} UTC"


def date(micros: int) -> str:
    """Return the day, in UTC."""
    return f"{_at(micros):%Y-%m-%d}"


def clock(micros: int) -> str:
    """Return the time of day, in UTC."""
    return f"{_at(micros):%H:%M:%S}"


def moment(micros: int, step: int, *, with_day: bool) -> str:
    """Return one of many moments that are `step` microseconds apart, as exact as it takes to distinguish them."""
    at = _at(micros)
    if with_day:
        return f"{at:%Y-%m-%d}" if step >= _DAY else f"{at:%Y-%m-%d %H:%M}"
    if step >= _MINUTE:
        return f"{at:%H:%M}"
    return f"{at:%H:%M:%S}" if step >= _SECOND else f"{at:%H:%M:%S}.{at.microsecond // 100_000}"


def span_of(time: Buckets) -> tuple[str, str, str]:
    """Return the labels below the beginning, the middle and the end of a row of buckets."""
    starts = [time.begin + place * time.width // 2 for place in (0, time.number, 2 * time.number)]
    with_day = starts[-1] - starts[0] > _DAY
    begin, middle, end = (moment(start, time.width, with_day=with_day) for start in starts)
    return begin if with_day else f"{date(starts[0])} {begin}", middle, end


def _two_units(number: int, size: int, unit: str, smaller: str) -> str:
    whole, rest = divmod(number, size)
    return f"{whole:,} {unit} {rest} {smaller}" if rest else f"{whole:,} {unit}"


def _at(micros: int) -> datetime:
    return as_datetime(micros)
