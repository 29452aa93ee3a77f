"""A stock Faust agent with `concurrency`: so many actors take messages from one stream."""

from __future__ import annotations

from typing import Any

import faust  # pyright: ignore[reportMissingImports]  # lives in its own environment
from benchmarks.contenders.at_once import at_once, wait_and_count
from benchmarks.contenders.meter import Meter, Task, read_task


def main(task: Task) -> None:
    """Take, wait and count."""
    meter, shape = Meter(task), at_once(task)
    app: Any = faust.App(
        task.group,
        broker=f"kafka://{task.brokers}",
        datadir=task.folder,
        store="memory://",
        consumer_auto_offset_reset="earliest",
        web_enabled=False,
    )

    async def handle(stream: Any) -> None:
        async for _ in stream:
            if await wait_and_count(meter, shape.wait):
                meter.report_and_die()

    app.agent(app.topic(task.topic, value_type=bytes, value_serializer="raw"), concurrency=shape.width)(handle)
    faust.Worker(app, loglevel="ERROR", redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main(read_task())
