"""RocketMQ's classic listener as one middleware: run it with `ackwise run classic_listener:app` in this folder.

It reads the topic `bookings` at `localhost:9092`; ACKWISE_BROKERS names other brokers. The handler gets the messages of a batch one by one.
At the first that fails the batch ends: those before it are done, it and the rest come back later.
"""

from typing import Any

from ackwise import CONSUME_SUCCESS, App, Batch, CallNext, ConsumeLater


async def stop_at_the_first_failure(batch: Batch[Any], call_next: CallNext) -> object:
    """Call the handler for one message after the other, and set the ack index to the last that succeeded."""
    for index, message in enumerate(batch):
        try:
            await call_next(Batch([message]))
        except Exception as error:  # noqa: BLE001  # whatever the handler raises
            print(f"entry {message.offset} failed: {error!r}", flush=True)
            batch.ack_index = index - 1
            break
    return CONSUME_SUCCESS


app = App("accounts")
app.use(stop_at_the_first_failure, ConsumeLater(3, levels="1s 10s"))


@app.agent("bookings", max_batch=32)
async def book(batch: Batch[dict[str, int]]) -> None:
    """Book an entry."""
    (entry,) = batch
    if entry.value["amount"] < 0 and entry.attempt == 1:
        raise ValueError("the account is closed today")
    print(f"booked {entry.value['amount']}", flush=True)
