"""`ReconcileConfig`: the times and tolerances of a reconciliation."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields

from ackwise.middleware.errors import ConfigurationError

__all__ = ["ReconcileConfig"]


@dataclass(frozen=True, slots=True)
class ReconcileConfig:
    """Durations are seconds, times seconds since 1970 (UTC). What is `None` comes from the events themselves.

    Raises `ConfigurationError` for a value that can't work.
    """

    as_of: float | None = None
    """Ages are measured against this; without it, against the newest event of the slowest writer that lives."""
    since: float | None = None
    """Only what has happened since is judged, and what was still open then; without it, everything."""
    grace: float = 60.0
    """Time that a message may be overdue or expired before it counts as lost or stuck."""
    lateness: float = 0.0
    """Time by which an event may come late; younger anomalies are provisional."""
    writer_timeout: float = 600.0
    """A writer that is silent for longer, behind the newest event, is dead."""
    lease: float | None = None
    retention: float | None = None
    """Time that the claim store remembers a key that is done."""
    levels: tuple[float, ...] | None = None
    """Delays of levels 1, 2, …; used only where an event has no due time of its own."""
    listed: int = 50
    """Most anomalies, and most messages in doubt, that the report lists; the tables have all of them."""
    verify_sample: int = 0
    """Number of messages that the reference judges again, in the memory of the driver."""
    strict: bool = False
    """Whether messages that were run again, or may have been, make the exit code 1 without an anomalous verdict."""

    plan_provisional: bool = False
    """Whether the repair plan has steps for messages that are PROVISIONAL, too."""
    verdict_rows: bool = False
    """Whether the table of verdicts has a row for every message, and that of ranges none."""

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits, the same for the same configuration, to compare two runs by."""
        # Only what is not the default, so that a later version, which may know more, gives the same.
        changed = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    def __post_init__(self) -> None:
        for field in fields(self):
            for value in _numbers(getattr(self, field.name)):
                if not math.isfinite(value) or value < 0:
                    raise ConfigurationError(f"{field.name} of the reconciliation is {value}; it must be a number, 0 or more")


def _numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, int | float) else ()
