"""The claims of a worker: which of them an answer of the store is about."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.tables import each
from tests.waiting import turns

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Duplicate
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Claim, Complete, Exchange, Outcome, in_columns


class Slow:
    """A store behind which renewals wait until the test lets them pass; then it may not answer them."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.go = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> Any:
        if exchange.renews:
            await self.go.wait()
        return await self.store.exchange(exchange)


@each("answered", [True, False])
async def test_what_becomes_of_a_renewal_says_nothing_of_a_claim_that_the_message_was_granted_meanwhile(
    make_spine: Any, answered: bool
) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        inside.set()
        await go.wait()
        ran.append(message.offset)

    spine = make_spine(handler, kind="message", dedup=True)
    entry = spine.entry(100)
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    slow = Slow(spine.store)
    spine.leases._columns = in_columns(slow)
    spine.store.fail = lambda exchange: bool(exchange.renews) and not answered
    spine.clock.now += 12
    beat = asyncio.create_task(spine.leases.beat())
    await turns()
    spine.leases.give_back(entry)
    entry.forget_claim()
    running = asyncio.create_task(spine.run([entry]))
    await inside.wait()
    deadline = spine.leases._held[entry].deadline
    if not answered:
        spine.clock.now += 30
    slow.go.set()
    await beat
    assert (entry.claim_lost, spine.leases._held[entry].deadline, len(spine.leases)) == (False, deadline, 1)
    go.set()
    assert await running == [Stage.SETTLED]
    assert ran == [100]


async def test_a_lease_is_counted_from_when_it_was_asked_for_less_what_two_trips_take(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    entry, asked_at = spine.entry(100), spine.clock.now

    def take_four_seconds(exchange: Exchange) -> bool:
        spine.clock.now += 4
        return False

    spine.store.fail = take_four_seconds
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    assert spine.leases._held[entry].deadline == asked_at + 30 - 2 * 4


async def test_an_expired_claim_that_could_not_be_renewed_is_lost(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    entry = spine.entry(100)
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    spine.store.fail = lambda exchange: True
    spine.clock.now += 12
    await spine.leases.beat()
    assert not entry.claim_lost
    spine.clock.now += 18
    await spine.leases.beat()
    assert (entry.claim_lost, len(spine.leases)) == (True, 0)


async def test_a_claim_that_was_given_back_while_it_was_renewed_is_not_lost_afterwards(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    entry = spine.entry(100)
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    slow = Slow(spine.store)
    spine.leases._columns = in_columns(slow)
    spine.store.fail = lambda exchange: bool(exchange.renews)
    spine.clock.now += 12
    beat = asyncio.create_task(spine.leases.beat())
    await turns()
    spine.leases.give_back(entry)
    entry.forget_claim()
    spine.clock.now += 30
    slow.go.set()
    await beat
    assert not entry.claim_lost


async def test_what_runs_again_in_smaller_batches_and_was_not_begun_there_is_not_counted_as_lost(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        if len(batch) == 4:
            raise ConnectionError
        raise SystemExit

    spine = make_spine(handler, dedup=True)
    entries = spine.entries(4, attempt=17)
    with pytest.raises(HandlerStopped):
        await spine.run(entries)
    await spine.leases.flush()
    assert [release.key for trip in spine.store.trips for release in trip.releases] == [entries[2].key, entries[3].key]


@each("kind", ["batch", "message"])
async def test_what_waited_until_its_claim_had_run_out_is_not_begun_and_claimed_anew(make_spine: Any, kind: str) -> None:
    ran: list[int] = []

    async def handler(given: Any) -> None:
        ran.extend(message.offset for message in (given if kind == "batch" else [given]))
        spine.clock.now += 60  # it blocks the loop: nothing is renewed meanwhile

    spine = make_spine(handler, kind=kind, dedup=True)
    first, second = spine.entries(2)
    second.at_most = 1
    assert await spine.run([first, second]) == [Stage.SETTLED, Stage.FETCHED]
    assert (ran, second.token, second.not_before) == ([100], 0, spine.clock.now)
    await spine.store.inner.exchange(Exchange([Claim(second.key, 7)]))
    await spine.store.inner.exchange(Exchange(completes=[Complete(second.key, 7, Outcome.OK)]))
    assert await spine.run([second]) == [Stage.SETTLED]
    assert (ran, second.disposition) == ([100], Duplicate())


async def test_a_loop_does_not_take_what_waited_until_its_claim_had_run_out(make_spine: Any) -> None:
    spine = make_spine(None, dedup=True)
    given: list[InFlight] = []
    pipeline = Pipeline(spine.agent, spine.worker, partial(Streaming, hand_over=given.extend, flush=turns))
    spine.partition.turn = asyncio.Lock()
    entry = spine.entry(100)
    running = asyncio.create_task(pipeline([entry], spine.partition))
    await turns()
    spine.clock.now += 31
    assert not given[0].take(spine.clock.now)
    await running
    assert (entry.stage, entry.token, spine.sink.codes(100)) == (Stage.FETCHED, 0, [])


async def test_what_runs_without_a_claim_needs_none_that_lasts(make_spine: Any) -> None:
    ran: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        ran.append(message.offset)
        spine.clock.now += 60

    spine = make_spine(handler, kind="message", dedup={"on_store_down": "fail_open"})
    spine.store.fail = lambda exchange: True
    assert await spine.run(spine.entries(2)) == [Stage.SETTLED] * 2
    assert ran == [100, 101]
