"""Resizes pictures in a share group: run it with `ackwise run share_group:app` in this folder, in as many terminals as you like.

All of them have work, though the topic `uploads` may have one partition: a broker hands each record to any worker. It needs
Kafka 4.2 and `pip install 'ackwise[share]'`, and reads at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

import asyncio

from pydantic import BaseModel

from ackwise import App, ConsumeLater, Dedup, Exponential, Message, Share


class Picture(BaseModel):
    """What a producer writes to `uploads`, as JSON."""

    name: str
    seconds: float = 0.0


class NotUploaded(Exception):
    """The file is not there yet."""


app = App("resize")
app.use(
    Share(consumers=4, lock="30s"),
    Dedup("sqlite:///claims.db", key=lambda message: message.value.name),
    ConsumeLater(5, retry=Exponential(initial=1.0, maximum=60.0)),
)


@app.agent("uploads")
async def resize(message: Message[Picture]) -> None:
    """Takes its time; a picture that is not uploaded yet comes back later, as in any other app."""
    if message.value.name.startswith("late") and message.attempt == 1:
        raise NotUploaded
    await asyncio.sleep(message.value.seconds)
    print("resized", message.value.name, flush=True)
