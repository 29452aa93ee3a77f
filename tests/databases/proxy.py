"""A TCP proxy in front of a server, which can delay, cut, swallow and count what passes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Passes bytes on to a server. Everything may be set while it runs and counts from the next bytes on."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flows: set[asyncio.Task[bool]] = set()
        self.delay = 0.0  #: seconds that bytes wait, each way
        self.swallow_replies = False  #: answers of the server go nowhere
        self.refuse = False  #: new connections are closed at once
        self.cut_after: Callable[[bytes], bool] | None = None  #: asked for what the server says; `True` cuts before it is passed on
        self.requests = 0  #: pieces of bytes from clients: round trips, for clients that send each request in one piece
        self.connections = 0

    @property
    def port(self) -> int:
        """Where clients connect, on 127.0.0.1."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        """Cut everything and listen no more."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for flow in self._flows:
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)

    def cut(self) -> None:
        """End all connections, in the middle of whatever they carry (RST)."""
        for writer in list(self._open):
            _reset(writer)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            _reset(to_client)
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(to_client)
            return
        self._open |= {to_client, to_server}
        flows = [
            asyncio.ensure_future(self._pass_on(from_client, to_server, requests=True)),
            asyncio.ensure_future(self._pass_on(from_server, to_client, requests=False)),
        ]
        self._flows.update(flows)
        ended, _ = await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        end = _reset if any(flow.cancelled() or flow.result() for flow in ended) else asyncio.StreamWriter.close
        for writer in (to_client, to_server):
            self._open.discard(writer)
            end(writer)
        for flow in flows:
            flow.cancel()
            self._flows.discard(flow)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, requests: bool) -> bool:
        """Whether it was cut. What ended in order is closed in order: a reset would overtake the last words of a server."""
        try:
            while data := await source.read(2**18):
                if requests:
                    self.requests += 1
                elif self.cut_after is not None and self.cut_after(data):
                    return True
                elif self.swallow_replies:
                    continue
                if self.delay:
                    await asyncio.sleep(self.delay)
                target.write(data)
                await target.drain()
        except OSError:
            return True
        return False


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side is told of a failure, not of an end."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def proxy_to(port: int, host: str = "127.0.0.1") -> AsyncIterator[Proxy]:
    """A proxy in front of `host:port` while the block runs."""
    proxy = Proxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
