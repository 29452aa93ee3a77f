"""What tests do with real brokers leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.servers import connected
from tests.tables import each
from tests.waiting import until


class Client:
    """A client of aiokafka that is only started and stopped."""

    is_stopped = False

    async def start(self) -> None: ...

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.is_stopped = True


@each("times", [1, 2])
async def test_a_client_is_stopped_though_who_used_it_is_cancelled_as_he_leaves_it(times: int) -> None:
    client: Any = Client()
    leaving = asyncio.Event()

    async def use() -> None:
        async with connected(client):
            leaving.set()

    using = asyncio.create_task(use())
    await leaving.wait()
    for _ in range(times):
        using.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await using
    await until(lambda: client.is_stopped)
