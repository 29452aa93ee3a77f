"""Execution of a batch: what the handler does, and what stops it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.errors import InvalidRuling
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import HandlerStopped
from ackwise.middleware.runs.run import Stage

SETTLED = Stage.SETTLED


async def test_A26_a_handler_can_not_change_the_batch(make_spine: Any) -> None:
    async def handler(batch: Any) -> None:
        batch[0] = batch[1]

    spine = make_spine(handler)
    await spine.run(spine.entries(2))
    assert len(spine.sent()) == 2


async def test_A30_any_exception_is_later(make_spine: Any) -> None:
    class Odd(BaseException): ...

    async def handler(batch: Batch[bytes]) -> None:
        raise Odd

    spine = make_spine(handler)
    assert await spine.run(spine.entries(1)) == [SETTLED]
    assert len(spine.sent()) == 1


async def test_a_cancellation_that_nobody_asked_for_is_later(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise asyncio.CancelledError

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    assert len(spine.sent()) == 1


@each("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_what_stops_a_program_rules_on_nothing_and_keeps_its_claim(make_spine: Any, error: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise error

    spine = make_spine(handler, dedup=True)
    with pytest.raises(HandlerStopped) as stopped:
        await spine.run(spine.entries(2))
    await spine.leases.flush()
    assert stopped.value.error is error
    assert spine.watermark.commit == 100
    assert not any(trip.releases or trip.completes for trip in spine.store.trips)


async def test_what_stops_a_program_stops_it_whatever_it_says_of_its_truth(make_spine: Any) -> None:
    class Quiet(SystemExit):
        def __bool__(self) -> bool:
            return False

    async def handler(batch: Batch[bytes]) -> None:
        raise Quiet

    spine = make_spine(handler)
    with pytest.raises(HandlerStopped):
        await spine.run(spine.entries(1))
    assert spine.watermark.commit == 100


async def test_K17_a_message_handler_goes_on_behind_a_failure(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        if message.offset == 101:
            raise ValueError

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(3))
    assert spine.sent() == [("billing.delay.10s", b"v101")]
    assert spine.watermark.commit == 103


async def test_what_is_done_before_a_system_exit_is_settled(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        if message.offset == 101:
            raise SystemExit

    spine = make_spine(handler, kind="message", dedup=True)
    with pytest.raises(HandlerStopped):
        await spine.run(spine.entries(3))
    assert spine.watermark.commit == 101


async def test_a_lease_that_is_lost_calls_the_handler_off_and_the_message_is_held(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        spine.clock.now += 15
        spine.store.fail = lambda exchange: bool(exchange.renews)
        await spine.leases.beat()
        spine.clock.now += 15
        await spine.leases.beat()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    entries = spine.entries(1)
    await spine.run(entries)
    assert (entries[0].stage, spine.watermark.commit) == (Stage.FETCHED, 100)
    assert EventCode.CLAIM_LOST in spine.sink.codes(100)


async def test_a_message_that_waited_for_its_slot_does_not_begin_after_the_cut_off(make_spine: Any) -> None:
    ran: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        ran.append(message.offset)

    spine = make_spine(handler, kind="message")
    spine.pipeline.execution.starts._slots = slots = asyncio.Semaphore(0)
    running = asyncio.create_task(spine.run(spine.entries(1)))
    await turns(30)
    spine.partition.cut_off = True
    slots.release()
    assert (await running, ran) == ([Stage.FETCHED], [])


async def test_a_call_that_was_cancelled_is_given_no_more_time(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        call = entries[0].call
        call.deadline = 5.0
        for call.timed_out in (False, True):
            spine.clock.now += 1
            message.extend(60)
            deadlines.append(call.deadline)
        call.timed_out = False

    spine = make_spine(handler, kind="message")
    entries, deadlines, until = spine.entries(1), list[float](), spine.clock.now + 61
    await spine.run(entries)
    assert deadlines == [until, until]


async def test_renewal_keeps_a_handler_that_takes_three_leases(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for _ in range(9):
            spine.clock.now += 10
            await spine.leases.beat()

    spine = make_spine(handler, dedup=True)
    assert await spine.run(spine.entries(2)) == [SETTLED] * 2


async def test_rulings_on_single_messages_stand_when_the_handler_is_called_off(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.done(batch[0])
        entries[1].call.call_off()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    entries = spine.entries(2)
    assert await spine.run(entries) == [SETTLED, Stage.FETCHED]
    assert spine.sink.codes(100)[-1] is EventCode.SUCCEEDED
    claimed, released = [event for event in (*spine.sink.durable, *spine.sink.buffer) if event.offset == 101]
    assert (claimed.code, released.code) == (EventCode.CLAIMED, EventCode.RELEASED)
    assert (released.exec_id, released.dedup_hash) == (claimed.exec_id, claimed.dedup_hash)


async def test_nothing_is_told_of_a_claim_that_was_given_back_before_its_message_began(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        entries[0].call.call_off()
        await asyncio.Event().wait()

    spine = make_spine(handler, kind="message", dedup=True)
    entries = spine.entries(2)
    assert await spine.run(entries) == [Stage.FETCHED] * 2
    assert spine.sink.codes(100) == [EventCode.CLAIMED, EventCode.RELEASED]
    assert spine.sink.codes(101) == []


async def test_a_ruling_on_a_message_of_another_batch_raises_in_the_handler(make_spine: Any) -> None:
    seen: list[Batch[bytes]] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.append(batch)
        with pytest.raises(InvalidRuling):
            batch.done(seen[0][0] if batch is not seen[0] else Message(batch[0].delivery, b""))

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    await spine.run(spine.entries(1, start=101))
