"""FastStream beside Ackwise in one process: it counts clicks, which may get lost, and the worker bills orders, which may not.

pip install 'faststream[kafka]'
faststream run faststream_beside:stream
"""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import FastStream
from faststream.kafka import KafkaBroker
from pydantic import BaseModel

from ackwise import App, ConsumeLater

BROKERS = os.environ.get("BROKERS", "localhost:9092")

clicks: Counter[str] = Counter()
billed: list[str] = []


class Click(BaseModel):
    page: str


class Order(BaseModel):
    id: str
    amount: int


app = App("beside-billing", brokers=BROKERS)
app.use(ConsumeLater(16))


@app.agent("beside-orders")
async def bill(order: Order) -> None:
    billed.append(order.id)


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """Run the worker for as long as FastStream runs."""
    async with app.running():
        yield


broker = KafkaBroker(BROKERS)
stream = FastStream(broker, lifespan=lifespan)


@broker.subscriber("beside-clicks", group_id="beside-clicks", auto_offset_reset="earliest")
async def count(click: Click) -> None:
    clicks[click.page] += 1
