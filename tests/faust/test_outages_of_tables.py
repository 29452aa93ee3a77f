"""A broker that goes away while a worker recovers its table: the table counts on where it stood."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from tests.faust.world import Shop, orders

from ackwise.plugin.local.localkafka import LocalKafka

# A request, and what Faust grants each step, is ten seconds, and the outage is longer than both.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(250)]  # waits out an outage of 15 seconds


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it goes away."""
    return own_kafka


async def test_an_outage_in_the_middle_of_a_tables_recovery_costs_no_count(kafka: LocalKafka, new_shop: Callable[..., Shop]) -> None:
    placed = orders("table", 100)
    async with new_shop("table") as shop:
        await shop.order("table", placed[:60])
        first = await shop.start()
        await shop.wait_until_billed(60)
        await shop.wait_until_committed()
        assert await first.stop() == 0
        await shop.order("table", placed[60:])
        worker = await shop.start("worker.ListOffsets:latex40")  # its recovery takes as long
        await shop.wait_until((shop.folder / "suffered").exists, "the start of the recovery")
        kafka.kill()
        await asyncio.sleep(15.0)  # clocks of another process run meanwhile
        await asyncio.to_thread(kafka.start)
        await shop.wait_until_billed(100)
        await shop.wait_until_committed()
        assert await worker.stop() == 0
        assert await shop.table() == Counter(one.customer for one in placed)
