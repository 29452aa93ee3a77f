"""`Watchdog`: ends a process that hangs after a stop; `collect_rarely`: sets how often Python searches for cycles."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see `_at_the_end_of_main`
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from ackwise.middleware.log import Log
from ackwise.middleware.usercode import is_a, looked, plain

#: Objects made between two searches for garbage cycles. With Python's own 700 a batch of 500 is searched six times while it is
#: worked on, which takes a third of the time per message (`docs/benchmarks.md`).
_YOUNG_OBJECTS: Final = 20_000


def collect_rarely() -> None:
    """From now on. Who has switched the collector off, or made it rarer still, keeps that."""
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG_OBJECTS:
        gc.set_threshold(_YOUNG_OBJECTS, *older)


log = Log()


class Watchdog:
    """Ends the process in its own thread once its time is over, whatever the others do. `leave` is given the exit code."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float, code: int | Callable[[], int]) -> None:
        """End the process with `code`, or what it returns then, after `seconds`, unless it has ended or is armed again."""
        self.disarm()
        self._timer = threading.Timer(seconds, self._end, (seconds, code))
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """End nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, seconds: float, code: int | Callable[[], int]) -> None:
        _end(seconds, code if isinstance(code, int) else code(), self._leave)


class AtExit:
    """Ends the process if threads keep it after its main thread has ended; who still has something to do there does it in peace."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._asked: tuple[float, int] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self, seconds: float, code: int) -> None:
        """End the process with `code` `seconds` after its main thread, if it has not ended. The last call counts."""
        self._asked = seconds, code
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="ackwise exit", daemon=True)
            self._thread.start()
            _at_the_end_of_main(self._is_over.set)

    def disarm(self) -> None:
        """End nothing."""
        self._asked = None

    def _watch(self) -> None:
        self._is_over.wait()
        if (asked := self._asked) is not None:
            time.sleep(asked[0])
            _end(*asked, self._leave)


#: That of this process.
AT_EXIT: Final = AtExit()


def code_of(error: BaseException) -> int:
    """Return the code that a process exits with which `error` ends."""
    if is_a(error, SystemExit):
        code = plain(looked(lambda: cast(SystemExit, error).code, otherwise=1))
        return code if type(code) is int else int(code is not None)
    return 130 if is_a(error, KeyboardInterrupt) else 1


def _at_the_end_of_main(call: Callable[[], object]) -> None:
    """Do `call` when the main thread has ended, before the interpreter waits for others.

    `atexit` comes after those, and so does the end of a `join` of the main thread where an executor's hang. Executors use this, and it is
    asked the other way round than it was told: so they must have told it before.
    """
    threads: Any = threading
    threads._register_atexit(call)


def _end(seconds: float, code: int, leave: Callable[[int], object]) -> None:
    log.error("process did not end in time", seconds=seconds, code=code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    leave(code)
