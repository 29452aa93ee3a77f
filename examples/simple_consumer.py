"""Recognises scans with receivers that take their time: run it with `python simple_consumer.py`.

It reads the topic `scans` at `localhost:9092`; BROKERS names other brokers.
"""

import asyncio
import os
import signal

from pydantic import BaseModel

from ackwise import Answer, ConsumeLater, SimpleConsumer


class Scan(BaseModel):
    """What a producer writes to `scans`, as JSON."""

    id: str
    pages: int


async def receive(consumer: SimpleConsumer[Scan], stop: asyncio.Event) -> None:
    """Take scans one by one until it is told to stop; any number of these may run side by side."""
    while not stop.is_set():
        for received in await consumer.receive(1, invisible="30s", wait="1s"):
            scan = received.value
            if scan.pages == 0 and received.attempt == 1:
                await consumer.later(received, delay="1s")  # the scanner may still be at work
                continue
            if scan.pages > 100:
                received = await consumer.change_invisible(received, "10m")
            await asyncio.sleep(0.001 * scan.pages)
            if await consumer.ack(received) is Answer.ACKED:
                print("recognised", scan.id, scan.pages, flush=True)


async def main() -> None:
    """Receive until a signal comes; what is not acknowledged by then is given back."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    brokers = os.environ.get("BROKERS", "localhost:9092")
    async with (
        SimpleConsumer(
            "recognition", "scans", ConsumeLater(5, levels="1s 10s 1m"), store="sqlite:///scans.db", model=Scan, brokers=brokers
        ) as consumer,
        asyncio.TaskGroup() as receivers,
    ):
        for _ in range(4):
            receivers.create_task(receive(consumer, stop))


if __name__ == "__main__":
    asyncio.run(main())
