"""What the contenders of `benchmarks.concurrency` are told beside their task: how long a handler waits, and how many may run at a time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from benchmarks.contenders.meter import Meter, Task


class AtOnce(NamedTuple):
    """`how` is the contender's own word for its shape."""

    how: str
    wait: float
    """Seconds that a handler waits, as for a service."""
    width: int
    """Handlers that may run at a time."""


def at_once(task: Task) -> AtOnce:
    """What the variant says, such as `key 20 16`: by key, 20 ms, 16 at a time."""
    how, wait_ms, width = task.variant.split()
    return AtOnce(how, float(wait_ms) / 1000, int(width))


async def wait_and_count(meter: Meter, wait: float) -> bool:
    """The handler: wait, count; returns whether this was the last message."""
    await asyncio.sleep(wait)
    return meter.count(1)
