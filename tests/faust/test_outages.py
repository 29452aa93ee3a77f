"""A broker that is away or hangs: a worker outlives it, and ends in time when it is asked to meanwhile."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.faust.world import Shop, orders
from tests.servers import RawKafka, new_name

from ackwise.plugin.local.broker import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]

#: Seconds of a drain, and those in which a worker has ended whatever hangs.
DRAIN, ENDED = 3.0, 13.0


@pytest.fixture(autouse=True)
def _with_little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKWISE_DRAIN_TIMEOUT", f"{DRAIN:g}s")


async def shop_of(kafka: LocalKafka, folder: Path) -> Shop:
    raw = RawKafka(kafka.bootstrap)
    await raw.start()
    return Shop(raw, folder / "shop", new_name("shop"), ("plain", "take"), ackwise=True, pause=0.02)


@pytest.mark.parametrize("outage", ["away", "hung"])
async def test_a_worker_that_is_stopped_without_a_broker_ends_in_time_and_with_code_0(
    outage: str, own_kafka: LocalKafka, tmp_path: Path
) -> None:
    shop = await shop_of(own_kafka, tmp_path)
    async with shop:
        for style in shop.styles:
            await shop.order(style, orders(style, 500))
        worker = await shop.start()
        await shop.wait_until_billed(60)
        (own_kafka.kill if outage == "away" else own_kafka.pause)()
        try:
            worker.process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(worker.process.wait(), ENDED)
        finally:
            (own_kafka.start if outage == "away" else own_kafka.resume)()
        assert code == 0, worker.said()
        assert len(shop.runs()) < 1000, "it was stopped in the midst of its work"
    await shop.raw.close()


async def test_a_worker_goes_on_after_an_outage_that_was_longer_than_all_its_timeouts(own_kafka: LocalKafka, tmp_path: Path) -> None:
    shop = await shop_of(own_kafka, tmp_path)
    async with shop:
        for style in shop.styles:
            await shop.order(style, orders(style, 60))
        worker = await shop.start()
        await shop.wait_until_billed(40)
        own_kafka.kill()
        by = asyncio.get_running_loop().time() + 20.0  # its session is six seconds, a request ten
        await shop.wait_until(lambda: asyncio.get_running_loop().time() > by, "the end of the outage")
        own_kafka.start()
        for style in shop.styles:
            await shop.order(style, orders(style, 120)[60:])
        await shop.wait_until(lambda: len(shop.runs()) == 240, "the bill of what was ordered afterwards")
        await shop.wait_until_committed()
        assert {style: await shop.lost(style) for style in shop.styles} == {style: set() for style in shop.styles}
        assert await worker.stop() == 0
    await shop.raw.close()


async def test_a_worker_that_starts_without_a_broker_waits_for_it_and_says_so(own_kafka: LocalKafka, tmp_path: Path) -> None:
    shop = await shop_of(own_kafka, tmp_path)
    async with shop:
        for style in shop.styles:
            await shop.order(style, orders(style, 20))
        own_kafka.kill()
        worker = await shop.start()
        await shop.wait_until(lambda: "the brokers are away" in worker.said(), "a word on the brokers")
        own_kafka.start()
        await shop.wait_until_billed(40)
        assert await worker.stop() == 0
    await shop.raw.close()


async def test_a_worker_that_waits_for_a_broker_is_stopped_with_code_0(tmp_path: Path) -> None:
    shop = Shop(RawKafka("127.0.0.1:1"), tmp_path, "shop", ("plain",), ackwise=True)
    worker = await shop.start()
    try:
        await shop.wait_until(lambda: "the brokers are away" in worker.said(), "a word on the brokers")
        worker.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.process.wait(), ENDED) == 0, worker.said()
    finally:
        await worker.kill()
