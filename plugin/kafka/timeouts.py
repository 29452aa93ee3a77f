"""Bounded calls: a client that never answers, or cancels from inside, delays no other call and does not look like our own end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

T = TypeVar("T")

#: What was given up and has not ended; the event loop itself would forget such a task.
_LEFT: Final[set[asyncio.Future[Any]]] = set()


def is_asked_to_end() -> bool:
    """Return whether the current task was cancelled. If not, a cancellation comes from inside of what it called."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def answer(call: Coroutine[Any, Any, T] | asyncio.Future[T], *, within: float) -> T:
    """Return what `call` returns.

    Raises what it raises, `KafkaTimeoutError` after `within` seconds, and `KafkaConnectionError` if it was cancelled although no caller
    here asked for that. A call that was given up is cancelled, and not waited for: it may not end either.
    """
    task = asyncio.ensure_future(call)
    if not await _wait(task, within):
        raise KafkaTimeoutError(f"no answer within {within:g} s")
    if task.cancelled():
        raise KafkaConnectionError("the client gave up its own call")
    return task.result()


async def ended(work: Awaitable[object], *, within: float) -> bool:
    """Return whether `work` ended in that time (seconds); otherwise it is cancelled, and left behind. Raises what it raises."""
    task = asyncio.ensure_future(work)
    if not await _wait(task, within) or task.cancelled():
        return False
    task.result()
    return True


async def until(stop: asyncio.Event, work: Awaitable[T], *, grace: float) -> tuple[T] | None:
    """Return what `work` returns, in a tuple; `None` if `stop` was set first, and it did not end within `grace` seconds of that.

    Raises what it raises; what did not end is cancelled and left behind.
    """
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _wait(task, 0.0)
        raise
    finally:
        stopping.cancel()
    if not await _wait(task, grace) or (task.cancelled() and stop.is_set()):
        return None
    return (task.result(),)


async def _wait(task: asyncio.Future[Any], within: float) -> bool:
    """Return whether it is done; it is cancelled and left behind if it is not."""
    try:
        await asyncio.wait({task}, timeout=within)
    finally:
        if not (done := task.done()):
            task.cancel()
            _LEFT.add(task)
        task.add_done_callback(_forget)  # also where it is done and its waiter was cancelled in the same moment
    return done


def _forget(task: asyncio.Future[Any]) -> None:
    _LEFT.discard(task)
    if not task.cancelled():
        task.exception()  # it is abandoned, and asyncio need not warn
