"""Who may run beside whom."""

from __future__ import annotations

import asyncio

from ackwise.middleware.isolation import Isolation


async def test_ordinary_batches_run_side_by_side() -> None:
    isolation = Isolation()
    async with isolation.shared(), isolation.shared():
        pass


async def test_what_runs_alone_waits_for_the_others_and_keeps_new_ones_waiting() -> None:
    isolation, order = Isolation(), []
    started, release = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with isolation.shared():
            started.set()
            await release.wait()
            order.append("first")

    async def alone() -> None:
        async with isolation.exclusive(30.0) as idle:
            assert idle
            order.append("alone")

    async def late() -> None:
        async with isolation.shared():
            order.append("late")

    tasks = [asyncio.create_task(first())]
    await started.wait()
    tasks += [asyncio.create_task(alone()), asyncio.create_task(late())]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "alone", "late"]


async def test_of_three_that_run_alone_none_runs_beside_another() -> None:
    isolation, inside = Isolation(), list[int]()

    async def alone() -> None:
        async with isolation.exclusive(30.0) as idle:
            assert idle
            inside.append(1)
            await asyncio.sleep(0)
            assert inside == [1]
            inside.clear()

    async with asyncio.timeout(20):
        await asyncio.gather(*(alone() for _ in range(3)))


async def test_when_the_worker_does_not_come_to_rest_nothing_runs_alone_and_the_others_go_on() -> None:
    isolation = Isolation()
    async with isolation.shared():
        async with isolation.exclusive(0.002) as idle:
            assert not idle
        async with isolation.shared():
            pass


async def test_others_go_on_after_the_time_is_over_although_the_one_hangs() -> None:
    isolation = Isolation()
    async with isolation.exclusive(0.002) as idle:
        assert idle
        async with isolation.shared():
            pass
