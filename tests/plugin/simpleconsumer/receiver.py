"""A process that receives, acknowledges every second message, says so, and waits to be killed: `receiver.py BROKERS GROUP TOPIC STORE`."""

from __future__ import annotations

import asyncio
import sys

from ackwise import Answer, SimpleConsumer


async def main(brokers: str, group: str, topic: str, store: str) -> None:
    taken = 0
    async with SimpleConsumer(group, topic, brokers=brokers, store=store, session_timeout=6) as consumer:
        while True:
            for received in await consumer.receive(1, invisible="1h"):
                taken += 1
                answer = await consumer.ack(received) if taken % 2 else None
                sys.stdout.write(f"{'acked' if answer is Answer.ACKED else 'has'} {received.value.decode()}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
