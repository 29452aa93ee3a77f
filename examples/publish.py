"""Takes an order, and publishes an invoice and a reminder: run it with `ackwise run publish:app` in this folder.

`python publish.py ann bob` orders something for these two. An order counts as done once its invoice is on the topic `bills`; a kill in
between sends that again under the same id, and `invoice`, which knows the id, runs once. The reminder comes two seconds later. The brokers
are at `localhost:9092`; ACKWISE_BROKERS names others.
"""

import asyncio
import os
import sys

from pydantic import BaseModel

from ackwise import App, Dedup, Message, Producer, message_id


class Order(BaseModel):
    """What a customer orders, as JSON."""

    customer: str
    amount: int


app = App("publish", delayed_sends=True)
app.use(Dedup("sqlite:///publish.db", key=message_id))


@app.agent("sales")
async def order(message: Message[Order]) -> None:
    """What it publishes is sent once this returns; if it raises, nothing is."""
    ordered = message.value
    await app.publish("bills", {"to": ordered.customer, "amount": ordered.amount}, key=ordered.customer)
    await app.publish("nudges", ordered.customer, key=ordered.customer, delay="2s")


@app.agent("bills")
async def invoice(message: Message[dict[str, object]]) -> None:
    """Runs once for each invoice, however often that was sent."""
    print("invoice", message.value["to"], message.value["amount"], flush=True)


@app.agent("nudges")
async def remind(customer: str) -> None:
    """Never early."""
    print("remind", customer, flush=True)


async def shop(customers: list[str]) -> None:
    """Order for each; a line says where the order was written."""
    async with Producer(os.environ.get("ACKWISE_BROKERS", "localhost:9092"), group="publish") as producer:
        for customer in customers:
            sent = await producer.send("sales", Order(customer=customer, amount=12), key=customer)
            print("ordered", sent.topic, sent.message_id)


if __name__ == "__main__":
    asyncio.run(shop(sys.argv[1:]))
