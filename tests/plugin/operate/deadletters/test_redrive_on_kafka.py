"""Dead letters of a worker on a real broker: suppressed by their key, redriven, dead again, redriven once more, and a kill amid it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plugin.operate.deadletters.taxshop import TaxShop
from tests.servers import RawKafka
from tests.waiting import until

pytestmark = pytest.mark.kafka


@pytest.fixture
async def shop(tmp_path: Path, raw_kafka: RawKafka) -> TaxShop:
    return TaxShop(tmp_path, raw_kafka, await raw_kafka.new_topic(1))


async def test_a_key_that_died_is_suppressed_until_its_letter_is_redriven_however_often_it_dies(shop: TaxShop) -> None:
    async with shop.serving():
        await shop.raw.produce(shop.topic, b"1", key=b"ann")
        await shop.letters(1)
        await shop.raw.produce(shop.topic, b"1", b"2", key=b"ann")  # the trap: neither runs, neither is a letter
        await shop.raw.produce(shop.topic, b"3", key=b"bob")
        await shop.letters(2)
        assert shop.tried == {b"ann": 1, b"bob": 1}
        assert await shop.redrive() == 2  # nothing was fixed: they die again
        assert [letter.replay_id for letter in await shop.letters(4)] == [None, None, b"redrive-1", b"redrive-1"]
        shop.tax = 19
        assert await shop.redrive() == 2
        await until(lambda: shop.billed.total() == 2)
        assert await shop.redrive() == 0
        await shop.raw.produce(shop.topic, b"4", key=b"ann")  # a duplicate of a success by now
        await shop.raw.produce(shop.topic, b"5", key=b"eve")
        await until(lambda: shop.billed[b"eve"])
    assert shop.billed == {b"ann": 1, b"bob": 1, b"eve": 1}
    assert await shop.ids() == {(key, number): 1 for key in (b"ann", b"bob") for number in (b"redrive-1", b"redrive-2")}
    story = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/0", shop.events)
    assert "sent again as redrive-2" in " ".join(story.split())
    assert "EXACTLY_ONCE" in story
    suppressed = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/1", shop.events)
    assert "not run: its key is that of a dead letter; ackwise dlq redrive sends that letter again" in " ".join(suppressed.split())
    assert "DUPLICATE_SUPPRESSED" in suppressed  # its letter succeeded since
    later = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/4", shop.events)
    assert "DUPLICATE_SUPPRESSED" in later


def ackwise(shop: TaxShop, *arguments: str) -> str:
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    return subprocess.run(command, cwd=shop.folder, capture_output=True, text=True, timeout=60, check=False).stdout
