"""A value that a handler changed is decoded again: each run sees the message as it was written."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from tests.middleware.test_streaming import Loop
from tests.middleware.test_transactional import Database
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.errors import CodecUnavailable
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Delayed
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.policies.retry import ConsumeLater, RetryInPlace
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Stage


class Payments:
    """A handler that takes the amount out of each payment, then raises as often as it is told."""

    def __init__(self, fails: Callable[[list[int]], bool] = lambda offsets: False) -> None:
        self.posted: dict[int, list[int]] = {}
        self.messages: set[int] = set()
        self.kept: list[object] = []
        self.fails = fails

    async def __call__(self, work: Any) -> None:
        batch = work if isinstance(work, Batch) else [work]
        for message in batch:
            assert id(message.value) not in self.messages
            self.messages.add(id(message.value))
            self.kept.append(message.value)
            self.posted.setdefault(message.offset, []).append(message.value.pop("amount", 0))
        if self.fails([message.offset for message in batch]):
            raise ValueError


class Decoder:
    """Counts what it decodes; `is_away` says which of these it can't."""

    def __init__(self) -> None:
        self.decoded = 0
        self.is_away: Callable[[int], bool] = lambda number: False

    def __call__(self, raw: Any) -> Any:
        self.decoded += 1
        if self.is_away(self.decoded):
            raise CodecUnavailable("away")
        return {"amount": 100, "raw": raw}

    async def later(self, raw: Any) -> Any:
        return self(raw)


def spine_of(make_spine: Any, handler: Any, decoder: Decoder, kind: Any, *, is_async: bool = False, later: Any = None, **agent: Any) -> Any:
    spine = make_spine(handler, kind=kind, dedup={"key": lambda message: str(message.offset)}, later=later)
    decode = decoder.later if is_async else decoder
    spine.agent = Agent("bill", ("orders",), kind, handler, decode, decodes_async=is_async, decodes_own=True, **agent)
    spine.pipeline = type(spine.pipeline)(spine.agent, spine.worker)
    return spine


@each("kind, is_async", [(kind, is_async) for kind in ("batch", "message") for is_async in (False, True)])
async def test_a_message_is_decoded_once_if_it_runs_once(make_spine: Any, kind: Any, is_async: bool) -> None:
    handler, decoder = Payments(), Decoder()
    spine = spine_of(make_spine, handler, decoder, kind, is_async=is_async)
    await spine.run([spine.together(4)])
    assert (decoder.decoded, spine.watermark.commit) == (4, 104)


@each(
    "order, kind, is_async",
    [("key", "message", False), ("key", "batch", True), ("partition", "batch", False), ("partition", "message", True)],
)
async def test_each_attempt_in_place_has_the_message_as_it_was_written(make_spine: Any, order: Any, kind: Any, is_async: bool) -> None:
    handler, decoder = Payments(lambda _: len(handler.posted[100]) < 3), Decoder()
    spine = spine_of(make_spine, handler, decoder, kind, is_async=is_async, order=order, in_place=RetryInPlace(5))
    entries = spine.entries(1)
    for _ in range(3):
        await spine.run(entries)
        spine.clock.now += 31
    assert (handler.posted, spine.watermark.commit, decoder.decoded) == ({100: [100] * 3}, 101, 3)


@each("is_async", [False, True])
async def test_each_half_of_a_batch_has_its_messages_as_they_were_written(make_spine: Any, is_async: bool) -> None:
    handler, decoder = Payments(lambda offsets: 101 in offsets), Decoder()
    spine = spine_of(make_spine, handler, decoder, "batch", is_async=is_async, later=ConsumeLater(1))
    await spine.run(spine.entries(4, attempt=2))
    assert handler.posted == {100: [100] * 3, 101: [100] * 3, 102: [100] * 2, 103: [100] * 2}
    assert (spine.watermark.commit, spine.sent()) == (104, [("billing.dlq", b"v101")])


async def test_what_can_not_be_decoded_again_goes_back_and_runs_once_it_can(make_spine: Any) -> None:
    handler, decoder = Payments(lambda offsets: len(offsets) > 2), Decoder()
    decoder.is_away = lambda number: number == 6
    spine = spine_of(make_spine, handler, decoder, "batch", later=ConsumeLater(1))
    entries = spine.entries(4, attempt=2)
    await spine.run(entries)
    assert [entry.offsets[0] for entry in entries if entry.stage is not Stage.SETTLED] == [101]
    await spine.leases.flush()
    spine.clock.now += 31
    await spine.run(entries)
    assert (handler.posted, spine.watermark.commit, spine.sent()) == (
        {100: [100] * 2, 101: [100] * 2, 102: [100] * 2, 103: [100] * 2},
        104,
        [],
    )


