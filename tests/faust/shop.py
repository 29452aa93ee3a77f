"""A shop written as Faust's manual teaches it, with an agent in every style: what `faust -A tests.faust.shop worker` runs.

`SHOP` in the environment (JSON) says which styles run, on which brokers, in which group and folder, how long an order
takes, and whether the two lines are there. Each style has its own topic, `<group>.<style>`. `HOSTILE` may hold what the
worker's Kafka clients suffer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import faust
import pytest

from ackwise import ConsumeLater, Dedup, Later, Reject
from ackwise.middleware.policies.retry import Fixed
from ackwise.plugin.faust import current_batch
from ackwise.testing.hostile.client import install_from_environment

SHOP = json.loads(os.environ["SHOP"])
GROUP = SHOP["group"]
FOLDER = Path(SHOP["folder"])

#: The patches live as long as this process.
install_from_environment(pytest.MonkeyPatch(), FOLDER / "suffered")


class Order(faust.Record):
    """An order; `fail_times` is how many of its executions fail, -1 stands for all."""

    id: str
    customer: str
    fail_times: int = 0


app = faust.App(
    GROUP,
    broker=f"kafka://{SHOP['brokers']}",
    datadir=str(FOLDER / f"data-{os.getpid()}"),
    store="memory://",
    topic_partitions=SHOP["partitions"],
    topic_replication_factor=1,
    reply_create_topic=True,
    broker_commit_interval=0.2,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=0.5,
    broker_request_timeout=10.0,
)
if SHOP["ackwise"]:
    claims = [Dedup(SHOP["store"], key=lambda message: str(message.value.id), lease=2.0)] if SHOP["store"] else []
    app.use(ConsumeLater(3, levels="200ms", retry=Fixed(0.2)), *claims)  # type: ignore[attr-defined]  # every app has it


class PaymentDeclined(Exception):
    """The order failed as it says."""


async def bill(order: Order, event: Any = None) -> None:
    """Bill an order; what was billed is on the disk when it returns. Raises as often as the order says."""
    await asyncio.sleep(SHOP["pause"])
    event = event or faust.current_event()
    if order.fail_times and (_executions(order) <= order.fail_times or order.fail_times < 0):
        raise PaymentDeclined(order.id)
    _write(order, event)


def is_wanted(order: Order) -> bool:
    """Whether it shall be billed. Turning an order away is all that is to be done with it."""
    if order.id == "unwanted":
        _write(order, None)
    return order.id != "unwanted"


def _write(order: Order, event: Any) -> None:
    where = {"partition": event.message.partition, "offset": event.message.offset} if event else {}
    # The first line end closes what another worker tore when it was killed.
    _append("ledger", "\n" + json.dumps({"id": order.id, "pid": os.getpid(), **where}) + "\n", durable=True)


def _executions(order: Order) -> int:
    """How often this order was tried, now included, by whatever process."""
    return _append(f"tries-{order.id}", ".")


def _append(name: str, text: str, *, durable: bool = False) -> int:
    """Append to a file that all workers share; returns how long it is then."""
    file = os.open(FOLDER / name, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, text.encode())
        if durable:
            os.fsync(file)
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)


def agent(style: str, **options: Any) -> Callable[[Any], Any]:
    """`app.agent` on the topic of the style, if the style is wanted."""

    def declare(fun: Any) -> Any:
        if style not in SHOP["styles"]:
            return fun
        return app.agent(app.topic(f"{GROUP}.{style}", key_type=str, value_type=Order), name=style, **options)(fun)

    return declare


@agent("plain")
async def plain(orders: Any) -> None:
    async for order in orders:
        await bill(order)


@agent("events")
async def events(orders: Any) -> None:
    async for event in orders.events():
        await bill(event.value, event)


@agent("items")
async def items(orders: Any) -> None:
    async for customer, order in orders.items():
        assert customer == order.customer
        await bill(order)


@agent("take")
async def take(orders: Any) -> None:
    async for batch in orders.take(10, within=0.2):
        for order in batch:
            await bill(order)


@agent("take_events")
async def take_events(orders: Any) -> None:
    async for batch in orders.take_events(10, within=0.2):
        for event in batch:
            await bill(event.value, event)


@agent("take_with_timestamp")
async def take_with_timestamp(orders: Any) -> None:
    async for batch in orders.take_with_timestamp(10, within=0.2, timestamp_field_name="taken"):
        for order in batch:
            await bill(order)


@agent("rules")
async def rules(orders: Any) -> None:
    async for batch in orders.take(10, within=0.2):
        for index, order in enumerate(batch):
            try:
                await bill(order)
            except PaymentDeclined:
                ruled = current_batch()
                ruled.later(ruled[index])


@agent("raises")
async def raises(orders: Any) -> None:
    async for order in orders:
        try:
            await bill(order)
        except PaymentDeclined as declined:
            if order.fail_times < 0:
                raise Reject("nobody pays that") from declined
            raise Later(0.1) from declined


@agent("noack")
async def noack(orders: Any) -> None:
    async for event in orders.noack().events():
        await bill(event.value, event)
        event.ack()


@agent("noack_take")
async def noack_take(orders: Any) -> None:
    async for batch in orders.noack_take(10, within=0.2):
        for event in batch:
            await bill(event.value, event)
            event.ack()


@agent("yields", sink=[app.topic(f"{GROUP}.invoices", value_type=str)])
async def yields(orders: Any) -> AsyncIterator[str]:
    async for order in orders:
        await bill(order)
        yield order.id


@agent("sinks", sink=[bill])
async def sinks(orders: Any) -> AsyncIterator[Order]:
    async for order in orders:
        yield order


@agent("concurrency", concurrency=4)
async def concurrency(orders: Any) -> None:
    async for order in orders:
        await bill(order)


@agent("isolated", isolated_partitions=True)
async def isolated(orders: Any) -> None:
    async for order in orders:
        await bill(order)


@agent("group_by")
async def group_by(orders: Any) -> None:
    async for order in orders.group_by(Order.customer):
        await bill(order)


@agent("through")
async def through(orders: Any) -> None:
    async for order in orders.through(app.topic(f"{GROUP}.paid", key_type=str, value_type=Order)):
        await bill(order)


@agent("filter")
async def filter_(orders: Any) -> None:
    async for order in orders.filter(is_wanted):
        await bill(order)


@agent("ask")
async def ask(orders: Any) -> AsyncIterator[str]:
    async for order in orders:
        await bill(order)
        yield f"billed {order.id}"


@agent("undecodable")
async def undecodable(orders: Any) -> None:
    async for order in orders:
        await bill(order)


if "table" in SHOP["styles"]:
    billed = app.Table("billed", default=int, partitions=SHOP["partitions"])


@agent("table")
async def table(orders: Any) -> None:
    async for order in orders:
        await bill(order)
        billed[order.customer] += 1


if "ask" in SHOP["styles"]:

    async def ask_for_bills() -> None:
        for asked in SHOP["asked"]:
            app.add_future(_ask(Order(**asked)))

    async def _ask(order: Order) -> None:
        _append("answers", f"{await ask.ask(key=order.customer, value=order)}\n")

    app.task(ask_for_bills)
