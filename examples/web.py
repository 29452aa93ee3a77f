"""A web application that consumes: FastAPI serves requests, and beside it the worker of an app bills orders from Kafka.

    pip install fastapi uvicorn
    uvicorn web:web

GET /billed says what was billed, GET /ready whether the worker is a member of its group. Ctrl-C drains the worker before the server ends.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from pydantic import BaseModel

from ackwise import App


class Order(BaseModel):
    id: str
    customer: str
    amount: int


class Ledger:
    """What was billed, by customer. In real life this is a pool of connections to a database."""

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()


app = App("web-billing", brokers=os.environ.get("BROKERS", "localhost:9092"))
ledger = Ledger()


@app.lifespan
async def opened() -> AsyncIterator[Ledger]:
    """Open what handlers need; what is behind the `yield` happens after the drain."""
    yield ledger


@app.agent("web-orders")
async def bill(order: Order, ledger: Ledger) -> None:
    ledger.billed[order.customer] += order.amount


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Run the worker for as long as the server runs."""
    async with app.running() as worker:
        web.state.worker = worker
        yield


web = FastAPI(lifespan=lifespan)


@web.get("/billed")
async def billed() -> dict[str, int]:
    return dict(ledger.billed)


@web.get("/ready")
async def ready(response: Response) -> dict[str, bool]:
    is_ready: bool = web.state.worker.is_ready
    response.status_code = 200 if is_ready else 503
    return {"ready": is_ready}
