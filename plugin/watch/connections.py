"""Connections of a server of pages: few at a time, each with one request and an end in sight.

So neither a client that says nothing nor one that reads nothing keeps one, and of those that come in crowds only so many are let
in that the process keeps its file descriptors for Kafka.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from ackwise.middleware.errors import ConfigurationError

__all__ = ["bound", "serving"]

#: Connections at a time; those that come above are closed at once.
_MOST: Final = 64

#: For the library, which would log a line for whatever a stranger sends: a logger that nobody hears, of no family.
_SILENT: Final = logging.Logger("watch", logging.CRITICAL + 1)  # noqa: LOG001


def bound(host: str, port: int, what: str = "Watch", options: str = "port of Watch, watch.port, --watch") -> socket.socket:
    """A socket that listens on `host` and `port`. Raises `ConfigurationError` with what is in the way of `what`, by its `options`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise ConfigurationError(f"host of {what} is {host!r}, which is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
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
    """While `application` answers what comes to `listening`. A connection lasts `longest` seconds at most; all end with the block."""
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
                for protocol in list(server.connections):  # before its end is waited for, which comes with the last of them
                    _end(protocol)
    finally:
        await runner.cleanup()


def _accept(server: web.Server, longest: float) -> asyncio.Protocol:
    """One more connection, with its end in sight; it is made once this has returned."""
    protocol = server()
    asyncio.get_running_loop().call_later(0.0 if len(server.connections) >= _MOST else longest, _end, protocol)
    return protocol


async def _end_with(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


def _end(protocol: object) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()
