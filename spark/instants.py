"""Times of events, in microseconds, as dates: also those of clocks that say no year that there can be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["as_datetime"]

#: The years 1 and 9999, which a date can have; seconds.
_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0


def as_datetime(micros: float) -> datetime:
    """Return the date and time in UTC; one outside the years 1 to 9999 is the nearest within."""
    return datetime.fromtimestamp(min(max(micros / 1_000_000, _FIRST), _LAST), UTC)
