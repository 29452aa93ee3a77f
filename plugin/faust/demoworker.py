"""The worker of `ackwise demo --host faust`: an agent as Faust's manual teaches it.

`faust -A ackwise.plugin.faust.demoworker worker` runs it.

It is configured by the same BILLING_… as the worker of the other host. With BILLING_STOCK it does without `app.use`, to
show what becomes of the same orders then.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import faust

from ackwise.middleware.message.message import Message
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.policies.policies import DeadLetter, Dedup, Events
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.demo.ledger import LedgerLine, LedgerWriter
from ackwise.plugin.demo.scenario import LEVELS, MAX_BATCH, MAX_RECONSUME_TIMES
from ackwise.plugin.faust.faustapp import use
from ackwise.plugin.faust.fausthost import FaustHost
from ackwise.plugin.faust.work import current_batch
from ackwise.plugin.settings.config import Config, Given

folder = Path(os.environ["BILLING_FOLDER"])
ledger = LedgerWriter(folder / "ledger.jsonl")
is_stock = "BILLING_STOCK" in os.environ

app = faust.App(
    os.environ["BILLING_GROUP"],
    broker=f"kafka://{os.environ['BILLING_BROKERS']}",
    store="memory://",
    datadir=str(folder / f"faust-{os.getpid()}"),
    topic_allow_declare=False,
    topic_disable_leader=True,
    broker_commit_interval=0.5,
    broker_session_timeout=6.0,  # the shortest that brokers allow: a killed worker's partitions are free the sooner
    broker_heartbeat_interval=1.0,
)


class Order(faust.Record):
    """What the shop sends."""

    id: str
    cents: int
    outage: int  #: how many attempts the payment provider will not answer
    stolen: bool  #: the card is reported as stolen


class ProviderDown(Exception):
    """The payment provider does not answer."""


class CardStolen(Reject):
    """It will not be charged, today or tomorrow."""


def _order_id(message: Message[Order]) -> str:
    return message.value.id


if not is_stock:
    # What this machine sets is for the apps of its user.
    host = FaustHost(app, Config({("agents", "bill", "max_batch"): Given(MAX_BATCH, "the demo")}))
    host.install()
    cast(Any, app).ackwise = host
    use(
        app,
        Dedup(os.environ["BILLING_STORE"], key=_order_id, lease="5s"),
        ConsumeLater(MAX_RECONSUME_TIMES, levels=LEVELS),
        DeadLetter(),
        Events(str(folder / "events")),
        create_topics="broker" if os.environ["BILLING_CREATE_TOPICS"] == "broker" else "auto",
    )


@app.agent(app.topic(os.environ["BILLING_TOPIC"], value_type=Order), name="bill")
async def bill(orders: Any) -> None:
    """Charge each order and write it into the ledger."""
    async for event in orders.events():
        order = event.value
        charge(order)
        entry = LedgerLine(order.id, order.cents, event.message.partition, event.message.offset, os.getpid())
        await asyncio.to_thread(ledger.append, [entry])


def charge(order: Order) -> None:
    """Stands for the payment provider. Raises `CardStolen`, or `ProviderDown` as often as the shop has decided."""
    if order.stolen:
        raise CardStolen("the card is stolen")
    if order.outage > _times_come_back():
        raise ProviderDown(order.id)


def _times_come_back() -> int:
    """Of stock Faust nothing comes back."""
    return 0 if is_stock else current_batch()[0].reconsume_times
