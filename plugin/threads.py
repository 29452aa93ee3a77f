"""Handlers that are plain functions: each call runs in a thread of a bounded pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from ackwise.middleware.agent import MOST_THREADS

__all__ = ["Threaded"]


class Threaded:
    """Calls `function` in a thread. A thread can't be cancelled: whoever cancels a call waits until it has ended all the same."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self.__wrapped__ = function
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix=f"ackwise {name}")  # starts a thread when it needs one

    async def __call__(self, argument: Any) -> Any:
        in_thread = self._pool.submit(copy_context().run, self._call, argument)
        call = asyncio.wrap_future(in_thread)
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError:
                if in_thread.cancel():  # no thread has begun with it
                    raise
        return call.result()

    def _call(self, argument: Any) -> Any:
        try:
            return self.__wrapped__(argument)
        except StopIteration as error:  # no future takes one, and whoever waits would wait for ever; a coroutine turns it into this too
            raise RuntimeError("the handler raised StopIteration") from error
