"""Pages of relays: health and metrics of `ackwise relay` and `ackwise cdc`, over HTTP as their watchers get them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.web.worker.pages import Pages, port_of
from tests.waiting import PATIENCE

from ackwise import App, ConsumeLater, Outbox
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.plugin.cli import relay
from ackwise.plugin.cli.relay import watched_relay
from ackwise.plugin.consumer.workerstate import RelayCounts
from ackwise.plugin.kafka.throttling import THROTTLING
from ackwise.plugin.outbox.cdcrelay import CdcCounts
from ackwise.plugin.settings.config import Config
from ackwise.plugin.web.workermeasures import measures_of_cdc
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.stores.sqlite.outbox import SQLiteOutbox
from ackwise.testing.kafka.broker import MemoryKafka


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def relayed(relaying: Callable[[asyncio.Event], Awaitable[None]], caplog: pytest.LogCaptureFixture) -> AsyncIterator[Pages]:
    """The pages of what relays while the block runs."""
    stop = asyncio.Event()
    running = asyncio.ensure_future(relaying(stop))
    async with asyncio.timeout(PATIENCE):
        while not any(getattr(record, "event", "") == "watched" for record in caplog.records):
            assert not running.done(), running
            await asyncio.sleep(0.05)
        yield Pages(port_of(caplog))
        stop.set()
        await running


async def test_the_relay_of_an_app_shows_what_waits_in_its_delay_topic_and_what_it_sent_of_its_outbox(
    kafka: MemoryKafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "ackwise")
    outbox = MemoryOutbox()
    app = App("billing", brokers=kafka.bootstrap, config=Config())
    app.use(ConsumeLater(levels=["1s"]), Outbox(outbox, relay="apart"))

    @app.agent("orders")
    async def bill(value: bytes) -> None: ...

    monkeypatch.setattr(relay, "find_app", lambda _: app)
    async with outbox.transaction(None) as transaction:
        transaction.add(Outgoing("orders", b"1"))
    async with relayed(relay._of_app("billing:app", 0), caplog) as pages:
        found = await pages.until(
            lambda found: (
                found.get("ackwise_outbox_sent_total") == 1
                and 'ackwise_delayed_copies{messaging_destination_name="billing.delay"}' in found
                and found.get("ackwise_outbox_waiting") == 0
            )
        )
        assert found["ackwise_relay_late_seconds"] == 0
        assert (await pages.get("/live"))[0] == 200
        assert (await pages.get("/ready"))[0] == 404
        assert (await pages.get("/"))[1].splitlines() == ["/live     the event loop turns", "/metrics  for Prometheus"]
        assert 'messaging_consumer_group_name="billing"' in (await pages.get("/metrics"))[1]


async def test_the_relay_of_an_outbox_without_an_app_is_watched_too(
    kafka: MemoryKafka, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO", "ackwise")
    outbox = SQLiteOutbox(tmp_path / "outbox.db")
    await outbox.open()
    await outbox.close()
    async with relayed(relay._of_outbox("sqlite:///outbox.db", kafka.bootstrap, None, 0), caplog) as pages:
        found = await pages.until(lambda found: found.get("ackwise_outbox_waiting") == 0 and found["ackwise_outbox_shards"] > 0)
    assert "ackwise_delayed_copies" not in str(found)


async def test_change_data_capture_shows_what_it_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    counts = CdcCounts()
    counts.sent, counts.transactions, counts.parked = 7, 3, 1
    async with watched_relay(0, "cdc-ackwise", RelayCounts(), lambda: measures_of_cdc(counts))():
        found = await Pages(port_of(caplog)).metrics()
    assert found.pop("ackwise_loop_turned_seconds") >= 0
    assert found.pop("ackwise_broker_throttle_seconds_total") == THROTTLING.seconds
    assert found == {"ackwise_cdc_parked_total": 1, "ackwise_cdc_sent_total": 7, "ackwise_cdc_transactions_total": 3}


async def test_without_the_option_nothing_is_served_whatever_the_configuration_says(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level("INFO", "ackwise")
    monkeypatch.setenv("ACKWISE_WATCH__PORT", "9464")
    async with watched_relay(None, "billing", RelayCounts())():
        assert caplog.messages == []


async def test_the_host_of_the_configuration_holds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    monkeypatch.setenv("ACKWISE_WATCH__HOST", "0.0.0.0")
    async with watched_relay(0, "billing", RelayCounts())():
        assert "http://0.0.0.0:" in caplog.text
