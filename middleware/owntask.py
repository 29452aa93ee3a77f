"""Runs a user's coroutine function in its own task, so that a cancellation inside it affects no other call.

A task that has run user code can't be trusted to know whether it was cancelled; the task that awaits it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ackwise.middleware.usercode import Called, Raised, awaited


def in_a_task(function: Callable[..., Any], *arguments: Any) -> tuple[asyncio.Task[None], list[Called]]:
    """Call like `awaited`, in its own task, so that a cancellation inside it affects no other call.

    Returns the task, which raises nothing, and a list that has what the call came to, once it did.
    """
    found: list[Called] = []

    async def call() -> None:
        found.append(await awaited(function, *arguments))

    return asyncio.ensure_future(call()), found


async def ended(task: asyncio.Task[None]) -> bool:
    """Wait until `task` has ended; what cancels this cancels it. Returns whether something did: `task` itself may say anything."""
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
            task.cancel()
    return is_cancelled


def outcome_of(found: list[Called]) -> Called:
    """Return the outcome of a call in its own task; `CancelledError` if it was cancelled before it started."""
    return found[0] if found else Raised(asyncio.CancelledError())
