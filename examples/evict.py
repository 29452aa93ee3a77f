"""Evicts changed prices from the cache of every instance: run it with `ackwise run evict:app` in this folder, as often as you like.

Instances on one machine need names: ACKWISE_BROADCASTING__INSTANCE=web-1 ackwise run evict:app. With
ACKWISE_BROADCASTING__OFFSETS_FILE=web-1.offsets the positions are in that file, and no group is joined. It reads the topic
`prices` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

import socket

from pydantic import BaseModel

from ackwise import App, Broadcasting


class Change(BaseModel):
    """What a producer writes to `prices`, as JSON."""

    article: str


#: What this instance remembers; whoever asks for another price looks it up and keeps it here.
cache = {"apple": 40, "pear": 55}

app = App("prices-cache")
app.use(Broadcasting(socket.gethostname()))


@app.agent("prices")
async def evict(change: Change) -> None:
    """Forget a price. Doing it twice does no harm, which after a kill may happen."""
    if not change.article:
        raise ValueError("a change of nothing")  # dropped here, with an event and a line in the log
    known = cache.pop(change.article, None)
    print("evicted" if known else "had no", change.article, flush=True)
