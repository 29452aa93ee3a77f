"""What type checkers must refuse: each line with a comment is an error, and mypy complains of a comment without one."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaConsumer

from ackwise import (
    App,
    Batch,
    CallNext,
    ConsumeLater,
    ConsumeStatus,
    DeadLetter,
    Dedup,
    Event,
    Events,
    Message,
    Prepared,
    Schedule,
    TransactionalProducer,
    Wait,
    current_batch,
    reliable,
)
from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult
from ackwise.plugin import faust


class Order:
    """A payload."""


class Invoice:
    """Another payload."""


app = App("billing")
App("billing", commit_intervall="1s")  # type: ignore[call-arg]  # a setting that there is not
App("billing", start="middle")  # type: ignore[arg-type]  # a partition begins at one of two ends
App("billing", drain_timeout=None)  # type: ignore[arg-type]  # a duration is seconds or a text


# Handlers


@app.agent("counts")  # type: ignore[type-var]  # a handler returns a status or None
async def counts(batch: Batch[bytes]) -> int:
    """Returns something that is no status."""
    return len(batch)


@app.agent("none")  # type: ignore[type-var]  # a handler is called with its message
async def none() -> None:
    """Takes nothing."""


@app.agent(["orders"])  # type: ignore[call-overload, untyped-decorator]  # topics are given one by one
async def listed(value: bytes) -> None:
    """Reads a list."""


@app.agent("orders", batch=7)  # type: ignore[call-overload, untyped-decorator]  # the keyword is max_batch
async def misspelt(value: bytes) -> None:
    """Is registered with a keyword that there is not."""


@app.agent("orders", model="Order")  # type: ignore[call-overload, untyped-decorator]  # a model is a type
async def named(value: Order) -> None:
    """Names its model."""


@app.agent("orders", max_wait=None)  # type: ignore[call-overload, untyped-decorator]  # a duration is seconds or a text
async def endless(batch: Batch[Order]) -> None:
    """Waits for how long?"""


# A model and an annotation that contradict each other


@app.agent("orders", model=Order)  # type: ignore[arg-type]
async def wrong_batch(batch: Batch[Invoice]) -> None:
    """Takes batches of another payload."""


@app.agent("orders", model=Order)  # type: ignore[arg-type]
async def wrong_message(message: Message[Invoice]) -> None:
    """Takes messages of another payload."""


@app.agent("orders", model=Order)  # type: ignore[arg-type]
async def wrong_value(invoice: Invoice) -> None:
    """Takes another payload."""


@app.agent("orders", model=Order)  # type: ignore[arg-type]
def plain_model(batch: Batch[Invoice]) -> None:
    """Takes another payload."""


@app.agent("orders", model=Order)  # type: ignore[type-var]
async def counts_model(batch: Batch[Order]) -> int:
    """Returns something that is no status."""
    return len(batch)


# Rulings


async def use_wrongly(batch: Batch[int], message: Message[str]) -> None:
    """Rulings and values have types."""
    batch.ack_index = "3"  # type: ignore[assignment]  # an index is a whole number
    batch.delay_level = 1.5  # type: ignore[assignment]  # and so is a level
    batch.later(message, delay_level="3")  # type: ignore[arg-type]  # here too
    batch.later(message, delay=[1])  # type: ignore[arg-type]  # a duration is seconds or a text
    batch.later(7)  # type: ignore[arg-type]  # a ruling is about a message
    batch.dead(message, 404)  # type: ignore[arg-type]  # a reason is a text
    message.value = ""  # type: ignore[misc]  # a message is read-only
    value: bytes = message.value  # type: ignore[assignment]  # the value of a Message[str] is a str
    del value


# Policies


def not_a_key(message: Message[Order]) -> float:
    """Answers no key."""
    return 0.5


def keyed_by_value(order: Order) -> str:
    """Takes a value."""
    return ""


Dedup(5)  # type: ignore[arg-type]  # a store is a URL or a ClaimStore
Dedup("memory://", key=not_a_key)  # type: ignore[arg-type]  # a key is a plain value that has an identity
Dedup("memory://", key=keyed_by_value)  # type: ignore[arg-type]  # a key function takes a message
Dedup("memory://", key=lambda message: message.id)  # type: ignore[attr-defined]  # the payload is message.value
Dedup("memory://", on_store_down="wait")  # type: ignore[arg-type]  # there are three ways
Dedup("memory://", leese=3)  # type: ignore[call-arg]  # a setting that there is not
Events("events", mode="later")  # type: ignore[arg-type]  # there are two modes
DeadLetter(7)  # type: ignore[arg-type]  # a topic is a text
ConsumeLater("3")  # type: ignore[arg-type]  # a limit is a whole number
ConsumeLater(no_retry=ValueError())  # type: ignore[arg-type]  # classes of exceptions, not exceptions
ConsumeLater(retry=3)  # type: ignore[arg-type]  # a policy answers delays
ConsumeLater(retry_by_error={"KeyError": Schedule(1)})  # type: ignore[dict-item]  # picked by class
Schedule(None)  # type: ignore[arg-type]  # a duration is seconds or a text


# Middleware and observers


def blocking(message: Message[Order], call_next: CallNext) -> object:
    """Is not an `async def`."""
    return None


async def alone(message: Message[Order]) -> object:
    """Can't go on."""
    return None


