"""Ends a process that was asked to stop and does not: a thread or a task that hangs would keep it for ever."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from ackwise.middleware.log import Log

__all__ = ["Watchdog"]

log = Log()


class Watchdog:
    """Ends the process in its own thread once its time is over, whatever the others do. `leave` is given the exit code."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float, code: int) -> None:
        """End the process with `code` in so many seconds, unless it has ended or is armed anew."""
        self.disarm()
        self._timer = threading.Timer(seconds, self._end, (seconds, code))
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """End nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, seconds: float, code: int) -> None:
        log.error("the process did not end in time, what hangs is cut off; nothing unsettled is committed", seconds=seconds, code=code)
        with suppress(Exception):
            sys.stderr.flush()
        self._leave(code)
