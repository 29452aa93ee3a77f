"""Records of transactions on a topic that agents of Faust read: what was aborted was never there, and its markers are no loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from tests.faust.world import Placed, Shop, orders

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(120)]  # the start of a worker of Faust takes seconds


async def test_what_a_transaction_wrote_and_aborted_reaches_no_agent(new_shop: Callable[..., Shop]) -> None:
    async with new_shop("plain") as shop:
        await transact(shop, [Placed("plain-aborted", "c0")], commit=False)
        await transact(shop, orders("plain", 20), commit=True)
        worker = await shop.start()
        await shop.wait_until_billed(20)
        assert await worker.stop() == 0
        assert shop.runs() == {one.id: 1 for one in orders("plain", 20)}


async def transact(shop: Shop, placed: list[Placed], *, commit: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=shop.raw.bootstrap, transactional_id=f"{shop.group}-orders")
    await producer.start()
    try:
        await producer.begin_transaction()
        for one in placed:
            await (await producer.send(shop.topic("plain"), one.value, key=one.customer.encode(), partition=0))
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()
