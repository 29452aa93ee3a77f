"""The bare aiokafka loop that commits per batch: the floor under everything that is built on aiokafka."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer
from benchmarks.contenders.meter import Meter, Task, read_task


async def main(task: Task) -> None:
    """Fetch, count, commit."""
    meter = Meter(task)
    consumer = AIOKafkaConsumer(
        task.topic, bootstrap_servers=task.brokers, group_id=task.group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with consumer:
        done = False
        while not done:
            fetched = await consumer.getmany(timeout_ms=200, max_records=task.batch)
            if fetched:
                done = meter.count(sum(map(len, fetched.values())))
                await consumer.commit()
    meter.report()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
