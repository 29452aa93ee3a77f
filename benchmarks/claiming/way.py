"""`Way`: one way to claim and complete messages, and how a turn of it is measured."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

BASE: Final = "classic"
"""Whom all others are compared with: a message at a time, as people write it."""

Step = Callable[[], Awaitable[int]]
"""Handles some messages, each from its claim to its completion, and returns how many; one task calls it again and again."""


class Way(NamedTuple):
    """`opened` connects, gives the step, and disconnects; `tasks` call the step at the same time."""

    name: str
    opened: Callable[[], AbstractAsyncContextManager[Step]]
    tasks: int = 1


class Turn(NamedTuple):
    """One turn, in microseconds per message; `cpu` is this process's alone, without the server's."""

    wall: float
    cpu: float


async def take(way: Way, seconds: float) -> Turn:
    """Call the step for `seconds`; what is under way then is finished and counts. Connecting and the first two calls do not count."""
    async with way.opened() as step:
        for _ in range(2):
            await asyncio.gather(*(step() for _ in range(way.tasks)))
        gc.collect()
        started, used = time.perf_counter(), time.process_time()
        handled = await asyncio.gather(*(_until(step, started + seconds) for _ in range(way.tasks)))
        share = 1e6 / sum(handled)
        return Turn((time.perf_counter() - started) * share, (time.process_time() - used) * share)


async def _until(step: Step, end: float) -> int:
    handled = await step()
    while time.perf_counter() < end:
        handled += await step()
    return handled
