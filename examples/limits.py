"""Bills at the pace that a payment provider allows, and pauses while it is unavailable: `ackwise run limits:app` in this folder.

It reads the topic `charges` at `localhost:9092`; ACKWISE_BROKERS names other brokers. `ackwise pause limits:app bill` stops
the handler in every worker, and `ackwise resume limits:app bill` lets it go on.
"""

from pydantic import BaseModel

from ackwise import App, Breaker, Message, RateLimit


class ProviderAway(Exception):
    """The payment provider does not answer."""


class Invoice(BaseModel):
    """What is in the topic."""

    id: str
    customer: str
    amount: int


app = App("limits", partition_messages=500)  # a partition fetches no more while 500 messages of it are unsettled
app.use(
    RateLimit("5/s", burst=10, key=lambda message: message.value.customer),  # for each customer, in this process
    Breaker(errors=(ProviderAway,)),  # beside values that can't be decoded, which is on by default
)


@app.agent("charges", max_messages=2000)  # for all partitions of this worker together
async def bill(message: Message[Invoice]) -> None:
    """A handler that knows nothing of all this."""
    invoice = message.value
    if invoice.customer == "nobody":
        raise ProviderAway(f"invoice {invoice.id} could not be charged")
    print("billed", invoice.id, invoice.customer, invoice.amount, flush=True)
