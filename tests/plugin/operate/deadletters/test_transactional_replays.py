"""Redrives under `Transactional`: a replay and the key of its dead letter are done in one transaction, on each database."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.databases.postgres import USER
from tests.databases.server import Endpoint
from tests.waiting import PATIENCE

from ackwise import App, Batch, ConsumeLater, Transactional
from ackwise.middleware.events import Event, EventCode
from ackwise.plugin.operate.deadletter import Selection
from ackwise.plugin.operate.deadlettertopics import place_of_app
from ackwise.plugin.operate.resenddeadletters import redrive
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS
from ackwise.testing import TestApp

pytestmark = pytest.mark.servers


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    server: Endpoint = request.getfixturevalue(request.param)
    address, prefix = f"127.0.0.1:{server.port}", f"prefix=t{os.urandom(4).hex()}_"
    return f"postgresql://{USER}@{address}/postgres?{prefix}" if request.param == "postgres" else f"mariadb://root@{address}/test?{prefix}"


class Shop:
    """Can't bill while the rate of the tax is missing."""

    def __init__(self, policy: Transactional) -> None:
        self.policy = policy
        self.group = f"billing-{os.urandom(6).hex()}"
        self.tax: int | None = None
        self.billed: list[str] = []

    def app(self, brokers: str = DEFAULT_BROKERS) -> App:
        app = App(self.group, brokers=brokers, config=Config())
        app.use(self.policy, ConsumeLater(0, levels="1s"))

        @app.agent("orders")
        async def bill(batch: Batch[str]) -> None:
            if self.tax is None:
                raise LookupError("no tax")
            self.billed += [message.value for message in batch]

        return app

    async def redrive(self, worker: TestApp) -> int:
        found = await redrive(place_of_app(self.app(worker.kafka.bootstrap).group()), Selection(), execute=True)
        assert found.is_done
        return found.fates.total()


async def found(worker: TestApp, code: EventCode, offset: int) -> Event:
    """The event of this kind about the record at `offset`, once it is there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for event in worker.events:
                if (event.topic, event.code, event.offset) == ("orders", code, offset):
                    return event
            await asyncio.sleep(0.02)


async def test_a_new_record_of_a_redriven_key_is_a_duplicate_of_a_success(url: str) -> None:
    shop = Shop(Transactional(url, key=lambda message: message.raw))
    async with TestApp(shop.app()) as worker:
        await worker.deliver("orders", "one")
        await found(worker, EventCode.DEAD_LETTERED, 0)
        await worker.deliver("orders", "one")
        assert (await found(worker, EventCode.DUP_SUPPRESSED, 1)).attrs == '{"outcome": "dead"}'
        shop.tax = 19
        assert await shop.redrive(worker) == 1
        await found(worker, EventCode.SUCCEEDED, 0)
        await worker.deliver("orders", "one")
        assert (await found(worker, EventCode.DUP_SUPPRESSED, 2)).attrs is None
        assert await shop.redrive(worker) == 0
    assert shop.billed == ["one"]


async def test_a_letter_is_redriven_where_offsets_are_kept_and_no_key(url: str) -> None:
    shop = Shop(Transactional(url, mode="offsets"))
    async with TestApp(shop.app()) as worker:
        await worker.deliver("orders", "one")
        await found(worker, EventCode.DEAD_LETTERED, 0)
        shop.tax = 19
        assert await shop.redrive(worker) == 1
        await found(worker, EventCode.SUCCEEDED, 0)
    assert shop.billed == ["one"]
