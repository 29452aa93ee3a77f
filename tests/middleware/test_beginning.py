"""What is not started any more: after the cut-off of a revoke, and for a key that succeeded or runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.errors import PublishRefused
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, CONSUME_SUCCESS, Duplicate
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Exchange, Outcome, Release
from ackwise.plugin.handlers.usermiddleware import CallNext, inspect_middleware, wrap
from ackwise.plugin.loopbatch import Handover, LoopBatch

FETCHED, SETTLED = Stage.FETCHED, Stage.SETTLED


class Hand:
    """A handler of messages that waits at one of them until it may go on, and remembers what it saw."""

    def __init__(self, at: int) -> None:
        self.saw: list[int] = []
        self.at = at
        self.there, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, message: Message[bytes]) -> None:
        self.saw.append(message.offset)
        if message.offset == self.at:
            self.there.set()
            await self.go.wait()


@each("dedup", [False, True])
async def test_after_the_cut_off_a_message_handler_does_not_begin_the_rest_of_its_batch(make_spine: Any, dedup: bool) -> None:
    hand = Hand(at=101)
    spine = make_spine(hand, kind="message", dedup=dedup)
    entries = spine.entries(4)
    running = asyncio.create_task(spine.run(entries))
    await hand.there.wait()
    spine.partition.cut_off = True
    hand.go.set()
    await running
    assert hand.saw == [100, 101]
    assert [entry.stage for entry in entries] == [SETTLED, SETTLED, FETCHED, FETCHED]
    assert spine.sink.codes(102) == [], "it was not started"
    if dedup:
        await spine.leases.flush()
        assert [release.sent_back for trip in spine.store.trips for release in trip.releases] == [None, None]


async def test_while_it_drains_a_message_handler_goes_on_and_what_is_done_can_be_committed_after_each_message(make_spine: Any) -> None:
    hand = Hand(at=102)
    spine = make_spine(hand, kind="message", dedup=True)
    entries = spine.entries(5)
    running = asyncio.create_task(spine.run(entries))
    await hand.there.wait()
    assert spine.watermark.commit == 100
    spine.partition.is_stopping = True
    entries[0].call.recall()
    await turns()
    assert (spine.watermark.commit, hand.saw) == (102, [100, 101, 102])
    hand.at = 104
    hand.there.clear()
    hand.go.set()
    hand.go = asyncio.Event()
    await hand.there.wait()
    await turns()
    assert (spine.watermark.commit, hand.saw) == (104, [100, 101, 102, 103, 104])
    hand.go.set()
    assert await running == [SETTLED] * 5


async def test_a_revoke_that_is_heard_while_a_batch_is_admitted_settles_after_each_message_too(make_spine: Any) -> None:
    hand = Hand(at=101)
    spine = make_spine(hand, kind="message", dedup=True)
    entries = spine.entries(3)

    def revoked(exchange: Exchange) -> bool:
        if exchange.claims:
            spine.partition.is_stopping = True
        return False

    spine.store.fail = revoked
    running = asyncio.create_task(spine.run(entries))
    await hand.there.wait()
    await turns()
    assert spine.watermark.commit == 101
    hand.go.set()
    await running


@each("kind", ["batch", "message"])
async def test_what_is_admitted_when_the_cut_off_comes_is_not_begun(make_spine: Any, kind: str) -> None:
    saw: list[object] = []

    async def handler(given: object) -> None:
        saw.append(given)

    spine = make_spine(handler, kind=kind, dedup=True)

    def cut(exchange: Exchange) -> bool:
        spine.partition.cut_off = True
        return False

    spine.store.fail = cut
    entries = spine.entries(2)
    assert await spine.run(entries) == [FETCHED] * 2
    assert await spine.run(entries) == [FETCHED] * 2
    await spine.leases.flush()
    assert saw == []
    assert [len(trip.claims) for trip in spine.store.trips if trip.claims] == [2], "nor is anything claimed for it any more"
    assert [release.sent_back for release in spine.store.trips[-1].releases] == [None, None]


@each("kind", ["batch", "message"])
async def test_a_middleware_that_tries_again_begins_nothing_after_the_cut_off(make_spine: Any, kind: str) -> None:
    saw: list[object] = []

    async def handler(given: object) -> None:
        saw.append(given)
        spine.partition.cut_off = True
        raise ConnectionError

    async def try_again(given: Any, call_next: CallNext) -> object:
        for _ in range(3):
            try:
                return await call_next(given)
            except ConnectionError:
                continue
        return CONSUME_SUCCESS

    async def batchwise(batch: Batch[bytes], call_next: CallNext) -> object:
        return await try_again(batch, call_next)

    async def singly(message: Message[bytes], call_next: CallNext) -> object:
        return await try_again(message, call_next)

    spine = make_spine(wrap(handler, [inspect_middleware(batchwise if kind == "batch" else singly)]), kind=kind, dedup=True)
    assert await spine.run(spine.entries(2)) == [FETCHED] * 2
    assert len(saw) == 1


async def test_a_copy_that_has_to_be_cut_is_not_sent_again_after_the_cut_off(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    def refuse(copy: Any) -> PublishRefused:
        spine.partition.cut_off = True
        asked.append(copy.topic)
        return PublishRefused("too large")

    asked: list[str] = []
    spine = make_spine(handler, dedup=True)
    spine.publisher.answer = refuse
    assert await spine.run(spine.entries(1)) == [FETCHED]
    assert asked == ["billing.delay"]


async def test_what_behind_a_handler_that_stops_the_app_was_not_begun_is_released_and_not_counted_as_lost(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        raise SystemExit

    spine = make_spine(handler, kind="message", dedup=True)
    entries = spine.entries(3)
    with pytest.raises(HandlerStopped):
        await spine.run(entries)
    await spine.leases.flush()
    assert [release.key for trip in spine.store.trips for release in trip.releases] == [entries[1].key, entries[2].key]


async def test_a_claim_that_is_lost_once_its_message_is_decided_does_not_end_the_others(make_spine: Any) -> None:
    hand = Hand(at=101)
    spine = make_spine(hand, kind="message", dedup=True)
    entries = spine.entries(2)
    running = asyncio.create_task(spine.run(entries))
    await hand.there.wait()
    spine.leases._lose(entries[0])
    hand.go.set()
    await running
    assert (hand.saw, entries[1].stage) == ([100, 101], SETTLED)


@each("where", ["decoder", "key function"])
async def test_a_group_of_nothing_but_what_stops_a_program_is_no_failure_of_the_message(make_spine: Any, succeed: Any, where: str) -> None:
    error = BaseExceptionGroup("all", [SystemExit(3), KeyboardInterrupt()])

    def stop(_: object) -> str:
        raise error

    options = {"decode": stop} if where == "decoder" else {"dedup": {"key": stop}}
    spine = make_spine(succeed, **options)
    entries = spine.entries(1)
    with pytest.raises(HandlerStopped) as stopped:
        await spine.run(entries)
    assert (stopped.value.error, entries[0].disposition, spine.sent()) == (error, None, [])


def by_value(message: Any) -> str:
    return str(message.raw)


async def test_a_key_that_was_granted_again_before_it_succeeded_here_is_completed_and_not_run(make_spine: Any) -> None:
    hand = Hand(at=200)
    spine = make_spine(hand, kind="message", dedup={"key": by_value})
    first, second = spine.entry(200, value=b"other"), spine.entry(201, value=b"a")
    running = asyncio.create_task(spine.run([first, second]))
    await hand.there.wait()  # `a` is granted to the second batch, and waits there
    spine.leases.remember_successes(second)  # an execution whose claim was lost meanwhile succeeds
    hand.go.set()
    await running
    assert (hand.saw, second.stage, second.disposition) == ([200], SETTLED, Duplicate())
    assert [complete.outcome for complete in spine.store.trips[-1].completes] == [Outcome.OK] * 2
    assert spine.sink.codes(201) == [EventCode.DUP_SUPPRESSED]


async def _unprotected(make_spine: Any, kind: str, handler: Callable[[Any], Any]) -> Any:
    spine = make_spine(handler, kind=kind, dedup={"key": by_value, "on_store_down": "fail_open"})
    spine.store.fail = lambda exchange: True
    return spine


@each("kind", ["batch", "message"])
async def test_a_key_that_runs_unprotected_is_not_run_beside_itself_once_the_store_is_back(make_spine: Any, kind: str) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def handler(given: Any) -> None:
        ran.extend(message.offset for message in (given if kind == "batch" else [given]))
        inside.set()
        await go.wait()

    spine = await _unprotected(make_spine, kind, handler)
    first, twin = spine.entry(100, value=b"a"), spine.entry(101, value=b"a")
    running = asyncio.create_task(spine.run([first]))
    await inside.wait()
    spine.store.fail = lambda exchange: False
    spine.clock.now += 2
    assert await spine.run([twin]) == [FETCHED]
    assert twin.why == "its key is running here"
    go.set()
    await running
    assert await spine.run([twin]) == [SETTLED]
    assert (ran, twin.disposition) == ([100], Duplicate())


async def test_a_handler_that_was_called_off_and_goes_on_keeps_its_key_from_being_run_beside_it(make_spine: Any) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        ran.append(message.offset)
        inside.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    spine = make_spine(handler, kind="message", dedup={"key": by_value})
    first, twin = spine.entry(100, value=b"a"), spine.entry(101, value=b"a")
    running = asyncio.create_task(spine.run([first]))
    await inside.wait()
    spine.leases._lose(first)
    await spine.store.inner.exchange(Exchange(releases=[Release(first.key, first.token)]))
    assert await spine.run([twin]) == [FETCHED]
    go.set()
    await running
    assert (ran, twin.why) == ([100], "its key is running here")


async def test_a_batch_that_waits_for_a_loop_is_not_begun_after_the_cut_off(make_spine: Any) -> None:
    handover = Handover()
    spine = make_spine(handover, dedup=True)
    spine.pipeline = Pipeline(replace(spine.agent, batch=LoopBatch), spine.worker)
    entries = spine.entries(2)
    running = asyncio.create_task(spine.run(entries))
    await turns()
    spine.partition.cut_off = True
    handover.end()
    assert await handover.take() is None
    assert await running == [FETCHED] * 2
    await spine.leases.flush()
    assert [release.sent_back for trip in spine.store.trips for release in trip.releases] == [None, None]
