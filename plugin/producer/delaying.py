"""Delaying: when a message that is sent for later is due. Pure."""

from __future__ import annotations

import datetime

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError

__all__ = ["due_of"]


def due_of(delay: float | str | None, at: datetime.datetime | float | None, now: float) -> int | None:
    """Epoch milliseconds, or `None` for at once; `now` is epoch seconds. Raises `ConfigurationError` for what can't be told."""
    if delay is not None and at is not None:
        raise ConfigurationError("delay= and at= were both given; give one of them")
    if delay is not None:
        return round((now + parse_duration(delay, what="delay")) * 1000)
    match at:
        case None:
            return None
        case datetime.datetime():
            if at.tzinfo is None:
                raise ConfigurationError(
                    f"at is {at.isoformat()} without a time zone; give an aware datetime, such as datetime.now(UTC) + …"
                )
            return round(at.timestamp() * 1000)
        case int() | float() if not isinstance(at, bool) and at >= 0:
            return round(at * 1000)
    raise ConfigurationError(f"at is {at!r}; give an aware datetime, or seconds since the epoch")
