"""A stock Faust agent that counts: with `take` or message by message, without Ackwise or with it.

The variant is a shape, `take` or `each`, and how Ackwise is used: `take` alone is stock Faust, `take none` is Ackwise without a store,
and `take redis://…` is Ackwise with `Dedup` in that store.
"""

from __future__ import annotations

from typing import Any

import faust  # pyright: ignore[reportMissingImports]  # lives in its own environment
from benchmarks.contenders.meter import Meter, Task, read_task

from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater


def main(task: Task) -> None:
    """A worker with one agent, as Faust's manual writes it."""
    meter = Meter(task)
    shape, _, store = task.variant.partition(" ")
    app: Any = faust.App(
        task.group,
        broker=f"kafka://{task.brokers}",
        datadir=task.folder,
        store="memory://",
        consumer_auto_offset_reset="earliest",
        web_enabled=False,
    )
    if store:
        app.use(ConsumeLater(), DeadLetter(), *([] if store == "none" else [Dedup(store)]))

    async def take(stream: Any) -> None:
        async for values in stream.take(task.batch, within=1.0):
            if meter.count(len(values)):
                meter.report_and_die()

    async def each(stream: Any) -> None:
        async for _ in stream:
            if meter.count(1):
                meter.report_and_die()

    app.agent(app.topic(task.topic, value_serializer="json"))({"take": take, "each": each}[shape])
    faust.Worker(app, loglevel="ERROR", redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main(read_task())
