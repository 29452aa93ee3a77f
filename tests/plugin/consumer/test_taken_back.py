"""A partition that a worker loses and gets back while its handler still runs: with an order, nothing of it starts beside that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal, cast

import pytest
from tests.plugin.consumer.ordered import Shop
from tests.plugin.consumer.test_member import ORDERS, World
from tests.waiting import turns

from ackwise.middleware.message.message import Message
from ackwise.middleware.runs.run import Run


class Worker(World):
    """A member with one handler, whose first call goes on until `end`."""

    def __init__(self, order: Literal["key", "partition"] | None) -> None:
        super().__init__()
        self.end = asyncio.Event()
        self.at_work: list[int] = []
        self.most = 0
        self.shop = Shop(self.handle, kind="message", order=order)
        self.member._client, pipeline = self.client, self.shop.pipeline
        self.member.pipelines = {"bill": pipeline}
        self.member.routes = cast(Any, type("Routes", (), {"from_source": lambda _, place, records: [Run(place, records, pipeline)]})())

    async def handle(self, message: Message[Any]) -> None:
        self.at_work.append(message.offset)
        self.most = max(self.most, len(self.at_work))
        if len(self.shop.seen) == 1:
            await self.end.wait()
        self.at_work.remove(message.offset)

    def assign(self, from_commit: int | None = 100, metadata: str = "") -> None:
        self.lanes = (self.member.lane(*ORDERS, "source", 100),)
        self.member.add_lanes(ORDERS, self.lanes, from_commit=from_commit, metadata=metadata)

    async def lose(self) -> None:
        await self.member.drain([ORDERS], 0.0)


@pytest.fixture
async def workers() -> AsyncIterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.end.set()
        await worker.lose()
        await worker.shop.stop()


async def taken_back(worker: Worker) -> None:
    """It loses the partition in the midst of its first message, and gets it back."""
    worker.assign()
    worker.offer(100, 101)
    await worker.shop.until(lambda: worker.at_work)
    await worker.lose()
    worker.assign()
    worker.offer(100, 101)
    await turns(50)


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_with_an_order_nothing_begins_beside_a_call_that_outlives_its_partition(workers: list[Worker], order: Any) -> None:
    workers.append(worker := Worker(order))
    await taken_back(worker)
    assert worker.shop.seen == [[100]]
    worker.end.set()
    await worker.shop.until(lambda: worker.lanes[0].watermark.commit == 102 or len(worker.shop.seen) == 3)
    assert (worker.shop.seen, worker.most) == ([[100], [100], [101]], 1)


async def test_without_an_order_nothing_waits_for_it(workers: list[Worker]) -> None:
    workers.append(worker := Worker(None))
    await taken_back(worker)
    assert worker.shop.seen == [[100], [100], [101]]


async def test_a_partition_that_waits_for_such_a_call_is_let_go_at_once(workers: list[Worker]) -> None:
    workers.append(worker := Worker("partition"))
    await taken_back(worker)
    (lane,) = worker.lanes
    await worker.member.drain([ORDERS], 10.0)
    assert lane.task is not None
    assert (lane.task.done(), worker.shop.seen) == (True, [[100]])
