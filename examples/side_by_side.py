"""Fetches pages and draws pictures, several at a time: run it with `ackwise run side_by_side:app` in this folder.

It reads the topics `pages` and `pictures` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

import asyncio
import time

from pydantic import BaseModel

from ackwise import App, ConsumeLater, Message


class Page(BaseModel):
    """What a producer writes to `pages`, as JSON."""

    address: str


class Picture(BaseModel):
    """What a producer writes to `pictures`, as JSON."""

    name: str
    seconds: float


app = App("studio")
app.use(ConsumeLater(3, levels="1s 10s"))


@app.agent("pages", concurrency=20, consume_timeout="1s")
async def fetch(message: Message[Page]) -> None:
    """Fetch a page. After a second the call is cancelled, and the page comes back later."""
    address = message.value.address
    if address.startswith("large"):
        message.extend("30s")  # this one may take longer
        await asyncio.sleep(1.5)
    if address.startswith("silent") and message.attempt == 1:
        await asyncio.Event().wait()  # stands for a server that does not answer
    print("fetched", address, flush=True)


@app.agent("pictures", concurrency=4)
def draw(picture: Picture) -> None:
    """Draw a picture. This is a plain function that blocks, so each call runs in a thread."""
    time.sleep(picture.seconds)
    print(f"drawn {picture.name}\n", end="", flush=True)  # in one piece, since other threads print too
