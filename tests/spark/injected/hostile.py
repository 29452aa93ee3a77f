"""A worker process of a real app that does wrong, now and then, exactly what it is told to: the rest of it is as it is shipped.

The two arguments are JSON: the fields of `Orders` and of `Faults`. What a fault does not touch is the real code, so that the events are
those which a real worker writes in that fault.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer
from tests.failures.ledger import Ledger

from ackwise import App, Batch, ConsumeLater, DeadLetter, Dedup, Events, Message
from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.runs.run import Run
from ackwise.plugin import aiokafkahost
from ackwise.plugin.consumer import member, startup
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.routes import Routes
from ackwise.plugin.delays import delayrelay
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.config import Config
from ackwise.stores.journal import sink

__all__ = ["HANDLER", "LEVELS", "Faults", "Orders"]

HANDLER: Final = "bill"
LEVELS: Final = ("1s", "2s")

#: Seconds: sessions, heartbeats in the events and looks at the broker are as short as this, so that tests need not wait.
_SESSION, _OFTEN = 1.0, 0.3

#: Events in a file: many files for few messages.
_ROLL: Final = 80


@dataclass(frozen=True)
class Faults:
    """What goes wrong with which orders, by their ids."""

    lost_in_fetch: Sequence[str] = ()  #: the client never hands it out, and goes on
    unrouted: Sequence[str] = ()  #: fetched, and taken for somebody else's
    settled_early: Sequence[str] = ()  #: what its lane works on is committed when its handler begins, and then the worker dies
    copy_unsent: Sequence[str] = ()  #: its copy is taken for acknowledged, and was never sent
    hangs: Sequence[str] = ()  #: its handler never ends


@dataclass(frozen=True)
class Orders:
    """What a worker consumes."""

    brokers: str
    group: str
    folder: str
    store: str

    @property
    def topic(self) -> str:
        return f"{self.group}.orders"


_lane: ContextVar[Lane] = ContextVar("_lane")


def make_app(orders: Orders, faults: Faults, ledger: Ledger) -> App:
    """The app as a user would write it, but for the orders at which it goes wrong."""
    app = App(orders.group, brokers=orders.brokers, config=Config(), commit_interval="100ms", clock_skew=0.0, drain_timeout=5.0)
    app.use(
        Dedup(orders.store, key=_order_id, lease="2s"),
        ConsumeLater(6, levels=" ".join(LEVELS)),
        DeadLetter(),
        Events(str(Path(orders.folder) / "events")),
    )

    @app.agent(orders.topic, max_batch=5, name=HANDLER)
    async def bill(batch: Batch[dict[str, Any]]) -> None:
        ids = {message.value["id"] for message in batch}
        if ids & {*faults.settled_early} and batch[0].reconsume_times == 0:
            await _die_once_committed(ledger)
        if ids & {*faults.hangs}:
            ledger.write("hangs", ids=sorted(ids))
            await asyncio.Event().wait()
        await _bill(batch, ledger)

    return app


def _order_id(message: Message[dict[str, Any]]) -> str:
    return str(message.value["id"])


async def _bill(batch: Batch[dict[str, Any]], ledger: Ledger) -> None:
    """What was done is in the ledger, by id and origin, before it returns."""
    done = []
    for message in batch:
        order = message.value
        if order["kind"] == "reject":
            batch.dead(message, "bad")
        elif message.reconsume_times < order["times"]:
            batch.later(message, delay_level=order["level"])
        else:
            done.append([order["id"], message.partition, message.offset])
    await asyncio.sleep(0.01 * len(batch))
    ledger.ran(done)


async def _die_once_committed(ledger: Ledger) -> None:
    lane = _lane.get()
    open_still = [offset for run in (*lane.running, *lane.held) for offset in run.offsets]
    ledger.write("died early", places=[[lane.partition, offset] for offset in open_still])
    for offset in open_still:
        lane.watermark.finish(offset)
    while (lane.committed or 0) < (lane.watermark.commit or 0):  # noqa: ASYNC110 - the host that is shipped tells nobody
        await asyncio.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


def install(patch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Put the faults where the parts find each other, and make short what would keep tests waiting."""
    consumer = functools.partial(_Consumer, {*faults.lost_in_fetch})
    patch.setattr(aiokafkahost, "AIOKafkaConsumer", consumer)
    patch.setattr(delayrelay, "AIOKafkaConsumer", consumer)
    patch.setattr(startup, "KafkaPublisher", functools.partial(_Publisher, {*faults.copy_unsent}))
    patch.setattr(member, "_BROKER_OFFSETS_EVERY", _OFTEN)
    patch.setattr(sink, "Journal", functools.partial(sink.Journal, roll_events=_ROLL, heartbeat_seconds=_OFTEN))
    patch.setattr(Routes, "from_source", _unrouting(Routes.from_source, {*faults.unrouted}))
    patch.setattr(Lane, "_run", _naming_its_lane(Lane._run))


class _Consumer(AIOKafkaConsumer):
    """Loses orders between the broker and whoever asked for them."""

    def __init__(self, lost: set[str], *topics: str, **options: Any) -> None:
        options.update(session_timeout_ms=round(_SESSION * 1000), heartbeat_interval_ms=round(_SESSION * 200))
        super().__init__(*topics, **options)  # type: ignore[no-untyped-call]  # aiokafka is annotated in part
        self._lost = lost

    async def getmany(self, *partitions: Any, **options: Any) -> dict[Any, Any]:
        fetched = await super().getmany(*partitions, **options)
        kept = {partition: [record for record in records if _id(record.value) not in self._lost] for partition, records in fetched.items()}
        return {partition: records for partition, records in kept.items() if records}


class _Publisher(KafkaPublisher):
    """Takes copies for acknowledged that it never sent."""

    def __init__(self, unsent: set[str], *arguments: Any, **clocks: Any) -> None:
        super().__init__(*arguments, **clocks)
        self._unsent = unsent

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        sent = [copy for copy in copies if _id(copy.value) not in self._unsent]
        answers: Mapping[int, Any] = dict(zip(map(id, sent), await super().publish(sent), strict=True))
        return [answers.get(id(copy)) for copy in copies]


def _unrouting(
    route: Callable[[Routes, TopicPartition, Sequence[Any]], list[Run]], unrouted: set[str]
) -> Callable[[Routes, TopicPartition, Sequence[Any]], list[Run]]:
    def routing(routes: Routes, place: TopicPartition, records: Sequence[Any]) -> list[Run]:
        kept = [record for record in records if _id(record.value) not in unrouted]
        return route(routes, place, kept) if kept else []

    return routing


def _naming_its_lane(run: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def named(lane: Lane, *arguments: Any) -> None:
        _lane.set(lane)
        await run(lane, *arguments)

    return named


def _id(value: bytes | None) -> str | None:
    try:
        return str(json.loads(value or b"").get("id"))
    except ValueError:
        return None


if __name__ == "__main__":
    consumed, wrong = (json.loads(argument) for argument in sys.argv[1:])
    told, ill = Orders(**consumed), Faults(**wrong)
    written = Ledger(Path(told.folder) / "ledger")
    written.write("started", pid=os.getpid())
    with pytest.MonkeyPatch.context() as patched:
        install(patched, ill)
        make_app(told, ill, written).run()
