"""The coalescer passes the suite that every store passes, and joins what may be joined, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.store import (
    Ack,
    Acquired,
    Busy,
    Claim,
    ClaimKey,
    ClaimStore,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
)
from ackwise.stores.memory import MemoryStore
from ackwise.stores.protocol.coalescer import Coalescer
from ackwise.stores.sqlite import SQLiteStore
from ackwise.stores.testing import Features, StoreConformance


class TestCoalescerOfMemory(StoreConformance):
    features = Features(owners=True)

    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        return Coalescer(MemoryStore(clock=clock))


@pytest.mark.slow
class TestCoalescerOfSQLite(StoreConformance):
    features = Features(persistent=True, shared=True, owners=True)

    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        return Coalescer(SQLiteStore(place / "claims.db", clock=clock))


class Slow:
    """A memory store whose trips end when they are told to."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.trips: list[Exchange] = []
        self.go = asyncio.Semaphore(0)
        self.fails: list[Exception] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        self.trips.append(exchange)
        await self.go.acquire()
        if self.fails:
            raise self.fails.pop()
        return await self.inner.exchange(exchange)


def key(number: int) -> ClaimKey:
    return ClaimKey(number.to_bytes(16, "big"), None, 1)


def claim(number: int, token: int = 1) -> Exchange:
    return Exchange(claims=[Claim(key(number), token)])


async def asked(store: Coalescer, *exchanges: Exchange) -> list[asyncio.Task[ExchangeResult]]:
    """Each of `exchanges` asked by a caller of its own, in order."""
    tasks = [asyncio.create_task(store.exchange(exchange)) for exchange in exchanges]
    await asyncio.sleep(0)
    return tasks


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def store(slow: Slow) -> Coalescer:
    return Coalescer(slow, limit=5)


async def trips(slow: Slow, count: int) -> None:
    """Let `count` trips come to their end."""
    for _ in range(count):
        slow.go.release()
    for _ in range(20 * count):
        await asyncio.sleep(0)


async def test_a_caller_that_is_alone_goes_straight_through(store: Coalescer, slow: Slow) -> None:
    slow.go.release()
    assert (await store.exchange(claim(1))).claims == [Acquired(1)]
    assert store._pumping is None


async def test_what_comes_during_a_trip_shares_the_next_one_and_everybody_gets_his_answers(store: Coalescer, slow: Slow) -> None:
    mixed = Exchange(
        claims=[Claim(key(5), 1)],
        completes=[Complete(key(6), 1, Outcome.OK)],
        releases=[Release(key(7), 1)],
        renews=[Renew(key(8), 1)],
    )
    tasks = await asked(store, claim(1), claim(2), mixed)
    await trips(slow, 2)
    first, second, third = [task.result() for task in tasks]
    assert [len(trip) for trip in slow.trips] == [1, 5]
    assert (first.claims, second.claims) == ([Acquired(1)], [Acquired(1)])
    assert third == ExchangeResult([Acquired(1)], [Ack.RESTORED], [Ack.LOST], [Ack.LOST])


async def test_a_key_is_in_a_trip_once_and_its_callers_stay_in_order(store: Coalescer, slow: Slow) -> None:
    both = Exchange(claims=[Claim(key(2), 9), Claim(key(3), 9)])
    tasks = await asked(store, claim(1), claim(2, token=7), both, claim(3, token=8))
    await trips(slow, 4)
    answers = [task.result().claims for task in tasks]
    assert [len(trip) for trip in slow.trips] == [1, 1, 2, 1]
    assert answers[1] == [Acquired(1)]
    assert isinstance(answers[2][0], Busy)
    assert answers[2][1] == Acquired(1)
    assert isinstance(answers[3][0], Busy), "who came later does not overtake who waits for another of his keys"


async def test_a_complete_and_a_claim_of_one_key_never_share_a_trip(store: Coalescer, slow: Slow) -> None:
    tasks = await asked(store, claim(1), Exchange(completes=[Complete(key(2), 1, Outcome.OK)]), claim(2))
    await trips(slow, 3)
    assert [len(trip) for trip in slow.trips] == [1, 1, 1]
    await asyncio.gather(*tasks)


async def test_other_leases_and_retentions_travel_apart(store: Coalescer, slow: Slow) -> None:
    tasks = await asked(store, claim(1), claim(2), replace(claim(3), lease=1.0), replace(claim(4), retention=1.0), claim(5))
    await trips(slow, 4)
    await asyncio.gather(*tasks)
    assert [[len(trip), trip.lease, trip.retention] for trip in slow.trips] == [
        [1, 30.0, 86400.0],
        [2, 30.0, 86400.0],
        [1, 1.0, 86400.0],
        [1, 30.0, 1.0],
    ]


async def test_a_trip_takes_no_more_than_its_limit_but_an_exchange_stays_whole(store: Coalescer, slow: Slow) -> None:
    large = Exchange(claims=[Claim(key(number), 1) for number in range(10, 18)])
    tasks = await asked(store, claim(1), large, *map(claim, range(20, 28)))
    await trips(slow, 4)
    await asyncio.gather(*tasks)
    assert [len(trip) for trip in slow.trips] == [1, 8, 5, 3]


async def test_a_trip_that_fails_fails_for_everybody_in_it_and_for_nobody_else(store: Coalescer, slow: Slow) -> None:
    tasks = await asked(store, claim(1), claim(2), claim(3), claim(2, token=5))
    await trips(slow, 1)
    slow.fails.append(StoreUnavailable("the server is away"))
    await trips(slow, 2)
    assert [isinstance(task.exception(), StoreUnavailable) for task in tasks] == [False, True, True, False]
    slow.go.release()
    assert (await store.exchange(claim(9))).claims == [Acquired(1)]


async def test_a_caller_alone_whose_trip_fails_does_not_hold_up_those_behind_him(store: Coalescer, slow: Slow) -> None:
    slow.fails.append(StoreUnavailable("the server is away"))
    first, second = await asked(store, claim(1), claim(2))
    await trips(slow, 2)
    assert isinstance(first.exception(), StoreUnavailable)
    assert second.result().claims == [Acquired(1)]


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cancelled_caller_takes_nobody_with_him(store: Coalescer, slow: Slow, which: int) -> None:
    tasks = await asked(store, claim(1), claim(2), claim(3))
    tasks[which].cancel()
    await trips(slow, 3)
    assert [task.cancelled() for task in tasks] == [number == which for number in range(3)]
    assert tasks[2].result().claims == [Acquired(1)]


async def test_closing_lets_what_waits_come_to_its_end(store: Coalescer, slow: Slow) -> None:
    tasks = await asked(store, claim(1), claim(2))
    await trips(slow, 1)
    closing = asyncio.create_task(store.close())
    await trips(slow, 1)
    await closing
    assert [task.result().claims for task in tasks] == [[Acquired(1)], [Acquired(1)]]


async def test_a_thousand_callers_need_three_trips(tmp_path: Path) -> None:
    store = Coalescer(SQLiteStore(tmp_path / "claims.db"))
    await store.open()
    results = await asyncio.gather(*(store.exchange(claim(number)) for number in range(1000)))
    await store.close()
    assert all(result.claims == [Acquired(1)] for result in results)
    assert store.trips == 3
