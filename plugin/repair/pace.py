"""`Pace`: how many copies are sent together, and per second."""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["Pace"]

#: Records that are looked up, asked about and sent together.
_PORTION: Final = 100


class Pace:
    """Not more than so many copies per second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._since = time.monotonic()
        self._sent = 0
        self.portion = min(_PORTION, max(1, round(rate)))

    async def wait(self, sent: int, stop: asyncio.Event | None) -> None:
        """Wait until so many more may have been sent, or until `stop`."""
        self._sent += sent
        ahead = self._since + self._sent / self._rate - time.monotonic()
        if ahead > 0 and sent:
            try:
                async with asyncio.timeout(ahead):
                    await (stop or asyncio.Event()).wait()
            except TimeoutError:
                pass
