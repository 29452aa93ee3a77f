"""Counts what becomes of messages, for a metrics page: run it with `ackwise run observer:app` in this folder.

An observer sees every event and can change nothing, so it is a plain function; it must not take long. It reads the topic
`visits` at `localhost:9092`; ACKWISE_BROKERS names other brokers.
"""

from collections import Counter

from ackwise import App, Event, EventCode, Reject

outcomes: Counter[tuple[str, str]] = Counter()  # topic and what happened, for your metrics library


def count(event: Event) -> None:
    """Count what was settled, and say aloud what died."""
    if event.code in (EventCode.SUCCEEDED, EventCode.SENT_BACK, EventCode.DEAD_LETTERED):
        outcomes[event.topic or "", event.code.name] += 1
    if event.code is EventCode.DEAD_LETTERED:
        print("dead", f"{event.topic}/{event.partition}/{event.offset}", event.error, dict(outcomes), flush=True)


app = App("visits")
app.use(count)


@app.agent("visits")
async def visit(page: str) -> None:
    """A handler of values: here a UTF-8 text."""
    if not page.startswith("/"):
        raise Reject("no page")
