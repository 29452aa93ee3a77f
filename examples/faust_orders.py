"""Bills orders with Faust, as its manual teaches it: run it with `faust -A faust_orders worker` in this folder.

Two lines are new, the import of policies and `app.use(…)`. Without them an order is lost whenever an agent raises on it.
It reads the topic `purchases` at `localhost:9092`; BROKERS names other brokers.
"""

import os
from collections.abc import AsyncIterator
from typing import Any

import faust

from ackwise import ConsumeLater, Dedup, Schedule


class Order(faust.Record):
    """What a producer writes to `purchases`, as JSON."""

    id: str
    customer: str
    amount: int


class BankBusy(Exception):
    """The bank does not answer now."""


app = faust.App("shop", broker=f"kafka://{os.environ.get('BROKERS', 'localhost:9092')}", topic_partitions=1)
app.use(ConsumeLater(5, retry=Schedule("1s", "10s")), Dedup("sqlite:///claims.db"))  # type: ignore[attr-defined]  # each app has it

orders = app.topic("purchases", value_type=Order)
invoices = app.topic("invoices", value_type=Order)
spent = app.Table("spent", default=int)
refused: set[str] = set()


@app.agent(orders, sink=[invoices])
async def bill(stream: Any) -> AsyncIterator[Order]:
    """Charge each order; what was charged goes on to the invoices."""
    async for order in stream:
        charge(order)
        print(f"charged {order.id}")
        yield order


@app.agent(invoices)
async def post(stream: Any) -> None:
    """Post invoices, several at a time."""
    async for batch in stream.take(10, within=0.5):
        for invoice in batch:
            print(f"posted {invoice.id}")


@app.agent(orders)
async def add_up(stream: Any) -> None:
    """Keep what each customer has ordered."""
    async for order in stream.group_by(Order.customer):
        spent[order.customer] += order.amount
        print(f"{order.customer} ordered for {spent[order.customer]}")


def charge(order: Order) -> None:
    """Stands for a bank, which refuses a large amount when it sees it first."""
    if order.amount > 10_000 and order.id not in refused:
        refused.add(order.id)
        raise BankBusy(order.id)
