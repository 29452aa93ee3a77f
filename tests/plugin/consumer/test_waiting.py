"""What waits in place, and commands about single messages, in a lane with a real pipeline."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from tests.fakes import Clock, Store
from tests.plugin.consumer.ordered import Shop, now

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.controlrecords import MessageAt, MessageCommand
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.middleware.progress.commitmetadata import FinishedMap, InPlace
from ackwise.middleware.runs.run import Stage
from ackwise.plugin.consumer.waitinginplace import Waiting

LONG = RetryInPlace(3, delay=30)


SHOP = {"in_place": LONG, "kind": "message", "order": "key"}


def of(shop: Shop, *, wall: float = 100.0) -> Waiting:
    return Waiting("billing", lambda: [shop.lane], shop.worker.flow.burials, wall=lambda: wall)


def at(offset: int) -> MessageAt:
    return MessageAt("orders", 0, offset)


def timestamp(offset: int) -> int:
    """Of the records of a shop."""
    return 1000 + offset


async def reject_first(argument: Any) -> None:
    for message in [argument] if isinstance(argument, Message) else argument:
        if message.offset == 100:
            raise RuntimeError("not yet")


async def later_once(message: Message[Any]) -> object:
    return CONSUME_LATER if message.reconsume_times == 0 else None


async def fine(argument: Any) -> None: ...


class Gate:
    """A handler whose first attempts fail, and whose second ones go on until `go`, and then fail if they shall."""

    def __init__(self, *, fails: bool) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self._fails = fails

    async def __call__(self, message: Message[Any]) -> None:
        if message.reconsume_times == 1:
            self.begun.set()
            await self.go.wait()
        if message.reconsume_times == 0 or self._fails:
            raise RuntimeError


async def test_a_message_that_waits_in_place_is_shown_with_what_waits_behind_its_key(shop: Any) -> None:
    here = shop(reject_first)
    here.offer(keys=[b"a", b"b", b"a", b"a"])
    await here.until(lambda: here.lane.held and here.seen == [[100], [101]])
    (waiting,) = of(here).messages()
    assert (waiting.topic, waiting.partition, waiting.offset, waiting.handler) == ("orders", 0, 100, "bill")
    assert (waiting.key, waiting.attempts, waiting.depth, waiting.error) == ("a", 1, 2, "RuntimeError")
    assert waiting.at is not None
    assert waiting.at.startswith("test_waiting.py:") or "/test_waiting.py:" in waiting.at
    assert waiting.age == pytest.approx(100.0 - 1.1)
    assert 25 < waiting.due_in <= 30
    assert not waiting.is_buried


async def test_a_message_that_is_released_is_tried_at_once(shop: Any) -> None:
    here = shop(later_once)
    here.offer(1)
    await here.until(lambda: here.lane.held)
    assert of(here).retry(at(100), "code") == "accepted"
    await here.settled(1)
    assert (here.seen, here.sent) == ([[100], [100]], [])


async def test_each_attempt_in_place_waits_for_its_rate_where_it_is_seen_not_hurried_and_buried(shop: Any) -> None:
    for order in ("key", "partition"):
        here = shop(reject_first, order=order, in_place=RetryInPlace(3, delay=0.01))
        here.worker.flow.rate_limit = RateLimit("1/m")
        here.offer(1)
        await here.until(lambda here=here: here.lane.held and here.lane.held[0].stage is Stage.WITHHELD)
        waiting = of(here)
        assert [(each.offset, each.attempts, each.due_in > 30) for each in waiting.messages()] == [(100, 1, True)]
        assert waiting.retry(at(100), "code") == "accepted"
        await here.until(lambda here=here: here.lane.held and here.lane.held[0].not_before > now() + 30)
        assert here.seen == [[100]]
        assert waiting.bury(at(100), timestamp(100), "code") == "accepted"
        await here.settled(1)
        assert (here.seen, here.sent) == ([[100]], [("billing.dlq", 100)]), order


async def test_a_message_that_is_buried_is_a_dead_letter_never_runs_again_and_lets_its_followers_go(shop: Any) -> None:
    for order, kind, dedup in product(("key", "partition"), ("message", "batch"), (False, True)):
        here = shop(reject_first, order=order, kind=kind, dedup=dedup, max_batch=1)
        here.offer(2)
        await here.until(lambda here=here: here.lane.held)
        assert of(here).bury(at(100), timestamp(100), "command") == "accepted"
        await here.settled(2)
        assert (here.seen, here.sent) == ([[100], [101]], [("billing.dlq", 100)]), (order, kind, dedup)
        headers = dict(here.publisher.sent[0].headers)
        assert (headers["ackwise-reason"], headers["ackwise-error-class"]) == (b"buried", b"RuntimeError")
        dead = [event for event in here.sink.events if event.code is EventCode.DEAD_LETTERED]
        assert [(event.offset, event.error) for event in dead] == [(100, "buried")]
        assert [event.offset for event in here.sink.events if event.code is EventCode.FAILED] == [100]


async def test_to_bury_a_message_twice_is_one_letter(shop: Any) -> None:
    here = shop(reject_first)
    here.offer(1)
    await here.until(lambda: here.lane.held)
    waiting = of(here)
    assert waiting.bury(at(100), timestamp(100), "command") == "accepted"
    assert waiting.bury(at(100), timestamp(100), "command") == "accepted"
    await here.settled(1)
    assert waiting.bury(at(100), timestamp(100), "command") == "unknown"
    assert here.sent == [("billing.dlq", 100)]


async def test_another_message_at_the_same_offset_is_never_buried(shop: Any) -> None:
    """The topic was recreated since."""
    here = shop(later_once)
    waiting = of(here)
    waiting.bury(at(100), 77, "command")
    here.offer(1)
    await here.until(lambda: here.lane.held)
    assert waiting.bury(at(100), 77, "command") == "unknown"
    waiting.retry(at(100), "code")
    await here.settled(1)
    assert here.sent == []


async def test_a_message_whose_handler_runs_is_buried_once_it_is_suspended_and_not_if_it_succeeds(shop: Any) -> None:
    for fails, sent in ((True, [("billing.dlq", 100)]), (False, [])):
        gate = Gate(fails=fails)
        here = shop(gate)
        here.offer(1)
        await here.until(lambda here=here: here.lane.held)
        waiting = of(here)
        waiting.retry(at(100), "code")
        await gate.begun.wait()
        assert waiting.messages() == []
        assert waiting.retry(at(100), "code") == "running"
        assert waiting.bury(at(100), timestamp(100), "command") == "running"
        assert here.sent == []
        gate.go.set()
        await here.settled(1)
        assert (here.seen, here.sent) == ([[100], [100]], sent)


async def test_a_new_owner_buries_what_was_told_before_it_began_whether_its_attempts_were_committed_or_not(shop: Any) -> None:
    """A worker died between the command and the letter."""
    for order, found in product(("key", "partition"), (None, FinishedMap(100, timestamp(100), timestamp(100), "a", 0))):
        here = shop(reject_first, order=order, kind="batch")
        of(here).obey(MessageCommand(at(100), "bury", timestamp(100)), False)
        if found is not None:
            here.lane.resume(found, [InPlace(100, 2, 2**42)])
        here.offer(3)
        await here.settled(3)
        assert here.sent == [("billing.dlq", 100)], (order, found)
        assert [offset for call in here.seen for offset in call] == [101, 102]


async def test_in_the_middle_of_a_batch_what_stands_behind_waits_for_the_letter(shop: Any) -> None:
    """Redelivered, it comes in one run with its neighbours."""
    here = shop(fine, order="partition", kind="batch", max_batch=16)
    of(here).obey(MessageCommand(at(102), "bury", timestamp(102)), False)
    here.offer(5)
    await here.settled(5)
    assert here.sent == [("billing.dlq", 102)]
    assert here.seen == [[100, 101], [103, 104]]


async def test_the_last_word_counts_a_release_by_command_takes_a_burial_back(shop: Any) -> None:
    here = shop(later_once)
    waiting = of(here)
    waiting.obey(MessageCommand(at(100), "bury", timestamp(100)), False)
    waiting.obey(MessageCommand(at(100), "retry"), False)
    here.offer(1)
    await here.until(lambda: here.lane.held)
    waiting.obey(MessageCommand(at(100), "retry"), True)
    await here.settled(1)
    assert (here.seen, here.sent) == ([[100], [100]], [])


async def test_a_burial_whose_letter_is_not_acknowledged_holds_the_offset(shop: Any) -> None:
    here = shop(reject_first)
    here.offer(2)
    await here.until(lambda: here.lane.held)
    here.publisher.answer = lambda copy: PublishUnavailable("the brokers are unavailable")
    of(here).bury(at(100), timestamp(100), "command")
    await here.until(lambda: any(run.why.startswith("copies are not acknowledged") for run in here.lane.held))
    assert here.lane.watermark.commit in (None, 100)
    assert here.seen == [[100]]
    here.publisher.answer = lambda copy: None
    for run in here.lane.held:
        run.not_before = 0.0
    here.lane.look_again()
    await here.settled(2)
    assert (here.seen, here.sent) == ([[100], [101]], [("billing.dlq", 100)])


async def test_a_message_whose_key_has_succeeded_elsewhere_is_a_duplicate_and_no_letter(shop: Any) -> None:
    store = Store(Clock())
    here = shop(reject_first, dedup={"key": lambda message: "one"}, store=store)
    here.offer(1)
    await here.until(lambda: here.lane.held)

    await here.leases.flush()  # its claim is given back with the next trip to the store
    there = shop(fine, dedup={"key": lambda message: "one"}, store=store)
    there.offer(1)
    await there.settled(1)
    of(here).bury(at(100), timestamp(100), "command")
    await here.settled(1)
    assert (here.seen, here.sent) == ([[100]], [])


async def test_with_the_store_away_a_burial_waits_for_it(shop: Any) -> None:
    here = shop(reject_first, dedup=True)
    here.offer(1)
    await here.until(lambda: here.lane.held)
    here.store.fail = lambda exchange: True
    of(here).bury(at(100), timestamp(100), "command")
    await here.until(lambda: any("store" in run.why for run in here.lane.held))
    assert here.sent == []
    here.store.fail = lambda exchange: False
    await here.settled(1)
    assert (here.seen, here.sent) == ([[100]], [("billing.dlq", 100)])


async def test_a_message_that_is_blocked_for_ever_can_be_buried(shop: Any) -> None:
    here = shop(reject_first, order="partition", in_place=RetryInPlace(0, on_dead="block"))
    here.offer(2)
    await here.until(lambda: here.lane.held)
    assert of(here).bury(at(100), timestamp(100), "command") == "accepted"
    await here.settled(2)
    assert (here.seen, here.sent) == ([[100], [101]], [("billing.dlq", 100)])


async def test_two_messages_of_a_partition_that_failed_together_are_buried_one_by_one(shop: Any) -> None:
    async def handle(batch: Batch[Any]) -> None:
        if batch[0].offset in (100, 101):
            raise RuntimeError

    here = shop(handle, order="partition", kind="batch", max_batch=2)
    here.offer(3)
    await here.until(lambda: here.lane.held)
    waiting = of(here)
    assert [(each.offset, each.depth) for each in waiting.messages()] == [(100, 2), (101, 1)]
    assert waiting.bury(at(101), timestamp(101), "command") == "accepted"
    assert here.sent == []  # it stands behind the other one
    assert waiting.bury(at(100), timestamp(100), "command") == "accepted"
    await here.settled(3)
    assert (here.seen, here.sent) == ([[100, 101], [102]], [("billing.dlq", 100), ("billing.dlq", 101)])


async def test_under_the_order_of_a_partition_everything_fetched_behind_it_waits_and_a_burial_is_shown(shop: Any) -> None:
    here = shop(reject_first, order="partition")
    here.offer(5)
    await here.until(lambda: here.lane.held)
    here.worker.flow.burials.add(at(100), timestamp(100))
    assert [(each.offset, each.depth, each.is_buried) for each in of(here).messages()] == [(100, 4, True)]


async def test_what_runs_for_the_first_time_or_is_done_does_not_wait_and_is_unknown(shop: Any) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        begun.set()
        await go.wait()

    here = shop(handle)
    here.offer(2)
    await begun.wait()
    for _ in range(2):
        assert [of(here).find(at(offset)) for offset in (100, 101, 999)] == [("unknown", 0)] * 3
        assert of(here).messages() == []
        go.set()
        await here.settled(2)
