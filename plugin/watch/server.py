"""Server of the pages of one worker: in a thread with an event loop of its own, so that a page is answered whatever the worker does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from aiohttp import web

from ackwise.middleware.log import Log
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.pages.server import Answer, Page, application, serving

__all__ = ["WatchServer"]

log = Log()

#: Seconds that a connection lasts at most, from its first byte to the last one of the answer.
_LONGEST: Final = 10.0

#: Seconds for the thread to end.
_STOP: Final = 2.0


class WatchServer:
    """Answers requests for `pages`, by path, that come to `listening`."""

    def __init__(self, pages: Mapping[str, Page], listening: socket.socket) -> None:
        self._pages = pages
        self._listening = listening
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ended = Future[None]()
        self._thread = threading.Thread(target=self._run, name="ackwise watch", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    async def close(self) -> None:
        """Answer no more; connections that are open are closed."""
        with suppress(RuntimeError):  # it ended before
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.wait({asyncio.wrap_future(self._ended)}, timeout=_STOP)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001  # the worker goes on without its pages
            log.error("the pages of the worker ended by an error, it goes on unwatched", error=type(error).__name__, at=where_raised(error))
        finally:
            self._listening.close()
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with serving(application(self._pages, failed=_failed), self._listening, _LONGEST):
            await self._stop.wait()


def _failed(request: web.Request, error: Exception) -> Answer:
    log.error("a page of the worker failed, it goes on", error=type(error).__name__, at=where_raised(error))
    return Answer(b"this page failed; the log of the worker says where\n", status=500)
