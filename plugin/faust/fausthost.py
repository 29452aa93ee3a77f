"""The host on Faust: one member of the app's group, fed by Faust's consumer, whose handlers are the app's agents.

Faust joins the group, recovers tables and fetches. What an agent reads goes from the fetch into lanes, through the
spine, to the agent's stream, and back; the offsets that are committed are those of the lanes' watermarks.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import sys
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, MutableSet, Sequence, Set
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP
from faust.types.enums import ProcessingGuarantee

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.message import Delivery, Message
from ackwise.middleware.message.message import TopicPartition as Place
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import Streaming
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.runs.run import Run
from ackwise.plugin.consumer.assignment import Opening, Role
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.deletedtopics import TopicWatch
from ackwise.plugin.consumer.fetching import Fetched, give
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.delays.delayrelay import DelayRelay, relays_here
from ackwise.plugin.faust.faustagents import Agent, Declared, Intake, declared, discover, is_fed
from ackwise.plugin.faust.faustconsumer import ReliableConductor, ReliableConsumer, ReliableProducer
from ackwise.plugin.faust.faustinternals import (
    Transport,
    keywords_of,
    let_recovery_wait,
    put,
    require_known,
    throw_into,
    wrap_creation,
    wrap_transport,
)
from ackwise.plugin.faust.faustmessages import decoder, says_types
from ackwise.plugin.faust.faustsettings import origins, resolve
from ackwise.plugin.faust.fauststream import Stream
from ackwise.plugin.faust.faustweb import add_view
from ackwise.plugin.faust.startstop import bound, create, insist
from ackwise.plugin.kafka.aiokafkainternals import partition_counts
from ackwise.plugin.kafka.brokeroffsets import EARLIEST, LATEST, Asked, ask, known_offsets, topics_of
from ackwise.plugin.operate.explanation import Explanation, explain
from ackwise.plugin.operate.state import State, look, look_at_outbox
from ackwise.plugin.outbox.outboxrelay import relay_outbox
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.process.watchdog import collect_rarely
from ackwise.plugin.settings.config import Config
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group, group_of

if TYPE_CHECKING:
    import faust

    from ackwise.plugin.faust.prometheus import Numbers


log = Log()


class FaustHost:
    """What `app.ackwise` is once Ackwise is used on `app`."""

    def __init__(self, app: faust.App, config: Config) -> None:
        self.app = app
        self.config = config
        self.slots = Slots(config)
        self.intakes: dict[str, Intake] = {}
        self.channels: MutableSet[Any] = weakref.WeakSet()  #: those that Ackwise feeds
        self._declared = Declared([], (), ())
        self._member: Member | None = None
        self._opening: Opening | None = None
        self._consumer: ReliableConsumer | None = None
        self._opened: AsyncExitStack | None = None
        self._is_relaying = False
        self._unsent: BaseException | None = None

    def install(self) -> None:
        """Make the app use our agents, streams and consumer. Raises `ConfigurationError` where that is too late or can't work."""
        require_known()
        app: Any = self.app
        if app.agents:
            raise ConfigurationError(
                f"app.use() comes after agent {next(iter(app.agents))!r} was declared, and Faust has made it already; "
                "call app.use() right after the app is made"
            )
        for name, ours in (("Agent", Agent), ("Stream", Stream)):
            if keywords_of(app).get(name) is not None:
                raise ConfigurationError(f"the app sets {name}, and Ackwise brings its own; leave out {name}=")
            put(app, name, ours)
        add_view(self.app)
        bound(self.app, lambda: 0.0 if self._member is None else self._member.settings.drain_timeout)
        wrap_transport(app, lambda transport: _equipped(transport, self))

    def check(self) -> None:
        """Refuse what would break a promise, now that the app is configured. Raises `ConfigurationError`."""
        conf: Any = self.app.conf
        if conf.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE:
            raise ConfigurationError(
                'processing_guarantee="exactly_once" commits offsets in transactions of its producer, past Ackwise; leave it out, and use '
                "Dedup for doing once what an agent does"
            )
        if conf.stream_publish_on_commit:
            raise ConfigurationError(
                "stream_publish_on_commit sends what an agent sent when the offset is committed, after it counts as done; leave it out"
            )
        if conf.producer_threaded:
            raise ConfigurationError(
                "producer_threaded sends changes of tables from a thread that does not say when the broker has them, after their message "
                "counts as done; leave it out"
            )
        if conf.Agent is not Agent or conf.Stream is not Stream:
            raise ConfigurationError("the configuration object sets Agent or Stream, and Ackwise brings its own; leave them out")
        kinds = {function.kind for agent in self.app.agents.values() if (function := getattr(agent, "handler", None)) is not None}
        why = "no handler function of this app does, so it would never run; the agents of Faust are loops: write it into those"
        self.slots.check_middleware(kinds, why)
        if not kinds:
            self.slots.refuse_tracing("this app has agents of Faust alone, which are loops; start a span in the loop")
        if self.slots.broadcasting is not None:
            raise ConfigurationError(
                "Broadcasting gives every instance its own group, and Faust's group, tables and web page go by the id of the app; use "
                "the App of Ackwise, or give the Faust app of each instance its own id and leave Broadcasting out"
            )
        self.slots.refuse_share("Faust's worker")
        self.slots.refuse_watch("Faust's worker", "its web server shows the same: call setup_prometheus_sensors(app), and see /ackwise/")
        if self.slots.transactional is not None:
            raise ConfigurationError(
                "Transactional gives handlers a connection, and an agent of Faust gets its messages without one; "
                "use Dedup here, or the App of Ackwise for this group"
            )

    def settings(self) -> HostSettings:
        """How the members beside Faust's own talk to Kafka: as the app is configured. Raises `ConfigurationError`."""
        return resolve(self.app, self.config)

    def declared(self) -> Declared:
        """The agents of the app, and what they read. Raises `ConfigurationError`."""
        found = declared(self.app, self.config, dead_letter=self.slots.dead_letter.topic, topic_names=self.settings().topic_names)
        self.slots.refuse_unknown_agents([*self.app.agents])
        return found._replace(agents=[self.slots.governed(agent) for agent in found.agents])

    def group(self) -> Group:
        """What the app needs of Kafka and of this machine. Raises `ConfigurationError`."""
        found = self._seen()
        agents = [replace(agent, message=self._decoder(agent, found)) for agent in found.agents]
        return group_of(self.settings(), self.slots, agents, made=found.internal)

    def _decoder(self, agent: Handler, found: Declared) -> Callable[[Delivery], Message[Any]]:
        channel: Any = self.app.agents[agent.name].channel
        function = found.function(agent.name)
        return decoder(self.app, channel, None if function is None or says_types(channel) else function.decode)

    def explain(self) -> Explanation:
        """What the app does with its messages, and where each setting comes from; nothing is connected to or started.

        Raises `ConfigurationError` for what only shows when all is known, as the start does.
        """
        found = self._seen()
        explained = found.annotated(explain(self.settings(), self.slots, found.agents, self.config, origins=origins(self.app)))
        return replace(explained, refusals=(*self._refusals(), *explained.refusals))

    def _seen(self) -> Declared:
        """What is declared, also where nothing was started that would have imported it."""
        if self._member is not None:
            return self._declared
        discover(self.app)
        found = self.declared()
        if not found.agents:
            raise ConfigurationError(f"app {self.app.conf.id!r} has no agent that reads a topic by its name: Ackwise has nothing to do")
        return found

    def _refusals(self) -> list[str]:
        try:
            self.check()
        except ConfigurationError as error:
            return [str(error)]
        return []

    def attach(self, stream: Stream, agent: faust.Agent, *, derived: bool = False) -> None:
        """Feed `stream`, if it reads a topic; others are Faust's alone."""
        channel: Any = stream.channel
        if not is_fed(channel) or self._member is None:
            return
        name = f"{agent.name}/{channel.get_topic_name()}" if derived else agent.name
        intake = self.intakes.get(name)
        if intake is None:
            derive = functools.partial(self.attach, derived=True)
            prefetch, expiry = self._declared.max_batch(agent.name), self._declared.expiry(agent.name)
            function = None if derived else self._declared.function(name)
            intake = self.intakes[name] = Intake(
                self.app, name, agent, channel, prefetch=prefetch, derive=derive, function=function, expiry=expiry
            )
            handler = self.slots.governed(intake.handler, of=agent.name)
            intake.pipeline = self._member.pipelines[name] = Pipeline(
                handler, self._member.worker, functools.partial(Streaming, hand_over=intake.hand_over, flush=self.flush)
            )
            if late := [partition for partition in self._member.lanes if partition.topic in (*intake.topics, self._member.names.retry)]:
                self._opened_opening().begin_again(late)  # others read it already, and would commit past what this one has not seen
        inlet = getattr(channel, "ackwise_inlet", None)
        if inlet is None:
            inlet = channel.ackwise_inlet = intake.inlet(stream.active_partitions)
            throw_into(channel, inlet.throw)
            self.channels.add(channel)
        stream.attach(intake, inlet)

    async def open(self, consumer: ReliableConsumer) -> None:
        """Open what was used, and start what goes on beside the agents. Raises `AckwiseError`."""
        if self.app.in_worker:
            collect_rarely()
        with _printed_last():
            await self._open(consumer)

    async def insist(self, start: Callable[[], Awaitable[object]], undo: Callable[[], Awaitable[object]]) -> None:
        """Start what needs the brokers; after `undo` again while they are unavailable. Raise `Unavailable` after `start_timeout`."""
        with _printed_last():
            await insist(start, undo, group=self.app.conf.id, limit=self.settings().start_timeout)

    async def _open(self, consumer: ReliableConsumer) -> None:
        self.check()
        settings, self._declared = self.settings(), self.declared()
        self.slots.check_own(self._declared.agents)
        self._consumer = consumer
        let_recovery_wait(self.app)
        self.slots.log_overrides(settings.group)
        parts, numbers = Parts.of(self.slots, settings.group, self._declared.agents), self._numbers()
        if numbers is not None:
            parts = replace(parts, store=numbers.timed(parts.store), sink=numbers.counted(parts.sink))
        self._member = member = Member(settings, [], parts)
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(member.opened(with_topics=False, others=[agent.name for agent in self._declared.agents]))
            client = _Client(settings.group, consumer)
            await opened.enter_async_context(member.working(client))
            if numbers is not None:
                opened.enter_context(numbers.shown(member))
                member.keep(numbers.keep_looking, "watch")
            self._opening = Opening(member, client, self._lanes_of)
            member.keep(self._opening.keep, "assignment")
            member.keep(TopicWatch(lambda: member.lanes, client.topics_of, self._opening.begin_again).keep, "topic ids")
            member.spawn(self._watch(member), "watch")
            self._opened = opened.pop_all()

    def _numbers(self) -> Numbers | None:
        """Return the counters for the app's Prometheus page, if it has one."""
        if "faust.sensors.prometheus" not in sys.modules:
            return None
        from ackwise.plugin.faust.prometheus import numbers_of  # needs what only those have installed who have the page

        return numbers_of(self.app)

    async def close(self) -> None:
        """Close what was opened."""
        opened, self._opened, self._is_relaying = self._opened, None, False
        if opened is not None:
            with suppress(AckwiseError, KafkaError):  # it was reported when it happened, and has stopped the app
                await opened.aclose()

    async def _watch(self, member: Member) -> None:
        """An error in our own machinery ends the worker: what it did for the others would silently be missing."""
        await member.stop.wait()
        if member.fatal is not None:
            await self.app.crash(member.fatal)

    async def subscribed(self, topics: Iterable[str]) -> list[str]:
        """Return the further topics to subscribe to, once the group's topics exist. Raise `AckwiseError`."""
        with _printed_last():
            return await self._subscribed(topics)

    async def _subscribed(self, topics: Iterable[str]) -> list[str]:
        member = self._opened_member()
        sources = sorted({topic for intake in self.intakes.values() for topic in intake.topics} & set(topics))
        if not sources:
            return []
        made = {topic for intake in self.intakes.values() for topic in intake.made} & set(sources)
        await member.opening.insist(lambda: member.opening.ensure_topics(sources, made=made))
        if self.app.tables.changelog_topics:
            self._require_copartitioned(await cast(ReliableConsumer, self._consumer).call(partition_counts, sources))
        if not self._is_relaying:
            await member.opening.insist(lambda: member.opening.refuse_other_names(sources))
            await member.opening.tell_strays()
            self._begin_relay(member)
        return [member.names.retry]

    def _begin_relay(self, member: Member) -> None:
        """From now on, since its topics are there."""
        self._is_relaying = True
        stop = asyncio.Event()
        relaying = {outbox} if (outbox := relay_outbox(member, stop)) is not None else set()
        if relays_here(member.settings):
            relaying.add(member.spawn(DelayRelay.of(member).run(stop), "relay"))
        if self._opened is not None and relaying:
            self._opened.push_async_callback(_end_relays, stop, relaying, member.settings.drain_timeout)

    def _require_copartitioned(self, counts: Mapping[str, int]) -> None:
        """A copy comes back on the partition number of its origin. Only where all topics have the same is that where the table is."""
        widest, narrowest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[widest] != counts[narrowest]:
            raise ConfigurationError(
                f"the app has tables, and its agents read {widest!r} with {counts[widest]} partitions and {narrowest!r} with "
                f"{counts[narrowest]}: a message that comes back later could come to a worker without its part of the table; give them the "
                "same number of partitions, or put the agents with tables into their own app"
            )

    def _opened_member(self) -> Member:
        if self._member is None:
            raise AckwiseError("the app was not started, and what it used is not open")
        return self._member

    async def look(self) -> State:
        """The state of this worker. Raises `AckwiseError` before it is open."""
        member = self._opened_member()
        ends, outbox = await asyncio.gather(member.ends(), look_at_outbox(member))
        return look(member, ends, chain=self._explained.chain, settings=self._explained.settings, outbox=outbox)

    @functools.cached_property
    def _explained(self) -> Explanation:
        return self.explain()

    async def assigned(self, assigned: Iterable[TP]) -> None:
        """These partitions are ours now: those that agents read get lanes, at their committed offsets, as soon as those are known."""
        retry = self._opened_member().names.retry
        wanted = [TopicPartition(*tp) for tp in sorted(assigned) if self._readers(tp, "retry" if tp.topic == retry else "source")]
        self._opened_opening().note(partition for partition in wanted if partition not in self.lanes)

    def _lanes_of(self, partition: TopicPartition, role: Role, position: Position) -> list[Lane]:
        lanes = [self._lane(intake, partition, role, position.next) for intake in self._readers(TP(*partition), role)]
        if role == "retry":
            lanes.append(self._opened_member().lane(*partition, "retry", position.next, make=self._undeliverable))
        return lanes

    def _readers(self, tp: TP, role: str) -> list[Intake]:
        return [intake for intake in self.intakes.values() if role == "retry" or tp.topic in intake.topics]

    def _lane(self, intake: Intake, partition: TopicPartition, role: Any, position: int) -> Lane:
        member, pipeline = self._opened_member(), intake.pipeline
        assert pipeline is not None

        def from_source(place: Place, records: Sequence[Any]) -> list[Run]:
            return [Run(place, records, pipeline)]

        def from_retry(place: Place, records: Sequence[Any]) -> list[Run]:
            return [run for run in member.routes.from_retry(place, records) if run.pipeline is pipeline]

        make = from_source if role == "source" else from_retry
        lane = member.lane(*partition, role, position, make=make, overlapping=True, agent=intake.name)
        intake.widen(lane)
        return lane

    def _undeliverable(self, place: Place, records: Sequence[Any]) -> list[Run]:
        """Copies that none of the agents takes. One for a stream that its agent has not derived yet waits for that."""
        member = self._opened_member()
        runs = [run for run in member.routes.from_retry(place, records) if run.pipeline not in member.pipelines.values()]
        for run in runs:
            agent, _, topic = (run.delivery.handler or "").partition("/")
            if run.pipeline is not None and topic and agent in self.app.agents:
                run.forget_claim()
                run.why = f"agent {agent!r} has not derived a stream over {topic!r} yet"
                run.pipeline = None
        return runs

    async def revoked(self, revoked: Iterable[TP]) -> None:
        """Settle what runs for at most `revoke_timeout`, commit, and let go."""
        if self._opening is not None:
            await self._opening.give_up(TopicPartition(*tp) for tp in revoked)

    async def drain(self) -> None:
        """Settle what runs for at most `drain_timeout`, commit, and take nothing more."""
        if self._opening is not None:
            await self._opening.give_up(self.lanes, stopping=True)

    def _opened_opening(self) -> Opening:
        self._opened_member()
        assert self._opening is not None
        return self._opening

    @property
    def lanes(self) -> Mapping[TopicPartition, tuple[Lane, ...]]:
        """Those of the partitions that agents read."""
        return {} if self._member is None else self._member.lanes

    def reads(self, tp: TP) -> bool:
        """Return whether an agent reads this partition through Ackwise."""
        return TopicPartition(*tp) in self.lanes

    def awaits(self, partition: TopicPartition) -> bool:
        """Return whether it will be read, once it is known where that goes on, or its lanes are drained."""
        is_halted = self._opening is not None and self._opening.is_halted(partition)
        return is_halted or any(lane.is_stopping for lane in self.lanes.get(partition, ()))

    def is_full(self, tp: TP) -> bool:
        """Return whether nothing more should be fetched of it now, for want of room or of a lane."""
        partition = TopicPartition(*tp)
        if self.awaits(partition):
            return True
        full = [lane.is_full() for lane in self.lanes.get(partition, ())]  # each of them, since each remembers since when
        return any(full)

    async def has_room(self, seconds: float) -> None:
        """Wait until a lane has come to the end of a batch, for at most `seconds`."""
        moved = self._opened_member().has_moved
        moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await moved.wait()

    def take(self, fetched: Fetched) -> dict[Any, Any]:
        """Give what agents read to their lanes; returns the rest, which is Faust's.

        What was fetched from elsewhere than where its partition stands is forgotten; it is fetched again from there.
        """
        conductor, opening = cast(ReliableConductor, self.app.topics), self._opened_opening()
        give(self._opened_member(), fetched, opening.is_halted)
        opening.lost(fetched.lost)
        return {partition: records for partition, records in fetched.items() if conductor.others(partition)}

    async def commit(self) -> None:
        """Commit what is settled."""
        if self._member is not None:
            await self._member.commit()

    def watch(self, sent: asyncio.Future[Any]) -> None:
        """`sent` belongs to no message, such as a table's change. If it fails, nothing that follows may count as done."""
        sent.add_done_callback(self._see)

    def _see(self, sent: asyncio.Future[Any]) -> None:
        if not sent.cancelled() and (error := sent.exception()) is not None:
            self._unsent = self._unsent or error

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged. Raises `AckwiseError` if some of it can't be."""
        await cast(ReliableProducer, self.app.producer).deliver()
        if self._unsent is not None:
            raise AckwiseError(
                f"something that the app sent beside its messages, such as a change of a table, was not accepted ({said(self._unsent)}); "
                "the worker stops, and nothing that may depend on it is committed"
            ) from self._unsent


