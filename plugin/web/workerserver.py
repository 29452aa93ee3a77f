"""Server of the pages of one worker, in a thread with its own event loop: pages are answered while the worker's loop is blocked."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from ackwise.middleware.log import Log
from ackwise.middleware.policies.policies import Watch
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.web.pages import Answer
from ackwise.plugin.web.pageserver import Page, application, bound, serving
from ackwise.plugin.web.workermeasures import Sample, families

log = Log()

T = TypeVar("T")

#: Maximum seconds of a connection, from its first byte to the last one of the answer.
_LONGEST: Final = 10.0

#: Seconds for the thread to end.
_STOP: Final = 2.0

#: Seconds between two noted turns of the loop, and without a turn until the process counts as dead.
_TURN, LONGEST_TURN = 0.5, 30.0

#: Seconds that a page waits for the loop.
_PATIENCE: Final = 5.0


class WatchServer:
    """Serves `pages`, by path, on `listening`."""

    def __init__(self, pages: Mapping[str, Page], listening: socket.socket) -> None:
        self._pages = pages
        self._listening = listening
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ended = Future[None]()
        self._thread = threading.Thread(target=self._run, name="ackwise watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """Stop serving and close open connections."""
        with suppress(RuntimeError):  # it ended before
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.wait({asyncio.wrap_future(self._ended)}, timeout=_STOP)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001  # the worker continues without its pages
            log.error("pages of the worker ended", error=type(error).__name__, at=where_raised(error))
        finally:
            self._listening.close()
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with serving(application(self._pages, failed=_failed), self._listening, _LONGEST):
            await self._stop.wait()


def exposed(request: web.Request, group: str, samples: Iterable[Sample]) -> Answer:
    """Return the page of metrics in the format that the client accepts."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Answer(encode(_Exposed(group, samples)), content_type)


class _Exposed(NamedTuple):
    """A registry for `prometheus_client` with fixed families."""

    group: str
    samples: Iterable[Sample]

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        return families([self])


def _failed(request: web.Request, error: Exception) -> Answer:
    log.error("page of the worker failed", error=type(error).__name__, at=where_raised(error))
    return Answer(b"this page failed; the log of the worker shows where\n", status=500)


class Turns:
    """The turns of the watched event loop."""

    def __init__(self) -> None:
        self.turned_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop

    @property
    def still_for(self) -> float:
        """Seconds since the last turn."""
        return time.monotonic() - self.turned_at

    @asynccontextmanager
    async def served(self, policy: Watch, group: str, pages: Mapping[str, Page]) -> AsyncIterator[None]:
        """Serve `pages` about the calling event loop during the block. Raises `ConfigurationError` if they can't be served."""
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

    async def live(self, request: web.Request) -> Answer:
        """Return the page that shows whether the loop turns."""
        if (for_seconds := self.still_for) <= LONGEST_TURN:
            return Answer(f"live: the event loop turned {for_seconds:.1f} s ago\n".encode())
        return Answer(f"not live: the event loop has not turned for {for_seconds:.0f} s; a handler blocks it\n".encode(), status=503)

    async def ask(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Run `call` in the watched loop and return its result; `None` if the loop is blocked."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop)), _PATIENCE)
        except TimeoutError:
            return None
