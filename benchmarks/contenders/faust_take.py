"""Faust's `take`: an agent that gets lists of raw values from its stream."""

from __future__ import annotations

from typing import Any

import faust  # pyright: ignore[reportMissingImports]  # lives in its own environment
from benchmarks.contenders.meter import Meter, Task, read_task


def main(task: Task) -> None:
    """Take, count."""
    meter = Meter(task)
    app = faust.App(
        task.group,
        broker=f"kafka://{task.brokers}",
        datadir=task.folder,
        store="memory://",
        value_serializer="raw",
        consumer_auto_offset_reset="earliest",
        web_enabled=False,
    )

    async def process(stream: Any) -> None:
        async for values in stream.take(task.batch, within=1.0):
            if meter.count(len(values)):
                meter.report_and_die()

    app.agent(app.topic(task.topic, value_type=bytes, value_serializer="raw"))(process)
    faust.Worker(app, loglevel="ERROR", redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main(read_task())
