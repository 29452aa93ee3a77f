"""pyrallel-consumer on its asyncio engine, ordered by key, with at most so many messages in flight."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pyrallel_consumer  # pyright: ignore[reportMissingImports]  # lives in its own environment
from benchmarks.contenders.at_once import at_once, wait_and_count
from benchmarks.contenders.meter import Meter, Task, read_task
from pyrallel_consumer.config import KafkaConfig  # pyright: ignore[reportMissingImports]  # lives in its own environment


async def main(task: Task) -> None:
    """Poll, wait and count."""
    logging.disable(logging.WARNING)
    meter, shape = Meter(task), at_once(task)
    config = KafkaConfig(BOOTSTRAP_SERVERS=[task.brokers], CONSUMER_GROUP=task.group)
    config.parallel_consumer.execution.max_in_flight = shape.width

    async def handle(_: Any) -> None:
        if await wait_and_count(meter, shape.wait):
            meter.report_and_die()

    consumer = pyrallel_consumer.PyrallelConsumer(config, handle, task.topic)
    await consumer.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
