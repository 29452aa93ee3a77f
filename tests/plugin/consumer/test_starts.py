"""What is asked at the instant of each start: cut-off, pause, breaker, rate, slot, and whether a message runs alone.

What has not started holds no claim once it may not start: after a cut-off the claims of a lane are those of the calls that run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes import Clock, Store
from tests.plugin.consumer.ordered import Shop
from tests.tables import each
from tests.waiting import PATIENCE, turns, until

from ackwise.middleware.flow.breaker import Breaker, Circuit
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.message import Message
from ackwise.middleware.runs.run import Run, count
from ackwise.plugin.consumer.lane import Lane

SHOP = {"kind": "message", "order": None, "dedup": True}

PAUSE = Target("bill")


class Calls:
    """A handler whose calls end when the test says so."""

    def __init__(self) -> None:
        self.running: dict[tuple[int, int], asyncio.Event] = {}
        self.started: list[tuple[int, int]] = []
        self.is_over = False  #: from now on each ends at once

    async def __call__(self, argument: Any) -> None:
        message = argument if isinstance(argument, Message) else argument[0]
        at = message.partition, message.offset
        self.started.append(at)
        self.running[at] = asyncio.Event()
        try:
            if self.is_over:
                return
            await self.running[at].wait()
        finally:
            del self.running[at]

    def end(self, *ats: tuple[int, int]) -> None:
        for at in ats or [*self.running]:
            self.running[at].set()


@pytest.fixture
def make_calls(shop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Calls]]:
    """Makes handlers whose calls all end before their shops do, which do not drain."""
    made: list[Calls] = []
    monkeypatch.setattr(Shop, "stop", lambda shop: stop(shop.lane))

    def make() -> Calls:
        made.append(Calls())
        return made[-1]

    yield make
    for calls in made:
        calls.is_over = True
        calls.end()


def lane_beside(here: Shop, partition: int) -> Lane:
    """Another partition of the same worker, with the same handler."""
    lane = Lane(
        "orders", partition, "source", 100,
        make=lambda place, records: [Run(place, records, here.pipeline)],
        progressed=lambda lane: None,
        flow=here.worker.flow,
    )  # fmt: skip
    lane.start()
    return lane


def offer(lane: Lane, number: int) -> None:
    lane.offer(
        [SimpleNamespace(offset=lane.position + at, timestamp=1000, headers=(), key=b"k%d" % at, value=b"v") for at in range(number)]
    )


def held(store: Store) -> int:
    """How many claims the store has that nobody released or completed."""
    claims = sum(len(trip.claims) for trip in store.trips)
    return claims - sum(len(trip.releases) + len(trip.completes) for trip in store.trips)


async def stop(*lanes: Lane) -> None:
    for lane in lanes:
        lane.cut()
        lane.call_off()
        if lane.task is not None:
            await lane.task


@each("how", ["cut", "pause", "breaker"])
@each("concurrency", [None, 1, 3])
@each("kind", ["message", "batch"])
async def test_what_may_not_start_any_more_gives_its_claim_back_at_once_while_others_still_run(
    shop: Any, make_calls: Any, how: str, concurrency: int | None, kind: str
) -> None:
    calls = make_calls()
    here = shop(calls, concurrency=concurrency, kind=kind, max_batch=10 if kind == "message" else 2)
    here.worker.flow.breaker = Breaker(errors=(ValueError,))
    here.offer(10)
    await turns()
    running = len(calls.running)
    match how:
        case "cut":
            here.lane.cut()
        case "pause":
            here.worker.flow.pausing.pause(PAUSE, "code")
        case _:
            circuit = here.worker.flow._failing.setdefault("bill", _open_circuit())
            here.worker.flow._has_moved("bill", circuit, "ValueError")
    await turns()
    size = 1 if kind == "message" else 2
    assert (len(calls.running), held(here.store), len(here.leases)) == (running, running * size, running * size)
    calls.end()
    await turns()
    assert (len(calls.started), held(here.store)) == (running, 0)
    await stop(here.lane)


def _open_circuit() -> Circuit:
    circuit = Circuit(Breaker(), withholds=False)
    circuit.count([(True, 20)], 0.0)
    circuit._opens_at = float("inf")
    return circuit


@each("seed", range(20))
async def test_after_a_cut_off_the_claims_of_a_lane_are_those_of_the_calls_that_run(shop: Any, make_calls: Any, seed: int) -> None:
    draw = random.Random(seed)
    calls = make_calls()
    here = shop(
        calls,
        concurrency=draw.choice([None, 1, 2, 5]),
        order=draw.choice([None, "key", "partition"]),
        max_batch=draw.choice([1, 3, 20]),
    )
    here.worker.flow.rate_limit = draw.choice(
        [None, RateLimit("5/s", burst=3), RateLimit("5/s", burst=2, key=lambda message: message.offset % 3)]
    )
    other = lane_beside(here, 1)
    for _ in range(draw.randrange(1, 6)):
        here.offer(draw.randrange(0, 12))
        offer(other, draw.randrange(0, 12))
        await turns(draw.choice([0, 1, 2, 3, 5, 8, 13, 60]))
        for at in [*calls.running]:
            if draw.random() < 0.4:
                calls.end(at)
        await turns(draw.choice([0, 1, 2, 60]))
    here.lane.cut()
    other.cut()
    await turns(200)
    assert held(here.store) == len(here.leases) == len(calls.running)
    started = len(calls.started)
    calls.end()
    await turns(200)
    assert (held(here.store), len(calls.started)) == (0, started)
    await stop(here.lane, other)


@each("kind", ["message", "batch"])
async def test_nothing_is_claimed_before_its_batch_has_a_slot_and_a_lane_without_one_ends_at_once(
    shop: Any, make_calls: Any, kind: str
) -> None:
    calls = make_calls()
    here = shop(calls, concurrency=1, kind=kind, max_batch=5)
    here.offer(5)
    await turns()
    other = lane_beside(here, 1)
    offer(other, 5)
    await turns()
    assert (len(calls.running), held(here.store)) == (1, 5)
    other.stop()
    await asyncio.wait_for(other.task, PATIENCE)  # type: ignore[arg-type]
    assert (count(other.unsettled()), len(calls.started)) == (5, 1)
    await stop(here.lane)


async def test_a_slot_that_nothing_is_started_in_goes_to_the_next_one(shop: Any, make_calls: Any) -> None:
    calls = make_calls()
    here = shop(calls, concurrency=1, max_batch=5)
    here.store.fail = lambda exchange: bool(exchange.claims)
    here.offer(5)
    await turns()
    other = lane_beside(here, 1)
    here.store.fail = lambda exchange: False
    offer(other, 1)
    await turns()
    assert [*calls.running] == [(1, 100)]
    await stop(here.lane, other)


async def test_what_waits_for_a_slot_does_not_start_once_its_handler_is_paused(shop: Any, make_calls: Any) -> None:
    calls = make_calls()
    here = shop(calls, concurrency=1, max_batch=2)
    here.offer(2)
    await turns()
    other = lane_beside(here, 1)
    offer(other, 2)
    await turns()
    here.worker.flow.pausing.pause(PAUSE, "code")
    calls.end()
    await turns()
    assert (calls.started, held(here.store)) == ([(0, 100)], 0)
    here.worker.flow.pausing.resume(PAUSE, "code")
    here.lane.look_again()
    other.look_again()
    await turns()
    assert len(calls.running) == 1
    await stop(here.lane, other)


async def test_a_batch_that_waited_for_its_slots_starts_no_faster_than_its_rate(shop: Any, make_calls: Any) -> None:
    """One call blocks the others; then all may go on, and did not use their rate meanwhile."""
    calls = make_calls()
    here = shop(calls, concurrency=60, max_batch=200)
    here.worker.flow.rate_limit = RateLimit("20/s", burst=5)
    now = Clock(0.0)
    here.worker.flow._clock = now
    here.offer(100)
    await turns()
    assert len(calls.started) == 5
    here.worker.flow.pausing.pause(PAUSE, "code")
    await turns()
    now.now += 60.0
    here.worker.flow.pausing.resume(PAUSE, "code")
    for run in here.lane.held:
        run.not_before = 0.0
    here.lane.look_again()
    calls.end()
    await turns(200)
    assert len(calls.started) == 10
    assert held(here.store) == 5 + 40  # what runs, and what may start within two seconds
    await stop(here.lane)


async def test_a_message_that_waits_for_its_rate_keeps_its_claim_and_others_of_their_keys_go_on(shop: Any, make_calls: Any) -> None:
    calls = make_calls()
    here = shop(calls, concurrency=5, max_batch=200)
    here.worker.flow._clock = Clock(0.0)
    here.worker.flow.rate_limit = RateLimit("1/s", burst=1, key=lambda message: "a" if message.offset < 103 else message.offset)
    here.offer(5)
    await turns()
    assert calls.started == [(0, 100), (0, 103), (0, 104)]
    assert held(here.store) == 5
    await stop(here.lane)


def poisoned(lane: Lane) -> Run:
    """The first message of `lane`, of which workers died."""
    (run,) = lane.queued
    run.alone = True
    return run


@each("concurrency", [None, 2])
async def test_a_message_that_runs_alone_gets_its_turn_among_busy_partitions_once_their_running_calls_end(
    shop: Any, make_calls: Any, concurrency: int | None
) -> None:
    calls = make_calls()
    here = shop(calls, max_batch=50, concurrency=concurrency)
    others = [lane_beside(here, partition) for partition in range(1, 5)]
    for lane in others:
        offer(lane, 300)
    await turns(200)
    busy = [*calls.running]
    here.offer(1)
    poisoned(here.lane)
    await turns(200)
    assert (here.seen[-1], held(here.store)) == ([busy[-1][1]], len(busy))  # all others were given back
    for number, at in enumerate(busy):
        assert (0, 100) not in calls.started, number
        calls.end(at)
        await turns(200)
    assert ([*calls.running], held(here.store)) == ([(0, 100)], 1)
    calls.end()
    await turns(200)
    assert len(calls.running) == len(busy)
    await stop(here.lane, *others)


async def test_a_message_that_runs_alone_waits_for_no_call_past_its_consume_timeout_or_without_one(shop: Any, make_calls: Any) -> None:
    for timeout in (0.0, 0.05):
        calls = make_calls()

        async def stubborn(argument: Any, calls: Calls = calls) -> None:
            while True:
                try:
                    await calls(argument)
                    return
                except asyncio.CancelledError:
                    continue

        here = shop(stubborn, max_batch=50, consume_timeout=timeout, order="key" if timeout else None)
        other = lane_beside(here, 1)
        offer(other, 10)
        await turns()
        here.offer(1)
        poisoned(here.lane)
        await until(lambda: (0, 100) in calls.started)  # noqa: B023
        assert len(calls.running) == 2, timeout
        for lane in (here.lane, other):
            lane.cut()
        calls.end()
        await turns()


async def test_a_lane_that_stops_while_its_message_waits_to_run_alone_ends_and_lets_the_others_go_on(shop: Any, make_calls: Any) -> None:
    calls = make_calls()
    here = shop(calls, max_batch=50)
    other = lane_beside(here, 1)
    offer(other, 10)
    await turns()
    here.offer(1)
    poisoned(here.lane)
    await turns()
    here.lane.stop()
    await asyncio.wait_for(here.lane.task, PATIENCE)
    calls.end()
    await turns()
    assert calls.started == [(1, 100), (1, 101)]
    await stop(other)


async def test_a_loop_of_the_users_that_asks_for_no_batch_has_no_claims(shop: Any, make_calls: Any) -> None:
    calls = make_calls()
    loops = asyncio.Semaphore(0)
    here = shop(calls, kind="batch", max_batch=5, loops=loops)
    here.offer(10)
    await turns()
    assert (held(here.store), calls.started) == (0, [])
    loops.release()
    await turns()
    assert (held(here.store), len(calls.running)) == (5, 1)
    await stop(here.lane)
