"""A batch middleware around single messages: portions, claims, time, revocation, and what is dead together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.plugin.consumer.ordered import Shop, stubborn
from tests.tables import each
from tests.waiting import until

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_SUCCESS
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import HandlerStopped
from ackwise.middleware.policies.retry import ConsumeLater

SHOP = {"kind": "message", "order": None}


async def nothing(message: Message[Any]) -> None: ...


def around(middleware: Callable[[Batch[Any], Any], Any]) -> Callable[[Any], Any]:
    def put(call: Any) -> Any:
        async def run(batch: Batch[Any]) -> object:
            return await middleware(batch, call)

        return run

    return put


class Waiting:
    """A middleware that waits for the test before and after the handler."""

    def __init__(self) -> None:
        self.before, self.after, self.handled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = False

    async def __call__(self, batch: Batch[Any], call_next: Any) -> object:
        self.begun.set()
        try:
            await self.before.wait()
            said = await call_next(batch)
            self.handled.set()
            await self.after.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return said


@each("options", [{}, {"concurrency": 3}])
async def test_what_succeeds_is_settled_while_the_middleware_goes_on_and_what_failed_waits_for_it(shop: Any, options: Any) -> None:
    waiting = Waiting()
    waiting.before.set()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 101:
            raise ValueError

    here = shop(handle, around=around(waiting), dedup=True, **options)
    object.__setattr__(here.worker, "settle_interval", 0.0)
    object.__setattr__(here.pipeline.execution.overtime, "every", 0.01)
    here.offer(3)
    await waiting.handled.wait()
    await until(lambda: here.lane.watermark.commit == 101 and EventCode.SUCCEEDED in here.sink.codes(102))
    assert (here.sent, len(here.leases)) == ([], 1)
    waiting.after.set()
    await here.settled(3)
    assert (here.sent, len(here.leases)) == ([("billing.delay.10s", 101)], 0)
    assert sum(len(trip.completes) for trip in here.store.trips) == 2


async def test_what_has_not_started_is_given_back_at_once_when_the_partition_stops(shop: Any) -> None:
    waiting = Waiting()
    here = shop(nothing, around=around(waiting), dedup=True)
    here.offer(3)
    await waiting.begun.wait()
    assert len(here.leases) == 3
    here.lane.cut()
    await until(lambda: not len(here.leases))
    waiting.before.set()
    waiting.after.set()
    await here.stop()
    assert (here.seen, here.sent, here.lane.watermark.commit) == ([], [], 100)


async def test_after_the_cut_off_it_decides_nothing_that_has_not_begun(shop: Any) -> None:
    async def cutting(batch: Batch[Any], _: Any) -> object:
        here.lane.cut_off = True
        return CONSUME_SUCCESS

    here: Shop = shop(nothing, around=around(cutting), dedup=True)
    here.offer(2)
    await until(lambda: here.lane.cut_off)
    await here.stop()
    assert EventCode.SUCCEEDED not in here.sink.codes(100)
    assert here.lane.watermark.commit == 100


async def test_calling_off_ends_the_middleware_and_what_has_a_result_keeps_it(shop: Any) -> None:
    begun = asyncio.Event()
    waiting = Waiting()
    waiting.before.set()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 101:
            raise ValueError
        if message.offset == 102:
            begun.set()
            await asyncio.Event().wait()

    here = shop(handle, around=around(waiting), dedup=True)
    here.offer(4)
    await begun.wait()
    here.lane.stop()
    here.lane.call_off()
    await here.stop()
    assert waiting.cancelled
    assert here.seen == [[100], [101], [102]]
    assert here.sent == [("billing.delay.10s", 101)]
    assert (here.lane.watermark.commit, len(here.leases), here.pipeline.running) == (102, 0, 0)


async def test_calling_off_reaches_a_middleware_after_all_have_failed(shop: Any) -> None:
    waiting = Waiting()
    waiting.before.set()

    async def handle(message: Message[Any]) -> None:
        raise ValueError

    here = shop(handle, around=around(waiting))
    here.offer(2)
    await waiting.handled.wait()
    here.lane.stop()
    here.lane.call_off()
    try:
        await until(lambda: waiting.cancelled)
    finally:
        waiting.after.set()
    await here.stop()
    assert here.sent == [("billing.delay.10s", 100), ("billing.delay.10s", 101)]


async def test_its_own_time_ends_and_what_the_handler_has_had_is_not_touched(shop: Any) -> None:
    waiting = Waiting()
    waiting.before.set()
    here = shop(nothing, around=around(waiting), consume_timeout=0.05)
    here.offer(2)
    await here.settled(2)
    await here.until(lambda: waiting.cancelled)
    assert here.sent == []


async def test_one_that_hangs_before_the_handler_fails_its_messages(shop: Any) -> None:
    waiting = Waiting()
    here = shop(nothing, around=around(waiting), consume_timeout=0.05)
    here.offer(2)
    await here.settled(2)
    assert here.sent == [("billing.delay.10s", 100), ("billing.delay.10s", 101)]
    assert here.seen == []


async def test_one_that_swallows_its_cancellation_is_abandoned(shop: Any) -> None:
    end = asyncio.Event()

    async def hanging(batch: Batch[Any], call_next: Any) -> object:
        await stubborn(end)
        return CONSUME_SUCCESS

    here = shop(nothing, around=around(hanging), consume_timeout=0.05)
    here.offer(2)
    await here.settled(2)
    assert (here.sent, here.pipeline.abandoned) == ([("billing.delay.10s", 100), ("billing.delay.10s", 101)], 1)
    end.set()
    await here.until_idle()
    assert here.pipeline.abandoned == 0


async def test_the_time_of_the_handler_is_its_own(shop: Any) -> None:
    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 100:
            await stubborn(end)
        if message.offset == 101:
            await asyncio.Event().wait()

    async def passing(batch: Batch[Any], call_next: Any) -> object:
        return await call_next(batch)

    here = shop(handle, around=around(passing), consume_timeout=0.05)
    here.offer(4)
    await here.settled(4)
    assert here.sent == [("billing.delay.10s", 100), ("billing.delay.10s", 101)]
    assert here.seen == [[100], [101], [102], [103]]
    end.set()
    await here.until_idle()


async def test_what_would_be_dead_together_runs_again_in_halves_until_the_culprit_is_alone(shop: Any) -> None:
    sizes: list[int] = []

    async def checking(batch: Batch[Any], call_next: Any) -> object:
        sizes.append(len(batch))
        if any(message.offset == 102 for message in batch):
            raise KeyError
        return await call_next(batch)

    here = shop(nothing, around=around(checking), dedup=True, later=ConsumeLater(16, no_retry=(KeyError,)))
    here.offer(4)
    await here.settled(4)
    assert here.sent == [("billing.dlq", 102)]
    assert sizes == [4, 2, 2, 1, 1]
    assert here.seen == [[100], [101], [103]]


@each("when", ["before", "after"])
async def test_what_it_raises_to_stop_the_app_rules_on_nothing(shop: Any, when: str) -> None:
    async def stopping(batch: Batch[Any], call_next: Any) -> object:
        if when == "after":
            await call_next(Batch(batch[:1]))
        raise SystemExit(1)

    here = Shop(nothing, kind="message", order=None, around=around(stopping), dedup=True)
    here.offer(2)
    assert here.lane.task is not None
    with pytest.raises(HandlerStopped):
        await here.lane.task
    assert here.sent == []
    assert not any(trip.releases for trip in here.store.trips), "it counts as lost, as what a handler stopped on"
    assert [EventCode.SUCCEEDED in here.sink.codes(offset) for offset in (100, 101)] == [when == "after", False]


async def test_by_partition_what_is_behind_a_failure_waits_and_runs_in_order(shop: Any) -> None:
    tried: list[int] = []

    async def handle(message: Message[Any]) -> None:
        tried.append(message.offset)
        if message.offset == 101 and tried.count(101) == 1:
            raise ValueError

    async def ruling(batch: Batch[Any], call_next: Any) -> object:
        if len(batch) > 3:
            batch.done(batch[3])
        return await call_next(batch)

    here = shop(handle, order="partition", around=around(ruling))
    here.offer(4)
    await here.settled(4)
    assert tried == [100, 101, 101, 102, 103]


@each("options", [{}, {"concurrency": 3}])
async def test_a_middleware_and_its_handler_have_nothing_that_is_not_marked(shop: Any, options: Any) -> None:
    unmarked: set[int] = set()
    calls: list[int] = []

    async def twice(batch: Batch[Any], call_next: Any) -> object:
        unmarked.update({message.offset for message in batch} - here.sink.marked())
        await call_next(batch)
        marks = len([event for event in here.sink.events if event.code is EventCode.MARKED])
        said = await call_next(batch)
        calls.append(len([event for event in here.sink.events if event.code is EventCode.MARKED]) - marks)
        return said

    async def handle(message: Message[Any]) -> None:
        unmarked.update({message.offset} - here.sink.marked())
        if here.sink.codes(message.offset).count(EventCode.FAILED) == 0:
            raise ValueError

    here = shop(handle, around=around(twice), dedup=True, **options)
    here.sink.mark_error = FULL_DISK
    here.offer(3)
    await until(lambda: here.worker.outage.is_on)
    assert here.seen == []
    here.sink.mark_error = None
    await here.settled(3)
    await until(lambda: calls)
    assert (unmarked, calls) == (set(), [1])
