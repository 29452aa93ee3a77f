"""Bills orders in batches: run it with `ackwise run billing:app` in this folder.

It reads the topic `orders` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

from pydantic import BaseModel

from ackwise import App, Batch, ConsumeLater, Dedup, Events


class Order(BaseModel):
    """What a producer writes to `orders`, as JSON."""

    id: str
    amount: int


app = App("billing")
app.use(Dedup("sqlite:///claims.db", key=lambda message: message.value.id), ConsumeLater(5, levels="1s 10s 1m"), Events("events"))


@app.agent("orders", max_batch=100)
async def bill(batch: Batch[Order]) -> None:
    """Charge every order; those over the limit come back later, those without a price never."""
    for message in batch:
        if message.value.amount <= 0:
            batch.dead(message, "no price")
        elif message.value.amount > 10_000 and message.attempt == 1:
            batch.later(message, delay_level=1)
        else:
            print("charged", message.value.id, message.value.amount, flush=True)
