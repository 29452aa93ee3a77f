"""Sends notifications one by one: run it with `ackwise run notify:app` in this folder.

A handler of single messages says by exception what becomes of the one that it has. It reads the topic `notifications` at
`localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

from pydantic import BaseModel

from ackwise import App, ConsumeLater, Exponential, Later, Message, Reject


class Notification(BaseModel):
    """What a producer writes to `notifications`, as JSON."""

    address: str
    text: str


class ServerBusy(Exception):
    """The mail server wants to be left alone for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"come back in {seconds} s")
        self.seconds = seconds


app = App("notify")
app.use(ConsumeLater(8, levels="1s 5s 10s 1m 10m", retry=Exponential(initial=1.0, maximum=600.0), no_retry=UnicodeError))


@app.agent("notifications")
async def notify(message: Message[Notification]) -> None:
    """Send it; any other exception than these brings it back as the policy above says."""
    if "@" not in message.value.address:
        raise Reject("no address")  # a dead letter, at once
    try:
        await send(message.value, attempt=message.attempt)
    except ServerBusy as busy:
        raise Later(busy.seconds) from busy


async def send(notification: Notification, *, attempt: int) -> None:
    """Stands for a mail server, which turns strangers away at first, as many do; an address that is not ASCII raises."""
    notification.address.encode("ascii")
    if notification.address.startswith("stranger") and attempt == 1:
        raise ServerBusy(1.0)
    print("sent", notification.address, notification.text, flush=True)