async def of_values(order: Order, call_next: CallNext) -> object:
    """Wraps neither messages nor batches."""
    return await call_next(order)


async def observing(event: Event) -> None:
    """Would have to be waited for."""


app.use(blocking)  # type: ignore[arg-type]
app.use(alone)  # type: ignore[arg-type]
app.use(of_values)  # type: ignore[arg-type]
app.use(observing)  # type: ignore[arg-type]
app.use(Dedup)  # type: ignore[arg-type]  # a policy is made first
app.use("sqlite:///claims.db")  # type: ignore[arg-type]  # a store is given to Dedup


# A loop of one's own


async def keep_my_loop(consumer: AIOKafkaConsumer, handler: Any) -> None:
    """What `reliable` is given, and what it gives, have types."""
    reliable("orders", consumer)  # type: ignore[call-overload]  # the consumer comes first
    reliable(consumer, "orders", auto_commit=True)  # type: ignore[call-overload]  # a setting that there is not
    async for batch in reliable(consumer, "orders", model=Order):
        payload: Invoice = batch[0].value  # type: ignore[assignment]  # it is an Order
        await batch.run(wrong_loop_handler)  # type: ignore[arg-type]  # of other payloads
        del payload


async def wrong_loop_handler(batch: Batch[Invoice]) -> ConsumeStatus | None:
    """Takes another payload."""
    return None


# Faust


agents = faust.App("billing")
faust.App("billing", ackwise_create_topics="maybe")  # type: ignore[arg-type]  # there are three ways
faust.App("billing", ackwise_drain_timeout=[1])  # type: ignore[arg-type]  # a duration is seconds or a text
agents.use(Dedup)  # type: ignore[arg-type]  # a policy is made first
agents.use(drain_timeout=None)  # type: ignore[arg-type]  # a duration is seconds or a text
agents.use(commit_interval="1s")  # type: ignore[call-arg]  # a setting that Faust has itself
faust.use(agents, Dedup("memory://"), create_topic="auto")  # type: ignore[call-arg]  # a setting that there is not


@agents.handler("orders", model=Order)  # type: ignore[arg-type]  # the model is not what the handler takes
async def count_invoices(batch: Batch[Invoice]) -> None: ...


agents.handler(7)  # type: ignore[call-overload]  # no topic


@faust.handler(agents, "orders")  # type: ignore[type-var]  # a handler waits
def count_at_once(batch: Batch[Order]) -> None: ...


async def rule_wrongly() -> None:
    """What `current_batch` gives is a batch."""
    current_batch().ack_index = "3"  # type: ignore[assignment]  # an index is a whole number
    current_batch(1)  # type: ignore[call-arg]  # it asks for the batch of the agent that calls it


# Stores and sinks of one's own


class Forgetful:
    """A store that answers nothing."""

    async def open(self) -> None:
        """Nothing to do."""

    async def exchange(self, exchange: Exchange) -> None:
        """Answers nothing."""

    async def close(self) -> None:
        """Nothing to do."""


class Blocking:
    """A store that blocks the loop."""

    def open(self) -> None:
        """Nothing to do."""

    def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Is not an `async def`."""
        return ExchangeResult([], [], [], [])

    def close(self) -> None:
        """Nothing to do."""


class Deaf:
    """A sink that can't be flushed."""

    def record(self, event: Event) -> None:
        """Forget it."""


Dedup(Forgetful())  # type: ignore[arg-type]
Dedup(Blocking())  # type: ignore[arg-type]
Events(Deaf())  # type: ignore[arg-type]


async def says_a_text(half: Prepared) -> str:
    """What to send is bytes or a message."""
    return "9.99"


def says_at_once(half: Prepared) -> bytes:
    """A check is awaited."""
    return b"9.99"


TransactionalProducer("orders", "memory://", check=says_a_text)  # type: ignore[arg-type]
TransactionalProducer("orders", "memory://", check=says_at_once)  # type: ignore[arg-type]
Wait()  # type: ignore[call-arg]  # for how long
Wait(None)  # type: ignore[arg-type]  # a duration is seconds or a text
