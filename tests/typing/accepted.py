"""What users write, and type checkers must accept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, assert_type

import faust
from aiokafka import AIOKafkaConsumer

from ackwise import (
    CONSUME_LATER,
    CONSUME_SUCCESS,
    Acked,
    App,
    Batch,
    CallNext,
    ConsumeLater,
    ConsumeStatus,
    DeadLetter,
    Dedup,
    Event,
    EventCode,
    Events,
    Exponential,
    Fixed,
    Later,
    Message,
    Outgoing,
    Prepared,
    Reject,
    RetryInPlace,
    Router,
    Schedule,
    TransactionalProducer,
    TransactionOutcome,
    Wait,
    current_batch,
    reliable,
)
from ackwise.errors import AckwiseError, ConfigurationError, StoreUnavailable, Unavailable
from ackwise.middleware.storage.claimstore import Ack
from ackwise.plugin import faust as reliable_faust
from ackwise.plugin.loopbatch import LoopBatch
from ackwise.stores import Acquired, Claim, ClaimStore, Exchange, ExchangeResult, Place, Record, decide
from ackwise.testing import batch as made_batch
from ackwise.testing import message as made_message


class Order:
    """A payload."""

    id: str = ""


# The app and its policies


class Linear:
    """A retry policy of the user's own."""

    def delay(self, attempt: int) -> float:
        """A second more each time."""
        return float(attempt)


app = App(
    "billing", brokers="kafka:9092", commit_interval="1s", start="latest", client_options={"security_protocol": "SSL"}, drain_timeout=5
)
app.use(
    Dedup("sqlite:///claims.db", key=lambda message: message.key, lease="10s", retention=3600, epoch=1),
    ConsumeLater(
        3, levels="1s 10s 1m", retry=Exponential(), retry_by_error={KeyError: Fixed("5s"), OSError: Schedule(1, "2s")}, no_retry=ValueError
    ),
    DeadLetter("graves"),
    Events("events", mode="async"),
)
ConsumeLater(levels=[1, "10s"], retry=Linear(), no_retry=(ValueError, KeyError))


def by_id(message: Message[Order]) -> str | None:
    """A key function that says what it takes."""
    assert_type(message.value.id, str)
    return message.value.id or None


Dedup("memory://", key=by_id, on_store_down="fail_open")


# Middleware and observers


async def timing(message: Message[Order], call_next: CallNext) -> object:
    """A middleware of messages."""
    return await call_next(message)


async def shielding(batch: Batch[Any], call_next: CallNext) -> None:
    """A middleware of batches that says nothing of its own."""
    await call_next(batch)


