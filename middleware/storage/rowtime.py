"""`Timing`: when a row of an outbox is sent, and until when it may be; `timing_of` makes it of what users write. Pure."""

from __future__ import annotations

import datetime
import time
from typing import Final, NamedTuple

from ackwise.middleware.duration import parse_duration, parse_instant
from ackwise.middleware.errors import ConfigurationError

Delay = float | str | None
"""Seconds, or a text such as `"5m"`."""
At = datetime.datetime | float | None
"""An aware datetime, or epoch seconds."""
Expires = datetime.datetime | float | str | None
"""Seconds or a text such as `"5m"`, or an aware datetime."""


class Timing(NamedTuple):
    """Epoch seconds; below 0, seconds after the row is written, or after the commit of a half message. `None`: no such time."""

    due: float | None = None
    """It is sent then, outside of the order of its key."""
    expires: float | None = None
    """If no send of it has started by then, it is never sent."""


AT_ONCE: Final = Timing()


def timing_of(delay: Delay = None, at: At = None, expires: Expires = None) -> Timing:
    """Return the times of a row; a `delay` of 0 is none. Raises `ConfigurationError` for what can't be told, or could never be sent."""
    if delay is None and at is None and expires is None:
        return AT_ONCE
    if delay is not None and at is not None:
        raise ConfigurationError("delay= and at= were both given; give one of them")
    due = -parse_duration(delay, what="delay") or None if delay is not None else _instant(at, "at")
    until = _expiry(expires)
    if due is not None and until is not None and (due < 0) == (until < 0) and abs(until) <= abs(due):
        raise ConfigurationError(
            "expires is not after the time that delay= or at= say, so the message would never be sent; give a later one"
        )
    return Timing(due, until)


def _expiry(expires: Expires) -> float | None:
    if expires is None or isinstance(expires, datetime.datetime):
        return _instant(expires, "expires")
    seconds = parse_duration(expires, what="expires")
    if not seconds:
        raise ConfigurationError("expires is 0 s, so the message would never be sent; give the time until then, such as '5m'")
    return -seconds


def _instant(given: At, what: str) -> float | None:
    if given is None:
        return None
    instant = parse_instant(given, what=what)
    parse_duration(max(0.0, instant - time.time()), what=f"the time until {what}")
    return instant
