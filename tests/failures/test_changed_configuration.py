"""What a group wrote into its own topics is read under any later configuration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.waiting import until

from ackwise import App, ConsumeLater, Message
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import retry_copy
from ackwise.middleware.policies.delaytopic import send_later, wait_of
from ackwise.plugin.settings.config import Config
from ackwise.testing import TestApp


def new_app(*, is_plain: bool = False, **settings: Any) -> tuple[App, list[tuple[int, int]]]:
    """An app of today, and the offsets and attempts that its handler has seen."""
    app, seen = App("billing", brokers="127.0.0.1:1", config=Config(), **settings), list[tuple[int, int]]()
    if not is_plain:
        app.use(ConsumeLater(3, levels="10s 1m"))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None:
        seen.append((message.offset, message.reconsume_times))

    return app, seen


def make_topic(worker: TestApp, topic: str, partitions: int) -> None:
    if not worker.kafka.has_topic(topic):
        worker.kafka.create_topic(topic, partitions, max_message_bytes=2_000_000, message_timestamp_type="LogAppendTime")


def copy_in(worker: TestApp, topic: str, due: float, *, partition: int = 0, partitions: int = 1) -> None:
    """A copy of before the configuration was changed, which is due then."""
    make_topic(worker, topic, partitions)
    origin = Origin("orders", 0, 40 + len(worker.kafka.records(topic)), 5)
    copy = retry_copy(
        Delivery(*origin, b"k", b"v", (), origin), topic=topic, partition=0, group="billing", handler="bill",
        due=round(due * 1000), now_ms=round(worker.clock() * 1000), reason="ValueError",
    )  # fmt: skip
    worker.kafka.produce(topic, copy.value, key=copy.key, partition=partition, headers=copy.headers)


@pytest.mark.parametrize(("wait", "partitions"), [(5, 14), (30, 14), (60, 14), (30, 105), (60, 4)])
async def test_copies_of_any_rung_come_back_when_they_are_due_whatever_the_levels_are_now(wait: int, partitions: int) -> None:
    app, seen = new_app()
    worker = TestApp(app)
    due = worker.clock() + 90
    for partition in [partition for partition in range(1, partitions) if wait_of(partition) == wait][:2] * 2:
        copy_in(worker, "billing.delay", due, partition=partition, partitions=partitions)
    copies = len(worker.kafka.records("billing.delay"))
    async with worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        worker.clock.advance_to(due - 0.01)
        assert seen == [(0, 0)]
        worker.clock.advance_to(due + 0.01)
        await until(lambda: sorted(seen) == [(0, 0), *((40 + number, 1) for number in range(copies))])


async def test_copies_come_back_after_a_deployment_without_consume_later() -> None:
    app, seen = new_app(is_plain=True)
    worker = TestApp(app)
    due = worker.clock() + 90
    copy_in(worker, "billing.delay", due, partition=2, partitions=14)
    copy_in(worker, "billing.retry", due)
    async with worker:
        await until(lambda: seen == [(40, 1)])
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(40, 1), (40, 1)])


async def test_messages_that_wait_to_be_sent_are_sent_after_delayed_sends_are_off() -> None:
    app, seen = new_app()
    worker = TestApp(app)
    due = worker.clock() + 90
    waits = send_later(
        Outgoing("orders", b"later", b"k"), round(due * 1000), now_ms=round(worker.clock() * 1000), group="billing", topic="billing.delay",
        clock_skew=0.0,
    )  # fmt: skip
    make_topic(worker, "billing.delay", 27)
    worker.kafka.produce(waits.topic, waits.value, key=waits.key, partition=15, headers=waits.sent_headers)
    async with worker:
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(0, 0)])
        assert [record.value for record in worker.kafka.records("orders")] == [b"later"]
