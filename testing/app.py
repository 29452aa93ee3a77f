"""`TestApp`: an app with an in-memory Kafka, so that a test needs no broker; with a clock that only the test moves.

    deliver → in-memory Kafka → the app's own host, lanes, pipelines → the handler → fate

No step is left out: the claims, copies, dead letters and commits are those of a real worker.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from pydantic import TypeAdapter

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import Event
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.runs.agent import readers_of
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.app import App
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.handlers.observers import Observed
from ackwise.plugin.modes.broadcasting import model_of
from ackwise.plugin.topics.group import Group
from ackwise.stores.memory import MemoryStore
from ackwise.testing.assertions import Fate, Place, fate_of
from ackwise.testing.crashes import CRASH_POINTS, CrashPoint, Life, MortalInbox, MortalStore, mortal
from ackwise.testing.kafka.broker import MemoryKafka, When
from ackwise.testing.kafka.partition import Record


class VirtualClock:
    """Seconds since the epoch, which pass when `advance` is called. It is called for the time, as `time.time` is.

    It stands for the wall clock: what a message waits for, how old a record is. Time-outs of clients and sessions of a group stay
    those of the event loop.
    """

    def __init__(self, start: float | None = None) -> None:
        """It starts at `start`, or now."""
        self._now = time.time() if start is None else start

    def __call__(self) -> float:
        return self._now

    def advance(self, by: float | str) -> float:
        """Let `by` pass, seconds or a text such as `"10m"`; returns the time. Raises `ConfigurationError` for less than nothing."""
        self._now += parse_duration(by, what="advance")
        return self._now

    def advance_to(self, time: float) -> float:
        """Let it be `time`, epoch seconds, unless it is later already; returns the time."""
        self._now = max(self._now, time)
        return self._now


T = TypeVar("T")


def message(
    value: T,
    *,
    key: str | bytes | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    topic: str = "test",
    partition: int = 0,
    offset: int = 0,
    timestamp_ms: int = 0,
    attempt: int = 1,
) -> Message[T]:
    """A message with the decoded `value`, as a handler gets it: `await bill(message(Order(…)))`. Raises `ConfigurationError`."""
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise ConfigurationError(f"attempt is {attempt!r}; the first one is 1")
    origin = Origin(topic, partition, offset, timestamp_ms)
    raw: Any = value if isinstance(value, bytes) else None
    raw_key = key.encode() if isinstance(key, str) else key
    return Message(Delivery(*origin, raw_key, raw, tuple(headers), origin, attempt), value)


def batch(values: Iterable[T | Message[T]], *, topic: str = "test", partition: int = 0) -> Batch[T]:
    """A batch of these values, or messages: `await bill(orders := batch([Order(…), Order(…)]))`, and look at `orders.ack_index`.

    Values have the offsets 0, 1 and so on.
    """
    made = [
        value if isinstance(value, Message) else message(value, topic=topic, partition=partition, offset=offset)
        for offset, value in enumerate(values)
    ]
    return Batch(made)


#: Seconds that a fetch lasts which finds nothing: whatever else a client asks, as it stops, waits behind it.
_LONGEST_FETCH: Final = 0.05

#: What the clients of workers are called starts with this; a number follows.
_PREFIX: Final = "test-worker-"

#: The crash points at requests of a worker to Kafka.
_REQUESTS: Final[dict[tuple[str, When], CrashPoint]] = {
    ("Produce", "before"): "before the copy",
    ("Produce", "after"): "after the copy",
    ("OffsetCommit", "before"): "before the commit",
    ("OffsetCommit", "after"): "after the commit",
}

#: Seconds that the breaker withholds the dead letter of a first value: a test need not wait for those in production.
_FIRST_WAIT: Final = 0.1

#: How the worker of a test differs from one in production: it joins, notices and commits sooner.
_QUICK: Final[dict[str, Any]] = {
    "commit_interval": 0.1,
    "session_timeout": 6.0,
    "clock_skew": 0.0,
    "drain_timeout": 5.0,
    "pattern_interval": 0.2,
}


class TestApp:
    """A worker of `app` in this event loop: `async with TestApp(app) as worker:`, then `await worker.deliver("orders", order)`.

    The app itself stays as it is, and can be given to any number of these. Of what it uses, two things are replaced: the claims
    of `Dedup` are in memory, or in `store`, and events are kept in `events`, not written. A database of `Transactional` is the one
    that the app names. What the handlers send elsewhere goes there. `await app.publish(…)` in the test sends to the broker in memory.

    `crash_at` lets the worker die at one of `CRASH_POINTS`, as if its process were killed, and another one takes its place; what the
    first one does afterwards has no effect on Kafka and on the claims.

    `clock` is the wall clock of worker and broker. It is stalled, so that a message which comes back in an hour does so when
    `redeliver` or `clock.advance("1h")` says so.
    """

    max_wait: float | str = 30.0
    """How long a message may take until its fate is known, unless a call says otherwise. A busy machine may need more."""

    __test__ = False  # pytest takes whatever is called Test… for a class of tests

    def __init__(self, app: App, *, partitions: int = 1, store: ClaimStore | None = None, clock: VirtualClock | None = None) -> None:
        """`partitions`: of each topic that the app reads. `store` is opened with the worker, and closed when the block is left."""
        self.clock = clock or VirtualClock()
        self.kafka = MemoryKafka(clock=self.clock, longest_fetch=_LONGEST_FETCH)
        self.events: list[Event] = []
        self._app = app
        self._group: Group | None = None
        self._partitions = partitions
        self._store = store
        self._fates: defaultdict[Place, list[Fate]] = defaultdict(list)
        self._told = asyncio.Event()
        self._stop = asyncio.Event()
        self._deadly: dict[CrashPoint, int] = {}
        self._life = Life(_name_of(1), self._deadly)
        self._dead: list[asyncio.Task[BaseException | None]] = []  #: what is left of workers that died
        self._running: asyncio.Task[BaseException | None] | None = None
        self._outside = AsyncExitStack()  #: what the test publishes itself

    async def __aenter__(self) -> Self:
        """Start broker and worker. Raises what a start of the app would raise, such as `ConfigurationError`."""
        if self._group is not None:
            raise ConfigurationError("a TestApp is used once; make another one of the same app")
        group = self._group = self._app.group()
        group.slots.check(group.agents)
        if group.slots.dedup is not None and self._store is None:
            self._store = MemoryStore(clock=self.clock)
        await self.kafka.start()
        self.kafka.watch = self._watch
        try:
            for topic in group.sources:
                self.kafka.create_topic(topic, self._partitions)
            host = self._host(group)
        except BaseException:
            await self.kafka.stop()
            raise
        settings = dataclasses.replace(group.settings, brokers=self.kafka.bootstrap, client_options={}, clock_skew=0.0)
        await self._outside.enter_async_context(group.slots.outside.beside(settings, self.clock))
        self._running = asyncio.create_task(self._work(group, host), name="ackwise test worker")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Let the worker drain, and end the broker. Raises what the worker ended with, unless the test has failed already."""
        assert self._running is not None
        self._stop.set()
        try:
            await asyncio.wait({self._running})
            if self._dead:  # with those that died as they stopped
                await asyncio.wait(self._dead)
        finally:
            await self._outside.aclose()
            if self._store is not None:
                await self._store.close()
            await self.kafka.__aexit__(kind, error, traceback)
        if error is not None:
            return
        if (raised := self._running.result()) is not None:
            raise raised
        if self._deadly:
            raise AssertionError(f"no worker came to where it was to die: {', '.join(self._deadly)}")

    async def deliver(
        self,
        topic: str,
        value: object,
        *,
        key: str | bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int = 0,
        max_wait: float | str | None = None,
    ) -> Fate:
        """Write `value` to `topic`, and return what became of it in its first attempt.

        `bytes` and `None` are written as they are, a `str` as UTF-8, everything else as JSON, models of pydantic and dataclasses
        too. Raises `TimeoutError` if nothing is known of it after `max_wait` (or `self.max_wait`), and what the worker ended
        with, if it did.
        """
        (fate,) = await self.deliver_batch(topic, [value], key=key, headers=headers, partition=partition, max_wait=max_wait)
        return fate

    async def deliver_batch(
        self,
        topic: str,
        values: Sequence[object],
        *,
        key: str | bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int = 0,
        max_wait: float | str | None = None,
    ) -> list[Fate]:
        """As `deliver`, of `values` in one record batch: a handler of batches gets them together, as far as its `max_batch` allows."""
        group = self._started()
        if isinstance(values, str | bytes):
            raise ConfigurationError(f"deliver_batch takes a list of values, and this is one {type(values).__name__}; use deliver for one")
        if not readers_of(group.agents, topic):
            known = ", ".join([*group.sources, *group.patterns.values()])
            raise ConfigurationError(f"no agent of the app reads topic {topic!r}; they read {known}")
        if not values:
            return []
        if topic not in group.sources and not self.kafka.has_topic(topic):  # the worker finds it by its pattern
            self.kafka.create_topic(topic, self._partitions)
        written = [_bytes_of(value) for value in values]
        raw_key = key.encode() if isinstance(key, str) else key
        offsets = self.kafka.produce(topic, *written, key=raw_key, headers=[*headers], partition=partition)
        return [await self.fate(Place(topic, partition, offset), max_wait=max_wait) for offset in offsets]

    async def redeliver(self, fate: Fate, *, max_wait: float | str | None = None) -> Fate:
        """Let the time come at which a message that was to be consumed later comes back; returns what became of it then.

        Raises `ConfigurationError` for one that does not come back, otherwise as `deliver`.
        """
        if fate.kind != "later" or fate.due is None:
            raise ConfigurationError(f"{_named(fate.place)} is {fate.kind}; only what comes back later can be delivered again")
        self.clock.advance_to(fate.due + 0.001)
        return await self.fate(fate.place, attempt=fate.attempt + 1, max_wait=max_wait)

    def _started(self) -> Group:
        if self._group is None or self._running is None:
            raise ConfigurationError("the worker is not started; use `async with TestApp(app) as worker:`")
        return self._group

    def _why_not(self, place: Place) -> str:
        last = next(reversed(self._fates[place]), None)
        if last is not None and last.due is not None and last.due > self.clock():
            return f"it comes back in {last.due - self.clock():.0f} s of worker.clock, which redeliver moves"
        return "its handler has not returned, or its copy or dead letter is not acknowledged; the log says more"

    async def fate(self, place: Place, *, attempt: int = 1, max_wait: float | str | None = None) -> Fate:
        """Return the outcome of the message at `place` in that attempt, once it is known. Raise as `deliver`."""
        self._started()
        assert self._running is not None
        place = Place._make(place)
        within = parse_duration(self.max_wait if max_wait is None else max_wait, what="max_wait")
        until = asyncio.get_running_loop().time() + within
        while True:
            self._told.clear()
            for fate in self._fates[place]:
                if fate.attempt == attempt:
                    return fate
            if self._running.done():
                raise self._running.result() or ConfigurationError(f"the worker has stopped, and {_named(place)} has no fate")
            waiting = asyncio.ensure_future(self._told.wait())
            try:
                done, _ = await asyncio.wait(
                    {waiting, self._running},
                    timeout=until - asyncio.get_running_loop().time(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                waiting.cancel()
            if not done:
                raise TimeoutError(f"{_named(place)} has no fate in attempt {attempt} after {within:g} s: {self._why_not(place)}")

    def crash_at(self, point: CrashPoint, *, number: int = 1) -> None:
        """Let the worker die when it comes to `point` for the `number`th time from now on, and another one take its place.

        The leases of the dead one have run out by then: the clock is moved for that, by which a `store` of the test's own may not go.
        Several points may be asked for: each is the end of one worker. One that no worker has come to is an `AssertionError` when the
        block is left: such a test has shown nothing.
        """
        if point not in CRASH_POINTS:
            raise ConfigurationError(f"{point!r} is no crash point; they are {', '.join(CRASH_POINTS)}")
        if number < 1:
            raise ConfigurationError(f"number is {number!r}; the first time is 1")
        self._deadly[point] = number

    @property
    def crashes(self) -> int:
        """How many workers have died so far."""
        return len(self._dead)

    def fates(self, place: Place) -> list[Fate]:
        """Return the outcomes of the message at `place` so far, attempt by attempt."""
        return list(self._fates[place])

    @property
    def dead_letters(self) -> list[Record]:
        """The dead letters of the group."""
        return self.kafka.records(self._started().names.dead_letter)

    def _host(self, group: Group) -> AiokafkaHost:
        life, slots = self._life, group.slots
        inbox = slots.open_inbox()
        settings: dict[str, Any] = {"brokers": self.kafka.bootstrap, "client_id": life.name, "client_options": {}, **_QUICK}
        settings["group_instance_id"] = ""  # one life at a time, each a new member
        if group.settings.instance:  # else what a test writes before this instance has started would be passed over
            settings["start"] = "earliest"

        def take(event: Event) -> None:
            if not life.is_over.is_set():
                self._take(event)

        return AiokafkaHost(
            dataclasses.replace(group.settings, create_topics="auto", **settings),
            [mortal(agent, life) for agent in group.agents],
            Parts(
                slots.later,
                slots.dead_letter,
                dedup=group.dedup,
                store=None if self._store is None else MortalStore(self._store, life),
                inbox=None if inbox is None else cast(TransactionalStore, MortalInbox(inbox, life)),
                outbox=slots.open_outbox(),
                outbox_policy=slots.outbox,
                flow=slots.flow_control([agent.name for agent in group.agents], first_wait=_FIRST_WAIT),
                sink=Observed([*slots.observers, take], None),
                lifespans=slots.lifespans,
            ),
            model=model_of(group.settings, slots.broadcasting),
            clock=self.clock,
        )

    async def _work(self, group: Group, host: AiokafkaHost) -> BaseException | None:
        """One worker after the other, until one ends alive; returns what it raised."""
        while True:
            life = self._life
            running = asyncio.create_task(_ended(host.run(self._stop)), name=f"ackwise {life.name}")
            dying = asyncio.create_task(life.is_over.wait())
            await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not life.is_over.is_set():
                return running.result()
            running.cancel()
            self._dead.append(running)
            self.kafka.expire(life.name)
            await self.kafka.disconnect(life.name)
            if self._stop.is_set():
                return None
            if isinstance(group.dedup, Dedup):
                self.clock.advance(float(group.dedup.lease) + 0.001)
            self._life = Life(_name_of(len(self._dead) + 1), self._deadly)
            host = self._host(group)

    async def _watch(self, api: str, topics: frozenset[str], client_id: str, when: When) -> None:
        """Called around each request to Kafka. What a dead worker asks has no effect, and no answer reaches it."""
        life = self._life
        if client_id == life.name and self._started().names.control not in topics:  # there it says how it is
            life.passes(_REQUESTS.get((api, when)))
        is_dead = life.is_over.is_set() or not f"{client_id}-".startswith(f"{life.name}-")
        if client_id.startswith(_PREFIX) and is_dead:
            raise ConnectionResetError

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if (fate := fate_of(event)) is not None:
            self._fates[fate.place].append(fate)
            self._told.set()


def _name_of(number: int) -> str:
    return f"{_PREFIX}{number}"


async def _ended(running: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return the exception of `running`: a task that raises `SystemExit` itself would stop the event loop."""
    try:
        await running
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised where the test waits
        return error
    return None


def _named(place: Place) -> str:
    return f"{place.topic}/{place.partition}/{place.offset}"


def _bytes_of(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return TypeAdapter[Any](type(value)).dump_json(value)
