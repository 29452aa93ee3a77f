"""Pause, breaker and rates in a whole worker, over a Kafka in memory."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from ackwise import App, Batch, Breaker, EventCode, Message, RateLimit
from ackwise.middleware.controlrecord import ControlRecord, encode
from ackwise.middleware.pausing import Target
from ackwise.plugin.settings.config import Config
from ackwise.testing import Place, TestApp


class Order(BaseModel):
    id: str


BAD = b"no order"


class Shop:
    """An app that says what it has run."""

    def __init__(self, *policies: Breaker | RateLimit) -> None:
        self.ran: list[str] = []
        self.app = app = App("billing", config=Config())
        app.use(*policies)

        @app.agent("orders")
        async def bill(message: Message[Order]) -> None:
            self.ran.append(message.value.id)

        @app.agent("refunds")
        async def refund(batch: Batch[Order]) -> None:
            self.ran += [message.value.id for message in batch]


async def nothing_more(worker: TestApp) -> None:
    """Time for whatever would happen now."""
    await asyncio.sleep(0.3)


async def test_a_paused_handler_begins_nothing_and_others_go_on() -> None:
    shop = Shop()
    async with TestApp(shop.app) as worker:
        await shop.app.pause("bill")
        waiting = asyncio.ensure_future(worker.deliver("orders", Order(id="a")))
        fate = await worker.deliver("refunds", Order(id="b"))
        await nothing_more(worker)
        assert (fate.kind, shop.ran, waiting.done()) == ("done", ["b"], False)
        await shop.app.resume("bill")
        fate = await waiting
    assert (fate.kind, fate.attempt, shop.ran) == ("done", 1, ["b", "a"])


async def test_a_paused_partition_begins_nothing_and_others_go_on() -> None:
    shop = Shop()
    async with TestApp(shop.app, partitions=2) as worker:
        await shop.app.pause("orders/1")
        waiting = asyncio.ensure_future(worker.deliver("orders", Order(id="a"), partition=1))
        await worker.deliver("orders", Order(id="b"), partition=0)
        await nothing_more(worker)
        assert (shop.ran, waiting.done()) == (["b"], False)
        await shop.app.resume("orders/1")
        await waiting
    assert shop.ran == ["b", "a"]


async def test_a_lone_bad_first_value_is_dead_by_a_timer() -> None:
    shop = Shop()
    async with TestApp(shop.app) as worker:
        fate = await worker.deliver("orders", BAD)
    assert (fate.kind, fate.attempt, len(worker.dead_letters)) == ("dead", 1, 1)


async def test_twenty_bad_first_values_stop_the_handler_and_none_is_a_dead_letter() -> None:
    shop = Shop(Breaker(first_wait="1h"))
    async with TestApp(shop.app) as worker:
        for _ in range(20):
            worker.kafka.produce("orders", BAD)
        await worker.deliver("refunds", Order(id="b"))
        await nothing_more(worker)
        assert worker.dead_letters == []
    failed = [event for event in worker.events if event.code is EventCode.FAILED]
    assert [(event.offset, event.handler, event.attempt) for event in failed] == [(offset, "bill", 1) for offset in range(20)]
    assert worker.kafka.committed("billing")["orders", 0].offset == 0


async def test_a_good_first_value_lets_the_letters_before_it_go() -> None:
    shop = Shop(Breaker(first_wait="1h"))
    async with TestApp(shop.app) as worker:
        bad = asyncio.ensure_future(worker.deliver("orders", BAD))
        await nothing_more(worker)
        assert not bad.done()
        await worker.deliver("orders", Order(id="a"))
        fate = await bad
    assert (fate.kind, fate.attempt, shop.ran) == ("dead", 1, ["a"])


async def test_a_rate_lets_messages_wait_and_charges_no_attempt() -> None:
    shop = Shop(RateLimit("20/s", burst=2))
    async with TestApp(shop.app) as worker:
        begun = asyncio.get_running_loop().time()
        fates = await asyncio.gather(*(worker.deliver("orders", Order(id=str(number))) for number in range(8)))
        lasted = asyncio.get_running_loop().time() - begun
    assert [(fate.kind, fate.attempt) for fate in fates] == [("done", 1)] * 8
    assert sorted(shop.ran) == sorted(map(str, range(8)))
    assert lasted > 0.25


async def test_a_command_pauses_a_worker_and_lets_it_go_on() -> None:
    shop = Shop()
    async with TestApp(shop.app) as worker:
        await worker.deliver("refunds", Order(id="b"))
        tell(worker, "bill", paused=True)
        await nothing_more(worker)
        waiting = asyncio.ensure_future(worker.deliver("orders", Order(id="a")))
        await nothing_more(worker)
        assert not waiting.done()
        tell(worker, "bill", paused=False)
        assert (await waiting).attempt == 1
    assert shop.ran == ["b", "a"]


async def test_a_worker_that_starts_knows_what_is_paused_before_it_begins_anything() -> None:
    shop = Shop()
    worker = TestApp(shop.app)
    worker.kafka.create_topic("billing.control", cleanup_policy="compact")
    tell(worker, "bill", paused=True)
    async with worker:
        waiting = asyncio.ensure_future(worker.deliver("orders", Order(id="a")))
        await worker.deliver("refunds", Order(id="b"))
        await nothing_more(worker)
        assert (shop.ran, waiting.done()) == (["b"], False)
        tell(worker, "bill", paused=False)
        await waiting


async def test_resume_with_dead_lets_withheld_letters_go() -> None:
    shop = Shop(Breaker(first_wait="1h"))
    async with TestApp(shop.app) as worker:
        for _ in range(25):
            worker.kafka.produce("orders", BAD)
        await worker.deliver("refunds", Order(id="b"))
        await nothing_more(worker)
        assert worker.dead_letters == []
        tell(worker, "bill", paused=False, dead=True)
        for offset in range(25):
            await worker.fate(Place("orders", 0, offset))
    assert len(worker.dead_letters) == 25


def tell(worker: TestApp, handler: str, *, paused: bool, dead: bool = False) -> None:
    key, value = encode(ControlRecord(Target(handler), paused, dead))
    worker.kafka.produce("billing.control", value, key=key)
