"""Pause, breaker and rates in a whole worker, over a Kafka in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ackwise import App, Batch, Breaker, Dedup, EventCode, Later, Message, RateLimit, Reject, RetryInPlace, Transactional
from ackwise.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import ControlRecord, encode
from ackwise.middleware.flow.pausing import Target
from ackwise.plugin.settings.config import Config
from ackwise.stores.memory import MemoryStore
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

        @app.agent("orders", max_batch=1)
        async def bill(message: Message[Order]) -> None:
            self.ran.append(message.value.id)

        @app.agent("refunds")
        async def refund(batch: Batch[Order]) -> None:
            self.ran += [message.value.id for message in batch]


def value(id: str | int) -> bytes:
    """Of an order."""
    return Order(id=str(id)).model_dump_json().encode()


async def nothing_more(worker: TestApp) -> None:
    """Time for whatever would happen now."""
    await asyncio.sleep(0.3)


async def test_a_paused_handler_or_partition_begins_nothing_and_others_go_on() -> None:
    for target, topic, other in (("bill", "orders", "refunds"), ("orders/1", "orders", "orders")):
        shop = Shop()
        async with TestApp(shop.app, partitions=2) as worker:
            await shop.app.pause(target)
            waiting = asyncio.ensure_future(worker.deliver(topic, Order(id="a"), partition=1))
            fate = await worker.deliver(other, Order(id="b"), partition=0)
            await nothing_more(worker)
            assert (fate.kind, shop.ran, waiting.done()) == ("done", ["b"], False)
            await shop.app.resume(target)
            fate = await waiting
        assert (fate.kind, fate.attempt, shop.ran) == ("done", 1, ["b", "a"]), target


async def test_a_lone_bad_first_value_is_dead_by_a_timer() -> None:
    shop = Shop()
    async with TestApp(shop.app) as worker:
        fate = await worker.deliver("orders", BAD)
    assert (fate.kind, fate.attempt, len(worker.dead_letters)) == ("dead", 1, 1)


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


@pytest.mark.slow  # waits twice to see that nothing happens
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
    await shop.app.pause("orders/0")
    worker = TestApp(shop.app)
    worker.kafka.create_topic("billing.control", cleanup_policy="compact")
    tell(worker, "bill", paused=True)
    async with worker:
        waiting = asyncio.ensure_future(worker.deliver("orders", Order(id="a")))
        await worker.deliver("refunds", Order(id="b"))
        await nothing_more(worker)
        assert (shop.ran, waiting.done()) == (["b"], False)
        tell(worker, "bill", paused=False)
        await nothing_more(worker)
        assert shop.ran == ["b"], "it was paused from code before the start"
        await shop.app.resume("orders/0")
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


async def test_twenty_bad_first_values_stop_the_handler_until_a_good_one_which_is_tried_first_lets_their_letters_go() -> None:
    """Else the bad values at the start of a topic would be tried forever, one by one."""
    shop = Shop(Breaker(first_wait="1h", rest=0.3))
    async with TestApp(shop.app) as worker:
        worker.kafka.produce("orders", *[BAD] * 20)
        await worker.deliver("refunds", Order(id="b"))
        await asyncio.sleep(1.0)  # some rests are over, and all that was tried was bad
        assert worker.dead_letters == []
        assert worker.kafka.committed("billing")["orders", 0].offset == 0
        assert (await worker.deliver("orders", Order(id="a"), max_wait=4.0)).kind == "done"
        for offset in range(20):
            assert (await worker.fate(Place("orders", 0, offset))).kind == "dead"
    assert (len(worker.dead_letters), shop.ran) == (20, ["b", "a"])
    assert {event.attempt for event in worker.events if event.handler == "bill" and event.code is not EventCode.MARKED} == {1}


class Backend(Exception):
    """What the handler needs is unavailable."""


class Frail(Shop):
    """Its handler needs something that may be unavailable."""

    def __init__(self, *policies: Breaker | RateLimit) -> None:
        super().__init__(*policies)
        self.error: Exception | None = None
        self.calls = 0

        @self.app.agent("payments", max_batch=50)
        async def pay(message: Message[Order]) -> None:
            self.calls += 1
            if self.error is not None:
                raise self.error
            self.ran.append(message.value.id)


async def test_a_handler_whose_calls_raise_the_named_errors_is_stopped_and_the_rest_of_its_batch_waits() -> None:
    shop = Frail(Breaker(errors=(Backend,), rest="1h"))
    shop.error = Backend()
    async with TestApp(shop.app) as worker:
        worker.kafka.produce("payments", *(value(number) for number in range(50)))
        for offset in range(20):
            assert (await worker.fate(Place("payments", 0, offset))).kind == "later"
        await nothing_more(worker)
        assert shop.calls == 20
        assert worker.fates(Place("payments", 0, 20)) == []
        shop.error = None
        tell(worker, "pay", paused=False)
        for offset in range(20, 50):
            fate = await worker.fate(Place("payments", 0, offset))
            assert (fate.kind, fate.attempt) == ("done", 1)


async def test_rejections_and_other_errors_never_stop_a_handler() -> None:
    for error, kind in ((Reject("no"), Exception), (Later(5), Exception), (ValueError("bad"), Backend)):
        shop = Frail(Breaker(errors=(kind,), rest="1h"))
        shop.error = error
        async with TestApp(shop.app) as worker:
            worker.kafka.produce("payments", *(value(number) for number in range(30)))
            for offset in range(30):
                await worker.fate(Place("payments", 0, offset))


async def test_a_pause_takes_effect_before_the_next_message_of_a_batch() -> None:
    app, ran = App("billing", config=Config()), list[str]()

    @app.agent("orders", max_batch=50)
    async def bill(message: Message[Order]) -> None:
        ran.append(message.value.id)
        if len(ran) == 3:
            await app.pause("bill")

    async with TestApp(app) as worker:
        worker.kafka.produce("orders", *(value(number) for number in range(10)))
        await worker.fate(Place("orders", 0, 2))
        await nothing_more(worker)
        assert ran == ["0", "1", "2"]
        await app.resume("bill")
        await worker.fate(Place("orders", 0, 9))
    assert ran == [str(number) for number in range(10)]


async def test_a_target_that_the_app_does_not_have_is_refused() -> None:
    shop = Shop()
    with pytest.raises(ConfigurationError, match="did you mean 'bill'"):
        await shop.app.pause("bil")
    with pytest.raises(ConfigurationError, match="neither a handler of this app nor a partition"):
        await shop.app.resume("nothing/1")


async def test_a_worker_that_stops_while_everything_waits_loses_nothing_and_charges_nothing() -> None:
    shop = Shop(RateLimit("1/h"))
    store = MemoryStore()
    shop.app.use(Dedup("memory://"))
    async with TestApp(shop.app, store=store) as worker:
        worker.kafka.produce("orders", *(value(number) for number in range(30)))
        await worker.fate(Place("orders", 0, 0))
        await nothing_more(worker)
    assert shop.ran == ["0"]
    assert worker.kafka.committed("billing")["orders", 0].offset == 1
    assert not [event for event in worker.events if event.code in (EventCode.FAILED, EventCode.SENT_BACK)]


async def test_in_order_or_with_offsets_in_a_database_nothing_runs_in_front_of_what_waits_for_its_rate(tmp_path: Path) -> None:
    database = Transactional(f"sqlite:///{tmp_path}/ledger.db", mode="offsets")

    def by_id(message: Message[Order]) -> str:
        return message.value.id

    ordered: dict[str, Any] = {"order": "partition", "in_place": RetryInPlace(3)}
    sent = ["a", "a", "b", "c", "a", "b"]
    for key, policies, options in ((None, (), ordered), (by_id, (), ordered), (by_id, (database,), {})):
        app, ran = App("billing", config=Config()), list[str]()
        app.use(*policies, RateLimit("10/s", burst=1, key=key))

        @app.agent("orders", **options)  # type: ignore[untyped-decorator]
        async def bill(message: Message[Order]) -> None:
            ran.append(message.value.id)  # noqa: B023  # it runs in this round

        async with TestApp(app) as worker:
            worker.kafka.produce("orders", *map(value, sent))
            fates = [await worker.fate(Place("orders", 0, offset)) for offset in range(len(sent))]
        assert ran == sent
        assert {(fate.kind, fate.attempt) for fate in fates} == {("done", 1)}


async def test_under_the_order_of_keys_a_rate_is_spent_when_messages_run_and_keeps_their_order() -> None:
    ran = list[str]()
    app = App("billing", config=Config())
    app.use(RateLimit("20/s", burst=2))

    @app.agent("orders", order="key", order_by=lambda message: message.value.id[0], in_place=RetryInPlace(3))
    async def bill(message: Message[Order]) -> None:
        ran.append(message.value.id)

    sent = ["a1", "a2", "b1", "a3", "b2", "c1", "b3"]
    async with TestApp(app) as worker:
        begun = asyncio.get_running_loop().time()
        worker.kafka.produce("orders", *map(value, sent))
        for offset in range(len(sent)):
            await worker.fate(Place("orders", 0, offset))
        lasted = asyncio.get_running_loop().time() - begun
    assert sorted(ran) == sorted(sent)
    assert [each for each in ran if each[0] == "a"] == ["a1", "a2", "a3"]
    assert [each for each in ran if each[0] == "b"] == ["b1", "b2", "b3"]
    assert lasted > 0.2
