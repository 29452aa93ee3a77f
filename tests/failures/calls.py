"""Every call that a worker makes to the outside, in one place where it can be counted, broken, held or killed.

The parts stay the real ones: each wrapper passes the call on and only decides what becomes of it. `install` puts the
wrappers where the host and the relay look for their clients; the context says whose calls they are.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import RequestTimedOutError
from tests.failures.ledger import Ledger

from ackwise.middleware.errors import EventLogUnavailable, PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventSink, MarkSink
from ackwise.middleware.flow.controlrecords import is_worker
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.storage.claimstore import ClaimStore, Exchange, ExchangeResult, Outcome
from ackwise.plugin import aiokafkahost
from ackwise.plugin.consumer import startup
from ackwise.plugin.delays import delayrelay
from ackwise.plugin.kafka import brokeroffsets
from ackwise.plugin.kafka.fetchbuffer import Taking
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings

T = TypeVar("T")
When = Literal["before", "after"]

#: Seconds; the broker of these tests takes sessions as short as this, so that a dead worker does not keep them waiting.
SESSION = 1.0

#: Seconds that a consumer waits for an answer.
REQUEST = 40.0


class Fault(NamedTuple):
    """The call number `call` at `site` breaks: before it has an effect, or after it with its answer lost."""

    site: str
    when: When
    call: int = 1
    signal: int | None = None  #: the process sends itself this one instead; after SIGSTOP the call goes on

    def __str__(self) -> str:
        return f"{self.site}-{self.when}"


@dataclass
class Hold:
    """A call that waits before it has an effect: `reached` says that it waits, setting `go` lets it go on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class Tap:
    """What one worker calls. Every call passes here under the names of its sites."""

    def __init__(self, ledger: Ledger, faults: list[Fault] | None = None) -> None:
        self.ledger = ledger
        self.faults = [] if faults is None else faults  #: those that have not struck yet
        self.calls: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self._holds: dict[tuple[str, int], Hold] = {}
        self._kept_open: list[Callable[[], Awaitable[Any]]] = []
        self._exchanging = 0
        self._happened = asyncio.Condition()

    def hold(self, site: str, call: int = 1) -> Hold:
        """The call number `call` at `site` waits."""
        return self._holds.setdefault((site, call), Hold())

    async def saw(self, moment: str) -> None:
        """Something happened that is not a call."""
        async with self._happened:
            self.moments[moment] += 1
            self._happened.notify_all()

    async def wait_for(self, what: str, times: int = 1) -> None:
        """Until a site was called, or a moment came, at least so often."""
        async with self._happened:
            await self._happened.wait_for(lambda: self.calls[what] + self.moments[what] >= times)

    async def close_what_stayed_open(self) -> None:
        """What a broken stop or close left to the end of the process, which the test outlives."""
        for close in self._kept_open:
            await close()

    async def through(self, sites: Collection[str], call: Callable[[], Awaitable[T]], fail: Callable[[], T]) -> T:
        """Make the call, or break it as a fault says; `fail` raises, or answers, what a broken call does."""
        async with self._happened:
            self.calls.update(sites)
            self._happened.notify_all()
        for site in sites:
            if (held := self._holds.pop((site, self.calls[site]), None)) is not None:
                held.reached.set()
                await held.go.wait()
        fault = next((fault for fault in self.faults if fault.site in sites and self.calls[fault.site] >= fault.call), None)
        if fault is None:
            return await call()
        if fault.signal == signal.SIGSTOP:
            async with self._happened:  # in the middle of an exchange it would keep SQLite's lock, and everybody would wait for it
                await self._happened.wait_for(lambda: not self._exchanging)
            if fault in self.faults:
                self._signal(fault)
            return await call()
        if fault.when == "before":
            if fault.site.endswith((".stop", ".close")):
                self._kept_open.append(call)
            return self._break(fault, fail)
        await call()
        return self._break(fault, fail) if fault in self.faults else fail()

    def through_at_once(self, site: str, call: Callable[[], None]) -> None:
        """Make a call that waits for nothing, unless a signal strikes before it or after it."""
        self.calls[site] += 1
        struck = [fault for fault in self.faults if fault.site == site and self.calls[site] >= fault.call]
        for when in ("before", "after"):
            for fault in struck:
                if fault.when == when:
                    self._signal(fault)
            if when == "before":
                call()

    async def exchanging(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make an exchange with the store itself."""
        self._exchanging += 1
        try:
            return await call()
        finally:
            async with self._happened:
                self._exchanging -= 1
                self._happened.notify_all()

    def _break(self, fault: Fault, fail: Callable[[], T]) -> T:
        self._signal(fault)
        return fail()

    def _signal(self, fault: Fault) -> None:
        self.faults.remove(fault)
        self.ledger.write("broke", site=fault.site, when=fault.when)
        if fault.signal is not None:
            os.kill(os.getpid(), fault.signal)


#: The worker whose clients are being made.
current: ContextVar[Tap] = ContextVar("current")


def install(patch: pytest.MonkeyPatch) -> None:
    """Let hosts and relays take the wrapped clients."""
    patch.setattr(aiokafkahost, "AIOKafkaConsumer", TappedConsumer)
    patch.setattr(delayrelay, "AIOKafkaConsumer", TappedConsumer)
    patch.setattr(startup, "KafkaPublisher", TappedPublisher)
    patch.setattr(delayrelay, "KafkaPublisher", TappedPublisher)
    fetch_committed = brokeroffsets._fetch_committed

    async def tapped(coordinator: Any, group: str, partitions: Any) -> Any:
        site = "relay.committed" if group.endswith(".relay") else "consumer.committed"
        return await current.get().through([site], lambda: fetch_committed(coordinator, group, partitions), _timed_out)

    patch.setattr(brokeroffsets, "_fetch_committed", tapped)
    offsets_of = brokeroffsets.offsets_of

    async def tapped_offsets(consumer: Any, time: int, partitions: Any, **options: Any) -> Any:
        def fail() -> dict[Any, Any]:
            return dict.fromkeys(partitions, RequestTimedOutError("the test broke this call"))

        if not isinstance(consumer, TappedConsumer):
            return await offsets_of(consumer, time, partitions, **options)
        return await consumer._tap.through([f"{consumer._role}.offsets"], lambda: offsets_of(consumer, time, partitions, **options), fail)

    patch.setattr(brokeroffsets, "offsets_of", tapped_offsets)
    take = Taking.take

    async def tapped_take(self: Taking, *partitions: Any, **options: Any) -> Any:
        if not isinstance(self.consumer, TappedConsumer):
            return await take(self, *partitions, **options)  # Faust's client, whose calls are broken elsewhere
        return await self.consumer._tap.through([f"{self.consumer._role}.take"], lambda: take(self, *partitions, **options), _timed_out)

    patch.setattr(Taking, "take", tapped_take)


def _timed_out() -> Any:
    raise RequestTimedOutError("the test broke this call")


class TappedConsumer(AIOKafkaConsumer):
    """aiokafka's consumer; each of its public coroutines is a site, `consumer.commit` or `relay.commit`."""

    def __init__(self, *topics: str, **options: Any) -> None:
        options.update(session_timeout_ms=round(SESSION * 1000), heartbeat_interval_ms=round(SESSION * 200), fetch_max_wait_ms=50)
        options.update(request_timeout_ms=round(REQUEST * 1000))
        super().__init__(*topics, **options)  # type: ignore[no-untyped-call]  # aiokafka is annotated in part
        self._tap = current.get()
        self._role = "relay" if options["group_id"].endswith(".relay") else "consumer"

    def subscribe(self, topics: Any = (), pattern: Any = None, listener: Any = None) -> None:
        subscribe: Callable[..., None] = super().subscribe
        subscribe(topics, pattern, listener=_TappedListener(listener, self._tap, self._role))

    async def commit(self, offsets: Any = None) -> None:
        """The intention is written down before the call: whoever kills it can't hide it."""
        commit: Callable[[Any], Awaitable[None]] = super().commit
        written = [[*partition, offset if isinstance(offset, int) else offset[0]] for partition, offset in offsets.items()]
        self._tap.ledger.write("commits", offsets=written)
        await self._tap.through([f"{self._role}.commit"], lambda: commit(offsets), _timed_out)


class _TappedListener(ConsumerRebalanceListener):
    """Says when partitions go and come, before the real listener does."""

    def __init__(self, listener: Any, tap: Tap, role: str) -> None:
        self._listener = listener
        self._tap = tap
        self._role = role

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Any
    ) -> None:
        if revoked:
            await self._tap.saw(f"{self._role} revoked")
        await self._listener.on_partitions_revoked(revoked)

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Any
    ) -> None:
        await self._tap.saw(f"{self._role} assigned")
        await self._listener.on_partitions_assigned(assigned)


