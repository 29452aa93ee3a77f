"""Calls of a client that may never answer, or be cancelled from inside of it: none of them holds anybody up, or passes for our own end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

__all__ = ["answer"]

T = TypeVar("T")

#: What was given up and has not ended; the event loop itself would forget such a task.
_LEFT: Final[set[asyncio.Task[Any]]] = set()


async def answer(call: Coroutine[Any, Any, T], *, within: float) -> T:
    """What `call` answers.

    Raises what it raises, `KafkaTimeoutError` after `within` seconds, and `KafkaConnectionError` if it was cancelled though nobody
    here asked for that. A call that was given up is cancelled, and not waited for: it may not end either.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=within)
    finally:
        if not task.done():
            task.cancel()
            _LEFT.add(task)
            task.add_done_callback(_forget)
    if not task.done():
        raise KafkaTimeoutError(f"no answer within {within:g} s")
    if task.cancelled():
        raise KafkaConnectionError("the client gave up a call of its own")
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    _LEFT.discard(task)
    if not task.cancelled():
        task.exception()  # nobody waits for it any more, and asyncio need not say so
