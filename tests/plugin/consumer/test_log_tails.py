"""Control and aborted records at the end of a log are committed past: they are no lag, and their retention is no loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer
from tests.waiting import until

from ackwise import App, Message
from ackwise.middleware.events import Event, EventCode
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as made:
        made.create_topic("orders")
        yield made


async def write(kafka: MemoryKafka, *values: bytes, is_aborted: bool) -> None:
    """Write in a transaction."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="shop")
    await producer.start()
    try:
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait("orders", value)
        await (producer.abort_transaction() if is_aborted else producer.commit_transaction())
    finally:
        await producer.stop()


def app_on(kafka: MemoryKafka, events: list[Event], handle: Callable[[bytes], object]) -> App:
    app = App("billing", brokers=kafka.bootstrap, config=Config(), commit_interval=0.05, session_timeout=6.0)
    app.use(events.append)

    @app.agent("orders", name="bill")
    async def bill(message: Message[bytes]) -> None:
        handle(message.value)

    return app


async def test_a_log_that_ends_with_control_and_aborted_records_has_no_lag(kafka: MemoryKafka) -> None:
    ran: list[bytes] = []
    events: list[Event] = []
    await write(kafka, b"a", is_aborted=False)
    await write(kafka, *[b"never"] * 5, is_aborted=True)
    async with app_on(kafka, events, ran.append).running() as worker:
        await worker.ready()
        await until(lambda: kafka.committed("billing")["orders", 0].offset == kafka.log("orders").end == 8)
        await write(kafka, *[b"never"] * 2, is_aborted=True)
        await until(lambda: kafka.committed("billing")["orders", 0].offset == kafka.log("orders").end == 11)
        await write(kafka, b"b", is_aborted=False)
        await until(lambda: kafka.committed("billing")["orders", 0].offset == kafka.log("orders").end == 13)
    assert ran == [b"a", b"b"]
    gaps = [(event.offset, event.range_end, event.proved) for event in events if event.code is EventCode.GAP and event.topic == "orders"]
    assert gaps == [(1, 8, True), (8, 11, True), (12, 13, True)]


async def test_a_message_that_is_at_work_before_the_tail_is_not_passed(kafka: MemoryKafka) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    app = App("billing", brokers=kafka.bootstrap, config=Config(), commit_interval=0.05, session_timeout=6.0)

    @app.agent("orders", name="bill")
    async def bill(message: Message[bytes]) -> None:
        begun.set()
        await may_end.wait()

    await write(kafka, b"a", is_aborted=False)
    await write(kafka, *[b"never"] * 5, is_aborted=True)
    async with app.running() as worker:
        await worker.ready()
        await begun.wait()
        await asyncio.sleep(0.5)
        assert kafka.committed("billing")["orders", 0].offset == 0
        may_end.set()
        await until(lambda: kafka.committed("billing")["orders", 0].offset == 8)


async def test_an_open_transaction_is_not_passed(kafka: MemoryKafka) -> None:
    ran: list[bytes] = []
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="shop")
    await producer.start()
    try:
        async with app_on(kafka, [], ran.append).running() as worker:
            await worker.ready()
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a")
                await asyncio.sleep(0.5)
                assert kafka.committed("billing")["orders", 0].offset == 0
            await until(lambda: ran == [b"a"] and kafka.committed("billing")["orders", 0].offset == 2)
    finally:
        await producer.stop()