async def timed(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
    """A middleware of either."""
    return await call_next(work)


class Sessions:
    """Middleware with something to hold on to."""

    async def __call__(self, message: Message[object], call_next: CallNext) -> object:
        """Around each message."""
        return await call_next(message)


seen: list[Event] = []


def count(event: Event) -> None:
    """An observer."""
    if event.code is EventCode.DEAD_LETTERED:
        assert_type(event.offset, int | None)


app.use(timing, shielding, timed, Sessions(), count, seen.append)


# Handlers


@app.lifespan
async def places() -> AsyncIterator[Path]:
    """What handlers need."""
    yield Path()


@app.agent("files", model=Order)
async def filed(message: Message[Order], place: Path, *, folder: Path) -> None:
    """A handler with resources."""


async def beside() -> None:
    """A worker beside something else."""
    async with app.running() as worker:
        await worker.ready()
        assert_type(worker.is_ready, bool)


@app.agent("orders", max_batch=200, max_wait="500ms")
async def bill(batch: Batch[Order]) -> ConsumeStatus | None:
    """A handler of batches."""
    for message in batch:
        assert_type(message, Message[Order])
        assert_type(message.value.id, str)
        assert_type(message.header("trace"), bytes | None)
        assert_type(message.fencing_token, int | None)
        if message.reconsume_times > 3:
            batch.dead(message, "tired")
        batch.later(message, delay="5m")
        batch.later(message, delay=0.5)
        batch.later(message, delay_level=3)
        batch.done(message)
    assert_type(batch[0].value, Order)
    assert_type(batch[1:], tuple[Message[Order], ...])
    batch.ack_index = 3
    batch.delay_level = 2
    return CONSUME_LATER if batch else CONSUME_SUCCESS


@app.agent("parcels", "letters", model=Order, name="dispatch", keep_ack_index_on_error=True)
async def ship(message: Message[Order]) -> None:
    """A handler of messages."""
    if message.value.id == "":
        raise Reject("no id")
    raise Later(level=3)


@app.agent("raw")
async def store(value: bytes) -> None:
    """A handler of values."""
    assert_type(await app.publish("stored", value, delay="5m"), Acked | None)


router = Router()


@router.agent("returns", max_wait="1s", order="key", in_place=RetryInPlace(3, on_dead="continue"))
async def take_back(message: Message[Order]) -> None:
    """A handler of a router."""
    assert_type((message.attempt, message.key_text), tuple[int, str | None])
    raise Later("30s")


app.include(router)
assert_type(made_message(Order()), Message[Order])
assert_type(made_batch([1, 2]), Batch[int])


@app.agent("blocking", concurrency=4, consume_timeout="1m")
def blocking(message: Message[Order]) -> None:
    """A plain function, which runs in a thread."""
    message.extend("5m")


@app.agent("blocking-values", model=Order)
def blocking_value(order: Order) -> ConsumeStatus:
    """The same for values."""
    return CONSUME_SUCCESS


@app.agent("in-order", order="key", order_by=lambda message: message.key, in_place=RetryInPlace(3))
async def in_order(message: Message[Order]) -> None:
    """A handler with an order."""


@app.agent("refunds", model=Order)
async def refund(order: Order) -> ConsumeStatus:
    """A handler of values."""
    return CONSUME_SUCCESS


@app.agent("lists", model=list[Order])
async def take_list(batch: Batch[list[Order]]) -> None:
    """A model may be generic."""


@app.agent("tombstones", model=Order | None)
async def take_null(batch: Batch[Order | None]) -> None:
    """A model may admit a null value."""


class Clerk:
    """Methods are handlers too."""

    async def note(self, order: Order) -> ConsumeStatus:
        """A handler of values."""
        return CONSUME_SUCCESS

    async def __call__(self, batch: Batch[Order]) -> None:
        """And so are objects."""


app.agent("notes")(Clerk().note)
app.agent("memos", model=Order)(Clerk().note)
app.agent("letters", model=Order)(Clerk())


async def use_directly(batch: Batch[Order], message: Message[Order]) -> None:
    """A handler keeps its type, so that a test may call it."""
    assert_type(await bill(batch), ConsumeStatus | None)
    await ship(message)
    assert_type(await refund(message.value), ConsumeStatus)
    await store(b"")


# A loop of one's own


async def keep_my_loop() -> None:
    """Payloads have the type of the model, and are bytes without one."""
    async with AIOKafkaConsumer(group_id="billing", enable_auto_commit=False, auto_offset_reset="none") as consumer:
        async with reliable(consumer, "orders", Dedup("memory://"), model=Order, max_batch=50, commit_interval="1s") as batches:
            async for batch in batches:
                assert_type(batch, LoopBatch[Order])
                async with batch:
                    assert_type([message.value for message in batch], list[Order])
                    batch.later(batch[0])
                await batch.run(bill)
        async for raw in reliable(consumer, ["raw", "rawer"]):
            assert_type(raw[0].value, bytes)


# Faust


agents = reliable_faust.App(
    "billing",
    broker="kafka://kafka:9092",
    ackwise_create_topics="never",
    ackwise_revoke_timeout="5s",
    ackwise_drain_timeout=10,
    ackwise_clock_skew=0.5,
)
agents.use(Dedup("memory://"), ConsumeLater(3), count, clock_skew="1s")
stock = faust.App("shipping")
reliable_faust.use(stock, Dedup("memory://"), create_topics="auto")


@agents.agent(agents.topic("orders"))
async def take_orders(orders: faust.StreamT[Order]) -> None:
    """A loop rules on what it works on."""
    async for _ in orders:
        batch = current_batch()
        assert_type(batch, Batch[Any])
        batch.ack_index = 3
        batch.later(batch[0], delay="5m")


@agents.handler("orders", model=Order, max_batch=100, max_wait="1s")
async def count_orders(batch: Batch[Order]) -> None:
    """A handler of batches on Faust."""
    assert_type(batch[0].value, Order)


@agents.handler(agents.topic("orders"), keep_ack_index_on_error=True)
async def count_order(message: Message[Order]) -> ConsumeStatus:
    """One of messages."""
    return CONSUME_LATER if message.reconsume_times == 0 else CONSUME_SUCCESS


@reliable_faust.handler(stock, "orders", name="by-value")
async def count_value(order: Order) -> None:
    """One of values, on a stock app."""


def look(explained_app: reliable_faust.App) -> tuple[str, ...]:
    """What becomes of messages can be asked."""
    return explained_app.ackwise.explain().refusals


# Stores and sinks of one's own


class DictStore:
    """A claim store by structure alone."""

    def __init__(self) -> None:
        self._records: dict[Place, Record] = {}

    async def open(self) -> None:
        """Nothing to do."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Decided by the table that all stores share."""
        result, written = decide(self._records.get, exchange, 0.0)
        self._records |= written
        return result

    async def close(self) -> None:
        """Nothing to do."""


class ListSink:
    """An event sink by structure alone."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)

    async def flush(self) -> None:
        """Nothing to do."""

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""


Dedup(DictStore())
Events(ListSink())
Events(os.fspath(Path("events")))


async def ask(claims: ClaimStore, wanted: Sequence[Claim]) -> bool:
    """Answers are a closed union."""
    result = await claims.exchange(Exchange(claims=wanted))
    return all(isinstance(answer, Acquired) for answer in result.claims) and result.completes == [Ack.OK]


# Half messages


async def says_whether(half: Prepared) -> TransactionOutcome:
    """A check."""
    return TransactionOutcome.COMMIT


async def says_what(half: Prepared) -> bytes | Wait:
    """A check that has the content, or not yet."""
    return half.message.key or Wait("10m")


async def says_all(half: Prepared) -> TransactionOutcome | Outgoing | Wait:
    """A check that has a whole message."""
    return Outgoing("paid", b"", half.message.key) if half.checks else Wait(600)


for each_check in (says_whether, says_what, says_all):
    TransactionalProducer("orders", "memory://", check=each_check)


# Errors


def run_it() -> int:
    """Errors are one tree."""
    try:
        app.run()
    except ConfigurationError as error:
        return len(str(error))
    except Unavailable as error:
        return 2 if isinstance(error, StoreUnavailable) else 3
    except AckwiseError:
        return 4
    return 0


async def serve_it(stop: asyncio.Event) -> None:
    """An app runs in an event loop of the user's, too."""
    await app.serve(stop)
