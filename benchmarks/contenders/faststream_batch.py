"""FastStream's batch subscriber with at-least-once acknowledgement: it commits after each batch."""

from __future__ import annotations

import asyncio

from benchmarks.contenders.meter import Meter, Task, read_task
from faststream import AckPolicy, FastStream  # pyright: ignore[reportMissingImports]  # lives in an environment of its own
from faststream.kafka import KafkaBroker  # pyright: ignore[reportMissingImports]  # lives in an environment of its own


async def main(task: Task) -> None:
    """Fetch, count, acknowledge."""
    meter = Meter(task.messages)
    broker = KafkaBroker(task.brokers, logger=None)

    async def handle(messages: list[bytes]) -> None:
        if meter.count(len(messages)):
            meter.report_and_die()

    broker.subscriber(
        task.topic,
        batch=True,
        max_records=task.batch,
        group_id=task.group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )(handle)
    await FastStream(broker).run()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
