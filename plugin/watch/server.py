"""Server of the pages of one worker: HTTP in a thread with an event loop of its own, so that a page is answered whatever the worker does.

A connection has one request and ten seconds. So neither a client that says nothing nor one that reads nothing keeps it, and
of those that come in crowds only so many are let in that the worker keeps its file descriptors for Kafka.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple

from aiohttp import web

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.tracebacks import where_raised

__all__ = ["Answer", "Page", "WatchServer", "bound"]

log = Log()

#: Seconds that a connection lasts at most, from its first byte to the last one of the answer.
_LONGEST: Final = 10.0

#: Connections at a time; those that come above are closed at once.
_MOST: Final = 64

#: Bytes of the body of a request. No page reads one.
_MOST_BODY: Final = 1024

#: Seconds for the thread to end.
_STOP: Final = 2.0

#: For the library, which would log a line for whatever a stranger sends: a logger that nobody hears, of no family.
_SILENT: Final = logging.Logger("watch", logging.CRITICAL + 1)  # noqa: LOG001


class Answer(NamedTuple):
    """What a page answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Page = Callable[[str], Awaitable[Answer]]
"""A page, which is given what its client accepts. It runs in the thread of the server."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on `host` and `port`. Raises `ConfigurationError` with what is in the way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise ConfigurationError(f"host of Watch is {host!r}, which is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_MOST)
    except OSError as error:
        listening.close()
        raise ConfigurationError(_refusal(host, port, error)) from None
    return listening


def _refusal(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Watch can't listen on {host}:{port}: the port is in use; choose another one (port of Watch, watch.port, --watch)"
        case errno.EACCES:
            return f"Watch can't listen on {host}:{port}: this user may not use the port; choose one from 1024"
        case errno.EADDRNOTAVAIL:
            return f"Watch can't listen on {host}:{port}: this machine has no such address; use 127.0.0.1 or 0.0.0.0"
        case _:
            return f"Watch can't listen on {host}:{port} ({error.strerror}); choose another port or host"


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
        application = web.Application(client_max_size=_MOST_BODY)
        application.on_response_prepare.append(_end_with)
        for path, page in self._pages.items():
            application.router.add_get(path, _handler(page))
        runner = web.AppRunner(application, access_log=None, handle_signals=False, logger=_SILENT, shutdown_timeout=0.5)
        await runner.setup()
        try:
            server = runner.server
            assert server is not None
            self._listening.setblocking(False)
            serving = await self._loop.create_server(lambda: self._accept(server), sock=self._listening)
            async with serving:
                await self._stop.wait()
            for protocol in list(server.connections):
                _end(protocol)
        finally:
            await runner.cleanup()

    def _accept(self, server: web.Server) -> asyncio.Protocol:
        """One more connection, with its end in sight; it is made once this has returned."""
        protocol = server()
        self._loop.call_later(0.0 if len(server.connections) >= _MOST else _LONGEST, _end, protocol)
        return protocol


async def _end_with(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


def _end(protocol: object) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()


def _handler(page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            found = await page(request.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001  # a page that fails is an answer like another one
            log.error("a page of the worker failed, it goes on", error=type(error).__name__, at=where_raised(error))
            found = Answer(b"this page failed; the log of the worker says where\n", status=500)
        headers = {"Content-Type": found.content_type, "Cache-Control": "no-store", "Vary": "Accept", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=found.body, status=found.status, headers=headers)

    return answer
