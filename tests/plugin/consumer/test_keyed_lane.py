"""Order `key`: of each key one message after the other, and other keys pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugin.consumer.ordered import failing
from tests.waiting import PATIENCE, turns

from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.keys import order_hash
from ackwise.middleware.message.message import Message, TopicPartition
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.middleware.progress.commitmetadata import FinishedMap, InPlace
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.backlog import ByKey

SHOP = {"order": "key"}


async def nothing(argument: Any) -> None: ...


async def test_no_batch_has_two_messages_of_one_key_and_those_without_a_key_have_no_order(shop: Any) -> None:
    for options, offered, seen in (
        ({}, {"keys": [b"a", b"b", b"a", b"c", b"b", b"a"]}, [[100, 101, 103], [102, 104], [105]]),
        ({}, {"keys": [None, None, b"a", None, b"a"]}, [[100, 101, 102, 103], [104]]),
        ({"order_by": lambda message: message.value[:1]}, {"values": [b"a1", b"b1", b"a2"]}, [[100, 101], [102]]),
    ):
        here = shop(nothing, **options)
        here.offer(**offered)
        await here.settled(sum(map(len, seen)))
        assert here.seen == seen


async def test_a_key_whose_head_waits_is_held_behind_it_and_other_keys_pass(shop: Any) -> None:
    for kind in ("batch", "message"):
        here = shop(failing(2, 100), kind=kind, in_place=RetryInPlace(3, delay=0.05), max_batch=1)
        here.offer(keys=[b"a", b"b", b"a", b"b", b"c"])
        await here.settled(5)
        assert [offset for call in here.seen for offset in call] == [100, 101, 103, 104, 100, 100, 102], kind
        assert here.sent == []


async def test_a_dead_head_lets_its_followers_run_once_its_letter_is_there(shop: Any) -> None:
    here = shop(failing(99, 100), kind="message", in_place=RetryInPlace(1, delay=0.01))
    here.offer(keys=[b"a", b"a"])
    await here.settled(2)
    assert (here.seen, here.sent) == ([[100], [100], [101]], [("billing.dlq", 100)])


async def test_a_new_owner_holds_the_followers_behind_what_waited_in_place(shop: Any) -> None:
    here = shop(nothing, kind="message")
    due = round(here.worker.wall() * 1000) + 50
    here.lane.resume(FinishedMap(100, 1100, 1101, "agents", 0b10), [InPlace(100, 2, due)])
    here.offer(keys=[b"a", b"b", b"a", b"c"])
    await here.settled(4)
    assert here.seen == [[103], [100], [102]]


async def test_a_message_whose_order_by_raises_fails_in_place_under_the_key_of_its_record(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[int] = []

    def order_by(message: Message[Any]) -> object:
        if message.offset == 100 and len(raised) < 2:
            raised.append(message.offset)
            raise KeyError("customer")
        return message.key

    here = shop(nothing, order_by=order_by)
    here.offer(keys=[b"a", b"a", b"b"])
    await here.settled(3)
    assert [offset for call in here.seen for offset in call] == [102, 100, 101]
    assert not [event for event in here.sink.durable if "out_of_order" in (event.attrs or "")]
    assert "function of order_by raised" in caplog.text


async def test_what_can_be_decoded_after_all_waits_for_its_key_and_is_told_to_be_out_of_order(shop: Any) -> None:
    schemas = list[str]()

    def decode(value: bytes | None) -> object:
        if not schemas:
            raise ValueError("no schema")
        return value

    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 103:
            await end.wait()

    here = shop(handle, kind="message", order_by=lambda message: message.value[:1], decode=decode, concurrency=4)
    here.worker.flow.breaker = Breaker()
    here.worker.flow.listen(here.lane.look_again)
    here.offer(values=[b"a0", b"a1", b"b0"])
    await turns(20)
    assert len(here.lane.held) == 3
    schemas.append("v1")
    here.offer(values=[b"a2"])  # the first good one: the sample is over, and what was withheld comes up
    await here.until(lambda: len(here.seen) >= 2)
    await turns(20)
    begun = sorted(offset for (offset,) in here.seen)
    end.set()
    await here.settled(4)
    assert (begun, here.seen[2:]) == ([102, 103], [[100], [101]])
    done = [event for event in here.sink.durable if event.code is EventCode.SUCCEEDED]
    assert {event.offset for event in done if "out_of_order" in (event.attrs or "")} == {100, 101, 102}


async def test_what_has_its_key_only_at_its_next_attempt_waits_for_its_key_and_is_told_to_be_out_of_order(shop: Any) -> None:
    raised = list[int]()

    def order_by(message: Message[Any]) -> object:
        if message.offset in (100, 101) and raised.count(message.offset) < 1:
            raised.append(message.offset)
            raise KeyError("customer")
        return str(message.value[:1])

    end = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        if message.offset == 103:
            await asyncio.wait_for(end.wait(), PATIENCE)

    here = shop(handle, kind="message", order_by=order_by, concurrency=8, max_batch=1)
    here.offer(keys=[b"k", b"k", b"k", b"k"], values=[b"a0", b"b0", b"b1", b"a1"])
    await here.until(lambda: len(here.seen) >= 3)
    await here.until(lambda: here.lane.queued)
    begun, behind = [offset for (offset,) in here.seen], [run.first for run in here.lane.queued]
    end.set()
    await here.settled(4)
    assert (begun, behind, here.seen[3:]) == ([102, 103, 101], [100], [[100]])
    done = [event for event in here.sink.durable if event.code is EventCode.SUCCEEDED]
    assert {event.offset for event in done if "out_of_order" in (event.attrs or "")} == {100, 101}


async def test_an_order_by_that_always_raises_or_gives_no_key_ends_as_a_dead_letter(shop: Any) -> None:
    functions: list[Callable[[Message[Any]], object]] = [lambda message: message.value["customer"], lambda message: []]
    for order_by in functions:
        here = shop(nothing, order_by=order_by, in_place=RetryInPlace(1, delay=0.01))
        here.offer(keys=[b"a"])
        await here.settled(1)
        assert (here.seen, here.sent) == ([], [("billing.dlq", 100)])


async def test_what_can_not_be_decoded_is_dead_at_once_and_blocks_no_key(shop: Any) -> None:
    def decode(value: bytes | None) -> object:
        if value == b"bad":
            raise ValueError(value)
        return value

    here = shop(nothing, order_by=lambda message: "all", decode=decode)
    here.offer(values=[b"good", b"bad", b"good"])
    await here.settled(3)
    assert (here.seen, here.sent) == ([[100], [102]], [("billing.dlq", 101)])


async def test_followers_that_wait_count_by_bytes_and_span_and_not_to_the_thousand(shop: Any) -> None:
    began = asyncio.Event()

    async def handle(message: Message[Any]) -> None:
        began.set()
        await asyncio.Event().wait()

    here = shop(handle, kind="message")
    here.offer(keys=[b"a"] * 5000)
    await began.wait()
    assert not here.lane.is_full()
    here.lane.call_off()


async def test_a_batch_rules_on_each_key_by_itself(shop: Any) -> None:
    async def handle(batch: Batch[Any]) -> None:
        if len(here.seen) == 1:
            batch.later(batch[0])

    here = shop(handle)
    here.offer(keys=[b"a", b"b", b"a"])
    await here.settled(3)
    assert here.seen == [[100, 101], [100], [102]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=40), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=60)
)
def test_whatever_is_taken_and_finished_in_any_order_keys_never_overtake_and_nothing_is_forgotten(
    keys: list[bytes | None], moves: list[tuple[int, int]]
) -> None:
    class Record:
        def __init__(self, offset: int, key: bytes | None) -> None:
            self.offset, self.key = offset, key

    def find_order(runs: list[Run]) -> None:
        for run in runs:
            run.order_keys = [record.key for record in run.records]

    fresh = ByKey(find_order)
    records = [Record(offset, key) for offset, key in enumerate(keys)]
    at_work: list[Run] = []
    begun: list[int] = []
    added = 0
    for what, number in [*moves, *[(0, 4)] * len(keys), *[(5, 1)] * 2 * len(keys)]:
        if what == 0 and added < len(records):
            fresh.add([Run(TopicPartition("orders", 0), records[added : added + number])])
            added += len(records[added : added + number])
        elif what < 4 or not at_work:
            batch: list[Run] = []
            fresh.fill(None, batch)
            keyed = [run.order_key for run in (*at_work, *batch) if run.order_key is not None]
            assert len(keyed) == len(set(keyed))
            begun += [run.first for run in batch]
            at_work += batch
        else:
            run = at_work.pop(number % len(at_work))
            run.stage = Stage.SETTLED
            fresh.finished([run])
        assert len(fresh) == added - len(begun) == len(list(fresh))
    assert sorted(begun) == list(range(len(keys)))
    for key in {b"a", b"b", b"c"}:
        of_key = [offset for offset in begun if keys[offset] == key]
        assert of_key == sorted(of_key)


async def test_starts_carry_a_hash_of_the_key_by_which_they_are_in_order(shop: Any) -> None:
    for kind, claims in (("batch", True), ("message", False)):
        here = shop(nothing, kind=kind, dedup=claims)
        here.offer(keys=[b"a", b"b", b"a", None])
        await here.settled(4)
        code = EventCode.CLAIMED if claims else EventCode.STARTED
        hashes = {event.offset: event.order_hash for event in here.sink.events if event.code is code}
        assert hashes == {100: order_hash(b"a"), 101: order_hash(b"b"), 102: order_hash(b"a"), 103: None}, kind
        assert not [event for event in here.sink.events if event.code is EventCode.SUCCEEDED and event.order_hash is not None]
