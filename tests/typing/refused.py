"""What type checkers must refuse: each line with a comment is an error, and mypy complains of a comment without one."""

from __future__ import annotations

from ackwise import App, Batch, ConsumeLater, Dedup, Events, Message

app = App("billing")


@app.agent("plain")  # type: ignore[type-var]  # a handler is an `async def`
def plain(value: bytes) -> None:
    """Blocks the loop."""


@app.agent("counts")  # type: ignore[type-var]  # a handler returns a status or None
async def counts(batch: Batch[bytes]) -> int:
    """Returns something that is no status."""
    return len(batch)


@app.agent("two")  # type: ignore[type-var]  # a handler is called with one argument
async def two(value: bytes, session: object) -> None:
    """Wants more than it gets."""


@app.agent(["orders"])  # type: ignore[arg-type]  # topics are given one by one
async def listed(value: bytes) -> None:
    """Reads a list."""


async def use_wrongly(batch: Batch[int], message: Message[str]) -> None:
    """Rulings and values have types."""
    batch.ack_index = "3"  # type: ignore[assignment]  # an index is a whole number
    batch.later(message, delay_level="3")  # type: ignore[arg-type]  # a level is a whole number
    batch.later(7)  # type: ignore[arg-type]  # a ruling is about a message
    message.value = ""  # type: ignore[misc]  # a message is read-only
    value: bytes = message.value  # type: ignore[assignment]  # the value of a Message[str] is a str
    del value
    Dedup()  # type: ignore[call-arg]  # Dedup needs a store
    Events("events", mode="later")  # type: ignore[arg-type]  # there are two modes
    ConsumeLater("3")  # type: ignore[arg-type]  # a limit is a whole number
