"""Batches that a loop works on in its own time, beside a message that runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.inflight import InFlight
from ackwise.middleware.streaming import StreamingPipeline


class Stretch:
    """What the pipeline asks of a partition, each of its batches a new one."""

    def __init__(self) -> None:
        self.cut_off = False
        self.turn = asyncio.Lock()

    def finish(self, entries: Sequence[Entry]) -> None: ...


async def test_what_nobody_has_seen_makes_way_for_a_message_that_runs_alone_and_waits_for_no_company(make_spine: Any, succeed: Any) -> None:
    spine, given = make_spine(succeed, dedup=True), asyncio.Queue[InFlight]()

    def hand_over(members: Sequence[InFlight]) -> None:
        for member in members:
            given.put_nowait(member)

    async def flush() -> None: ...

    pipeline = StreamingPipeline(spine.agent, spine.worker, hand_over=hand_over, flush=flush)
    batch, killer = spine.entries(3), spine.entry(200)
    killer.alone = True
    running = asyncio.create_task(pipeline(batch, Stretch()))
    seen = await given.get()
    seen.take(0.0)
    for _ in batch[1:]:
        await given.get()
    alone = asyncio.create_task(pipeline([killer], Stretch()))
    await asyncio.sleep(0)
    assert given.empty()
    seen.decide()
    handed = await asyncio.wait_for(given.get(), 5.0)
    assert (handed.entry, handed.limit) == (killer, 1)
    handed.decide()
    await asyncio.gather(running, alone)
    assert [entry.stage for entry in (*batch, killer)] == [Stage.SETTLED, Stage.FETCHED, Stage.FETCHED, Stage.SETTLED]
