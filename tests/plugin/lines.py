"""Lanes over pipelines that are reduced to what a lane asks of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.waiting import PATIENCE, turns, until

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.lane import Lane

__all__ = ["Line", "deliveries", "end", "lane_of", "until"]


class Line:
    """A pipeline that settles what it is given once `gate` is open, unless `fate` says otherwise, and keeps its batches."""

    def __init__(self, name: str = "bill", *, is_open: bool = True, **agent: Any) -> None:
        self.agent = Agent(name, ("orders",), "batch", _handle, lambda value: value, **{"max_batch": 500, **agent})
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.fate: Callable[[Run], Stage] = lambda run: Stage.SETTLED
        if is_open:
            self.gate.set()

    async def __call__(self, runs: Sequence[Run], assignment: Any) -> None:
        self.batches.append([offset for run in runs for offset in run.offsets])
        await asyncio.sleep(0)
        await self.gate.wait()
        for run in runs:
            run.stage = self.fate(run)

    @property
    def took(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]

    async def has_taken(self, number: int) -> None:
        """Wait until it was given so many messages, and for what the lane does with them."""
        await until(lambda: len(self.took) >= number)
        await turns(10)


async def _handle(batch: Any) -> None: ...


def deliveries(first: int, count: int, value: Any = b"") -> list[Delivery]:
    """Records of `orders`/0."""
    return [Delivery("orders", 0, offset, 0, None, value, (), Origin("orders", 0, offset, 0)) for offset in range(first, first + count)]


def lane_of(*lines: Any, position: int = 0, role: Any = "source", **options: Any) -> Lane:
    """A lane of `orders`/0, whose messages go to `lines` by turns."""

    def make(_: Any, records: Sequence[Delivery]) -> list[Run]:
        return [Run.of(record, lines[record.offset % len(lines)]) for record in records]

    return Lane("orders", 0, role, position, **{"make": make, "progressed": lambda lane: None, **options})


async def end(lane: Lane) -> None:
    """Stop the lane and wait for its end."""
    lane.stop()
    assert lane.task is not None
    async with asyncio.timeout(PATIENCE):
        await lane.task
