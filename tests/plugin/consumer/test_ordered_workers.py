"""Orders over the death of a worker: wherever one dies, the next goes on in the same order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ackwise import App, Dedup, Message, RetryInPlace
from ackwise.plugin.settings.config import Config
from ackwise.testing import CRASH_POINTS, CrashPoint, Place, TestApp, assert_no_loss

KEYS = [b"ann", b"bob", b"ann", b"cleo", b"bob", b"cleo", b"ann"]

#: Fails twice before it succeeds, and forever.
FAILS, NEVER = 0, 4


@pytest.mark.parametrize("odd", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.slow  # runs a worker for each place where one dies
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_wherever_a_worker_dies_its_messages_succeed_in_order_and_none_is_lost(odd: int) -> None:
    """Each point with one of the two orders; with the other one at night."""
    await asyncio.gather(*(dies_at(point, ("key", "partition")[(number + odd) % 2]) for number, point in enumerate(CRASH_POINTS)))


async def dies_at(point: CrashPoint, order: Any) -> None:
    app = App("billing", config=Config())
    app.use(Dedup("memory://"))
    done: list[int] = []

    @app.agent("orders", order=order, in_place=RetryInPlace(3, delay="20ms"), concurrency=3 if order == "key" else None)
    async def bill(message: Message[bytes]) -> None:
        await asyncio.sleep(0)
        if message.offset == NEVER or (message.offset == FAILS and message.reconsume_times < 2):
            raise RuntimeError
        done.append(message.offset)

    async with TestApp(app) as worker:
        worker.crash_at(point)
        for key in KEYS:
            worker.kafka.produce("orders", b"", key=key)
        places = [Place("orders", 0, offset) for offset in range(len(KEYS))]
        for place in places:
            await worker.fate(place)
        while not worker.crashes:
            await worker.deliver("orders", b"")  # until there is another commit
        assert_no_loss(places, worker.events)
        assert {letter.key for letter in worker.dead_letters} == {KEYS[NEVER]}
    firsts = [offset for offset in dict.fromkeys(done) if offset < len(KEYS)]
    assert sorted(firsts) == [offset for offset in range(len(KEYS)) if offset != NEVER], point
    for key in set(KEYS):
        mine = [offset for offset in firsts if order == "partition" or KEYS[offset] == key]
        assert mine == sorted(mine), point
