"""Renewal of claims: what it waits for, how much it asks about at once, and what a pause of the machine makes of a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes import Clock, Store
from tests.plugin.consumer.owning import VirtualLoop
from tests.tables import each

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import Message, TopicPartition
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Acquired, Claim, Column, Exchange, ExchangeResult
from ackwise.stores.memory import MemoryStore

LEASE = 30.0


class Slow:
    """A store whose trips take a while, one after the other unless `beside`; none that takes longer than `limit` is answered."""

    def __init__(self, seconds: Callable[[Exchange], float], *, limit: float = LEASE, beside: bool = False) -> None:
        self.inner = MemoryStore(clock=asyncio.get_running_loop().time)
        self._seconds, self._limit = seconds, limit
        self._turns = asyncio.Semaphore(1000 if beside else 1)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        async with self._turns:
            seconds = self._seconds(exchange)
            await asyncio.sleep(min(seconds, self._limit))
            if seconds > self._limit:
                raise StoreUnavailable("no answer in time")
            return await self.inner.exchange(exchange)


def virtually(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` in a loop whose time passes at once."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def keys(name: str, number: int) -> list[bytes]:
    return [f"{name} {place}".encode().rjust(16) for place in range(number)]


async def claimed(leases: Leases, store: Slow, *, partitions: int, messages: int) -> list[Run]:
    """What a worker holds of each of so many partitions."""
    runs = []
    for partition in range(partitions):
        run = Run(TopicPartition("orders", partition), [SimpleNamespace(offset=offset, timestamp=0) for offset in range(messages)])
        run.claims.ids, run.claims.day, run.claims.tokens = keys(f"p{partition}", messages), 0, leases.tokens(messages)
        await Leases(store.inner, clock=asyncio.get_running_loop().time).claim([run.column()])
        runs.append(run)
    leases.add(runs, leases.now())
    return runs


@asynccontextmanager
async def kept(leases: Leases) -> AsyncIterator[None]:
    """With what goes on beside the handlers of a worker."""
    tasks = [asyncio.create_task(work()) for work in (leases.keep, leases.deliver)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def none_is_over(leases: Leases, runs: list[Run], *, seconds: int) -> None:
    for _ in range(seconds):
        await asyncio.sleep(1)
        assert not any(leases.expired(run) for run in runs)


@each("beside", [True, False])
@pytest.mark.slow  # looks at the leases of three hundred messages for a quarter of an hour of virtual time
def test_a_full_backlog_of_marks_costs_no_lease_however_slow_the_store_is(beside: bool) -> None:
    async def scene() -> None:
        time = asyncio.get_running_loop().time
        store = Slow(lambda exchange: LEASE / 10, beside=beside)
        leases = Leases(store, lease=LEASE, clock=time)
        runs = await claimed(leases, store, partitions=3, messages=100)
        for place in range(200):
            leases.mark_later(Column(keys(f"m{place}", 500), 0, 1, leases.tokens(500)))
        assert leases._marks.keys == 100_000
        async with kept(leases):
            await none_is_over(leases, runs, seconds=900)
        assert leases._marks.keys == 0, "they were delivered meanwhile"

    virtually(scene())


def test_claims_of_a_hundred_partitions_are_renewed_in_trips_that_keep_their_time_limit() -> None:
    async def scene() -> None:
        store = Slow(lambda exchange: 0.1 + len(exchange) / 1000, limit=5.0, beside=True)
        leases = Leases(store, lease=LEASE, clock=asyncio.get_running_loop().time)
        runs = await claimed(leases, store, partitions=100, messages=200)
        async with kept(leases):
            await none_is_over(leases, runs, seconds=60)

    virtually(scene())


def test_claims_that_could_be_renewed_are_not_lost_with_those_that_could_not() -> None:
    async def scene() -> None:
        store = Slow(lambda exchange: 60.0 if any(renew.key.id in broken for renew in exchange.renews) else 0.1, beside=True)
        leases = Leases(store, lease=LEASE, clock=asyncio.get_running_loop().time)
        runs = await claimed(leases, store, partitions=3, messages=1000)
        broken.update(runs[0].claims.ids or ())
        async with kept(leases):
            await asyncio.sleep(120)
        assert [run.claim_lost for run in runs] == [True, False, False]
        assert len(leases) == 2000

    broken = set[bytes]()
    virtually(scene())


def test_a_claim_that_could_not_be_renewed_once_is_asked_for_again_before_its_lease_is_over() -> None:
    async def scene() -> None:
        trips = 0

        def seconds(exchange: Exchange) -> float:
            nonlocal trips
            trips += 1
            return 60.0 if trips == 1 else 1.0

        store = Slow(seconds, limit=10.0)
        leases = Leases(store, lease=LEASE, clock=asyncio.get_running_loop().time)
        runs = await claimed(leases, store, partitions=1, messages=1)
        async with kept(leases):
            await none_is_over(leases, runs, seconds=60)

    virtually(scene())


async def fail(message: Message[bytes]) -> None:
    raise ConnectionError("not now")


async def taken_over(spine: Any, run: Run) -> None:
    """The store's time went on, unlike ours: its lease is over, and another worker has the claim."""
    spine.store_clock.now += LEASE + 1
    assert run.key is not None
    (answer,) = (await spine.store.inner.exchange(Exchange([Claim(run.key, 7)]))).claims
    assert isinstance(answer, Acquired)


