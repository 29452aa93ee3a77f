"""`await app.publish(…)` outside of a handler: beside a worker, without one, from another thread, and in a test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.waiting import until

from ackwise import App, Message
from ackwise.errors import ConfigurationError, PublishRefused
from ackwise.middleware.errors import PublishUnavailable
from ackwise.plugin.producer.producer import Producer
from ackwise.testing import MemoryKafka, TestApp


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as broker:
        broker.create_topic("orders", 1)
        broker.create_topic("invoices", 1)
        yield broker


def app_of(brokers: str, ran: list[bytes], **settings: Any) -> App:
    app = App("billing", brokers=brokers, **settings)

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        ran.append(message.value)
        await app.publish("invoices", b"of " + message.value)

    return app


def values(kafka: MemoryKafka, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic)]


async def test_without_a_worker_a_publish_is_sent_at_once_and_returns_where_it_is(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    sent = await app.publish("orders", {"number": 1}, key="k", message_id="mine")
    assert sent is not None
    assert (sent.topic, sent.partition, sent.offset, sent.message_id) == ("orders", 0, 0, "mine")
    assert (values(kafka, "orders"), kafka.records("orders")[0].key) == ([b'{"number":1}'], b"k")


async def test_beside_a_worker_all_share_one_connection_that_ends_with_it(kafka: MemoryKafka) -> None:
    ran: list[bytes] = []
    app = app_of(kafka.bootstrap, ran, client_id="shop")
    async with app.running() as worker:
        await worker.ready()
        sent = await asyncio.gather(*(app.publish("orders", b"%d" % number) for number in range(20)))
        assert sorted(found.offset for found in sent if found is not None) == [*range(20)]
        first = app._slots.outside._worker
        assert first is not None
        assert await first.producer() is await first.producer()
        await until(lambda: len(values(kafka, "invoices")) == 20)
    assert sorted(ran) == sorted(b"%d" % number for number in range(20))
    assert app._slots.outside._worker is None
    assert (await app.publish("orders", b"after")) is not None, "it connects again"


async def test_a_lifespan_publishes_before_the_worker_connects_and_after_it_has_drained(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])

    @app.lifespan
    async def announced() -> AsyncIterator[None]:
        await app.publish("invoices", b"begun")
        yield
        await app.publish("invoices", b"ended")

    async with app.running() as worker:
        await worker.ready()
    assert values(kafka, "invoices") == [b"begun", b"ended"]


async def test_another_thread_has_a_connection_of_its_own(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    async with app.running() as worker:
        await worker.ready()

        async def publish() -> None:
            await app.publish("invoices", b"from a thread")

        await asyncio.to_thread(asyncio.run, publish())
    assert values(kafka, "invoices") == [b"from a thread"]


async def test_in_a_test_of_the_app_it_goes_to_the_broker_in_memory_and_waits_by_its_clock() -> None:
    ran: list[bytes] = []
    app = app_of("127.0.0.1:1", ran, delayed_sends=True)
    async with TestApp(app) as worker:
        worker.kafka.create_topic("invoices")
        await app.publish("orders", b"1")
        await app.publish("orders", b"2", delay="1h")
        await until(lambda: ran == [b"1"])
        worker.clock.advance("61m")
        await until(lambda: ran == [b"1", b"2"])


async def test_in_a_test_of_the_app_another_thread_sends_to_the_broker_in_memory_too() -> None:
    app = app_of("127.0.0.1:1", [])
    async with TestApp(app) as worker:
        worker.kafka.create_topic("invoices")

        async def publish() -> None:
            await app.publish("invoices", b"from a thread")

        await asyncio.to_thread(asyncio.run, publish())
        assert values(worker.kafka, "invoices") == [b"from a thread"]


@pytest.mark.slow  # an app ends in five seconds
async def test_where_two_tests_of_an_app_overlap_nothing_goes_to_its_real_brokers() -> None:
    app = app_of("127.0.0.1:1", [])
    async with TestApp(app) as first:
        async with TestApp(app) as second:
            await app.publish("orders", b"second")
            assert second.kafka.records("orders")
        await app.publish("orders", b"first")
        assert values(first.kafka, "orders") == [b"first"]


async def test_what_can_be_read_once_only_is_sent_whole(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    await app.publish("orders", (number for number in range(3)), headers=iter([("tenant", b"7")]))
    (record,) = kafka.records("orders")
    assert (record.value, dict(record.headers)["tenant"]) == (b"[0,1,2]", b"7")


async def test_a_thread_of_a_handler_that_nobody_could_await_is_told_so(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    with pytest.raises(ConfigurationError, match="where it can't be awaited"):
        await asyncio.get_running_loop().run_in_executor(None, app.publish, "orders", b"v")
    assert values(kafka, "orders") == []


async def test_a_publish_that_nobody_awaits_is_an_error_in_the_log(kafka: MemoryKafka, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(kafka.bootstrap, [])
    with pytest.warns(RuntimeWarning, match="never awaited"):
        app.publish("orders", b"lost", message_id="mine")  # pyright: ignore[reportUnusedCoroutine]  # as a user forgets it
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == "publish was never awaited: topic=orders message_id=mine"
    caplog.clear()
    await app.publish("orders", b"sent")
    await asyncio.gather(app.publish("orders", b"sent as well"))
    task: Any = app.publish("orders", b"by a task")
    await asyncio.create_task(task)
    del task
    gc.collect()
    assert (caplog.text, values(kafka, "orders")) == ("", [b"sent", b"sent as well", b"by a task"])


async def test_what_has_no_meaning_outside_is_refused_with_a_sentence(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    with pytest.raises(ConfigurationError, match="was given source= outside of a handler, where no message is in flight; leave it out"):
        await app.publish("orders", b"v", source=Message(None, b"v"))
    with pytest.raises(ConfigurationError, match="needs topics of the group that wait for it; set delayed_sends=True"):
        await app.publish("orders", b"v", delay="1m")
    with pytest.raises(ConfigurationError, match="can't be encoded"):
        await app.publish("orders", object())
    assert values(kafka, "orders") == []


async def test_a_publish_that_is_refused_for_good_raises(kafka: MemoryKafka) -> None:
    kafka.create_topic("small", 1, max_message_bytes=100)
    with pytest.raises(PublishRefused):
        await app_of(kafka.bootstrap, []).publish("small", b"v" * 1000)


async def test_a_publish_that_nobody_acknowledges_raises_with_and_without_a_worker(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(*_: Any, **__: Any) -> None:
        raise PublishUnavailable("no broker answers")

    app = app_of(kafka.bootstrap, [])
    monkeypatch.setattr(Producer, "send", send)
    with pytest.raises(PublishUnavailable):
        await app.publish("orders", b"v")
    async with app._slots.outside.beside(app.settings):
        with pytest.raises(PublishUnavailable):
            await app.publish("orders", b"v")


async def test_an_error_that_ends_the_worker_is_raised_though_something_was_published_beside_it(kafka: MemoryKafka) -> None:
    app = app_of(kafka.bootstrap, [])
    with pytest.raises(PublishUnavailable, match="of the worker"):  # noqa: PT012
        async with app._slots.outside.beside(app.settings):
            await app.publish("orders", b"v")
            raise PublishUnavailable("of the worker")
    assert values(kafka, "orders") == [b"v"]
