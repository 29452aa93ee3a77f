"""`connect`: a connection of asyncpg, whose making is not cut short.

A caller that is cancelled goes at once, and the connection that was on its way is given up when it is there. Cut short, asyncpg leaves
a future behind that nobody looks at (`TLSUpgradeProto.on_data`), and the event loop logs "Future exception was never retrieved".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg

__all__ = ["connect"]

#: What is being made for callers that have gone; the event loop itself keeps no tasks alive.
_LEFT: Final[set[asyncio.Task[Any]]] = set()


async def connect(*args: Any, **options: Any) -> Any:
    """As `asyncpg.connect`, which ends by its own timeout."""
    making = asyncio.create_task(_made(args, options), name="ackwise connects to PostgreSQL")
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        _LEFT.add(making)
        making.add_done_callback(_give_up)
        raise


async def _made(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return await asyncpg.connect(*args, **options)


def _give_up(made: asyncio.Task[Any]) -> None:
    _LEFT.discard(made)
    if not made.cancelled() and made.exception() is None:
        made.result().terminate()