@each("paused", [11.0, 31.0, 3600.0, -11.0])
@each("taken", [False, True])
async def test_after_a_pause_nothing_is_published_before_its_claim_is_renewed(make_spine: Any, paused: float, taken: bool) -> None:
    async def handler(message: Message[bytes]) -> None:
        spine.paused += paused
        if taken:
            await taken_over(spine, entry)
        raise ConnectionError("not now")

    store_clock = Clock()
    spine = make_spine(handler, kind="message", dedup=True, store=Store(store_clock))
    spine.store_clock = store_clock
    entry = spine.entry(100)
    await spine.run([entry])
    assert len(spine.store.trips[1].renews) == 1, "it asks before it publishes"
    assert len(spine.sent()) == (not taken)
    assert (EventCode.CLAIM_LOST in spine.sink.codes(100)) == taken


@each(("passed", "paused", "renews"), [(10.0, 9.0, 0), (19.0, 9.0, 1), (0.0, -9.0, 0)])
async def test_a_short_pause_counts_to_what_is_over_of_the_lease(make_spine: Any, passed: float, paused: float, renews: int) -> None:
    async def handler(message: Message[bytes]) -> None:
        spine.clock.now += passed
        spine.paused += paused
        raise ConnectionError("not now")

    spine = make_spine(handler, kind="message", dedup=True)
    await spine.run([spine.entry(100)])
    assert sum(len(trip.renews) for trip in spine.store.trips) == renews
    assert len(spine.sent()) == 1


async def test_what_waited_through_a_pause_is_claimed_anew_before_it_begins(make_spine: Any) -> None:
    ran: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        ran.append(message.offset)
        spine.paused += 11.0

    spine = make_spine(handler, kind="message", dedup=True)
    first, second = spine.entries(2)
    assert await spine.run([first, second]) == [Stage.SETTLED, Stage.FETCHED]
    assert (ran, second.token) == ([100], 0)
    assert await spine.run([second]) == [Stage.SETTLED]


async def test_a_pause_during_the_question_makes_its_claims_doubtful(make_spine: Any) -> None:
    spine = make_spine(fail, kind="message", dedup=True)

    def pause(exchange: Exchange) -> bool:
        spine.paused += 3600.0 * bool(exchange.claims)
        return False

    spine.store.fail = pause
    entry = spine.entry(100)
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    assert spine.leases.doubtful(entry)
    spine.clock.now += 1
    await spine.leases.beat()
    assert not spine.leases.doubtful(entry), "young as it is, it is renewed with the next beat"


async def test_a_handler_goes_on_where_only_a_pause_makes_its_claim_doubtful_and_the_store_is_away(make_spine: Any) -> None:
    spine = make_spine(fail, kind="message", dedup=True)
    entry = spine.entry(100)
    await spine.pipeline.admission.prepare([entry])
    await spine.pipeline.admission.claim([entry])
    spine.paused += 11.0
    spine.store.fail = lambda exchange: True
    await spine.leases.beat()
    assert (entry.claim_lost, len(spine.leases)) == (False, 1)
