"""The hostile client of the kit: what it is told happens, and nothing of it stays."""

from __future__ import annotations

import pytest
from aiokafka.client import AIOKafkaClient
from tests.tables import each

from ackwise import App, Batch, Dedup
from ackwise.plugin.settings.config import Config
from ackwise.testing import TestApp, assert_no_loss, hostile_client


def shop(billed: list[str]) -> App:
    app = App("billing", config=Config())
    app.use(Dedup("memory://"))

    @app.agent("orders")
    async def bill(batch: Batch[str]) -> None:
        billed.extend(message.value for message in batch)

    return app


@each("fault", ["worker.drain:raises-after", "worker.drain:cancelled-after", "worker.OffsetCommit:raises", "worker.Fetch:corrupt"])
@pytest.mark.slow  # waits until each fault has struck
async def test_a_worker_under_a_hostile_client_loses_nothing(fault: str) -> None:
    billed: list[str] = []
    with hostile_client(fault) as plan:
        async with TestApp(shop(billed)) as worker:
            fates = [await worker.deliver("orders", str(number)) for number in range(5)]
            await plan.wait_until_spent()
    assert_no_loss([fate.place for fate in fates], worker.events)
    assert billed == ["0", "1", "2", "3", "4"]


def test_nothing_stays_when_the_block_is_left() -> None:
    before = AIOKafkaClient.send
    with hostile_client("worker.Fetch:raises"):
        assert AIOKafkaClient.send is not before
    assert AIOKafkaClient.send is before


def test_what_is_no_fault_is_refused_with_those_that_there_are() -> None:
    refused = pytest.raises(ValueError, match=r"'Fetch:raises' is no fault; write it as .* with a harm of raises, raises-after")
    with refused, hostile_client("Fetch:raises"):
        raise AssertionError
