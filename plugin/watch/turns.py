"""Turns of the event loop that is watched: pages are served from another thread, and say so while the loop does not turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from aiohttp.web import Request

from ackwise.middleware.log import Log
from ackwise.middleware.watch import Watch
from ackwise.plugin.pages.server import Answer, Page, bound
from ackwise.plugin.watch.server import WatchServer

__all__ = ["LONGEST_TURN", "Turns"]

log = Log()

T = TypeVar("T")

#: Seconds between two turns of the loop that are noted, and for which it may not turn until the process counts as dead.
_TURN, LONGEST_TURN = 0.5, 30.0

#: Seconds that a page waits for the loop.
_PATIENCE: Final = 5.0


class Turns:
    """The turns of the loop that pages are served about."""

    def __init__(self) -> None:
        self.turned_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop

    @property
    def still_for(self) -> float:
        """Seconds since it turned last."""
        return time.monotonic() - self.turned_at

    @asynccontextmanager
    async def served(self, policy: Watch, group: str, pages: Mapping[str, Page]) -> AsyncIterator[None]:
        """With `pages` served about the loop that this is called in. Raises `ConfigurationError` if they can't be served."""
        self._loop = asyncio.get_running_loop()
        listening = bound(policy.host, policy.port)
        host, port = listening.getsockname()[:2]
        turning = asyncio.create_task(self._turn(), name="ackwise watch")
        server = WatchServer(pages, listening)
        server.start()
        log.info("watched", group=group, address=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        try:
            yield
        finally:
            await server.close()
            turning.cancel()
            await asyncio.wait({turning})

    async def _turn(self) -> None:
        while True:
            self.turned_at = time.monotonic()
            await asyncio.sleep(_TURN)

    # These run in the thread of the server.

    async def live(self, request: Request) -> Answer:
        """The page that says whether the loop turns."""
        if (for_seconds := self.still_for) <= LONGEST_TURN:
            return Answer(f"live: the event loop turned {for_seconds:.1f} s ago\n".encode())
        return Answer(f"not live: the event loop has not turned for {for_seconds:.0f} s; a handler blocks it\n".encode(), status=503)

    async def ask(self, call: Coroutine[Any, Any, T]) -> T | None:
        """What `call` returns in the loop that is watched; `None` if that does not turn."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop)), _PATIENCE)
        except TimeoutError:
            return None
