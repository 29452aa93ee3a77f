"""The consume timeout: a call that takes too long is cancelled, one that goes on is abandoned, and a late success is remembered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.plugin.consumer.ordered import Shop, stubborn

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.pipeline.publishing import publish
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.plugin.handlers.handler import Threaded

TIMEOUT = 0.05


SHOP = {"kind": "message", "order": None, "consume_timeout": TIMEOUT}


def failed(here: Shop, offset: int) -> list[str | None]:
    return [event.error for event in here.sink.events if event.code is EventCode.FAILED and event.offset == offset]


async def hang(argument: Any) -> None:
    await asyncio.Event().wait()


async def test_A21_a_call_over_its_time_is_cancelled_and_its_message_comes_back(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message[Any]) -> None:
        if message.offset == 100:
            await hang(message)

    here = shop(handle, dedup=True)
    here.offer(2)
    await here.settled(2)
    assert (here.sent, failed(here, 100)) == ([("billing.delay.10s", 100)], ["ConsumeTimeout"])
    assert "handler exceeded its consume timeout" in caplog.text
    assert here.pipeline.timed_out == 1


async def test_a_batch_over_its_time_comes_back_but_for_what_it_had_ruled(shop: Any) -> None:
    async def handle(batch: Batch[Any]) -> None:
        batch.done(batch[0])
        await hang(batch)

    here = shop(handle, kind="batch")
    here.offer(3)
    await here.settled(3)
    assert here.sent == [("billing.delay.10s", 101), ("billing.delay.10s", 102)]


async def test_a_call_that_asks_for_more_time_gets_it(shop: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        message.extend(60)
        await asyncio.sleep(4 * TIMEOUT)

    here = shop(handle)
    here.offer(1)
    await here.settled(1)
    assert here.sent == []


async def test_extend_outside_of_a_handler_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"extend\(\) was called outside of a handler"):
        Message(None, b"").extend(3)


async def test_T03_T06_a_call_is_left_alone_within_its_time_and_over_it_only_after_it(shop: Any) -> None:
    here = shop(hang, consume_timeout=900.0)
    here.offer(1)
    await here.until(lambda: here.seen)
    call = here.lane.running[0].call
    for when, over in ((-60, False), (0, False), (0.001, True)):
        assert list(here.pipeline.execution.overtime.sweep([call], call.deadline + when)) == []
        assert (call.timed_out, here.pipeline.timed_out) == (over, over)
    await here.settled(1)


async def test_T01_of_forty_calls_over_their_time_every_one_is_cancelled(shop: Any) -> None:
    here = shop(hang, concurrency=40)
    here.offer(40)
    await here.settled(40)
    assert sorted(here.sent) == [("billing.delay.10s", offset) for offset in range(100, 140)]
    assert here.pipeline.timed_out == 40


async def test_T04_a_message_over_its_time_whose_copy_is_not_acknowledged_is_held_and_not_run_again(shop: Any) -> None:
    here = shop(hang)
    here.publisher.answer = lambda copy: PublishUnavailable("the brokers are unavailable")
    here.offer(1)
    await here.until(lambda: here.lane.held and here.lane.held[0].why == "copies are not acknowledged")
    assert here.lane.watermark.commit == 100
    here.publisher.answer = lambda copy: None
    here.hurry()
    await here.settled(2)
    assert here.seen == [[100], [101]]


async def test_T09_it_is_looked_at_ten_times_in_the_time_and_at_least_once_a_minute(shop: Any) -> None:
    for timeout, every in ((30.0, 3.0), (600.0, 60.0), (900.0, 60.0)):
        assert shop(hang, consume_timeout=timeout).pipeline.execution.overtime.every == every


async def test_A29_a_success_within_the_time_to_end_is_a_success(shop: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        try:
            await hang(message)
        except asyncio.CancelledError:
            return

    here = shop(handle)
    here.offer(1)
    await here.settled(1)
    assert (here.sent, EventCode.SUCCEEDED in here.sink.codes(100)) == ([], True)


class Stubborn:
    """A handler that goes on with offset 100 until its `end`, and raises then if it is told so."""

    def __init__(self, *, fails: bool = False) -> None:
        self.end = asyncio.Event()
        self._fails = fails

    async def __call__(self, argument: Any) -> None:
        if 100 in ([argument.offset] if isinstance(argument, Message) else [message.offset for message in argument]):
            await stubborn(self.end)
            if self._fails:
                raise RuntimeError

    async def ends(self, here: Shop) -> None:
        self.end.set()
        await here.until_idle()


async def test_a_call_that_swallows_its_cancellation_is_abandoned_and_others_go_on(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("batch", "message"):
        handler = Stubborn()
        here = shop(handler, kind=kind, max_batch=1 if kind == "batch" else 200)
        here.offer(3)
        await here.settled(3)
        assert (here.sent, here.pipeline.abandoned) == ([("billing.delay.10s", 100)], 1)
        assert "cancelled handler still runs" in caplog.text
        await handler.ends(here)
        assert here.pipeline.abandoned == 0
        assert here.sink.codes(100)[-1] is EventCode.LATE_SUCCESS
        caplog.clear()


async def test_T08_a_late_success_is_remembered_so_that_this_process_completes_the_copy(shop: Any) -> None:
    handler = Stubborn()
    here = shop(handler, dedup=True)
    here.offer(1)
    await here.settled(1)
    (copy,) = here.publisher.sent
    await handler.ends(here)
    back = here.returned(copy)
    await here.pipeline([back], here.lane)
    assert (here.seen, back.disposition.__class__.__name__) == ([[100]], "Duplicate")


async def test_a_late_success_that_published_is_not_remembered_since_its_copy_has_to_publish(shop: Any) -> None:
    handler = Stubborn()

    async def handle(message: Message[Any]) -> None:
        publish(Outgoing("invoices", b"v"), None, has_id=False)
        await handler(message)

    here = shop(handle, dedup=True)
    here.offer(1)
    await here.settled(1)
    (copy,) = here.publisher.sent
    await handler.ends(here)
    assert EventCode.LATE_SUCCESS not in here.sink.codes(100)
    await here.pipeline([here.returned(copy)], here.lane)
    assert here.seen == [[100], [100]]


async def test_A22_a_batch_that_succeeds_once_it_was_abandoned_is_told_of_and_passes_nothing(shop: Any) -> None:
    handler = Stubborn()
    here = shop(handler, kind="batch")
    here.offer(2)
    await here.settled(2)
    assert here.pipeline.abandoned == 1
    await handler.ends(here)
    assert [here.sink.codes(offset)[-1] for offset in (100, 101)] == [EventCode.LATE_SUCCESS] * 2
    assert not any(EventCode.SUCCEEDED in here.sink.codes(offset) for offset in (100, 101))
    assert (here.sent, here.lane.watermark.commit) == ([("billing.delay.10s", 100), ("billing.delay.10s", 101)], 102)


async def test_T07_a_late_failure_is_sent_back_no_second_time(shop: Any) -> None:
    handler = Stubborn(fails=True)
    here = shop(handler)
    here.offer(1)
    await here.settled(1)
    await handler.ends(here)
    assert here.sent == [("billing.delay.10s", 100)]
    assert EventCode.LATE_SUCCESS not in here.sink.codes(100)


async def test_an_abandoned_call_keeps_its_slot_until_it_ends(shop: Any) -> None:
    handler = Stubborn()
    here = shop(handler, concurrency=1)
    here.offer(2)
    await here.until(lambda: here.pipeline.abandoned)
    await here.until(lambda: here.sent == [("billing.delay.10s", 100)])
    assert here.seen == [[100]]
    handler.end.set()
    await here.settled(2)
    assert here.seen == [[100], [101]]


async def test_by_key_a_timeout_is_a_failed_attempt_in_place_and_the_key_waits_for_the_end_of_the_call(shop: Any) -> None:
    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 100 and message.reconsume_times == 0:
            await stubborn(end)
            raise RuntimeError

    here = shop(handle, order="key", concurrency=2, in_place=RetryInPlace(3, delay=0.01), consume_timeout=TIMEOUT)
    here.offer(keys=[b"a", b"a", b"b"])
    await here.until(lambda: here.pipeline.timed_out == 1)
    await here.until(lambda: list(here.lane.watermark.unfinished) == [(100, 102)])
    assert here.pipeline.abandoned == 0
    end.set()
    await here.settled(3)
    assert (here.seen, here.sent) == ([[100], [102], [100], [101]], [])


async def test_a_plain_function_runs_in_a_thread_and_its_time_can_be_extended(shop: Any) -> None:
    threads: list[str] = []

    def handle(message: Message[Any]) -> None:
        threads.append(threading.current_thread().name)
        message.extend(60)

    here = shop(Threaded(handle, "bill"))
    here.offer(2)
    await here.settled(2)
    assert [name.startswith("ackwise bill") for name in threads] == [True, True]


async def test_a_thread_that_takes_too_long_is_abandoned_and_its_late_success_counts(shop: Any) -> None:
    end = threading.Event()

    def handle(message: Message[Any]) -> None:
        if message.offset == 100:
            end.wait(10)

    here = shop(Threaded(handle, "bill"), dedup=True)
    here.offer(2)
    await here.settled(2)
    assert (here.sent, here.pipeline.abandoned) == ([("billing.delay.10s", 100)], 1)
    end.set()
    await here.until_idle()
    assert here.sink.codes(100)[-1] is EventCode.LATE_SUCCESS


async def test_a_message_that_waits_for_a_thread_has_not_begun_and_is_charged_no_attempt(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.middleware.runs.agent.MOST_THREADS", 1)
    monkeypatch.setattr("ackwise.plugin.handlers.handler.MOST_THREADS", 1)
    end, ran = threading.Event(), list[int]()

    def handle(message: Message[Any]) -> None:
        ran.append(message.offset)
        if message.offset == 100:
            end.wait(10)

    here = shop(Threaded(handle, "bill"), in_thread=True)
    here.offer(2)
    await here.until(lambda: here.pipeline.abandoned)
    await asyncio.sleep(4 * TIMEOUT)  # longer than a call may take: the thread is not free yet
    assert ran == [100]
    end.set()
    await here.settled(2)
    assert (ran, here.sent) == ([100, 101], [("billing.delay.10s", 100)])


async def test_an_abandoned_batch_that_was_ruled_on_whole_ends_without_an_error(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    end = asyncio.Event()

    async def handle(batch: Batch[Any]) -> None:
        batch.done(batch[0])
        await stubborn(end)

    here = shop(handle, kind="batch")
    here.offer(1)
    await here.settled(1)
    end.set()
    await here.until_idle()
    assert (here.sent, caplog.text.count("a handler that was abandoned has ended")) == ([], 1)


async def test_the_late_end_of_an_abandoned_call_touches_no_later_run_of_its_message(shop: Any) -> None:
    handler, later = Stubborn(), object()
    here = shop(handler)
    here.offer(1)
    await here.until(lambda: here.seen)
    (run,) = here.lane.running
    await here.settled(1)
    run.call = later  # as if it ran again
    await handler.ends(here)
    assert run.call is later


async def test_what_a_thread_raises_is_what_the_handler_raised_and_a_stop_iteration_fails_as_in_a_coroutine(shop: Any) -> None:
    def key_error(message: Message[Any]) -> None:
        raise KeyError("customer")

    def stop_iteration(message: Message[Any]) -> None:
        next(iter([]))

    for handle, error in ((key_error, "KeyError"), (stop_iteration, "RuntimeError")):
        here = shop(Threaded(handle, "bill"))
        here.offer(1)
        await here.settled(1)
        assert failed(here, 100) == [error]
