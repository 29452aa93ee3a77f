"""Reminds people when it is time: run it with `ackwise run reminder:app` in this folder.

Who asks for a reminder writes `{"text": "call Ann", "at": 1800000000}` to the topic `reminders` (epoch seconds), at most three days
ahead, and keeps the topic, partition and offset that the producer is told. While it waits, `python reminder.py reminders/0/42`
calls it off. The brokers are at `localhost:9092`; ACKWISE_BROKERS names others.
"""

import asyncio
import sys
import time

from pydantic import BaseModel

from ackwise import App, ConsumeLater, Later, Message


class Reminder(BaseModel):
    """What a producer writes to `reminders`, as JSON."""

    text: str
    at: float


app = App("reminder")
app.use(ConsumeLater(3, levels="1s 10s 1m 10m 2h"))


@app.agent("reminders")
async def remind(message: Message[Reminder]) -> None:
    """The first delivery sends it away for as long as it takes, all at once: a delay costs one attempt."""
    if message.attempt == 1 and (wait := message.value.at - time.time()) > 0:
        raise Later(wait)
    print("remember", message.value.text, flush=True)


if __name__ == "__main__":
    for message_id in sys.argv[1:]:
        print(message_id, asyncio.run(app.cancel(message_id)))
