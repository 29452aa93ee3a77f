"""Waiting for a fact that nobody tells of."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

#: Seconds until a fact counts as one that never comes: far more than a busy machine needs. A twin makes tests wait for what never comes.
PATIENCE: Final = 10.0 if "SABOTAGE_COPY" in os.environ else 60.0

#: Looks between which other tasks take one step each. What takes longer is another process, or time.
_QUICK: Final = 5000


async def until(
    look: Callable[[], Any],
    holds: Callable[[Any], object] = bool,
    *,
    step: float = 0.01,
    within: float = PATIENCE,
    by: asyncio.Task[Any] | None = None,
) -> Any:
    """Return what `look` finds, once that `holds`. `look` may be a coroutine function; `step`: seconds between two later looks.

    Raises what `by` raised, which was to bring it about.
    """
    number = 0
    async with asyncio.timeout(within):
        while True:
            found = look()
            if inspect.isawaitable(found):
                found = await found
            if holds(found):
                return found
            if by is not None and by.done():
                by.result()
            await asyncio.sleep(step if number > _QUICK else 0)
            number += 1


def queued() -> float:
    """Seconds for which this thread was ready and waited for a core, since it started: what a busy machine has taken from a test."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9


async def turns(number: int = 60) -> None:
    """Let all other tasks go on by so many steps."""
    for _ in range(number):
        await asyncio.sleep(0)
