"""The claims of a worker: which of them an answer of the store is about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ackwise.middleware.batch import Batch
from ackwise.middleware.entry import Stage
from ackwise.middleware.message import Message
from ackwise.middleware.pipeline import HandlerStopped
from ackwise.middleware.store import Exchange


async def rest() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class Slow:
    """A store behind which renewals wait until the test lets them pass; then it may not answer them."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.go = asyncio.Event()

    async def exchange(self, exchange: Exchange) -> Any:
        if exchange.renews:
            await self.go.wait()
        return await self.store.exchange(exchange)


@pytest.mark.parametrize("answered", [True, False])
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
    spine.pipeline._admission.prepare([entry])
    await spine.pipeline._admission.claim([entry])
    spine.leases.store = slow = Slow(spine.store)
    spine.store.fail = lambda exchange: bool(exchange.renews) and not answered
    spine.clock.now += 12
    beat = asyncio.create_task(spine.leases.beat())
    await rest()
    spine.leases.give_back(entry)
    entry.forget_claim()
    running = asyncio.create_task(spine.run([entry]))
    await inside.wait()
    deadline = entry.deadline
    if not answered:
        spine.clock.now += 30
    slow.go.set()
    await beat
    assert (entry.claim_lost, entry.deadline, len(spine.leases)) == (False, deadline, 1)
    go.set()
    assert await running == [Stage.SETTLED]
    assert ran == [100]


async def test_a_claim_that_was_given_back_while_it_was_renewed_is_not_lost_afterwards(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    entry = spine.entry(100)
    spine.pipeline._admission.prepare([entry])
    await spine.pipeline._admission.claim([entry])
    spine.leases.store = slow = Slow(spine.store)
    spine.store.fail = lambda exchange: bool(exchange.renews)
    spine.clock.now += 12
    beat = asyncio.create_task(spine.leases.beat())
    await rest()
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
