"""Durations as people write them: `30`, `"30s"`, `"500ms"`, `"2h"`; seconds as float everywhere inside."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Any

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.usercode import plain, shown

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?")

#: Seconds in a hundred years: the upper bound, so that every time that is computed from it stays in range.
_LONGEST = 100 * 365 * 86400.0


def parse_duration(value: float | str, *, what: str = "duration") -> float:
    """Seconds of `value`, a number of seconds or a text such as `"1m"`.

    Raises `ConfigurationError`, naming `what`, for anything negative, unreadable or above a hundred years.
    """
    seconds: Any = plain(value)
    if type(seconds) is str:
        match = _PATTERN.fullmatch(seconds.strip().lower())
        if match is None:
            raise ConfigurationError(f"{what} is {seconds!r}, which is not a duration; write it as 30, '30s', '500ms' or '2h'")
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST:
        raise ConfigurationError(
            f"{what} is {shown(value, repr)}; it must be from 0 to 100 years: a number of seconds, or a text such as '30s'"
        )
    return float(seconds)


def parse_instant(at: datetime.datetime | float, *, what: str = "at") -> float:
    """Epoch seconds of `at`, an aware datetime or epoch seconds. Raises `ConfigurationError`, naming `what`, for anything else."""
    match at:
        case datetime.datetime():
            if at.tzinfo is None:
                raise ConfigurationError(
                    f"{what} is {at.isoformat()} without a time zone; give an aware datetime, such as datetime.now(UTC) + …"
                )
            return at.timestamp()
        case int() | float() if not isinstance(at, bool) and at >= 0:
            return float(at)
    raise ConfigurationError(f"{what} is {at!r}; give an aware datetime, or seconds since the epoch")


def format_duration(seconds: float) -> str:
    """A text that `parse_duration` reads back exactly: `10.0` is `"10s"`, `7200.0` is `"2h"`, `0.5` is `"500ms"`."""
    for unit in ("h", "m", "s", "ms"):
        count = round(seconds / _UNITS[unit])
        if count and count * _UNITS[unit] == seconds:
            return f"{count}{unit}"
    return f"{Decimal(repr(seconds)):f}s"  # without an exponent
