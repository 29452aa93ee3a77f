"""FastStream's batch subscriber with at-least-once acknowledgement: it commits after each batch.

As its documentation writes it, or `raw`: without its decoder, which tries JSON on every value, and without pydantic.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.contenders.meter import Meter, Task, read_task
from faststream import AckPolicy, FastStream  # pyright: ignore[reportMissingImports]  # lives in its own environment
from faststream.kafka import KafkaBroker  # pyright: ignore[reportMissingImports]  # lives in its own environment


async def undecoded(message: Any) -> Any:
    """The values as they are."""
    return message.body


async def main(task: Task) -> None:
    """Fetch, count, acknowledge."""
    meter = Meter(task)
    raw: dict[str, Any] = {"decoder": undecoded} if task.variant == "raw" else {}
    broker = KafkaBroker(task.brokers, logger=None, apply_types=not raw)

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
        **raw,
    )(handle)
    await FastStream(broker).run()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
