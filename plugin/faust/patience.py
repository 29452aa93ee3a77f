"""Waiting for brokers that are away while a worker starts: Faust would give up at the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka.errors import KafkaConnectionError

from ackwise.middleware.log import Log, said
from ackwise.plugin.client.rarely import Rarely

__all__ = ["insist"]

log = Log()

#: Seconds until brokers that are away are looked for again.
_AGAIN: Final = 1.0


async def insist(start: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]], *, group: str) -> None:
    """Await `start`, again after `undo` while the brokers are away. A stop of the worker cancels it."""
    rarely = Rarely()
    while True:
        try:
            await start()
            return
        except KafkaConnectionError as error:
            if rarely.is_due("start"):
                log.warning("the brokers are away, the worker of Faust waits for them", group=group, error=said(error), retry_in=_AGAIN)
        await undo()
        await asyncio.sleep(_AGAIN)
