"""Start and exit of a Faust worker. A start waits for unavailable brokers; an exit is bounded in time.

Faust gives up at the first unavailable broker. At its exit it waits for consumer, producer and streams without a bound: up to 90 seconds
if a broker does not answer, sometimes forever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, UnknownError

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.plugin.faust.faustinternals import has_crashed
from ackwise.plugin.kafka.clients import first_connection_closed
from ackwise.plugin.kafka.timeouts import answer

if TYPE_CHECKING:
    import faust


log = Log()

#: Seconds until brokers that are unavailable are looked for again.
_AGAIN: Final = 1.0

#: Seconds that a topic may take; Faust says 30,000.
_CREATE: Final = 30.0

#: Errors that aiokafka does not call retriable, and that may be over the next time.
_PASSING: Final = (KafkaConnectionError, KafkaTimeoutError, UnknownError)


async def insist(start: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]], *, group: str, limit: float = 0.0) -> None:
    """Await `start`, again after `undo` while the brokers are unavailable. A stop of the worker cancels it.

    Raise `Unavailable` where that lasts for longer than `limit` seconds; 0 is for as long as it takes.
    """
    throttle, now = LogThrottle(), asyncio.get_running_loop().time
    begun = now()
    while True:
        try:
            with first_connection_closed():
                await start()
            return
        except KafkaConnectionError as error:
            if limit and now() + _AGAIN > begun + limit:
                raise Unavailable(
                    f"the brokers of app {group!r} are unavailable after start_timeout, {limit:g} s ({said(error)}); check the app's "
                    "broker, or wait for longer"
                ) from error
            if throttle.is_due("start"):
                log.warning(
                    "Faust worker waits for the brokers",
                    group=group,
                    error=said(error),
                    at_most=limit or None,
                    retry_in=_AGAIN,
                )
        await undo()
        await asyncio.sleep(_AGAIN)


async def create(really: Callable[..., Awaitable[object]], *args: Any, within: float = _CREATE, **options: Any) -> None:
    """Create a topic as Faust does with `really`. Raise `KafkaConnectionError` for what may pass, and whatever else it raises.

    Faust lets others wait for the same topic, and forever where its own attempt ends with an error.
    """
    try:
        await answer(_awaited(really(*args, **options)), within=within)
    except KafkaError as error:
        if error.retriable or type(error) in _PASSING:
            raise KafkaConnectionError(f"a topic could not be created now: {said(error)}") from error
        raise
    except (RuntimeError, AssertionError) as error:  # another broker is the controller now; an answer without the topic
        raise KafkaConnectionError(f"a topic could not be created now: {type(error).__name__}") from error


async def _awaited(made: Awaitable[object]) -> object:
    return await made


#: Seconds after the drain in which a worker is to end in order; a second more and it has ended.
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
    log.error("process ended after the stop deadline", group=anything.conf.id, seconds=seconds)
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    end(1 if has_crashed(app) else 0)
