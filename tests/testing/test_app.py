"""`TestApp`: handlers with everything around them, and no broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from ackwise import App, Batch, Dedup, Event, Events, Later, Message, Reject, Transactional
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EventCode
from ackwise.plugin.settings.config import Config
from ackwise.stores.memory import MemoryStore
from ackwise.testing import Place, TestApp, assert_no_loss, assert_order, assert_run_once


class Order(BaseModel):
    id: str
    amount: int


@dataclass
class Refund:
    id: str
    amount: int


def shop() -> App:
    """Small orders are billed, large ones an hour later, impossible ones never."""
    app = App("billing", config=Config())
    app.use(Dedup("redis://nobody-is-there:1", key=lambda message: message.value.id))

    @app.agent("orders")
    async def bill(message: Message[Order]) -> None:
        if message.value.amount < 0:
            raise Reject("negative")
        if message.value.amount > 100 and message.reconsume_times == 0:
            raise Later("1h")

    @app.agent("refunds", max_batch=10)
    async def refund(batch: Batch[Refund]) -> None:
        for message in batch:
            if message.value.amount == 0:
                batch.dead(message, "nothing to give back")

    return app


async def test_a_handler_that_succeeds_is_done() -> None:
    async with TestApp(shop()) as worker:
        fate = await worker.deliver("orders", Order(id="a", amount=5))
    assert (fate.kind, fate.handler, fate.attempt, fate.place) == ("done", "bill", 1, Place("orders", 0, 0))


async def test_what_comes_later_comes_when_the_clock_says_so() -> None:
    async with TestApp(shop()) as worker:
        later = await worker.deliver("orders", Order(id="a", amount=500))
        assert later.kind == "later"
        assert later.due == pytest.approx(worker.clock() + 3600, abs=0.01)
        worker.clock.advance("59m")
        await worker.deliver("orders", Order(id="b", amount=5))
        assert worker.fates(later.place) == [later]
        done = await worker.redeliver(later)
        assert (done.kind, done.attempt, done.place) == ("done", 2, later.place)
        with pytest.raises(ConfigurationError, match="orders/0/0 is done; only what comes back later"):
            await worker.redeliver(done)


async def test_a_message_with_the_key_of_another_is_a_duplicate() -> None:
    async with TestApp(shop()) as worker:
        fates = [await worker.deliver("orders", Order(id="a", amount=5)) for _ in range(2)]
    assert [fate.kind for fate in fates] == ["done", "duplicate"]


async def test_what_can_not_be_consumed_is_a_dead_letter() -> None:
    async with TestApp(shop()) as worker:
        rejected = await worker.deliver("orders", Order(id="a", amount=-1))
        unreadable = await worker.deliver("orders", b"no order")
        assert [(fate.kind, fate.error) for fate in (rejected, unreadable)] == [("dead", "rejected"), ("dead", "undecodable")]
        assert [letter.value for letter in worker.dead_letters] == [b'{"id":"a","amount":-1}', b"no order"]


async def test_a_batch_comes_together_and_each_message_has_a_fate() -> None:
    async with TestApp(shop(), partitions=2) as worker:
        fates = await worker.deliver_batch("refunds", [Refund("a", 5), {"id": "b", "amount": 0}, '{"id": "c", "amount": 1}'], partition=1)
    assert [(fate.kind, fate.place.partition) for fate in fates] == [("done", 1), ("dead", 1), ("done", 1)]


async def test_the_app_can_be_tested_again_and_can_still_be_started() -> None:
    app = shop()
    for _ in range(2):
        async with TestApp(app) as worker:
            assert (await worker.deliver("orders", Order(id="a", amount=5))).kind == "done"
    assert not app._is_started


async def test_what_ends_the_worker_is_raised_where_the_test_waits() -> None:
    app = App("billing", config=Config())

    @app.agent("orders")
    async def bill(order: Order) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with TestApp(app) as worker:
            await worker.deliver("orders", Order(id="a", amount=5))


async def test_a_handler_that_does_not_return_is_a_time_out_with_a_name() -> None:
    app, entered, leave = App("billing", config=Config()), asyncio.Event(), asyncio.Event()

    @app.agent("orders")
    async def bill(order: Order) -> None:
        entered.set()
        await leave.wait()

    async with TestApp(app) as worker:
        with pytest.raises(TimeoutError, match=r"orders/0/0 has no fate in attempt 1 after 0\.2 s: its handler has not returned"):
            await worker.deliver("orders", Order(id="a", amount=5), max_wait=0.2)
        await entered.wait()
        leave.set()
        assert (await worker.fate(Place("orders", 0, 0))).kind == "done"


@pytest.mark.slow  # waits the four seconds that a stop grants a call it has cut off
async def test_a_worker_that_stops_tells_of_the_claim_that_it_gave_back() -> None:
    app, entered = App("billing", config=Config(), drain_timeout=0.05), asyncio.Event()
    app.use(Dedup("memory://"))

    @app.agent("orders")
    async def bill(message: Message[str]) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with TestApp(app) as worker:
        delivering = asyncio.create_task(worker.deliver("orders", "a"))
        await entered.wait()
        delivering.cancel()
    about = [event.code for event in worker.events if event.offset == 0 and event.code < EventCode.COMMITTED]
    assert about == [EventCode.CLAIMED, EventCode.RELEASED]


async def test_an_app_that_could_not_start_is_refused_and_nothing_is_left_open() -> None:
    app = App("billing", config=Config())
    with pytest.raises(ConfigurationError, match="has no agents"):
        async with TestApp(app):
            raise AssertionError


async def test_a_failing_test_keeps_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with TestApp(shop()) as worker:
            await worker.deliver("orders", Order(id="a", amount=1 // 0))


async def test_events_are_kept_and_not_written_and_observers_see_them(tmp_path: Path) -> None:
    app, seen = shop(), list[Event]()
    app.use(Events(str(tmp_path / "events")), seen.append)
    async with TestApp(app) as worker:
        await worker.deliver("orders", Order(id="a", amount=5))
    assert not (tmp_path / "events").exists()
    assert worker.events == seen


async def test_a_database_of_the_apps_own_is_used(tmp_path: Path) -> None:
    app = App("billing", config=Config())
    app.use(Transactional(f"sqlite:///{tmp_path}/shop.db"))

    @app.agent("orders")
    async def bill(message: Message[Order]) -> None:
        message.connection.execute("CREATE TABLE IF NOT EXISTS bills (id TEXT)")
        message.connection.execute("INSERT INTO bills VALUES (?)", (message.value.id,))

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", Order(id="a", amount=5))).kind == "done"
    assert (tmp_path / "shop.db").exists()


async def test_the_events_of_a_worker_can_be_audited() -> None:
    async with TestApp(shop()) as worker:
        for number in range(5):
            await worker.deliver("orders", Order(id=str(number), amount=5))
        waiting = await worker.deliver("orders", Order(id="w", amount=500))
        sent = [("orders", 0, offset) for offset in range(6)]
        assert_no_loss(sent, worker.events, waiting=[waiting.place])
        assert_run_once(worker.events)
        assert_order(worker.events)
        with pytest.raises(AssertionError, match=r"1 messages have no end: orders/0/5 \(.*SENT_BACK"):
            assert_no_loss(sent, worker.events)


async def test_a_wait_for_what_comes_later_says_when_it_does() -> None:
    async with TestApp(shop()) as worker:
        later = await worker.deliver("orders", Order(id="a", amount=500))
        with pytest.raises(TimeoutError, match=r"orders/0/0 has no fate in attempt 2 .*: it comes back in 3600 s of worker\.clock"):
            await worker.fate(later.place, attempt=2, max_wait=0.05)


async def test_wrong_uses_get_a_sentence() -> None:
    worker = TestApp(shop())
    with pytest.raises(ConfigurationError, match="the worker is not started; use `async with TestApp"):
        await worker.deliver("orders", b"")
    async with worker:
        with pytest.raises(ConfigurationError, match="no agent of the app reads topic 'order'; they read orders, refunds"):
            await worker.deliver("order", b"")
        with pytest.raises(ConfigurationError, match="takes a list of values, and this is one str"):
            await worker.deliver_batch("orders", "abc")
        assert await worker.deliver_batch("orders", []) == []
        with pytest.raises(ConfigurationError, match="number is 0; the first time is 1"):
            worker.crash_at("before the claim", number=0)
    with pytest.raises(ConfigurationError, match="a TestApp is used once"):
        async with worker:
            raise AssertionError


@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_a_store_of_the_tests_own_is_closed_once_the_last_worker_is_gone() -> None:
    class Counted(MemoryStore):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    store = Counted()
    async with TestApp(shop(), store=store) as worker:
        worker.crash_at("before the commit")
        await worker.deliver("orders", Order(id="a", amount=5))
        assert store.closed == 0
    assert store.closed == 1
