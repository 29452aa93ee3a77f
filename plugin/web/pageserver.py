"""Server of pages: only GET, safe headers, a limited number of connections, each with a time limit.

The limits protect the process from slow and numerous clients: it needs its file descriptors for Kafka.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.web.pages import Answer

#: Maximum number of connections; more are closed at once.
_MOST: Final = 64

#: A logger without handlers and parents, since the library logs a line for every malformed request.
_SILENT: Final = logging.Logger("watch", logging.CRITICAL + 1)  # noqa: LOG001

#: Bytes of the body of a request. No page reads one.
_MOST_BODY: Final = 1024

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "ackwise",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


Page = Callable[[web.Request], Awaitable[Answer]]


def application(
    pages: Mapping[str, Page],
    *,
    failed: Callable[[web.Request, Exception], Answer],
    missing: Callable[[web.Request, int], Answer] = lambda request, status: Answer(b"no such page\n", status=status),
    refusal: Callable[[web.Request], Answer | None] = lambda request: None,
) -> web.Application:
    """Return the application of `pages`, by path. `refusal` comes first; `missing` answers unknown paths, `failed` errors of pages."""

    @web.middleware
    async def answered(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        if (refused := refusal(request)) is not None:
            return _response(refused)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _response(missing(request, error.status))
        except Exception as error:  # noqa: BLE001  # a failed page is answered too, and the server continues
            return _response(failed(request, error))

    made = web.Application(middlewares=[answered], client_max_size=_MOST_BODY)
    for path, page in pages.items():
        made.router.add_get(path, _handler(page))
    return made


def _handler(page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return _response(await page(request))

    return answer


def _response(answer: Answer) -> web.Response:
    headers = {**_HEADERS, "Content-Type": answer.content_type, "Content-Security-Policy": answer.policy}
    if answer.challenge:
        headers["WWW-Authenticate"] = answer.challenge
    return web.Response(body=answer.body, status=answer.status, headers=headers)


def bound(host: str, port: int, what: str = "Watch", options: str = "port of Watch, watch.port, --watch") -> socket.socket:
    """Return a socket that listens on `host` and `port`. Raises `ConfigurationError` about `what`, naming its `options`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise ConfigurationError(f"host of {what} is {host!r}, which is not an address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_MOST)
    except OSError as error:
        listening.close()
        raise ConfigurationError(f"{what} can't listen on {host}:{port}{_refusal(error, options)}") from None
    return listening


def _refusal(error: OSError, options: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f": the port is in use; choose another one ({options})"
        case errno.EACCES:
            return ": this user may not use the port; choose one from 1024"
        case errno.EADDRNOTAVAIL:
            return ": this machine has no such address; use 127.0.0.1 or 0.0.0.0"
        case _:
            return f" ({error.strerror}); choose another port or host"


@asynccontextmanager
async def serving(application: web.Application, listening: socket.socket, longest: float) -> AsyncIterator[None]:
    """Serve `application` on `listening` during the block. A connection lasts `longest` seconds at most; all are closed at the end."""
    application.on_response_prepare.append(_end_with)
    runner = web.AppRunner(application, access_log=None, handle_signals=False, logger=_SILENT, shutdown_timeout=0.5)
    await runner.setup()
    try:
        server = runner.server
        assert server is not None
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: _accept(server, longest), sock=listening) as accepting:
            try:
                yield
            finally:
                accepting.close()
                for protocol in list(server.connections):  # before waiting for its end, which comes after the last of them
                    _end(protocol)
    finally:
        await runner.cleanup()


def _accept(server: web.Server, longest: float) -> asyncio.Protocol:
    """Return the protocol of a new connection, with its time limit scheduled."""
    protocol = server()
    asyncio.get_running_loop().call_later(0.0 if len(server.connections) >= _MOST else longest, _end, protocol)
    return protocol


async def _end_with(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


def _end(protocol: object) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()
