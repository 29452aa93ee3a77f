"""Records of a share group: what is accepted, what goes aside without a charge, and what is given back."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from tests.fakes import Clock
from tests.plugin.modes.share.desk import ORDERS, Desk, Handler, refuse
from tests.waiting import PATIENCE, turns

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.breaker import FIRST, Breaker
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Message, TopicPartition
from ackwise.middleware.pipeline.pipeline import HandlerStopped
from ackwise.middleware.policies.policies import Share

RETRY = "billing.retry"


async def test_what_is_settled_is_accepted_and_nothing_is_given_back() -> None:
    desk = Desk(handler := Handler())
    await desk.deliver(3, 4, 9)
    assert (handler.seen, desk.accepted(), desk.released(), desk.copies()) == ([b"v3", b"v4", b"v9"], [3, 4, 9], [], [])
    assert [(event.offset, event.range_end) for event in desk.sink.events if event.code is EventCode.RECEIVED_RANGE] == [(3, 5), (9, 10)]
    assert (desk.counts.in_hand, desk.counts.copied) == (0, 0)


async def test_a_failure_is_sent_back_charged_and_accepted_once_its_copy_is_there() -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        assert desk.accepted() == []
        return CONSUME_LATER

    desk = Desk(handler)
    await desk.deliver(3)
    assert (desk.copies(), desk.accepted()) == ([("billing.delay.10s", b"v3", 2, "CONSUME_LATER")], [3])


async def test_a_batch_is_no_larger_than_its_handler_takes() -> None:
    desk = Desk(handler := Handler(), max_batch=2)
    await desk.deliver(1, 2, 3, 4, 5)
    assert (handler.sizes, desk.accepted()) == ([2, 2, 1], [1, 2, 3, 4, 5])


async def test_partitions_of_a_poll_are_consumed_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def handler(batch: Batch[bytes]) -> None:
        await both.wait()

    desk = Desk(handler)
    first, second = desk.poll(1), desk.poll(1, place=TopicPartition("orders", 1))
    async with asyncio.timeout(PATIENCE):
        await desk.take(first._replace(first=first.first | second.first))
    assert len(desk.client.accepted) == 2


async def test_what_was_delivered_before_is_copied_uncharged_before_it_is_accepted_and_never_run_here() -> None:
    desk = Desk(handler := Handler())
    await desk.deliver(3, 4, count=2)
    assert handler.seen == []
    assert desk.copies() == [(RETRY, b"v3", 1, "DeliveredAgain"), (RETRY, b"v4", 1, "DeliveredAgain")]
    assert desk.accepted() == [3, 4]
    assert desk.sink.codes(3) == [EventCode.RECEIVED_RANGE, EventCode.SENT_BACK]
    assert desk.counts.copied == 2


async def test_it_is_not_accepted_before_its_copy_is_acknowledged() -> None:
    desk, asked = Desk(Handler()), asyncio.Event()

    def away(_: object) -> PublishUnavailable:
        asked.set()
        return PublishUnavailable("away")

    desk.publisher.answer = away
    taking = asyncio.create_task(desk.deliver(3, count=2))
    await asked.wait()
    await asyncio.sleep(0)
    assert (desk.accepted(), desk.released()) == ([], [])
    desk.publisher.answer = lambda copy: None
    await desk.end(taking)
    assert (desk.accepted(), len(desk.publisher.sent)) == ([3], 1)


async def test_while_the_store_is_down_messages_go_aside_uncharged_and_are_not_released() -> None:
    desk = Desk(handler := Handler())
    desk.store.fail = lambda exchange: True
    await desk.deliver(3, 4)
    assert handler.seen == []
    assert desk.copies() == [(RETRY, b"v3", 1, "Held"), (RETRY, b"v4", 1, "Held")]
    assert (desk.accepted(), desk.released()) == ([3, 4], [])


async def test_what_another_worker_runs_goes_aside_and_its_copy_is_a_duplicate_later() -> None:
    other = Desk(Handler())
    desk = Desk(handler := Handler(), store=other.store)

    async def held(batch: Batch[bytes]) -> None:
        await desk.deliver(3)

    busy = Desk(held, store=other.store)
    await busy.deliver(3)
    assert (handler.seen, desk.copies(), desk.accepted()) == ([], [(RETRY, b"v3", 1, "Held")], [3])
    assert busy.accepted() == [3]


async def test_the_claim_of_what_goes_aside_is_given_back_so_that_its_copy_need_not_wait_for_the_lease() -> None:
    """The answer to the claim was lost, so it may be held: with its token gone nobody could release it."""
    desk = Desk(handler := Handler())
    desk.store.swallow = lambda exchange: bool(exchange.claims) and len(desk.store.trips) == 1
    await desk.deliver(3)
    assert desk.leases is not None
    await desk.leases.flush()
    await Desk(handler, store=desk.store).deliver(3)
    assert handler.seen == [b"v3"]


async def test_what_has_not_begun_when_the_time_is_over_is_copied_uncharged() -> None:
    async def slow(batch: Batch[bytes]) -> None:
        seen.append(batch[0].value)
        desk.clock.now += 20

    seen: list[bytes] = []
    desk = Desk(slow, max_batch=1, share=Share(lock=30.0))
    await desk.deliver(1, 2, 3)
    assert seen == [b"v1", b"v2"], "the third would start 40 s after the lock of 30 s"
    assert (desk.copies(), desk.accepted()) == ([(RETRY, b"v3", 1, "LockEnds")], [1, 2, 3])


async def test_what_runs_when_the_time_is_over_is_cancelled_and_charged() -> None:
    async def hang(message: Message[bytes]) -> None:
        seen.append(message.value)
        try:
            await asyncio.Event().wait()
        finally:
            desk.clock.now += 1

    seen: list[bytes] = []
    desk = Desk(hang, kind="message", share=Share(lock=30.0))
    async with asyncio.timeout(PATIENCE):
        await desk.deliver(1, 2, age=24.99)
    assert seen == [b"v1"]
    assert sorted(desk.copies()) == [("billing.delay.10s", b"v1", 2, "ConsumeTimeout"), (RETRY, b"v2", 1, "LockEnds")]
    assert desk.accepted() == [1, 2]
    assert desk.sink.codes(1)[-2:] == [EventCode.FAILED, EventCode.SENT_BACK]


async def test_a_success_that_the_store_does_not_know_is_neither_accepted_nor_copied_nor_run_again() -> None:
    desk = Desk(handler := Handler())
    desk.store.fail = lambda exchange: bool(exchange.completes)
    taking = asyncio.create_task(desk.deliver(3))
    await desk.pass_time(times=20)
    assert (desk.accepted(), desk.copies(), handler.seen) == ([], [], [b"v3"]), "the lock has ended long ago"
    desk.store.fail = lambda exchange: False
    await desk.end(taking)
    assert (desk.accepted(), desk.copies(), handler.seen) == ([3], [], [b"v3"])


async def test_at_a_stop_what_runs_is_finished_and_what_has_not_begun_is_given_back() -> None:
    async def handler(batch: Batch[bytes]) -> None:
        seen.append(batch[0].value)
        for portion in desk.sharing._portions:
            portion.stop()

    seen: list[bytes] = []
    desk = Desk(handler, max_batch=1)
    await desk.deliver(1, 2, 3)
    assert (seen, desk.accepted(), desk.released(), desk.copies()) == ([b"v1"], [1], [2, 3], [])
    assert desk.counts.released == 2


async def test_at_a_stop_what_a_handler_has_decided_is_still_settled_and_accepted() -> None:
    async def stop(batch: Batch[bytes]) -> Any:
        for portion in desk.sharing._portions:
            portion.stop()
        return CONSUME_LATER

    answers = iter([PublishUnavailable("away")])
    desk = Desk(stop)
    desk.publisher.answer = lambda copy: next(answers, None)
    await desk.end(asyncio.create_task(desk.deliver(3)))
    assert (len(desk.copies()), desk.accepted(), desk.released()) == (1, [3], [])


async def test_what_comes_again_while_the_worker_stops_is_still_copied() -> None:
    desk = Desk(Handler())
    desk.stop.set()
    await desk.deliver(3, count=2)
    assert (desk.copies(), desk.accepted(), desk.released()) == ([(RETRY, b"v3", 1, "DeliveredAgain")], [3], [])


async def test_after_the_cut_off_a_handler_is_cancelled_and_its_message_is_given_back_with_its_claim() -> None:
    async def hang(batch: Batch[bytes]) -> None:
        began.set()
        await asyncio.Event().wait()

    began = asyncio.Event()
    desk = Desk(hang)
    taking = asyncio.create_task(desk.deliver(1))
    await began.wait()
    for portion in desk.sharing._portions:
        portion.cut()
    await taking
    assert (desk.accepted(), desk.released(), desk.copies()) == ([], [1], [])
    assert desk.leases is not None
    await desk.leases.flush()
    other = Desk(handler := Handler(), store=desk.store)
    await other.deliver(1)
    assert handler.seen == [b"v1"], "nobody waits for the lease"


async def test_a_handler_that_stops_the_app_leaves_its_message_undecided() -> None:
    async def stop(batch: Batch[bytes]) -> None:
        raise SystemExit(3)

    desk = Desk(stop)
    await desk.deliver(1)
    assert isinstance(desk.failed[0], HandlerStopped)
    assert (desk.accepted(), desk.released(), desk.copies()) == ([], [1], [])


async def test_an_acknowledgement_counts_when_the_broker_says_so_and_a_refusal_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(Handler())
    desk.sharing._acknowledged(ORDERS, [3, 4, 7], None)
    assert (desk.counts.accepted, desk.counts.refused) == (3, 0)
    desk.sharing._acknowledged(ORDERS, [8, 9, 11], "INVALID_RECORD_STATE")
    assert (desk.counts.accepted, desk.counts.refused) == (3, 3)
    told = [(event.offset, event.range_end, event.error) for event in desk.sink.events if event.code is EventCode.ACCEPT_REFUSED]
    assert told == [(8, 10, "INVALID_RECORD_STATE"), (11, 12, "INVALID_RECORD_STATE")]
    assert "share group locks expired" in caplog.text


async def test_an_undecodable_message_is_a_dead_letter_as_anywhere() -> None:
    desk = Desk(Handler(), decode=refuse)
    await desk.deliver(3)
    assert (desk.copies()[0][0], desk.copies()[0][3], desk.accepted()) == ("billing.dlq", "undecodable", [3])


async def test_a_success_whose_claim_was_lost_is_claimed_again_and_never_copied_while_the_store_is_away() -> None:
    async def take_over(batch: Batch[bytes]) -> None:
        seen.append(batch[0].value)
        desk.clock.now += 31
        await other.deliver(3)  # another record of the broker's: the lease has ended meanwhile
        desk.store.fail = lambda exchange: bool(exchange.claims)

    async def hold(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    seen: list[bytes] = []
    desk = Desk(take_over, share=Share(lock=60.0))
    other = Desk(hold, store=desk.store, clock=Clock(desk.clock.now + 31))
    taking = asyncio.create_task(desk.deliver(3))
    await desk.pass_time(times=20)
    assert (seen, desk.copies(), desk.accepted()) == ([b"v3"], [], []), "it is done, and the store is to know it"
    desk.store.fail = lambda exchange: False
    await desk.end(taking)
    assert (seen, desk.copies(), desk.accepted()) == ([b"v3"], [], [3])


# What is paused, or stopped by a breaker: a lock can't wait for it, so it is polled no more, or goes aside.


async def test_what_was_polled_for_a_paused_handler_is_copied_uncharged_and_not_run() -> None:
    kinds: tuple[Literal["batch", "message"], ...] = ("batch", "message")
    for kind in kinds:
        desk = Desk(handler := Handler(), kind=kind)
        desk.member.worker.flow.pausing.pause(Target("bill"), "code")
        await desk.deliver(3, 4)
        assert (handler.seen, desk.accepted()) == ([], [3, 4]), kind
        assert desk.copies() == [(RETRY, b"v3", 1, "Held"), (RETRY, b"v4", 1, "Held")], kind


async def test_while_every_handler_is_paused_nothing_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.modes.sharegroup._LOOK_AGAIN", 0.001)
    desk = Desk(handler := Handler())
    polled = asyncio.Event()

    class Client:
        async def poll(self) -> Any:
            polled.set()
            desk.stop.set()
            return None

    flow = desk.member.worker.flow
    flow.pausing.pause(Target("bill"), "code")
    pulling = asyncio.create_task(desk.sharing._pull(Client()))  # type: ignore[arg-type]  # a client reduced to its polls
    await turns(20)
    assert not polled.is_set()
    flow.pausing.resume(Target("bill"), "code")
    async with asyncio.timeout(PATIENCE):
        await pulling
    assert (polled.is_set(), handler.seen) == (True, [])


async def test_letters_that_a_breaker_withholds_for_longer_than_the_lock_go_aside_unpublished() -> None:
    desk = Desk(Handler(), decode=refuse, breaker=Breaker())
    await desk.deliver(*range(FIRST))
    assert desk.accepted() == list(range(FIRST))
    assert {(topic, reason) for topic, _, _, reason in desk.copies()} == {(RETRY, "Held")}


async def test_letters_that_a_breaker_withholds_for_a_moment_wait_within_the_lock() -> None:
    desk = Desk(Handler(), decode=refuse, breaker=Breaker())
    await desk.end(asyncio.create_task(desk.deliver(3)), step=1.0)
    assert [topic for topic, *_ in desk.copies()] == ["billing.dlq"]
