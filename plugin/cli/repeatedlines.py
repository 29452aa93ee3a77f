"""Repeated lines of the Kafka client, thinned out: a deleted topic makes it log thousands a second."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["AWAY_WITHIN", "WITHIN", "Repeats"]

#: Seconds in which the same line is printed once.
WITHIN: Final = 10.0

#: Seconds in which one line is printed of all that say that a broker does not answer: while it is away they come by the hundred.
AWAY_WITHIN: Final = 60.0

#: How those lines begin, before anything is put into them.
_AWAY: Final = (
    "Unable connect to",
    "Unable to request metadata",
    "Unable to update metadata",
    "Failed fetch messages from",
    "Failed fetch offsets from",
    "Group Coordinator Request failed",
    "FindCoordinator Request failed",
    "Heartbeat send request failed",
    "Heartbeat session expired",
    "Heartbeat failed for group %s: coordinator",
    "Marking the coordinator dead",
    "Error sending",
    "LeaveGroup request failed",
    "Got error produce response",
    "Could not send",
)

_REMEMBERED: Final = 1000  # different lines; the oldest are forgotten first, and may then be printed again


@dataclass(slots=True)
class _Line:
    printed: float
    left_out: int = 0


class Repeats(logging.Filter):
    """Lets the same line of the client's loggers through once in `WITHIN` seconds, with how many were left out before it.

    All that say that a broker is away are one line, once in `AWAY_WITHIN`.

    For a handler: a filter of a logger does not see what the loggers below it say. Lines of other loggers pass. `now`
    is a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__("aiokafka")
        self._now = now
        self._lines: OrderedDict[tuple[str, int, str], _Line] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is printed; one that others were left out before says so at its end."""
        if not super().filter(record):
            return True
        now, message = self._now(), record.getMessage()
        is_away = str(record.msg).startswith(_AWAY)
        key, within = (("aiokafka", 0, ""), AWAY_WITHIN) if is_away else ((record.name, record.levelno, message), WITHIN)
        line = self._lines.pop(key, None)
        if line is not None and now < line.printed + within:
            line.left_out += 1
            self._lines[key] = line
            return False
        if line is not None and line.left_out:
            record.msg, record.args = f"{message} (left out since it was last printed: {line.left_out:,})", ()
        self._lines[key] = _Line(now)
        if len(self._lines) > _REMEMBERED:
            self._lines.popitem(last=False)
        return True