def _tapped(name: str) -> Any:
    @functools.wraps(getattr(AIOKafkaConsumer, name))
    async def call(self: TappedConsumer, *arguments: Any, **options: Any) -> Any:
        real = getattr(super(TappedConsumer, self), name)
        return await self._tap.through([f"{self._role}.{name}"], lambda: real(*arguments, **options), _timed_out)

    return call


for _name, _ in inspect.getmembers(AIOKafkaConsumer, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name not in ("commit", "getmany"):
        setattr(TappedConsumer, _name, _tapped(_name))


class TappedPublisher(KafkaPublisher):
    """The real publisher. A lost answer is one that says "not acknowledged" although the copies are there."""

    def __init__(self, settings: HostSettings, **clocks: Any) -> None:
        super().__init__(settings, **clocks)
        self._tap = current.get()

    async def start(self) -> None:
        await self._tap.through(["publisher.start"], super().start, _timed_out)

    async def stop(self) -> None:
        await self._tap.through(["publisher.stop"], super().stop, _timed_out)

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        publish = super().publish
        if all(is_worker(copy.key) for copy in copies):  # what the worker says of itself is no message
            return await publish(copies)

        def unavailable() -> list[PublishUnavailable | PublishRefused | None]:
            return [PublishUnavailable("the test broke this call") for _ in copies]

        answers = await self._tap.through(sorted({_carries(copy) for copy in copies}), lambda: publish(copies), unavailable)
        for copy, answer in zip(copies, answers, strict=True):
            if answer is None:
                self._tap.ledger.write_copy(copy.topic, dict(copy.headers))
        return answers


def _carries(copy: Copy) -> str:
    kinds = {".dlq": "publish.dead-letter", ".retry": "publish.due-copy"}
    return next((kind for suffix, kind in kinds.items() if copy.topic.endswith(suffix)), "publish.retry-copy")


class TappedStore:
    """A claim store; an exchange is a site for each kind of thing that it carries."""

    def __init__(self, store: ClaimStore, tap: Tap) -> None:
        self._store = store
        self._tap = tap

    async def open(self) -> None:
        await self._tap.through(["store.open"], self._store.open, _store_down)

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        return await self._tap.through(_kinds(exchange), lambda: self._tap.exchanging(lambda: self._store.exchange(exchange)), _store_down)

    async def close(self) -> None:
        await self._tap.through(["store.close"], self._store.close, _store_down)


def _kinds(exchange: Exchange) -> list[str]:
    outcomes = {complete.outcome for complete in exchange.completes}
    carried = {
        "store.claim": exchange.claims,
        "store.complete-ok": outcomes & {Outcome.OK},
        "store.complete-dead": outcomes & {Outcome.DEAD},
        "store.release": exchange.releases,
        "store.renew": exchange.renews,
    }
    return [kind for kind, items in carried.items() if items]


def _store_down() -> Any:
    raise StoreUnavailable("the test broke this call")


class TappedSink:
    """An event sink."""

    def __init__(self, sink: EventSink, tap: Tap) -> None:
        self._sink = sink
        self._tap = tap

    def record(self, event: Event) -> None:
        self._sink.record(event)

    async def open(self) -> None:
        await self._tap.through(["sink.open"], self._sink.open, _log_down)

    def mark(self) -> None:
        if isinstance(self._sink, MarkSink):
            self._tap.through_at_once("sink.mark", self._sink.mark)

    async def flush(self) -> None:
        await self._tap.through(["sink.flush"], self._sink.flush, _log_down)

    async def close(self) -> None:
        await self._tap.through(["sink.close"], self._sink.close, _log_down)


def _log_down() -> Any:
    raise EventLogUnavailable("the test broke this call")
