"""Order `partition`: RocketMQ's orderly, with a limit that was chosen and attempts that survive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.plugin.consumer.ordered import counting, failing, now

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.middleware.progress.commitmetadata import FinishedMap, InPlace
from ackwise.plugin.consumer.commits import to_commit


async def test_O01_what_succeeds_is_passed_and_the_partition_goes_on(shop: Any) -> None:
    here = shop(failing(0))
    here.offer(2)
    await here.settled(2)
    assert (here.seen, here.sent) == ([[100, 101]], [])


async def test_O04_a_batch_that_fails_is_suspended_in_place_whole_and_runs_again(shop: Any) -> None:
    here = shop(counting(failing(1, 100), counted := list[int]()), max_batch=16)
    here.offer(2)
    await here.settled(2)
    assert (here.seen, counted, here.sent) == ([[100, 101], [100, 101]], [0, 0, 1, 1], [])


async def test_O05_each_attempt_in_place_counts_until_the_limit_and_what_is_behind_is_charged_nothing(shop: Any) -> None:
    here = shop(counting(failing(3, 100), counted := list[int]()), kind="message", dedup=True)
    here.offer(3)
    await here.settled(3)
    assert (counted, here.sent) == ([0, 1, 2, 3, 0, 0], [])


async def test_O06_over_the_limit_a_message_is_a_dead_letter_alone_and_leaves_its_partition(shop: Any) -> None:
    here = shop(failing(99, 100))
    here.offer(2)
    await here.settled(2)
    assert here.sent == [("billing.dlq", 100)]
    (letter,) = here.publisher.sent
    assert dict(letter.headers)["ackwise-attempt"] == b"4"
    assert here.seen[-1] == [101]


async def test_O09_with_a_limit_of_zero_a_message_that_fails_is_a_dead_letter_at_once(shop: Any) -> None:
    here = shop(failing(99, 100), kind="message", in_place=RetryInPlace(0))
    here.offer(2)
    await here.settled(2)
    assert (here.seen, here.sent) == ([[100], [101]], [("billing.dlq", 100)])


async def test_O15_a_suspension_is_one_second_or_as_asked_from_10_ms_to_30_s(shop: Any) -> None:
    for asked, delay in (
        (Later(), 1.0), (Later(0.005), 0.01), (Later(60), 30.0), (Later(5), 5.0),
    ):  # fmt: skip

        async def handle(message: Message[Any], asked: Later = asked) -> None:
            raise asked

        here = shop(handle, kind="message", in_place=RetryInPlace(3))
        before = now()
        here.offer()
        await here.until(lambda here=here: here.lane.held)
        assert before + delay <= here.lane.held[0].not_before <= now() + delay, asked


async def test_O16_an_exception_or_a_wrong_result_suspends(shop: Any) -> None:
    async def wrong(message: Message[Any]) -> object:
        return CONSUME_LATER if message.offset == 100 and message.reconsume_times == 0 else None

    for handle in (failing(1, 100), wrong):
        here = shop(handle, kind="message")
        here.offer(2)
        await here.settled(2)
        assert here.seen == [[100], [100], [101]]


async def test_O17_a_new_owner_goes_on_with_the_attempts_and_the_time_of_the_last_one(shop: Any) -> None:
    here = shop(counting(failing(0), counted := list[int]()), kind="message")
    here.lane.resume(FinishedMap(100, 1100, 1100, "agents", 0), [InPlace(100, 2, 0)])
    here.offer(2)
    await here.settled(2)
    assert counted == [2, 0]


async def test_O18_once_the_partition_is_lost_nothing_more_of_it_begins_and_what_ends_is_not_committed(shop: Any) -> None:
    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        await end.wait()

    here = shop(handle, kind="message")
    here.offer(2)
    await here.until(lambda: here.seen)
    here.lane.cut()
    end.set()
    await here.lane.task
    assert (here.seen, here.sent) == ([[100]], [])
    assert to_commit({here.lane.place: (here.lane,)}, [here.lane.place]) == {}


async def test_what_an_owner_leaves_in_place_is_told_with_attempts_and_due_time(shop: Any) -> None:
    here = shop(failing(99, 100), kind="message", in_place=RetryInPlace(9, delay=30))
    here.offer(2)
    await here.until(lambda: here.lane.held and here.lane.held[0].in_place)
    (entry,) = here.lane.in_place
    assert (entry.offset, entry.attempts) == (100, 1)
    assert 0 < entry.due_ms / 1000 - here.worker.wall() <= 30.001


async def test_nothing_passes_a_message_that_waits_in_place(shop: Any) -> None:
    for kind in ("batch", "message"):
        here = shop(failing(2, 101), kind=kind, max_batch=16)
        here.offer(2)
        here.offer(2)
        await here.settled(4)
        done = list(dict.fromkeys(offset for call in here.seen for offset in call))
        assert done == [100, 101, 102, 103], kind
        assert all(call == sorted(call) for call in here.seen)
        first_102 = next(at for at, call in enumerate(here.seen) if 102 in call and 101 not in call)
        assert not any(101 in call for call in here.seen[first_102:])


async def test_what_was_done_behind_one_that_comes_later_runs_again_behind_it(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(batch: Batch[Any]) -> None:
        if len(here.seen) == 1:
            batch.later(batch[1])

    here = shop(handle, max_batch=16)
    here.offer(4)
    await here.settled(4)
    assert here.seen == [[100, 101, 102, 103], [101, 102], [103]]
    assert "done messages run again behind a later one" in caplog.text


async def test_a_dead_letter_lets_what_was_done_behind_it_pass(shop: Any) -> None:
    async def handle(batch: Batch[Any]) -> None:
        batch.dead(batch[0], "no")

    here = shop(handle)
    here.offer(3)
    await here.settled(3)
    assert (here.seen, here.sent) == ([[100, 101, 102]], [("billing.dlq", 100)])


async def test_behind_one_that_can_not_be_decoded_nothing_begins_before_its_dead_letter_is_there(shop: Any) -> None:
    begun: list[int] = []

    def decode(value: bytes | None) -> object:
        if value == b"bad":
            raise ValueError(value)
        return value

    async def handle(argument: Any) -> None:
        begun.append(len(here.publisher.sent))

    for kind in ("batch", "message"):
        here = shop(handle, kind=kind, decode=decode)
        here.offer(values=[b"good", b"bad", b"good"])
        await here.settled(3)
        assert (begun, here.sent) == ([0, 1], [("billing.dlq", 101)])
        begun.clear()


async def test_while_a_dead_letter_is_not_acknowledged_nothing_passes_it(shop: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        if message.offset == 100:
            raise Reject("no")

    here = shop(handle, kind="message")
    here.publisher.answer = lambda copy: PublishUnavailable("the brokers are unavailable")
    here.offer(2)
    await here.until(lambda: here.lane.held and here.lane.held[0].why == "copies are not acknowledged")
    assert here.seen == [[100]]
    here.publisher.answer = lambda copy: None
    here.hurry()
    await here.settled(3)
    assert here.seen == [[100], [101], [102]]


async def test_nothing_passes_a_message_whose_claim_another_worker_holds(shop: Any) -> None:
    release = asyncio.Event()

    async def hang(message: Message[Any]) -> None:
        await release.wait()

    other = shop(hang, kind="message", dedup=True)
    other.offer(1, start=101)
    await other.until(lambda: other.seen)
    here = shop(failing(0), dedup=True, store=other.store)
    here.offer(3)
    await here.until(lambda: len(here.lane.held) == 2)
    assert here.seen == [[100]]
    release.set()
    await here.settled(3)
    assert here.seen == [[100], [102]]


async def test_with_the_store_away_nothing_passes_and_nothing_is_lost(shop: Any) -> None:
    here = shop(failing(1, 101), kind="message", dedup=True)
    here.store.fail = lambda exchange: True
    here.offer(3)
    await here.until(lambda: here.lane.held)
    assert here.seen == []
    here.store.fail = lambda exchange: False
    here.hurry()
    await here.settled(4)
    assert here.seen == [[100], [101], [101], [102], [103]]


async def test_with_on_dead_block_a_message_over_its_limit_stays_and_nothing_passes_it(shop: Any) -> None:
    here = shop(failing(99, 100), kind="message", in_place=RetryInPlace(1, delay=0.01, on_dead="block"))
    here.offer(2)
    await here.until(lambda: here.lane.held and here.lane.held[0].in_place == 2)
    assert here.lane.held[0].not_before - now() > 20
    assert (here.seen, here.sent) == ([[100], [100]], [])


async def test_every_attempt_in_place_is_an_event_with_its_number_and_the_next_due_time(shop: Any) -> None:
    here = shop(failing(2, 100), kind="message", dedup=True)
    here.offer(1)
    await here.settled(1)
    codes = [code for code in here.sink.codes(100) if code in (EventCode.CLAIMED, EventCode.FAILED, EventCode.SUCCEEDED)]
    assert codes == [EventCode.CLAIMED, EventCode.FAILED, EventCode.CLAIMED, EventCode.FAILED, EventCode.CLAIMED, EventCode.SUCCEEDED]
    told = [event.attrs for event in here.sink.durable if event.code is EventCode.FAILED]
    assert ['"in_place": 1' in (attrs or "") for attrs in told] == [True, False]


async def test_a_lane_that_stops_leaves_what_waits_in_place_undecided(shop: Any) -> None:
    here = shop(failing(99, 100), kind="message", in_place=RetryInPlace(9, delay=30), dedup=True)
    here.offer(2)
    await here.until(lambda: here.lane.held and here.lane.held[0].in_place)
    await here.stop()
    assert (here.lane.watermark.commit, [run.first for run in here.lane.unsettled()], here.sent) == (100, [100, 101], [])


async def test_a_duplicate_in_the_batch_of_a_message_that_is_suspended_waits_with_it_and_does_not_run(shop: Any) -> None:
    here = shop(failing(1, 100), dedup={"key": lambda message: "same"}, max_batch=16)
    here.offer(2)
    await here.settled(2)
    assert here.seen == [[100], [100]]


async def test_O20_the_limit_must_be_chosen() -> None:
    with pytest.raises(TypeError, match="max_reconsume_times"):
        RetryInPlace()  # type: ignore[call-arg]
