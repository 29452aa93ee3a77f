"""The bare aiokafka loop that commits per batch: `one` message after the other, or the messages of a batch `gather`ed.

The second keeps no order, and the slowest message of a batch holds up the next batch.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer
from benchmarks.contenders.at_once import at_once, wait_and_count
from benchmarks.contenders.meter import Meter, Task, read_task


async def main(task: Task) -> None:
    """Fetch, wait and count, commit."""
    meter, shape = Meter(task), at_once(task)
    consumer = AIOKafkaConsumer(
        task.topic, bootstrap_servers=task.brokers, group_id=task.group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    turns = asyncio.Semaphore(1 if shape.how == "one" else shape.width)

    async def handle(_: object) -> bool:
        async with turns:
            return await wait_and_count(meter, shape.wait)

    async with consumer:
        done = False
        while not done:
            fetched = await consumer.getmany(timeout_ms=200, max_records=task.batch)
            done = any(await asyncio.gather(*(handle(record) for records in fetched.values() for record in records)))
            if fetched:
                await consumer.commit()
    meter.report()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
