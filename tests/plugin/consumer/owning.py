"""One partition and the owners that come and go: real lanes, pipelines and commits, and what is known of them from outside.

Time is that of a loop that never waits. An owner that is killed goes on nowhere: every call that it makes to the outside hangs.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import RequestTimedOutError
from tests.waiting import turns

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.policies.retry import ConsumeLater, Order, RetryInPlace
from ackwise.middleware.progress.commitmetadata import InPlace, decode
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult
from ackwise.plugin.consumer.backlog import ByKey
from ackwise.plugin.consumer.commits import Commits, to_commit
from ackwise.plugin.consumer.lane import Lane, Told
from ackwise.stores.memory import MemoryStore

ORDERS = TopicPartition("orders", 0)

#: Where the log starts, and further attempts of a message that fails where there is an order.
FIRST, LIMIT = 100, 4

#: Seconds.
LEASE, DELAY = 30.0, 0.05

How = Literal["acknowledged", "lost", "unheard", "late"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose seconds pass at once, where it would have to wait for them."""

    def __init__(self) -> None:
        self._passed = 1_000_000.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                assert timeout is not None, "nothing will ever happen"
                loop._passed += max(0.0, timeout)
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self._passed


class Mode(NamedTuple):
    """How an agent consumes."""

    order: Order
    kind: Literal["batch", "message"] = "message"
    concurrency: int | None = None


@dataclass(eq=False)
class Call:
    """A call of the handler, which ends when the test says so."""

    owner: Owner
    messages: Sequence[Message[Any]]
    end: asyncio.Future[str]

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in self.messages]


@dataclass
class Partition:
    """The log, what the group has committed, and what is known of each message from outside of Ackwise."""

    mode: Mode
    dedup: bool
    loop: VirtualLoop
    log: dict[int, bytes | None] = field(default_factory=dict)  #: keys, by offset
    end: int = FIRST
    committed: tuple[int, str] = (FIRST, "")  #: what the broker has
    finished: set[int] = field(default_factory=set)  #: done, parked or dead
    failed: Counter[int] = field(default_factory=Counter)  #: attempts that failed where there is an order
    promised: set[int] = field(default_factory=set)  #: finished, as acknowledged commits said
    attempts: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))  #: in place, as acknowledged commits said
    due: dict[int, int] = field(default_factory=dict)  #: epoch milliseconds, of the attempts that were said
    calls: list[Call] = field(default_factory=list)  #: that have not ended
    broken: list[str] = field(default_factory=list)  #: what must never happen
    store_is_down: bool = False
    brokers_are_down: bool = False

    def __post_init__(self) -> None:
        self.store = MemoryStore(clock=self.loop.time)

    def waits_for(self, offset: int) -> list[int]:
        """The offsets that have to be finished before `offset` may start in another batch."""
        order, key = self.mode.order, self.log[offset]
        if order is None or (order == "key" and key is None):
            return []
        return [other for other in self.log if other < offset and (order == "partition" or self.log[other] == key)]

    def begins(self, owner: Owner, messages: Sequence[Message[Any]]) -> None:
        """A call of the handler starts."""
        offsets = [message.offset for message in messages]
        for at, message in enumerate(messages):
            offset = message.offset
            self._never(owner.is_cut, f"{offset} starts after the cut-off")
            self._never(offset in self.promised, f"{offset} starts again, which an acknowledged commit said to be finished")
            self._never(offset in owner.succeeded, f"{offset} starts again in the process where it succeeded")
            ahead = [other for other in self.waits_for(offset) if other not in self.finished and other not in offsets[:at]]
            self._never(bool(ahead), f"{offset} starts, and {ahead} are not finished")
            self._never(
                self.mode.order == "key" and any(other in offsets for other in self.waits_for(offset)), f"two of one key in {offsets}"
            )
            if self.mode.order is None:
                continue
            tried = message.reconsume_times
            self._never(tried < self.attempts[offset], f"{offset} has had {self.attempts[offset]} attempts, and is told {tried}")
            self._never(tried > self.failed[offset], f"{offset} failed {self.failed[offset]} times, and is told {tried}")
            is_early = tried == self.attempts[offset] and self.loop.time() < self.due.get(offset, 0) / 1000 - 0.001
            self._never(is_early, f"{offset} starts before its attempt in place is due")

    def succeeds(self, owner: Owner, offsets: Sequence[int]) -> None:
        """The handler has done these; the order of a batch is that of `offsets`."""
        for offset in offsets:
            ahead = [other for other in self.waits_for(offset) if other not in self.finished]
            self._never(bool(ahead), f"{offset} succeeds before {ahead}")
            self.finished.add(offset)
            owner.succeeded.add(offset)

    def said(self, offset: int, metadata: str) -> tuple[set[int], Sequence[InPlace]]:
        """What a commit says to be finished, and what waits in place."""
        finished, found = {other for other in self.log if other < offset}, decode(metadata)
        if found is None or found.finished is None:
            return finished, ()
        return finished | {other for other in self.log if other >= offset and found.finished.bits >> other - offset & 1}, found.in_place

    def check(self, offset: int, metadata: str) -> None:
        """A commit is sent."""
        finished, _ = self.said(offset, metadata)
        early = sorted(finished - self.finished)
        self._never(bool(early), f"a commit of {offset} passes {early}, which are not finished")
        self._never(offset < self.committed[0], f"a commit of {offset} goes back behind {self.committed[0]}")

    def acknowledge(self, offset: int, metadata: str) -> None:
        """The broker's answer to a commit has come."""
        finished, in_place = self.said(offset, metadata)
        self.promised |= finished
        for entry in in_place:
            if entry.attempts >= self.attempts[entry.offset]:
                self.attempts[entry.offset], self.due[entry.offset] = entry.attempts, entry.due_ms

    def _never(self, happened: bool, what: str) -> None:
        if happened:
            self.broken.append(what)


