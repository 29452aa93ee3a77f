"""The messages that wait for an agent: in whose hands they are, and who else gets a turn meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes import Clock
from tests.faust.desk import flown

from ackwise.middleware.pipeline.streaming import Where
from ackwise.plugin.faust.faustmessages import Inlet


async def turns_of_others(work: Callable[[Inlet, Clock], Awaitable[None]]) -> int:
    """How often another task ran beside a loop that takes a hundred messages and waits for nothing."""
    clock, turns = Clock(), 0
    inlet = Inlet(clock=clock)
    inlet.put(flown(100))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    await work(inlet, clock)
    running.cancel()
    return turns


async def test_a_loop_that_waits_for_nothing_lets_others_run() -> None:
    async def one_by_one(inlet: Inlet, clock: Clock) -> None:
        for _ in range(100):
            await inlet.get()
            clock.now += 0.001

    assert await turns_of_others(one_by_one) == 10


async def test_batches_that_are_full_at_once_let_others_run() -> None:
    async def in_batches(inlet: Inlet, clock: Clock) -> None:
        for _ in range(4):
            await inlet.gather(25, 1.0)

    assert await turns_of_others(in_batches) == 4


async def test_who_is_cancelled_while_others_run_has_taken_nothing() -> None:
    inlet, members = Inlet(), flown(1)
    inlet.put(members)
    taking = asyncio.create_task(inlet.get())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert members[0].where is Where.WAITING
    assert await inlet.get() is members[0]
