"""Producers of aiokafka, as much of them as a publisher uses, and who makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords


class Producer:
    """A producer of aiokafka, as much of it as a publisher uses; `harm` is called with each call and may raise."""

    def __init__(self, harm: Callable[[str], None]) -> None:
        self._harm = harm
        self._sender = SimpleNamespace(sender_task=asyncio.get_running_loop().create_future())
        self.client = SimpleNamespace(_sync_task=asyncio.get_running_loop().create_future(), close=self._close)
        self.sent: list[Any] = []
        self.is_closed = False

    async def start(self) -> None:
        self._harm("start")

    async def stop(self) -> None:
        self._harm("stop")
        await self._close()

    async def _close(self) -> None:
        self.is_closed = True

    async def partitions_for(self, topic: str) -> set[int]:
        return {0, 1}

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(16_384, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[None]:
        self._harm("send")
        records: Any = MemoryRecords(bytes(batch._build()))
        while records.has_next():
            self.sent += [record.value for record in records.next_batch()]
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent


class Factory:
    """Makes producers, whose calls `harm` is told of."""

    def __init__(self) -> None:
        self.made: list[Producer] = []
        self.harm: Callable[[str], None] = lambda call: None

    def __call__(self, **_: Any) -> Producer:
        self.made.append(Producer(lambda call: self.harm(call)))
        return self.made[-1]

    def raise_once(self, call: str, error: BaseException) -> None:
        def harm(made: str) -> None:
            if made == call:
                self.harm = lambda call: None
                raise error

        self.harm = harm
