"""What users write, and type checkers must accept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import assert_type

from ackwise import (
    CONSUME_LATER,
    CONSUME_SUCCESS,
    App,
    Batch,
    ConsumeLater,
    ConsumeStatus,
    DeadLetter,
    Dedup,
    Events,
    Exponential,
    Fixed,
    Message,
    Reject,
    Schedule,
)


class Order:
    """A payload."""

    id: str = ""


app = App("billing", brokers="kafka:9092", commit_interval="1s")
app.use(
    Dedup("sqlite:///claims.db", key=lambda message: message.key),
    ConsumeLater(3, levels="1s 10s 1m", retry=Exponential(), on={KeyError: Fixed("5s"), OSError: Schedule(1, "2s")}, unless=ValueError),
    DeadLetter("graves"),
    Events("events"),
)


async def timing(message: Message[Order], call_next: Callable[[Message[Order]], Awaitable[object]]) -> object:
    """A middleware."""
    return await call_next(message)


app.use(timing)


@app.agent("orders", max_batch=200, within="500ms")
async def bill(batch: Batch[Order]) -> ConsumeStatus | None:
    """A handler of batches."""
    for message in batch:
        assert_type(message, Message[Order])
        assert_type(message.value.id, str)
        if message.reconsume_times > 3:
            batch.dead(message, "tired")
        batch.later(message, delay="5m")
    batch.ack_index = 3
    batch.delay_level = 2
    return CONSUME_LATER if batch else CONSUME_SUCCESS


@app.agent("parcels", "letters", model=Order, name="dispatch", keep_ack_index_on_error=True)
async def ship(message: Message[Order]) -> None:
    """A handler of messages."""
    if message.value.id == "":
        raise Reject("no id")
    raise ConsumeLater(delay_level=3)


@app.agent("raw")
async def store(value: bytes) -> None:
    """A handler of values."""


class Clerk:
    """Methods are handlers too."""

    async def note(self, order: Order) -> ConsumeStatus:
        """A handler of values."""
        return CONSUME_SUCCESS


app.agent("notes")(Clerk().note)


async def use_directly(batch: Batch[Order], message: Message[Order]) -> None:
    """A handler keeps its type, so that a test may call it."""
    assert_type(await bill(batch), ConsumeStatus | None)
    await ship(message)
    await store(b"")
