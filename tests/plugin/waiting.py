"""Waiting for a fact that nobody tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(is_so: Callable[..., object]) -> None:
    """Wait until `is_so`, a minute at most."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
