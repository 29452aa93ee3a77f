"""`app.publish` in a whole worker: on an in-memory Kafka, killed between success, acknowledgement and completion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ackwise import App, Batch, Broadcasting, ConfigurationError, ConsumeStatus, Dedup, Message, RetryInPlace, Transactional, message_id
from ackwise.middleware.policies import Outbox
from ackwise.middleware.retry import ConsumeLater
from ackwise.plugin.registry import open_outbox
from ackwise.testing import CrashPoint, TestApp


def make_app(**settings: Any) -> tuple[App, list[bytes | None], list[str]]:
    """An app whose `bill` publishes an invoice for each order, whose `pay` consumes them, and what these two have run for."""
    app, billed, paid = App("billing", brokers="127.0.0.1:1", **settings), list[bytes | None](), list[str]()
    app.use(Dedup("memory://", key=message_id), ConsumeLater(3))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        billed.append(message.value)
        app.publish("invoices", b"of " + message.value, key=message.key)

    @app.agent("invoices")
    async def pay(message: Message[bytes]) -> None:
        paid.append(message.value.decode())

    return app, billed, paid


ID = (("message-id", b"order-1"),)


async def test_what_is_published_is_consumed_under_its_id() -> None:
    app, _, paid = make_app()
    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1", key=b"k", headers=ID)).kind == "done"
        (record,) = worker.kafka.records("invoices")
        await worker.fate(_place(record, "invoices"))
    assert paid == ["of 1"]
    assert (record.key, record.value) == (b"k", b"of 1")
    assert [name for name, _ in record.headers] == ["message-id"]


def _place(record: Any, topic: str) -> Any:
    return topic, 0, record.offset


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["after the handler", "before the copy", "after the copy", "before the completion", "after the completion"]
)
async def test_a_kill_anywhere_loses_no_publish_and_its_consumer_runs_once(point: CrashPoint) -> None:
    app, billed, paid = make_app()
    async with TestApp(app) as worker:
        worker.crash_at(point)
        assert (await worker.deliver("orders", b"1", headers=ID)).kind in ("done", "duplicate")
        records = worker.kafka.records("invoices")
        for record in records:
            await worker.fate(_place(record, "invoices"))
    assert paid == ["of 1"]
    assert len({dict(record.headers)["message-id"] for record in records}) == 1
    if point == "after the copy":
        assert (len(records), billed) == (2, [b"1", b"1"])


async def test_a_broker_that_takes_nothing_for_a_while_gets_each_publish_once() -> None:
    app, billed, paid = make_app()
    async with TestApp(app) as worker:
        lost = worker.kafka.faults.lose_answer("Produce", topic="invoices", times=3)
        assert (await worker.deliver("orders", b"1", headers=ID)).kind == "done"
        (record,) = worker.kafka.records("invoices")
        await worker.fate(_place(record, "invoices"))
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
            await worker.fate(_place(worker.kafka.records(topic)[0], topic))
    assert sorted(map(repr, read)) == ["'drei Äpfel'", "Invoice(number=7)"]


async def test_what_a_handler_can_t_publish_fails_it_with_a_sentence() -> None:
    app, said = App("billing", brokers="127.0.0.1:1"), list[str]()

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        try:
            app.publish("invoices", object())
        except ConfigurationError as error:
            said.append(str(error))
            raise

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "later"
    assert said == [
        "the value of a message to 'invoices' is of type object, which can't be encoded (PydanticSerializationError); "
        "give bytes, str, a pydantic model, or what JSON can hold"
    ]


async def test_outside_of_a_handler_the_sentence_names_the_producer() -> None:
    app, _, _ = make_app()
    with pytest.raises(ConfigurationError, match=r"outside of a handler; there, use `async with Producer\(brokers\)"):
        app.publish("invoices", b"v")


async def test_a_call_that_takes_too_long_publishes_nothing() -> None:
    app, asked = App("billing", brokers="127.0.0.1:1"), asyncio.Event()

    @app.agent("orders", consume_timeout=0.2)
    async def bill(message: Message[bytes]) -> None:
        app.publish("invoices", b"v")
        asked.set()
        await asyncio.Event().wait()

    @app.agent("invoices")
    async def pay(message: Message[bytes]) -> None:
        raise AssertionError

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "later"
        assert worker.kafka.records("invoices") == []


@pytest.mark.parametrize("with_outbox", [False, True])
async def test_under_transactional_it_is_a_row_of_the_transaction_or_refused(tmp_path: Path, *, with_outbox: bool) -> None:
    url, app, said = f"sqlite:///{tmp_path}/shop.db", App("billing", brokers="127.0.0.1:1"), list[str]()
    app.use(Transactional(url))
    outbox = open_outbox(url)
    await outbox.open()
    if with_outbox:
        app.use(Outbox(url))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        try:
            app.publish("invoices", b"of " + message.value)
        except ConfigurationError as error:
            said.append(str(error))
            raise

    @app.agent("invoices")
    async def pay(message: Message[bytes]) -> None:
        said.append(message.value.decode())

    async with TestApp(app) as worker:
        kind = (await worker.deliver("orders", b"1")).kind
        if with_outbox:
            status = await outbox.status()
            sent = worker.kafka.records("invoices")
            assert status.waiting + len(sent) == 1
    await outbox.close()
    if with_outbox:
        assert kind == "done"
    else:
        assert kind == "later"
        assert said == [
            "app.publish under Transactional needs an outbox in the same database, or the message could be sent and the transaction "
            "rolled back; add app.use(Outbox(url)) with the URL of Transactional"
        ]


async def test_with_commit_manual_it_is_sent_at_the_commit_and_not_before() -> None:
    app, handled = App("billing", brokers="127.0.0.1:1"), asyncio.Event()

    @app.agent("orders", order="partition", commit="manual", in_place=RetryInPlace(3))
    async def bill(message: Message[bytes]) -> ConsumeStatus | None:
        app.publish("invoices", b"of " + message.value)
        handled.set()
        return ConsumeStatus.COMMIT if message.value == b"2" else None

    async with TestApp(app) as worker:
        worker.kafka.create_topic("invoices")
        worker.kafka.produce("orders", b"1")
        async with asyncio.timeout(60):
            await handled.wait()
        assert worker.kafka.records("invoices") == []
        assert (await worker.deliver("orders", b"2")).kind == "done"
        assert [record.value for record in worker.kafka.records("invoices")] == [b"of 1", b"of 2"]


async def test_an_instance_that_broadcasts_publishes() -> None:
    app = App("prices", brokers="127.0.0.1:1")
    app.use(Broadcasting("one"))

    @app.agent("prices")
    async def note(message: Message[bytes]) -> None:
        app.publish("noted", message.value)

    async with TestApp(app) as worker:
        worker.kafka.create_topic("noted")
        assert (await worker.deliver("prices", b"1")).kind == "done"
        assert [record.value for record in worker.kafka.records("noted")] == [b"1"]
