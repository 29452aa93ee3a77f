"""Copies for a handler that a worker does not have: a rolling deployment adds it, or it is gone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.waiting import until

from ackwise import App, ConsumeLater, Dedup, Message
from ackwise.middleware.message.message import Delivery, Origin, delivery_of
from ackwise.middleware.message.wire import due_ms, parse_copy, retry_copy
from ackwise.plugin.consumer.routes import HANDLER_MISSING_FOR
from ackwise.plugin.operate.deadletter import read_letter
from ackwise.testing import TestApp


def old_app() -> App:
    """Of before the handler `ship` was added."""
    app = App("billing", brokers="127.0.0.1:1")
    app.use(Dedup("memory://"), ConsumeLater(3, levels="10s 30s 2m"))

    @app.agent("orders")
    async def bill(message: Message[bytes]) -> None: ...

    return app


def send_back(worker: TestApp, *, failed_at: float, attempt: int = 2, handler: str = "ship", offset: int = 7) -> None:
    """Put a copy for `handler` where those are that are due."""
    now_ms, origin = round(worker.clock() * 1000), Origin("orders", 0, offset, 5)
    delivery = Delivery(*origin, b"k", b"v", (), origin, attempt - 1, first_seen_ms=round(failed_at * 1000))
    copy = retry_copy(
        delivery, topic="billing.retry", partition=0, group="billing", handler=handler, due=now_ms, now_ms=now_ms, reason="ValueError"
    )
    worker.kafka.produce(copy.topic, copy.value, key=copy.key, headers=copy.headers)


def waiting(worker: TestApp) -> list[Any]:
    return worker.kafka.records("billing.delay")


def has_more(worker: TestApp, than: int) -> bool:
    return len(waiting(worker)) > than or bool(worker.dead_letters)


async def test_a_copy_for_a_handler_of_newer_workers_waits_once_more_and_is_charged_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with TestApp(old_app()) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        failed_at = worker.clock()
        for age, attempt in ((1, 2), (600, 4), (HANDLER_MISSING_FOR - 1, 16)):
            worker.clock.advance_to(failed_at + age)
            before = len(waiting(worker))
            send_back(worker, failed_at=failed_at, attempt=attempt, offset=attempt)
            await until(partial(has_more, worker, before))
            record = waiting(worker)[-1]
            copy = parse_copy(delivery_of(("billing.delay", 6), record), "billing")
            assert (copy.attempt, copy.handler, copy.origin) == (attempt, "ship", ("orders", 0, attempt, 5))
            assert copy.first_seen_ms == round(failed_at * 1000)
            assert abs(due_ms(record.headers, "billing") - (worker.clock() + 30) * 1000) < 2
        assert not worker.dead_letters
    assert caplog.text.count("copy for an unknown handler delayed again") == 1


async def test_an_hour_after_its_first_failure_it_is_a_dead_letter() -> None:
    async with TestApp(old_app()) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        failed_at = worker.clock()
        worker.clock.advance_to(failed_at + HANDLER_MISSING_FOR)
        send_back(worker, failed_at=failed_at)
        await until(lambda: worker.dead_letters)
        (letter,) = worker.dead_letters
        assert not waiting(worker)
    assert read_letter(delivery_of(("billing.dlq", 0), letter), "billing").reason == "no-handler"


async def test_a_copy_that_nobody_takes_for_an_hour_hops_until_it_is_dead() -> None:
    async with TestApp(old_app()) as worker:
        assert (await worker.deliver("orders", b"1")).kind == "done"
        send_back(worker, failed_at=worker.clock())
        hops = 0
        while not worker.dead_letters:
            await until(partial(has_more, worker, hops))
            hops = len(waiting(worker))
            worker.clock.advance(HANDLER_MISSING_FOR / 4)
        assert 3 <= hops <= 5
        (letter,) = worker.dead_letters
    dead = read_letter(delivery_of(("billing.dlq", 0), letter), "billing")
    assert (dead.reason, dead.delivery.attempt) == ("no-handler", 2)