class _Client:
    """Faust's consumer, in the loop of the app, as `Joined`: its client lives in its own thread.

    Nothing is fetched but what has lanes, and each from where they are. So nothing is to be sought or paused here.
    """

    def __init__(self, group: str, consumer: ReliableConsumer) -> None:
        self._group = group
        self._consumer = consumer

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        await self._consumer.commit_settled(offsets)
        return None

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return cast(Mapping[TopicPartition, int], await self._consumer.call(known_offsets, EARLIEST, partitions))

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return cast(Mapping[TopicPartition, int], await self._consumer.call(known_offsets, LATEST, partitions))

    async def ask(self, partitions: Collection[TopicPartition], /) -> Asked:
        return cast(Asked, await self._consumer.call(ask, self._group, partitions))

    async def topics_of(self, partitions: Collection[TopicPartition], /) -> Any:
        return await self._consumer.call(topics_of, partitions)

    def missing_topics(self) -> Sequence[str]:
        return ()

    def is_gone(self, topic: str, /) -> bool:
        return False

    def assignment(self) -> Set[TopicPartition]:
        return cast(Set[TopicPartition], self._consumer.assignment())  # Faust's kind of tuples, which are equal

    def seek(self, partition: TopicPartition, offset: int, /) -> None: ...

    def pause(self, partition: TopicPartition, /) -> None: ...

    def resume(self, partition: TopicPartition, /) -> None: ...

    def paused(self) -> Set[TopicPartition]:
        return set()


