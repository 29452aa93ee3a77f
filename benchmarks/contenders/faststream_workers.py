"""FastStream's `max_workers`: `first` acknowledges before the handler runs; `after` does it afterwards, a worker per partition at most."""

from __future__ import annotations

import asyncio

from benchmarks.contenders.at_once import at_once, wait_and_count
from benchmarks.contenders.meter import Meter, Task, read_task
from faststream import AckPolicy, FastStream  # pyright: ignore[reportMissingImports]  # lives in its own environment
from faststream.kafka import KafkaBroker  # pyright: ignore[reportMissingImports]  # lives in its own environment


async def main(task: Task) -> None:
    """Fetch, wait and count, acknowledge."""
    meter, shape = Meter(task), at_once(task)
    broker = KafkaBroker(task.brokers, logger=None)

    async def handle(message: bytes) -> None:
        if await wait_and_count(meter, shape.wait):
            meter.report_and_die()

    broker.subscriber(
        task.topic,
        max_workers=shape.width,
        group_id=task.group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK_FIRST if shape.how == "first" else AckPolicy.NACK_ON_ERROR,
    )(handle)
    await FastStream(broker).run()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
