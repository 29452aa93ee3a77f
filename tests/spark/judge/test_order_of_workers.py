"""What a worker of this library reports of handlers with an order shows nobody as overtaken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.spark.histories import NOW

from ackwise import App, Batch, Message, RetryInPlace
from ackwise.middleware.events import Event, EventCode
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.testing import TestApp

IN_PLACE = RetryInPlace(5, delay="10ms")
MESSAGES = 25


def written(events: Sequence[Event], order: str) -> list[dict[str, Any]]:
    """The events as one writer has them in its log, after a session that says this order."""
    same = {"writer_id": 1, "cluster": "c", "group_id": "shop", "client": "w1"}
    found = [{**same, "seq": 0, "event_type": EventCode.SESSION_START, "event_ts": NOW, "attrs": json.dumps({"order": {"ship": order}})}]
    for seq, event in enumerate(events, 1):
        fields = {name: value for name, value in event._asdict().items() if name not in ("code", "record_ts_ms", "due_ms")}
        found.append({**same, **fields, "seq": seq, "event_type": int(event.code), "event_ts": NOW + seq})
    return found


async def overtaken(app: App, order: str) -> tuple[int, list[int]]:
    """How many messages of three deliveries were judged, and the offsets of those that were overtaken, if the handler had this order."""
    orders = [{"id": number} for number in range(MESSAGES)]
    async with TestApp(app) as worker:
        await worker.deliver_batch("orders", orders, key="ann")
        await worker.deliver_batch("orders", orders, key="bob")
        await worker.deliver_batch("orders", orders)
        ruling = rule(written(worker.events, order), ReconcileConfig())
    return len(ruling.messages), sorted(offset for *_, offset in ruling.overtaken)


@pytest.mark.parametrize(
    ("order", "concurrency"), [("key", 1), ("key", 4), ("partition", 1), ("partition", 4)], ids=lambda value: str(value)
)
async def test_single_messages_that_fail_now_and_then_are_overtaken_by_nobody(order: Any, concurrency: int) -> None:
    app, runs = App("shop"), Counter[tuple[int, int]]()

    @app.agent("orders", order=order, concurrency=concurrency, in_place=IN_PLACE)
    async def ship(message: Message[dict[str, int]]) -> None:
        place = message.partition, message.offset
        runs[place] += 1
        if place[1] % 7 == 3 and runs[place] < 3:
            raise TimeoutError

    assert await overtaken(app, order) == (3 * MESSAGES, [])
    assert runs.total() > 3 * MESSAGES


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_batches_that_fail_now_and_then_are_overtaken_by_nobody(order: Any) -> None:
    app, runs = App("shop"), Counter[tuple[int, int]]()

    @app.agent("orders", order=order, in_place=IN_PLACE)
    async def ship(batch: Batch[dict[str, int]]) -> None:
        for message in batch:
            place = message.partition, message.offset
            runs[place] += 1
            if place[1] % 7 == 3 and runs[place] < 2:
                raise TimeoutError

    assert await overtaken(app, order) == (3 * MESSAGES, [])
    assert runs.total() > 3 * MESSAGES


async def test_a_worker_that_keeps_no_order_is_found_out() -> None:
    app, runs = App("shop"), Counter[tuple[int, int]]()

    @app.agent("orders", in_place=IN_PLACE, order="key", order_by=lambda message: message.value["id"])
    async def ship(message: Message[dict[str, int]]) -> None:
        place = message.partition, message.offset
        runs[place] += 1
        if place[1] % 7 == 3 and runs[place] < 3:
            raise TimeoutError

    number, late = await overtaken(app, "partition")
    assert number == 3 * MESSAGES
    assert late
    assert {offset % 7 for offset in late} == {3}