@contextmanager
def _printed_last() -> Iterator[None]:
    """Log a user's mistake once more at the very end: Faust shows it before all that it stops."""
    try:
        yield
    except AckwiseError as error:
        atexit.register(print, f"\nackwise: {error}", file=sys.__stderr__)  # Faust has put its log in the place of stderr
        raise error.with_traceback(None) from None


async def _end_relays(stop: asyncio.Event, relaying: set[asyncio.Task[None]], timeout: float) -> None:
    stop.set()
    await asyncio.wait(relaying, timeout=timeout)


def _equipped(transport: Any, host: FaustHost) -> Any:
    """`transport` with our consumer, conductor and producer. Raises `ConfigurationError` for another driver."""
    if not isinstance(transport, Transport):
        raise ConfigurationError(f"the app's broker is reached through {type(transport).__module__}; Ackwise needs aiokafka:// or kafka://")
    made: Any = transport
    made.Consumer, made.Conductor, made.Producer = ReliableConsumer, ReliableConductor, ReliableProducer

    def insisting(really: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[None]]:
        async def creating(*args: Any, **options: Any) -> None:
            await host.insist(lambda: create(really, *args, **options), _nothing)

        return creating

    wrap_creation(transport, insisting)
    return transport


async def _nothing() -> None:
    """There is nothing to undo."""
