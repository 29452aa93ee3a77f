"""`app.publish` in a whole worker: on an in-memory Kafka, killed between success, acknowledgement and completion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.waiting import until

from ackwise import App, Batch, Dedup, Message, Transactional, message_id
from ackwise.errors import ConfigurationError
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.registry import open_outbox
from ackwise.testing import CrashPoint, TestApp


def make_app(**settings: Any) -> tuple[App, list[bytes | None], list[str]]:
    """An app whose `bill` publishes an invoice for each order, whose `pay` consumes them, and what these two have run for."""
    app, billed, paid = App("billing", brokers="127.0.0.1:1", **settings), list[bytes | None](), list[str]()
    app.use(Dedup("memory://", key=message_id), ConsumeLater(3))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        billed.append(message.value)
        await app.publish("invoices", b"of " + message.value, key=message.key)

    @app.agent("invoices")
    async def pay(message: Message[bytes]) -> None:
        paid.append(message.value.decode())

    return app, billed, paid


ID = (("message-id", b"order-1"),)


async def test_what_is_published_is_consumed_under_its_id() -> None:
    app, _, paid = make_app()
    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1", key=b"k", headers=ID)).kind == "done"
        record = await consumed(worker)
    assert paid == ["of 1"]
    assert (record.key, record.value) == (b"k", b"of 1")
    assert [name for name, _ in record.headers] == ["message-id"]


async def consumed(worker: TestApp, topic: str = "invoices") -> Any:
    """The one record that was published there, once it was consumed."""
    (record,) = worker.kafka.records(topic)
    await worker.fate((topic, 0, record.offset))  # type: ignore[arg-type]
    return record


@pytest.mark.slow  # runs a worker for each point of a kill
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_kill_anywhere_loses_no_publish_and_its_consumer_runs_once() -> None:
    points: tuple[CrashPoint, ...] = (
        "after the handler", "before the copy", "after the copy", "before the completion", "after the completion",
    )  # fmt: skip
    for point in points:
        app, billed, paid = make_app()
        async with TestApp(app) as worker:
            worker.crash_at(point)
            assert (await worker.deliver("orders", b"1", headers=ID)).kind in ("done", "duplicate")
            records = worker.kafka.records("invoices")
            for record in records:
                await worker.fate(("invoices", 0, record.offset))  # type: ignore[arg-type]
        assert paid == ["of 1"], point
        assert len({dict(record.headers)["message-id"] for record in records}) == 1
        if point == "after the copy":
            assert (len(records), billed) == (2, [b"1", b"1"])


async def test_a_broker_that_takes_nothing_for_a_while_gets_each_publish_once() -> None:
    app, billed, paid = make_app()
    async with TestApp(app) as worker:
        lost = worker.kafka.faults.lose_answer("Produce", topic="invoices", times=3)
        assert (await worker.deliver("orders", b"1", headers=ID)).kind == "done"
        await consumed(worker)
        assert lost.met == 3
    assert (billed, paid) == ([b"1"], ["of 1"])


class Invoice(BaseModel):
    number: int


async def test_values_are_written_as_handlers_read_them_and_plain_functions_publish() -> None:
    app, read = App("billing", brokers="127.0.0.1:1"), list[object]()

    @app.agent("orders")
    def bill(number: int) -> None:
        app.publish("models", Invoice(number=number))
        app.publish("texts", "drei Äpfel")

    @app.agent("models")
    async def models(invoice: Invoice) -> None:
        read.append(invoice)

    @app.agent("texts")
    async def texts(batch: Batch[str]) -> None:
        read.append(batch[0].value)

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"7")
        for topic in ("models", "texts"):
            await consumed(worker, topic)
    assert sorted(map(repr, read)) == ["'drei Äpfel'", "Invoice(number=7)"]


async def test_what_a_handler_can_t_publish_fails_it_with_a_sentence() -> None:
    app, said = App("billing", brokers="127.0.0.1:1"), list[str]()

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        try:
            await app.publish("invoices", object())
        except ConfigurationError as error:
            said.append(str(error))
            raise

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "later"
    assert said == [
        "the value of a message to 'invoices' is of type object, which can't be encoded (PydanticSerializationError); "
        "give bytes, str, a pydantic model, or what JSON can hold"
    ]


async def test_a_call_that_takes_too_long_publishes_nothing() -> None:
    app, asked = App("billing", brokers="127.0.0.1:1"), asyncio.Event()

    @app.agent("orders", consume_timeout=0.2)
    async def bill(message: Message[bytes]) -> None:
        await app.publish("invoices", b"v")
        asked.set()
        await asyncio.Event().wait()

    @app.agent("invoices")
    async def pay(message: Message[bytes]) -> None:
        raise AssertionError

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "later"
        assert worker.kafka.records("invoices") == []


async def test_under_transactional_it_is_a_row_of_the_transaction_or_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    outbox = open_outbox(url)
    await outbox.open()
    said = list[str]()
    for policies, kind in (((Transactional(url), Outbox(url)), "done"), ((Transactional(url),), "later")):
        app = App("billing", brokers="127.0.0.1:1")
        app.use(*policies)

        @app.agent("orders")
        async def bill(message: Message[bytes]) -> None:
            try:
                await app.publish("invoices", b"of " + message.value)  # noqa: B023  # it runs in this round
            except ConfigurationError as error:
                said.append(str(error))
                raise

        async with TestApp(app) as worker:
            worker.kafka.create_topic("invoices")
            assert (await worker.deliver("orders", b"1")).kind == kind
            await until(lambda: len(worker.kafka.records("invoices")) == (kind == "done"))  # noqa: B023
    await outbox.close()
    assert said == [
        "app.publish under Transactional needs an outbox in the same database, or the message could be sent and the transaction "
        "rolled back; add app.use(Outbox(url)) with the URL of Transactional"
    ]


async def test_a_publish_without_key_to_a_compacted_topic_fails_its_message_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.middleware.message.refusals.REFUSED_AFTER", 0.0)
    app = App("billing", brokers="127.0.0.1:1")
    app.use(ConsumeLater(1))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        await app.publish("customers", message.value, key=message.key)

    async with TestApp(app) as worker:
        worker.kafka.create_topic("customers", cleanup_policy="compact")
        assert (await worker.deliver("orders", b"1", key=b"k")).kind == "done"
        fate = await worker.deliver("orders", b"2")
        assert (fate.kind, fate.error) == ("later", "PublishRefused")
        assert (await worker.redeliver(fate)).kind == "dead"
        assert [record.value for record in worker.kafka.records("customers")] == [b"1"]
