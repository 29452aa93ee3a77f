"""Times and durations as the options of commands take them."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError

__all__ = ["begin_of", "time_of"]


def begin_of(since: str, as_of: str | None) -> float:
    """Return a time in seconds since 1970, from a time or from a duration before `as_of` or now. Raises `ConfigurationError`."""
    with suppress(ValueError):
        datetime.fromisoformat(since)
        return time_of(since)
    try:
        back = parse_duration(since)
    except ConfigurationError:
        raise ConfigurationError(
            f"--since is {since!r}, which is no time and no duration; write it as 2026-01-31T12:00:00Z or 1d"
        ) from None
    return max(0.0, (time.time() if as_of is None else time_of(as_of)) - back)


def time_of(text: str) -> float:
    """Return an ISO 8601 time in seconds since 1970; without a zone it is UTC. Raises `ConfigurationError`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--as-of is {text!r}, which is no time; write it as 2026-01-31T12:00:00Z") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
