"""A client that Ackwise opens is closed whatever ends it, by its connections as the broker sees them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.opening import opened

CLIENTS = [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient]
API_VERSIONS, METADATA = 18, 3


class Broker:
    """A broker that tells its versions and its own address; it never answers a request in `mute`."""

    def __init__(self, *mute: int) -> None:
        self.mute = mute
        self.address = ""
        self.asked = asyncio.Event()  #: a request that is not answered
        self.open: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        async with server:
            yield
            async with asyncio.timeout(10):
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
                answer = struct.pack(">i", correlation) + (self._versions() if key == API_VERSIONS else self._metadata(version))
                writer.write(struct.pack(">i", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def _versions(self) -> bytes:
        return struct.pack(">hi", 0, 2) + struct.pack(">hhh", API_VERSIONS, 0, 0) + struct.pack(">hhh", METADATA, 0, 0)

    def _metadata(self, version: int) -> bytes:
        assert version == 0
        host, port = self.address.split(":")
        return struct.pack(">ii", 1, 1) + struct.pack(">h", len(host)) + host.encode() + struct.pack(">ii", int(port), 0)


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_start_that_is_cancelled_leaves_no_connection_open(make: Callable[..., Any]) -> None:
    """aiokafka forgets the one that it asks first."""
    broker = Broker(METADATA)

    async def work() -> None:
        async with opened(make(bootstrap_servers=broker.address)):
            pass

    async with broker.serving():
        working = asyncio.create_task(work())
        await broker.asked.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert len(broker.open) == 1
    # the end of the block has waited for the end of each connection


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_start_that_fails_raises_what_it_raised(make: Callable[..., Any]) -> None:
    broker = Broker()
    async with broker.serving():
        pass
    with pytest.raises(KafkaConnectionError):
        async with opened(make(bootstrap_servers=broker.address)):
            raise AssertionError("it was not started")


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_client_that_gives_up_half_way_is_closed_all_the_same(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    async with broker.serving():
        async with opened(make(bootstrap_servers=broker.address)) as client:

            async def give_up() -> None:
                raise RuntimeError("Set changed size during iteration")

            monkeypatch.setattr(client, "close" if make is AIOKafkaAdminClient else "stop", give_up)
            connections = client.client if make is AIOKafkaProducer else client._client
            assert await connections.ready(1)
        assert len(broker.open) == 2
        client._closed = True


async def test_a_client_whose_own_task_has_failed_leaves_no_connection_open() -> None:
    async def fail() -> None:
        raise ValueError

    broker = Broker()
    async with broker.serving():
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        assert await admin._client.ready(admin._client.get_random_node())
        learning, admin._client._sync_task = admin._client._sync_task, asyncio.create_task(fail())
        learning.cancel()
        assert isinstance(await close_consumer(admin, within=10), ValueError)