class Owner:
    """A worker that has the partition: it goes on from what the broker has of it."""

    def __init__(self, partition: Partition, max_batch: int = 3) -> None:
        self.partition = partition
        self.is_killed = self.is_cut = False
        self.succeeded: set[int] = set()
        self.how: How = "acknowledged"  #: what becomes of its commits
        self.late: asyncio.Future[None] | None = None  #: the answer to a commit that is under way
        clock, mode = partition.loop.time, partition.mode
        agent = Agent(
            "bill", ("orders",), mode.kind, self._handle, lambda value: value, max_batch=max_batch, concurrency=mode.concurrency,
            consume_timeout=0.0, order=mode.order, in_place=None if mode.order is None else RetryInPlace(LIMIT, delay=DELAY),
        )  # fmt: skip
        self.leases = Leases(self, lease=LEASE, retention=86400.0, clock=clock) if partition.dedup else None
        later = ConsumeLater(16, levels="1s")
        self.flow = FlowControl(clock=clock)
        worker = Worker(
            "billing", later, self, "billing.retry", "billing.dlq", "billing.delay", flow=self.flow,
            dedup=Dedup(self) if partition.dedup else None, leases=self.leases, monotonic=clock, wall=clock,
        )  # fmt: skip
        self.flow.listen(worker.isolation.stir)
        pipeline = Pipeline(agent, worker)
        committed, metadata = partition.committed
        self.lane = Lane(
            "orders", 0, "source", committed,
            make=lambda place, records: [Run(place, records, pipeline)],
            progressed=lambda lane: None,
            by_key=ByKey(pipeline.find_order) if mode.order == "key" else None,
            in_order=mode.order == "partition", flow=self.flow, clock=clock, wall=clock,
        )  # fmt: skip
        self.commits = Commits("billing", ["bill"], None, self._send)
        self.commits.cluster = "cluster"
        self.lane.told = Told(committed)
        self.commits.resume([self.lane], decode(metadata))
        self.work = self.lane.start()

    # What it calls, and what becomes of that.

    async def _reach(self) -> None:
        if self.is_killed:
            await asyncio.Event().wait()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """As a claim store."""
        await self._reach()
        if self.partition.store_is_down:
            raise StoreUnavailable("the store is out of reach")
        result = await self.partition.store.exchange(exchange)
        await asyncio.sleep(0)
        await self._reach()
        return result

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        """As a publisher. A copy that is acknowledged is parked or dead."""
        await self._reach()
        if self.partition.brokers_are_down:
            return [PublishUnavailable("the brokers are unavailable") for _ in copies]
        self.partition.finished |= {int(dict(copy.headers)["ackwise-origin-offset"] or b"") for copy in copies}
        await asyncio.sleep(0)
        await self._reach()
        return [None for _ in copies]

    async def _send(self, offsets: Mapping[TopicPartition, Any]) -> None:
        await self._reach()
        ((offset, metadata),) = [(each.offset, each.metadata) for each in offsets.values()]
        self.partition.check(offset, metadata)
        if self.how != "lost":
            self.partition.committed = offset, metadata
        if self.how == "late":
            self.late = asyncio.get_running_loop().create_future()
            await self.late
        if self.how in ("lost", "unheard"):
            raise RequestTimedOutError
        await self._reach()
        self.partition.acknowledge(offset, metadata)

    async def _handle(self, argument: Any) -> None:
        await self._reach()
        messages: list[Message[Any]] = [argument] if isinstance(argument, Message) else list(argument)
        self.partition.begins(self, messages)
        call = Call(self, messages, asyncio.get_running_loop().create_future())
        self.partition.calls.append(call)
        try:
            how = await call.end
        finally:
            self.partition.calls.remove(call)
        if how == "succeed":
            self.partition.succeeds(self, call.offsets)
            return
        if how == "fail" or not isinstance(argument, Batch):
            self.partition.failed.update(call.offsets)
            raise RuntimeError("the test says so")
        # Of a batch the second comes later. In the order of a partition nothing behind it may be done.
        argument.later(argument[min(1, len(argument) - 1)])
        at = min(1, len(messages) - 1)
        done = call.offsets[:at] + (call.offsets[at + 1 :] if self.partition.mode.order != "partition" else [])
        self.partition.failed.update(offset for offset in call.offsets if offset not in done)
        self.partition.succeeds(self, done)

    # What happens to it.

    def fetch(self, most: int) -> None:
        """Take the next records, if it has room."""
        position, lane = self.lane.position, self.lane
        records = [
            SimpleNamespace(offset=offset, timestamp=1000 + offset, key=key, value=b"v", headers=())
            for offset, key in sorted(self.partition.log.items())
            if offset >= position
        ][:most]
        if records and not lane.is_stopping and not lane.is_full():
            lane.offer(records, proved=True)

    def commit(self, how: How) -> Coroutine[Any, Any, bool] | None:
        """A commit of what is news, if there is any and none is under way."""
        offsets = to_commit({ORDERS: (self.lane,)}, [ORDERS])
        if not offsets or self.commits.is_under_way(ORDERS):
            return None
        self.how = how
        return self.commits.commit(offsets, self.partition.loop.time() + 3600)

    async def leave(self, how: How) -> None:
        """Drain what has ended, commit what is settled, and let go, as a member does; handlers that run go on behind the cut-off."""
        self.lane.stop()
        await turns()
        if self.late is not None and not self.late.done():
            self.late.set_result(None)
            await turns()
        if self.work.done():
            self.lane.close()
        last = self.commit(how)
        self.lane.cut()
        self.is_cut = True
        if last is not None:
            await last
        self.work.add_done_callback(self._give_back)
        await self.beat()

    def _give_back(self, _: asyncio.Task[None]) -> None:
        """Nothing comes up again in a lane that has ended: its claims go back."""
        if self.leases is not None:
            for run in self.lane.unsettled():
                self.leases.give_back(run)

    async def beat(self) -> None:
        """What goes on beside the lane: claims are renewed and given back."""
        await turns()
        if self.leases is not None and not self.is_killed:
            with suppress(StoreUnavailable):
                await self.leases.beat()
                await self.leases.flush()
