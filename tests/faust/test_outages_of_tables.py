"""A broker that goes away while a worker recovers its table: the table counts on where it stood."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.faust.world import Shop, orders
from tests.servers import RawKafka, kafka_or_skip

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]


async def test_an_outage_in_the_middle_of_a_tables_recovery_costs_no_count(tmp_path: Path) -> None:
    with kafka_or_skip(tmp_path / "kafka") as kafka:
        raw = RawKafka(kafka.bootstrap)
        await raw.start()
        placed = orders("table", 100)
        async with Shop(raw, tmp_path / "shop", "shop", ("table",), ackwise=True) as shop:
            await shop.order("table", placed[:60])
            first = await shop.start()
            await shop.wait_until_billed(60)
            await shop.wait_until_committed()
            assert await first.stop() == 0
            await shop.order("table", placed[60:])
            worker = await shop.start("worker.ListOffsets:latex40")  # its recovery takes as long
            await shop.wait_until((shop.folder / "suffered").exists, "the beginning of the recovery")
            kafka.kill()
            by = asyncio.get_running_loop().time() + 15.0  # a request, and what Faust grants each step, is ten seconds
            await shop.wait_until(lambda: asyncio.get_running_loop().time() > by, "the end of the outage")
            kafka.start()
            await shop.wait_until_billed(100)
            await shop.wait_until_committed()
            assert await worker.stop() == 0
            assert await shop.table() == Counter(one.customer for one in placed)
        await raw.close()
