"""Deduplication as people write it by hand: claim, work, complete, message by message, and a commit per batch.

The store is Ackwise's memory store, so what differs from Ackwise is the shape alone: one call per message and step.
"""

from __future__ import annotations

import asyncio
import hashlib
import random

from aiokafka import AIOKafkaConsumer
from benchmarks.contenders.meter import Meter, Task, read_task

from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.stores.memory import MemoryStore


async def main(task: Task) -> None:
    """Fetch; claim, count and complete each; commit."""
    meter, store = Meter(task), MemoryStore()
    consumer = AIOKafkaConsumer(
        task.topic, bootstrap_servers=task.brokers, group_id=task.group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with consumer:
        done = False
        while not done:
            for records in (await consumer.getmany(timeout_ms=200, max_records=task.batch)).values():
                for record in records:
                    name = f"{record.topic}/{record.partition}/{record.offset}".encode()
                    key, token = ClaimKey(hashlib.blake2b(name, digest_size=16).digest(), None, 1), random.getrandbits(62) + 1
                    claimed = await store.exchange(Exchange(claims=[Claim(key, token)]))
                    if isinstance(claimed.claims[0], Acquired):
                        done = meter.count(1)
                        await store.exchange(Exchange(completes=[Complete(key, token, Outcome.OK)]))
                await consumer.commit()
    meter.report()


if __name__ == "__main__":
    asyncio.run(main(read_task()))
