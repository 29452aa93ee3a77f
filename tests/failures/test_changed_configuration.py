"""What a group wrote into topics of its own is read under any later configuration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.waiting import until

from ackwise import App, ConsumeLater, Message
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.sendlater import send_later
from ackwise.middleware.wire import retry_copy
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


def copy_in(worker: TestApp, topic: str, due: float) -> None:
    """A copy of before the configuration was changed, which is due then."""
    if not worker.kafka.has_topic(topic):
        worker.kafka.create_topic(topic, max_message_bytes=2_000_000, message_timestamp_type="LogAppendTime")
    origin = Origin("orders", 0, 40 + len(worker.kafka.records(topic)), 5)
    copy = retry_copy(
        Delivery(*origin, b"k", b"v", (), origin), topic=topic, partition=0, group="billing", handler="bill",
        due=round(due * 1000), now_ms=round(worker.clock() * 1000), reason="ValueError",
    )  # fmt: skip
    worker.kafka.produce(topic, copy.value, key=copy.key, headers=copy.headers)


@pytest.mark.parametrize("topic", ["billing.delay.5s", "billing.delay.30s", "billing.delay.2h"])
async def test_copies_of_levels_that_are_no_more_come_back_when_they_are_due(topic: str) -> None:
    app, seen = new_app()
    worker = TestApp(app)
    due = worker.clock() + 90
    copy_in(worker, topic, due)
    copy_in(worker, topic, due)
    async with worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        worker.clock.advance_to(due - 0.01)
        assert seen == [(0, 0)]
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(0, 0), (40, 1), (41, 1)])


async def test_copies_come_back_after_a_deployment_without_consume_later() -> None:
    app, seen = new_app(is_plain=True)
    worker = TestApp(app)
    due = worker.clock() + 90
    copy_in(worker, "billing.delay.90s", due)
    copy_in(worker, "billing.retry", due)
    async with worker:
        await until(lambda: seen == [(40, 1)])
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(40, 1), (40, 1)])


async def test_messages_that_wait_to_be_sent_are_sent_after_delayed_sends_are_off() -> None:
    app, seen = new_app()
    worker = TestApp(app)
    due, levels = worker.clock() + 90, DelayLevels("10s 1m")
    waits = send_later(
        Outgoing("orders", b"later", b"k"), round(due * 1000), now_ms=round(worker.clock() * 1000), group="billing",
        topics=["billing.send.10s", "billing.send.1m"], levels=levels, clock_skew=0.0,
    )  # fmt: skip
    for level in levels.names():
        worker.kafka.create_topic(f"billing.send.{level}", max_message_bytes=2_000_000, message_timestamp_type="LogAppendTime")
    worker.kafka.produce(waits.topic, waits.value, key=waits.key, headers=waits.sent_headers)
    async with worker:
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(0, 0)])
        assert [record.value for record in worker.kafka.records("orders")] == [b"later"]


async def test_a_topic_of_before_that_is_deleted_once_it_is_empty_is_let_go_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.relay.member._LOOK_FOR_TOPICS", 0.1)
    caplog.set_level("INFO", "ackwise")
    app, seen = new_app()
    worker = TestApp(app)
    due = worker.clock() + 20
    copy_in(worker, "billing.delay.5s", due)
    async with worker:
        worker.clock.advance_to(due + 0.01)
        await until(lambda: seen == [(40, 1)])
        worker.kafka.delete_topic("billing.delay.5s")
        await until(lambda: "gone=billing.delay.5s" in caplog.text)
        assert (await worker.deliver("orders", b"1")).kind == "done"
    assert not worker.kafka.has_topic("billing.delay.5s")
    assert "is made again" not in caplog.text
