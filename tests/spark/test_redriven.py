"""The accounts of a worker on a real broker, some of whose dead letters were sent again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plugin.operate.deadletters.taxshop import TaxShop
from tests.servers import RawKafka
from tests.spark.reconciling import reconciled, rows_of, summary
from tests.waiting import until

pytestmark = pytest.mark.kafka

ORDERS = [b"ann", b"bob", b"eve", b"kim", b"lee", b"moe"]


async def test_after_a_redrive_of_some_letters_the_others_are_dead_and_nothing_is_an_anomaly(tmp_path: Path, raw_kafka: RawKafka) -> None:
    shop = TaxShop(tmp_path, raw_kafka, await raw_kafka.new_topic(1))
    async with shop.serving():
        for order in ORDERS:
            await raw_kafka.produce(shop.topic, b"1", key=order)
        await shop.letters(6)
        await raw_kafka.produce(shop.topic, b"2", key=b"ann")  # not run: its key is dead
        assert await shop.redrive(key=b"eve") == 1  # nothing was mended: it dies again
        await shop.letters(7)
        shop.tax = 19
        assert await shop.redrive(key=b"ann") + await shop.redrive(key=b"bob") == 2
        await until(lambda: shop.billed.total() == 2)
    assert await shop.redrive(key=b"kim") == 1  # and nobody is there to run it
    result = reconciled(shop.events, "--out", tmp_path / "out", "--strict")
    assert result.exit_code == 0, result.output
    found = summary(tmp_path / "out")
    assert found["verdicts"] == {"DEAD_LETTERED": 4, "DUPLICATE_SUPPRESSED": 1, "EXACTLY_ONCE": 2}
    assert found["anomalies"] == 0
    counts = {"letters": 4, "succeeded": 2, "died_again": 1, "pending": 1}
    assert found["redriven"] == [{"group": shop.group, "handler": "bill", **counts}]
    line = f"redriven: 4 dead letters of bill in {shop.group}: 2 succeeded, 1 dead again, 1 pending"
    assert line in " ".join(result.output.split())
    verdicts = {row["offset"]: row["verdict"] for row in rows_of(tmp_path / "out" / "verdicts")}
    assert verdicts == {0: "EXACTLY_ONCE", 1: "EXACTLY_ONCE", **dict.fromkeys(range(2, 6), "DEAD_LETTERED"), 6: "DUPLICATE_SUPPRESSED"}
    story = await asyncio.to_thread(why, shop, 2)
    assert "dead letter again, of redrive-1" in story
    assert "a dead letter again after the last redrive" in story
    assert "Wait: its dead letter was sent again" in await asyncio.to_thread(why, shop, 3)


def why(shop: TaxShop, offset: int) -> str:
    command = [sys.executable, "-m", "ackwise.plugin.cli", "why", f"{shop.topic}/0/{offset}", shop.events]
    return " ".join(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.split())
