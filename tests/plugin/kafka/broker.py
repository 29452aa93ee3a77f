"""Broker in the event loop of the test: as much of one as a client needs to connect."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import PATIENCE

#: Requests by their numbers.
API_VERSIONS, METADATA = 18, 3


class Broker:
    """A broker that tells its versions and its own address. It never answers a request in `mute`, and one in `late` after `go_on`."""

    def __init__(self, *mute: int) -> None:
        self.mute = mute
        self.late: set[int] = set()
        self.go_on = asyncio.Event()
        self.address = ""
        self.asked = asyncio.Event()  #: a request that is not answered, or late
        self.open: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        async with server:
            yield
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*self.open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, version, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                if key in self.mute:
                    self.asked.set()
                    continue
                if key in self.late:
                    self.asked.set()
                    await self.go_on.wait()
                answer = struct.pack(">i", correlation) + (self._versions() if key == API_VERSIONS else self._metadata(version))
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):  # who goes without having read the last answer resets the connection
            pass
        finally:
            writer.close()

    def _versions(self) -> bytes:
        return struct.pack(">hi", 0, 2) + struct.pack(">hhh", API_VERSIONS, 0, 0) + struct.pack(">hhh", METADATA, 0, 0)

    def _metadata(self, version: int) -> bytes:
        assert version == 0
        host, port = self.address.split(":")
        return struct.pack(">ii", 1, 1) + struct.pack(">h", len(host)) + host.encode() + struct.pack(">ii", int(port), 0)
