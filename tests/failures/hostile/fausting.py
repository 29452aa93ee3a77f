"""A worker of Faust in this process, whose consumer lives in its own thread, as that of a `faust worker` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Final, cast

import faust
import pytest
from mode.threads import WorkerThread
from tests.failures import calls
from tests.failures.calls import Tap, TappedStore, current
from tests.failures.hostile.trial import Join
from tests.failures.world import Record, World, handle

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.faust import current_batch
from ackwise.plugin.faust.faustapp import handler, use
from ackwise.plugin.faust.fetchthread import ReliableThread
from ackwise.stores.sqlite import SQLiteStore

#: Milliseconds of a session. Settings refuse one that brokers take only where they are told to, as that of these tests is.
_SESSION: Final = 1000


def install(patch: pytest.MonkeyPatch) -> None:
    """Let the thread of a consumer have the context of who started it, but for the tap: that is of one event loop."""
    start, run, create = WorkerThread.start, WorkerThread.run, ReliableThread._create_worker_consumer

    def starting(self: Any) -> None:
        self.context = copy_context()
        self.context.run(lambda: current.set(Tap(current.get().ledger)))
        self.daemon = True  # one that hangs fails its test, and no more
        start(self)

    def running(self: Any) -> None:
        context: Context = self.context
        context.run(run, self)

    patch.setattr(WorkerThread, "start", starting)
    patch.setattr(WorkerThread, "run", running)
    patch.setattr(ReliableThread, "_create_worker_consumer", lambda self, transport: _tapped(create(self, transport)))


def _tapped(consumer: Any) -> Any:
    """`consumer` with a session as short as those of the other tests; an intention to commit is written down before."""
    commit, ledger = consumer.commit, current.get().ledger

    async def commits(offsets: Any = None) -> None:
        ledger.write("commits", offsets=[[*partition, each if isinstance(each, int) else each[0]] for partition, each in offsets.items()])
        await commit(offsets)

    consumer._session_timeout_ms, consumer._heartbeat_interval_ms = _SESSION, _SESSION // 5
    consumer._request_timeout_ms = consumer._client._request_timeout_ms = round(min(10.0, calls.REQUEST) * 1000)
    consumer.commit = commits
    return consumer


Declare = Callable[[faust.App, World, Tap], object]


def worker(declare: Declare) -> Join:
    """Consumes with what `declare` declares on an app of Faust, until it is told to stop. Raises what the app crashes of."""

    async def work(world: World, tap: Tap, stop: asyncio.Event) -> None:
        app = _app(world, tap)
        declare(app, world, tap)
        crashed: asyncio.Event = cast(Any, app)._crashed
        try:
            await app.start()
            ends = [asyncio.ensure_future(event.wait()) for event in (stop, crashed)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        finally:
            await app.stop()
        if app.crash_reason is not None:
            raise app.crash_reason

    return work


def _app(world: World, tap: Tap) -> faust.App:
    app = faust.App(
        world.group,
        broker=f"kafka://{world.brokers}",
        datadir=str(world.folder / f"{world.group}.data"),
        store="memory://",
        web_enabled=False,
        topic_partitions=world.partitions,
        topic_replication_factor=1,
        consumer_auto_offset_reset=world.settings.get("start", "earliest"),
        broker_commit_interval=0.1,
        broker_session_timeout=6.0,
        broker_request_timeout=10.0,
    )
    store = TappedStore(SQLiteStore(world.folder / f"{world.group}.db", timeout=world.store_timeout), tap)
    claims = Dedup(store, key=lambda message: str(message.value["id"]), lease=world.lease)
    # A copy that is not acknowledged is sent again after 5 s: what is given up later than that has run once.
    use(app, ConsumeLater(16, levels=" ".join(world.levels)), DeadLetter(), claims, revoke_timeout=15.0, drain_timeout=5.0, clock_skew=0.0)
    return app


def by_handler(app: faust.App, world: World, tap: Tap) -> None:
    """A handler function, of batches."""

    async def bill(batch: Batch[dict[str, Any]]) -> None:
        await handle(batch, tap)

    handler(app, world.topic, name="bill", max_batch=world.max_batch)(bill)


def by_take(app: faust.App, world: World, tap: Tap) -> None:
    """An agent that takes some at a time."""

    async def bill(stream: Any) -> None:
        async for _ in stream.take(world.max_batch, within=0.1):
            await handle(current_batch(), tap)

    app.agent(app.topic(world.topic), name="bill")(bill)


def with_table(app: faust.App, world: World, tap: Tap) -> None:
    """An agent that takes one message at a time, and counts in a table what it does."""
    executed = app.Table("executed", default=int, partitions=world.partitions)

    async def bill(stream: Any) -> None:
        async for event in stream.events():
            await handle(current_batch(), tap)
            executed[f"in {event.message.partition}"] += 1

    app.agent(app.topic(world.topic), name="bill")(bill)


async def counted(world: World) -> int:
    """What the table of `with_table` holds at last, as its changelog says."""
    held = {record.key: int(record.value) for record in await world.read(f"{world.group}-executed-changelog")}
    return sum(held.values())


def executions(records: Iterable[Record]) -> int:
    """How often an agent takes one of `records`, if nothing is taken twice: what comes later comes once more."""
    values = [json.loads(record.value or b"") for record in records if record.id is not None]
    return sum(1 + (value["times"] if value["kind"] == "later" else 0) for value in values)
