"""The worker of the demo, as a user would write it; `ackwise run ackwise.plugin.demo.worker:app` runs it.

It is configured by BILLING_BROKERS, BILLING_GROUP, BILLING_TOPIC, BILLING_STORE, BILLING_CREATE_TOPICS and
BILLING_FOLDER, where its events and its ledger go.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.policies import DeadLetter, Dedup, Events
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.app import App
from ackwise.plugin.demo.ledger import LedgerLine, LedgerWriter
from ackwise.plugin.demo.scenario import LEVELS, MAX_BATCH, MAX_RECONSUME_TIMES
from ackwise.plugin.settings.config import Config

folder = Path(os.environ["BILLING_FOLDER"])
ledger = LedgerWriter(folder / "ledger.jsonl")

app = App(
    os.environ["BILLING_GROUP"],
    brokers=os.environ["BILLING_BROKERS"],
    create_topics="broker" if os.environ["BILLING_CREATE_TOPICS"] == "broker" else "auto",
    commit_interval="500ms",
    config=Config(),  # what this machine sets is for the apps of its user
    session_timeout="6s",  # the shortest that brokers allow: a killed worker's partitions are free the sooner
)


class Order(BaseModel):
    """What the shop sends."""

    id: str
    cents: int
    outage: int  #: how many attempts the payment provider will not answer
    stolen: bool  #: the card is reported as stolen


def _order_id(message: Message[Order]) -> str:
    return message.value.id


app.use(
    Dedup(os.environ["BILLING_STORE"], key=_order_id, lease="5s"),
    ConsumeLater(MAX_RECONSUME_TIMES, levels=LEVELS),
    DeadLetter(),
    Events(str(folder / "events")),
)


@app.agent(os.environ["BILLING_TOPIC"], max_batch=MAX_BATCH)
async def bill(batch: Batch[Order]) -> None:
    """Charge the orders of `batch` and write them into the ledger; what can't be charged now comes back later."""
    charged = []
    for message in batch:
        order = message.value
        if order.stolen:
            batch.dead(message)
        elif message.reconsume_times < order.outage:
            batch.later(message)
        else:
            charged.append(LedgerLine(order.id, order.cents, message.partition, message.offset, os.getpid()))
    await asyncio.to_thread(ledger.append, charged)
