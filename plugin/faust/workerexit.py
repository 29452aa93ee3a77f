"""Exit of a worker process of Faust: it comes soon after it was asked for, whatever hangs.

Faust waits for its consumer, its producer and its streams, for as long as they take: with a broker that does not answer a minute
and a half, now and then for ever.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.log import Log
from ackwise.plugin.faust.internals import has_crashed

if TYPE_CHECKING:
    import faust

__all__ = ["bound"]

log = Log()

#: Seconds after the drain in which a worker is to come to its end in order; a second more and it has ended.
_IN_ORDER: Final = 9.0


def bound(app: faust.App, drain_timeout: Callable[[], float], *, end: Callable[[int], Any] = os._exit) -> None:
    """Let `app.stop()` end the worker process, if it has not ended `drain_timeout` and some seconds later. A crash stops the app as well.

    What was settled is durable by then, and what was not comes again, as after any other end.
    """
    anything: Any = app
    stop, is_bounded = anything.stop, False

    async def stopping() -> None:
        nonlocal is_bounded
        if anything.in_worker and not is_bounded:
            is_bounded = True  # `should_stop` would not do: it is true already where the app has crashed
            seconds = drain_timeout() + _IN_ORDER
            timer = threading.Timer(seconds, _end, (app, seconds, end))
            timer.daemon = True
            timer.start()
        await stop()

    anything.stop = stopping


def _end(app: faust.App, seconds: float, end: Callable[[int], Any]) -> None:
    anything: Any = app
    log.error("the worker did not come to its end in time, the process is ended", group=anything.conf.id, seconds=seconds)
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    end(1 if has_crashed(app) else 0)
