"""RocketMQ's rows (A, W, S of `docs/semantics.md`) on Faust: with handler functions, and with agents that know nothing of Ackwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import faust
import pytest
from tests.conformance.results import ERROR, RESULTS, Back, Handler
from tests.conformance.results import handler as doing
from tests.faust.desk import Desk, desk

from ackwise import CONSUME_LATER, Batch, ConsumeLater, Message, Reject
from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.wire import Copy
from ackwise.plugin.faust import current_batch, handler

Declare = Callable[[faust.App], None]

#: Where what comes back at a level goes, after the first delivery.
TOPICS = {0: "billing.delay.10s", 5: "billing.delay.1m", -1: "billing.dlq"}

#: Rows of what a handler returns; a loop returns nothing.
RETURNED = ("A12", "A13")


def batch_handler(handle: Handler, *, max_batch: int = 200, keep_ack_index_on_error: bool = False) -> Declare:
    """A handler function of batches."""

    def declare(app: faust.App) -> None:
        @handler(app, "orders", max_batch=max_batch, keep_ack_index_on_error=keep_ack_index_on_error)
        async def bill(batch: Batch[bytes]) -> Any:
            return handle(batch)

    return declare


def message_handler(handle: Callable[[Message[bytes]], object]) -> Declare:
    """A handler function of messages."""

    def declare(app: faust.App) -> None:
        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> Any:
            return handle(message)

    return declare


def loop_over_batches(handle: Handler, *, max_batch: int = 200) -> Declare:
    """A stock agent that takes batches and rules on them."""

    def declare(app: faust.App) -> None:
        @app.agent(app.topic("orders", value_serializer="raw"), name="bill")
        async def bill(orders: Any) -> None:
            async for _ in orders.take(max_batch, within=0.01):
                if handle(current_batch()) is CONSUME_LATER:
                    raise ConsumeLater

    return declare


def loop_over_messages(handle: Callable[[Message[bytes]], object]) -> Declare:
    """A stock agent that takes one message at a time."""

    def declare(app: faust.App) -> None:
        @app.agent(app.topic("orders", value_serializer="raw"), name="bill")
        async def bill(orders: Any) -> None:
            async for _ in orders:
                if handle(current_batch()[0]) is CONSUME_LATER:
                    raise ConsumeLater

    return declare


LATER_RESULTS = [row for row in RESULTS if not str(row.id).startswith(RETURNED)]


async def hold(monkeypatch: pytest.MonkeyPatch, declare: Declare, size: int, back: Back) -> None:
    """`size` messages go through what `declare` declares: those of `back` come back, and the offset passes all of them."""
    async with desk(monkeypatch, declare) as here:
        here.fetch(*(b"v%d" % (100 + index) for index in range(size)))
        await here.until_passed(100 + size)
        assert here.sent() == [(TOPICS[level], b"v%d" % offset) for offset, level in back]
        assert await here.committed() == 100 + size


@pytest.mark.parametrize(("size", "handle", "back"), RESULTS)
async def test_what_a_handler_function_of_batches_does_has_rocketmqs_result(
    monkeypatch: pytest.MonkeyPatch, size: int, handle: Handler, back: Back
) -> None:
    await hold(monkeypatch, batch_handler(handle), size, back)


@pytest.mark.parametrize(("size", "handle", "back"), LATER_RESULTS)
async def test_what_a_loop_over_batches_does_has_rocketmqs_result(
    monkeypatch: pytest.MonkeyPatch, size: int, handle: Handler, back: Back
) -> None:
    await hold(monkeypatch, loop_over_batches(handle), size, back)
