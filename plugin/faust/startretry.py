"""Start of a worker while brokers are away: it waits for them, where Faust would give up at the first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, UnknownError

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.opening import first_connection_closed

__all__ = ["create", "insist"]

log = Log()

#: Seconds until brokers that are away are looked for again.
_AGAIN: Final = 1.0

#: Seconds that a topic may take; Faust says 30,000.
_CREATE: Final = 30.0

#: Errors that aiokafka does not call retriable, and that may be over the next time.
_PASSING: Final = (KafkaConnectionError, KafkaTimeoutError, UnknownError)


async def insist(start: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]], *, group: str, limit: float = 0.0) -> None:
    """Await `start`, again after `undo` while the brokers are away. A stop of the worker cancels it.

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
                    f"the brokers of app {group!r} are away for longer than start_timeout, {limit:g} s ({said(error)}); check the app's "
                    "broker, or wait for longer"
                ) from error
            if throttle.is_due("start"):
                log.warning(
                    "the brokers are away, the worker of Faust waits for them",
                    group=group,
                    error=said(error),
                    at_most=limit or None,
                    retry_in=_AGAIN,
                )
        await undo()
        await asyncio.sleep(_AGAIN)


async def create(really: Callable[..., Awaitable[object]], *args: Any, within: float = _CREATE, **options: Any) -> None:
    """Create a topic as Faust does with `really`. Raise `KafkaConnectionError` for what may pass, and whatever else it raises.

    Faust lets others wait for the same topic, and for ever where its own attempt ends with an error.
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
