"""Half messages whose barrier is in an outbox are checked by whoever has that outbox: its relay alone, and each worker."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from ackwise import App, Message, Outbox, Outgoing
from ackwise.plugin.outbox.outboxrelay import AloneSettings, relay_outbox_apart
from ackwise.plugin.settings.config import Config
from ackwise.stores.memoryoutbox import MemoryConnection, MemoryOutbox
from ackwise.testing import MemoryKafka, TestApp

PAID = Outgoing("paid", b"42", message_id="pay-42")
LOST = Outgoing("paid", b"43", message_id="pay-43")


@pytest.fixture
async def outbox() -> MemoryOutbox:
    """What a dead producer left: one message whose local transaction committed, one whose never started, one that has no barrier."""
    outbox = MemoryOutbox()
    await outbox.open()
    here, connection = await outbox.database_id(), MemoryConnection()
    await outbox.prepare([PAID], "committed", producer_group="orders", barrier_in=here, first_check=0.0)
    await outbox.prepare([LOST], "never begun", producer_group="orders", barrier_in=here, first_check=0.0)
    await outbox.prepare([LOST], "asked elsewhere", producer_group="bank", first_check=0.0)
    async with connection.transaction():
        await outbox.barrier(connection, "committed")
    return outbox


async def until_sent(kafka: MemoryKafka) -> list[bytes | None]:
    await until(lambda: kafka.records("paid"))
    return [record.value for record in kafka.records("paid")]


async def left(outbox: MemoryOutbox) -> list[str]:
    """The transactions that nobody has decided about."""
    await outbox.open()
    return sorted({half.tx_id for group in ("orders", "bank") for half in await outbox.due_checks(group, limit=10, lease=0.0)})


async def test_a_relay_without_an_app_checks_what_has_its_barrier_there(outbox: MemoryOutbox) -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("paid")
        stop = asyncio.Event()
        relaying = asyncio.create_task(relay_outbox_apart(outbox, Outbox(outbox), AloneSettings(kafka.bootstrap), stop))
        assert await until_sent(kafka) == [b"42"]
        stop.set()
        await relaying
    assert await left(outbox) == ["asked elsewhere"]


@pytest.mark.parametrize("relay", ["worker", "apart"])
async def test_a_worker_with_the_outbox_checks_too(outbox: MemoryOutbox, relay: str) -> None:
    app = App("billing", config=Config())
    app.use(Outbox(outbox, relay=relay))  # type: ignore[arg-type]

    @app.agent("orders")
    async def bill(message: Message[str]) -> None: ...

    async with TestApp(app) as worker:
        worker.kafka.create_topic("paid")
        await worker.deliver("orders", "a")
        if relay == "worker":
            assert await until_sent(worker.kafka) == [b"42"]
        else:
            await until(outbox.status, lambda status: status.waiting == 1)
    assert await left(outbox) == ["asked elsewhere"]