async def test_what_was_called_off_comes_again_as_it_was_written(make_spine: Any) -> None:
    handler = Payments()
    spine = spine_of(make_spine, handler, Decoder(), "batch")

    async def called_off(batch: Any) -> None:
        await handler(batch)
        (call,) = {run.call for run in entries}
        call.call_off()
        await asyncio.sleep(1)

    spine.agent = Agent("bill", ("orders",), "batch", called_off, spine.agent.decode)
    spine.pipeline = type(spine.pipeline)(spine.agent, spine.worker)
    entries = spine.entries(2)
    await spine.run(entries)
    assert {entry.stage for entry in entries} == {Stage.FETCHED}
    spine.pipeline = type(spine.pipeline)(Agent("bill", ("orders",), "batch", handler, spine.agent.decode), spine.worker)
    spine.clock.now += 31
    await spine.leases.flush()
    await spine.run(entries)
    assert (handler.posted, spine.watermark.commit) == ({100: [100, 100], 101: [100, 100]}, 102)


# Under Transactional


class Ledger(Payments):
    """The same, in a transaction, in which it writes down what it posts."""

    async def __call__(self, work: Any) -> None:
        await super().__call__(work)
        batch = work if isinstance(work, Batch) else [work]
        work.connection.extend(self.posted[message.offset][-1] for message in batch)


@pytest.fixture
def make(make_spine: Any) -> Callable[..., Any]:
    def made(handler: Any, database: Database, kind: Any = "batch") -> Any:
        spine = make_spine(handler, kind=kind)
        spine.worker = type(spine.worker)(
            **{name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name not in ("dedup", "leases")},
            dedup=Transactional(database, key=lambda message: message.raw),
        )
        spine.agent = Agent("bill", ("orders",), kind, handler, Decoder())
        spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
        return spine

    return made


@each("kind", ["batch", "message"])
async def test_what_was_not_committed_comes_again_as_it_was_written(make: Any, kind: Any) -> None:
    database, handler = Database(), Ledger()
    database.fail = lambda step: step == "commit" and database.begun == 1
    spine = make(handler, database, kind)
    entries = spine.entries(2)
    await spine.run(entries)
    spine.clock.now += 31
    await spine.run(entries)
    assert (handler.posted, database.effects, spine.watermark.commit) == ({100: [100, 100], 101: [100, 100]}, [100, 100], 102)


@each("kind", ["batch", "message"])
async def test_the_halves_of_a_transaction_have_their_messages_as_they_were_written(make: Any, kind: Any) -> None:
    database, handler = Database(), Ledger(lambda offsets: 102 in offsets)
    spine = make(handler, database, kind)
    await spine.run(spine.entries(4))
    assert {amount for amounts in handler.posted.values() for amount in amounts} == {100}
    assert (spine.watermark.commit, spine.sent()) == (104, [("billing.delay.10s", b"v102")])


# In a loop


async def test_what_failed_with_others_in_a_loop_runs_again_as_it_was_written(make_spine: Any) -> None:
    decoder = Decoder()
    spine = spine_of(make_spine, None, decoder, "message", later=ConsumeLater(1))
    loop = Loop(spine)
    await loop.begin(spine.entries(2, attempt=2))
    first = [cast("Message[Any]", member.message) for member in loop.given]
    for member, message in zip(loop.given, first, strict=True):
        member.take(0.0)
        message.value.clear()
    for member in [*loop.given]:
        member.decide(Delayed(), ValueError(), company=2)
    await turns()
    again = [cast("Message[Any]", member.message) for member in loop.given[2:]]
    assert [message.value["amount"] for message in again] == [100, 100]
    assert not any(message is before for message, before in zip(again, first, strict=True))
    for run in loop.runs:
        run.cancel()


async def test_what_waits_for_one_decoder_is_due_at_the_same_time_and_asks_once(make_spine: Any) -> None:
    decoder = Decoder()
    decoder.is_away = lambda number: True
    spine = spine_of(make_spine, Payments(), decoder, "message")
    ticks = itertools.count(1)  # time passes between any two looks at the clock
    worker = replace(spine.worker, monotonic=lambda: spine.clock.now + next(ticks) / 1000)
    spine.pipeline = Pipeline(spine.agent, worker)
    entries = spine.entries(5)
    await spine.run(entries)
    assert decoder.decoded == 1
    assert {entry.stage for entry in entries} == {Stage.WITHHELD}
    assert len({entry.not_before for entry in entries}) == 1
