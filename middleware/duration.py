"""Durations as people write them: `30`, `"30s"`, `"500ms"`, `"2h"`; seconds as float everywhere inside."""

from __future__ import annotations

import math
import re

from ackwise.middleware.errors import ConfigurationError

__all__ = ["format_duration", "parse_duration"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def parse_duration(value: float | str, *, what: str = "duration") -> float:
    """Seconds of `value`, a number of seconds or a text such as `"1m"`.

    Raises `ConfigurationError`, naming `what`, for anything negative, infinite or unreadable.
    """
    if isinstance(value, str):
        match = _PATTERN.fullmatch(value.strip().lower())
        if match is None:
            raise ConfigurationError(f"{what} is {value!r}, which is not a duration; write it as 30, '30s', '500ms' or '2h'")
        return float(match[1]) * _UNITS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigurationError(f"{what} is {value!r}; it must be a finite number of seconds, 0 or more, or a text such as '30s'")
    return float(value)


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back: `10.0` is `"10s"`, `7200.0` is `"2h"`."""
    for unit in ("h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    if seconds < 1 and round(seconds * 1000, 6) == int(round(seconds * 1000, 6)):
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:g}s"
