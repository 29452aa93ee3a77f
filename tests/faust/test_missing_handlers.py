"""Copies for an agent that this worker of Faust does not have: newer workers may have it."""

from __future__ import annotations

import time

import pytest
from tests.faust.desk import desk, reading

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import Copy, parse_copy, retry_copy
from ackwise.plugin.consumer.routes import HANDLER_MISSING_FOR


def copy_of(handler: str, age: float) -> Copy:
    """A copy whose message failed first that many seconds ago."""
    now_ms, origin = round(time.time() * 1000), Origin("orders", 3, 7, 5)
    message = Delivery(*origin, b"k", b"v", (), origin, 3, first_seen_ms=now_ms - round(age * 1000))
    return retry_copy(
        message, topic="billing.retry", partition=3, group="billing", handler=handler, due=now_ms, now_ms=now_ms, reason="E"
    )  # fmt: skip


async def test_a_copy_for_an_agent_of_newer_workers_goes_back_to_a_delay_and_dies_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, reading()) as here:
        here.bring_back(copy_of("ship", age=60))
        await here.until_passed(101, "billing.retry")
        (copy,) = here.publisher.sent
        read = parse_copy(Delivery(*(here_ := Origin(copy.topic, 3, 0, 0)), copy.key, copy.value, copy.headers, here_), "billing")
        assert (here.publisher.topics, read.attempt, read.handler) == (["billing.delay.1m"], 4, "ship")
        here.bring_back(copy_of("ship", age=HANDLER_MISSING_FOR + 1), offset=101)
        await here.until_passed(102, "billing.retry")
        assert [topic for topic, _ in here.sent()] == ["billing.delay.1m", "billing.dlq"]
