"""A whole worker under `Transactional` and `Outbox`: what its handler publishes is in its transaction, and its relay sends it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import until

from ackwise import App, Batch, ConsumeLater, EventCode, Outbox, Transactional
from ackwise.errors import ConfigurationError
from ackwise.plugin.settings.config import Config
from ackwise.testing import CrashPoint, TestApp


def shop(folder: Path, *, outbox: str = "") -> App:
    """Books each order, and says so; `dear` raises once it has booked, `dead` and `later` are ruled so."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS booked (id TEXT)")
    app = App("shop", config=Config())
    app.use(Transactional(f"sqlite:///{folder}/shop.db"), Outbox(outbox or f"sqlite:///{folder}/shop.db"), ConsumeLater(3, levels="1s"))

    @app.agent("orders", max_batch=10)
    async def book(batch: Batch[str]) -> None:
        for message in batch:
            await app.publish("booked", message.value, key="k", source=message)
            if message.value == "dead":
                batch.dead(message, "no")
            elif message.value == "later" and message.reconsume_times == 0:
                batch.later(message, delay_level=1)
            else:
                batch.connection.execute("INSERT INTO booked VALUES (?)", (message.value,))
            if message.value == "dear":
                raise ValueError("too dear")

    return app


def booked(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return sorted(id for (id,) in connection.execute("SELECT id FROM booked"))


async def sent(worker: TestApp, count: int) -> list[str]:
    """What was sent, once it is so much and nothing is left in the outbox."""
    await until(lambda: len(worker.kafka.records("booked")) >= count)
    return sorted((record.value or b"").decode() for record in worker.kafka.records("booked"))


async def test_what_is_booked_is_sent_and_nothing_else(tmp_path: Path) -> None:
    async with TestApp(shop(tmp_path)) as worker:
        worker.kafka.create_topic("booked")
        await worker.deliver_batch("orders", ["a", "dear", "b", "dead", "later", "c"])
        assert await sent(worker, 3) == ["a", "b", "c"]
        assert booked(tmp_path) == ["a", "b", "c"]
        await until(lambda: sum(event.code is EventCode.OUTBOX_SENT for event in worker.events) >= 3)
        stored = {event.dedup_key for event in worker.events if event.code is EventCode.OUTBOX_STORED}
        assert stored == {dict(record.headers)["message-id"].decode() for record in worker.kafka.records("booked")}  # type: ignore[union-attr]


@pytest.mark.slow  # waits for a worker that dies and for the next one
@pytest.mark.parametrize("point", ["before the handler", "after the handler", "before the commit", "after the commit"])
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_wherever_the_worker_dies_it_is_booked_once_and_sent_under_one_id(tmp_path: Path, point: CrashPoint) -> None:
    async with TestApp(shop(tmp_path)) as worker:
        worker.kafka.create_topic("booked")
        worker.crash_at(point)
        await worker.deliver_batch("orders", ["a", "b", "c"])
        await sent(worker, 3)
    assert booked(tmp_path) == ["a", "b", "c"]
    records = worker.kafka.records("booked")
    assert len({dict(record.headers)["message-id"] for record in records}) == 3
    assert {record.value for record in records} == {b"a", b"b", b"c"}


async def test_an_outbox_in_another_database_or_of_another_driver_is_refused_at_the_start(tmp_path: Path) -> None:
    async def run(outbox: str) -> None:
        async with TestApp(shop(tmp_path, outbox=outbox)) as worker:
            await worker.deliver("orders", "a")

    for outbox in (f"sqlite:///{tmp_path}/elsewhere.db", "memory://"):
        with pytest.raises(ConfigurationError, match="Outbox and Transactional are in different databases"):
            await run(outbox)
    assert booked(tmp_path) == []
