"""What an agent does with messages that never fail, in each style, while others of the same agent fail again and again.

On a desk: what is consumed later is brought back at once. Each innocent is billed exactly once and none is a dead letter.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import faust
import pytest
from tests.faust.desk import Desk, desk

from ackwise import Batch, ConsumeLater
from ackwise.plugin.faust import current_batch, handler

Declare = Callable[[faust.App, "Ledger"], object]

#: Orders of a test. Every fourth fails each time, as often as it is tried; every tenth fails once.
COUNT = 80
ALWAYS, ONCE = 4, 10


class Order(faust.Record):
    id: int


class Declined(Exception):
    """An order failed as it should."""


class Ledger:
    """What was billed, and what was started."""

    def __init__(self) -> None:
        self.billed: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()

    async def bill(self, order: Order) -> None:
        self.begun[order.id] += 1
        await asyncio.sleep(0)
        if order.id % ALWAYS == 1 or (order.id % ONCE == 2 and self.begun[order.id] == 1):
            raise Declined(order.id)
        self.billed[order.id] += 1


def innocent(id: int) -> bool:
    """Whether it never fails."""
    return id % ALWAYS != 1 and id % ONCE != 2


def is_wanted(id: int) -> bool:
    """Whether a filter lets it through."""
    return id % 7 != 0


def _orders(app: faust.App) -> Any:
    return app.topic("orders", value_type=Order)


def _agent(loop: Callable[[Ledger, Any], Any], **options: Any) -> Declare:
    def declare(app: faust.App, ledger: Ledger) -> None:
        async def bill(orders: Any) -> None:
            await loop(ledger, orders)

        app.agent(_orders(app), name="bill", **options)(bill)

    return declare


async def _plain(ledger: Ledger, orders: Any) -> None:
    async for order in orders:
        await ledger.bill(order)


async def _events(ledger: Ledger, orders: Any) -> None:
    async for event in orders.events():
        await ledger.bill(event.value)


async def _items(ledger: Ledger, orders: Any) -> None:
    async for _, order in orders.items():  # noqa: PERF102  # a stream has no values()
        await ledger.bill(order)


async def _enumerate(ledger: Ledger, orders: Any) -> None:
    async for _, order in orders.enumerate():
        await ledger.bill(order)


async def _noack(ledger: Ledger, orders: Any) -> None:
    async for event in orders.noack().events():
        await ledger.bill(event.value)
        event.ack()


async def _with_event(ledger: Ledger, orders: Any) -> None:
    async for event in orders.noack().events():
        async with event:
            await ledger.bill(event.value)


async def _filter(ledger: Ledger, orders: Any) -> None:
    async for order in orders.filter(lambda order: is_wanted(order.id)):
        await ledger.bill(order)


async def _group_by(ledger: Ledger, orders: Any) -> None:
    async for order in orders.group_by(Order.id):
        await ledger.bill(order)


async def _ruling(ledger: Ledger, orders: Any) -> None:
    async for batch in orders.take(10, within=0.001):
        ruled = current_batch()
        for index, order in enumerate(batch):
            try:
                await ledger.bill(order)
            except Declined:
                ruled.later(ruled[index])


async def _noack_take(ledger: Ledger, orders: Any) -> None:
    async for batch in orders.noack_take(10, within=0.001):
        for event in batch:
            await ledger.bill(event.value)
            event.ack()


async def _take(ledger: Ledger, orders: Any) -> None:
    async for batch in orders.take(10, within=0.001):
        for order in batch:
            await ledger.bill(order)


async def _take_events(ledger: Ledger, orders: Any) -> None:
    async for batch in orders.take_events(10, within=0.001):
        for event in batch:
            await ledger.bill(event.value)


async def _take_with_timestamp(ledger: Ledger, orders: Any) -> None:
    async for batch in orders.take_with_timestamp(10, within=0.001, timestamp_field_name="at"):
        for order in batch:
            await ledger.bill(order)


def _through(app: faust.App, ledger: Ledger) -> None:
    async def bill(orders: Any) -> None:
        async for order in orders.through(app.topic("paid", value_type=Order)):
            await ledger.bill(order)

    app.agent(_orders(app), name="bill")(bill)


def _yields(app: faust.App, ledger: Ledger) -> None:
    async def bill(orders: Any) -> AsyncIterator[int]:
        async for order in orders:
            await ledger.bill(order)
            yield order.id

    app.agent(_orders(app), name="bill")(bill)


def _sink(app: faust.App, ledger: Ledger) -> None:
    async def bill(orders: Any) -> AsyncIterator[Order]:
        async for order in orders:
            yield order

    app.agent(_orders(app), name="bill", sink=[ledger.bill])(bill)


def _handler(app: faust.App, ledger: Ledger) -> None:
    @handler(app, _orders(app), max_batch=10, name="bill")
    async def bill(batch: Batch[Order]) -> None:
        for message in batch:
            await ledger.bill(message.value)


EXACTLY_ONCE = {
    "plain": _agent(_plain),
    "events": _agent(_events),
    "items": _agent(_items),
    "enumerate": _agent(_enumerate),
    "noack": _agent(_noack),
    "with_event": _agent(_with_event),
    "filter": _agent(_filter),
    "concurrency": _agent(_plain, concurrency=4),
    "isolated": _agent(_plain, isolated_partitions=True),
    "yields": _yields,
    "sink": _sink,
    "rules": _agent(_ruling),
    "noack_take": _agent(_noack_take),
    "group_by": _agent(_group_by),
    "through": _through,
}

IN_BATCHES = {
    "take": _agent(_take),
    "take_events": _agent(_take_events),
    "take_with_timestamp": _agent(_take_with_timestamp),
    "noack_take": _agent(_noack_take),
    "handler": _handler,
}


class Relay:
    """Brings back what is consumed later, and hands on what `group_by` and `through` sent."""

    def __init__(self, here: Desk) -> None:
        self._here = here
        self._brought = self._handed = 0
        self.dead: Counter[int] = Counter()

    def turn(self, ordered: int) -> bool:
        """Return whether all that was `ordered`, and all that came of it, is settled."""
        for copy in self._here.publisher.sent[self._brought :]:
            if copy.topic == "billing.dlq":
                self.dead[json.loads(copy.value or b"")["id"]] += 1
                self._here.publisher.sent.remove(copy)
                continue
            self._here.bring_back(copy, 100 + self._brought)
            self._brought += 1
        for value in self._here.client.sent[self._handed :]:
            self._here.fetch(value, topic=self._here.topics[-1], start=100 + self._handed)
            self._handed += 1
        there = {"orders": ordered, "billing.retry": self._brought, **dict.fromkeys(self._here.topics[1:], self._handed)}
        return all(lane.watermark.commit == 100 + count for topic, count in there.items() for lane in self._here.lanes(topic))


async def run(monkeypatch: pytest.MonkeyPatch, declare: Declare, *, passes_on: bool = False, **policy: Any) -> tuple[Ledger, Counter[int]]:
    """All orders go through the agent until each is billed or dead. A broker takes a moment to acknowledge what is passed on."""
    ledger = Ledger()
    async with desk(monkeypatch, lambda app: declare(app, ledger), ConsumeLater(3, levels="1s", **policy)) as here:
        here.client.answer = lambda report: void(asyncio.get_running_loop().call_later(0.001, report.set_result, None))
        if passes_on:
            await here.until(lambda: len(here.host.intakes) == 2, "the derived stream")
            (derived,) = [intake.topics[0] for name, intake in here.host.intakes.items() if "/" in name]
            here.topics = (*here.topics, derived)
            await here.assign(derived)
        relay = Relay(here)
        for start in range(0, COUNT, 20):
            here.fetch(*(b'{"id": %d}' % id for id in range(start, start + 20)), start=100 + start)
        await here.until(lambda: relay.turn(COUNT), "the end of all orders")
        return ledger, relay.dead


def void(_: object) -> None:
    """For a callback that answers nothing."""


@pytest.mark.parametrize("style", EXACTLY_ONCE)
async def test_an_innocent_is_billed_exactly_once_whatever_fails_beside_it(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    ledger, dead = await run(monkeypatch, EXACTLY_ONCE[style], passes_on=style in ("group_by", "through"))
    wanted = {id for id in range(COUNT) if innocent(id) and (style != "filter" or is_wanted(id))}
    assert {id: ledger.begun[id] for id in ledger.begun if innocent(id)} == dict.fromkeys(wanted, 1)
    assert {id for id in dead if innocent(id)} == set()


@pytest.mark.parametrize("style", IN_BATCHES)
@pytest.mark.parametrize("policy", [{}, {"no_retry": Declined}], ids=["often", "never again"])
async def test_an_innocent_of_a_batch_that_raises_is_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch, style: str, policy: dict[str, Any]
) -> None:
    ledger, dead = await run(monkeypatch, IN_BATCHES[style], **policy)
    assert {id for id in dead if innocent(id)} == set()
    assert set(ledger.billed) >= {id for id in range(COUNT) if innocent(id)}
