"""Ships parcels in its own loop around its own `AIOKafkaConsumer`: run it with `python own_loop.py`.

It reads the topic `parcels` at `localhost:9092`; BROKERS names other brokers.
"""

import asyncio
import os
import signal

from aiokafka import AIOKafkaConsumer
from pydantic import BaseModel

from ackwise import ConsumeLater, Dedup, reliable


class Parcel(BaseModel):
    """What a producer writes to `parcels`, as JSON."""

    id: str
    city: str


async def main() -> None:
    """Read until a signal comes, then finish what was started."""
    brokers = os.environ.get("BROKERS", "localhost:9092")
    policies = Dedup("sqlite:///parcels.db", key=lambda message: message.value.id), ConsumeLater(5, levels="1s 10s 1m")
    async with (
        AIOKafkaConsumer(bootstrap_servers=brokers, group_id="shipping", enable_auto_commit=False, auto_offset_reset="none") as consumer,
        reliable(consumer, "parcels", *policies, model=Parcel) as batches,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, batches.stop)
        async for batch in batches:
            async with batch:  # a clean end is success, an exception a failure of the batch
                for message in batch:
                    if message.value.city == "Atlantis":
                        batch.dead(message, "no such place")
                    elif message.value.city == "Venice" and message.attempt == 1:
                        batch.later(message, delay="1s")  # the boat is full
                    else:
                        print("shipped", message.value.id, message.value.city, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
