"""Who may run beside whom."""

from __future__ import annotations

import asyncio

from tests.fakes import Clock
from tests.waiting import turns

from ackwise.middleware.claims.isolation import Isolation
from ackwise.middleware.runs.agent import HandlerCall


def call(*, unstarted: int = 0, deadline: float | None = None) -> HandlerCall:
    made = HandlerCall()
    made.unstarted, made.deadline = range(unstarted), deadline
    return made


class Alone:
    """A message that is to run alone, and is told when it may end."""

    def __init__(self, isolation: Isolation, seconds: float = 30.0) -> None:
        self.runs = self.is_over = False
        self.gave_up = False
        self.end = asyncio.Event()
        self.call = call()
        self.task = asyncio.create_task(self._run(isolation, seconds))

    async def _run(self, isolation: Isolation, seconds: float) -> None:
        async with isolation.exclusive(seconds, self.call, is_over=lambda: self.is_over) as may_run:
            self.gave_up, self.runs = not may_run, may_run
            if may_run:
                await self.end.wait()
        self.runs = False


async def test_while_a_message_runs_alone_or_waits_to_others_are_told_and_start_nothing() -> None:
    told: list[bool] = []

    class Other(HandlerCall):
        def stir(self) -> None:
            told.append(isolation.is_shut(self))

    isolation, other = Isolation(), Other()
    with isolation.beside(busy := call(unstarted=1)), isolation.beside(other):
        alone = Alone(isolation)
        await turns()
        assert (isolation.is_shut(other), isolation.is_shut(alone.call), alone.runs) == (True, False, False)
        busy.unstarted = ()
    await turns()
    assert alone.runs
    alone.end.set()
    await alone.task
    assert (isolation.is_shut(other), told) == (False, [True])
    with isolation.beside(other):
        alone = Alone(isolation)
        await turns()
        alone.end.set()
        await alone.task
    assert told == [True, True, False]


async def test_it_waits_until_what_others_have_claimed_is_given_back() -> None:
    isolation = Isolation()
    with isolation.beside(busy := call(unstarted=199)):
        alone = Alone(isolation)
        await turns()
        assert not alone.runs
        busy.unstarted = ()
        isolation.look()
        await turns()
        assert alone.runs
        alone.end.set()
        await alone.task


async def test_it_waits_for_a_call_until_its_consume_timeout_and_for_one_without_not_at_all() -> None:
    clock = Clock(100.0)
    isolation = Isolation(clock)
    with isolation.beside(call()), isolation.beside(slow := call()):
        slow.part().deadline = 1000.0
        alone = Alone(isolation)
        await turns()
        assert not alone.runs
        clock.now = 1000.0
        isolation.look()
        await turns()
        assert alone.runs
        alone.end.set()
        await alone.task


async def test_it_waits_for_no_call_that_was_cancelled_for_its_time_or_abandoned() -> None:
    for gone in ("timed_out", "is_abandoned"):
        isolation = Isolation(Clock(0.0))
        with isolation.beside(slow := call(deadline=900.0)):
            alone = Alone(isolation)
            await turns()
            assert not alone.runs
            setattr(slow, gone, True)
            isolation.look()
            await turns()
            assert alone.runs, gone
            alone.end.set()
            await alone.task


async def test_it_gives_up_if_its_partition_goes_before_its_turn_and_the_others_go_on() -> None:
    isolation = Isolation()
    with isolation.beside(call(unstarted=1)):
        first, second = Alone(isolation), Alone(isolation)
        await turns()
        for alone in (second, first):
            alone.is_over = True
            alone.call.stir()
            await turns()
            assert alone.gave_up
        assert not isolation.is_shut(call())


async def test_of_three_that_run_alone_none_runs_beside_another() -> None:
    isolation = Isolation()
    waiting = [Alone(isolation) for _ in range(3)]
    for _ in range(3):
        await turns()
        (running,) = [alone for alone in waiting if alone.runs]
        running.end.set()
        await running.task
    assert not isolation.is_shut(call())


async def test_others_go_on_after_the_time_is_over_although_the_one_hangs() -> None:
    isolation = Isolation()
    alone = Alone(isolation, seconds=0.002)
    await turns()
    while isolation.is_shut(call()):  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0.001)
    assert alone.runs
    alone.end.set()
    await alone.task


async def test_one_that_outlives_its_time_opens_nothing_for_others_at_its_end_while_another_runs_alone() -> None:
    isolation = Isolation(Clock(0.0))
    first = Alone(isolation, seconds=0.0)
    await asyncio.sleep(0.001)
    assert (first.runs, isolation.is_shut(call())) == (True, False)
    second = Alone(isolation)
    await turns()
    assert second.runs  # the first has no consume timeout
    first.end.set()
    await first.task
    assert isolation.is_shut(call())
    second.end.set()
    await second.task


async def test_a_second_one_is_not_alone_while_the_first_still_runs() -> None:
    isolation = Isolation(Clock(0.0))
    first = Alone(isolation, seconds=0.0)
    await asyncio.sleep(0.001)
    first.call.deadline = 900.0
    second = Alone(isolation)
    await turns()
    assert (first.runs, second.runs) == (True, False)
    first.end.set()
    await first.task
    await turns()
    assert second.runs
    second.end.set()
    await second.task
