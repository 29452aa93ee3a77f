"""The delay relay: moves copies from the delay topic to their targets when they are due.

It runs in every worker or in its own processes, as its own consumer group. Whatever ends a membership, another one starts and continues
from the last commit. It records events for cancelled messages only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from ackwise.middleware.errors import AckwiseError, PublishUnavailable, Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.policies.delaytopic import CANCELLATIONS, ladder_of
from ackwise.middleware.policies.retry import MAX_DELAY
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.deletedtopics import OwnTopics
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.consumer.workerstate import DelayCounts
from ackwise.plugin.delays.cancellations import Cancellations, CancelPartition, refuse_without_delays
from ackwise.plugin.delays.delaymember import DelayMember
from ackwise.plugin.delays.delaypipeline import LONGEST_REST
from ackwise.plugin.delays.nexthop import Bounds
from ackwise.plugin.kafka.aiokafkainternals import cluster_id, keep_awake, partitions_of
from ackwise.plugin.kafka.clients import close_consumer, start
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.timeouts import answer, until
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.hostsettings import REBALANCE_TIMEOUT, HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicadmin import ensure_topics, ensure_topics_of, read_topics
from ackwise.plugin.topics.topicnames import TopicNames

log = Log()

#: Seconds until a membership that ended is started again, doubling up to the second; one that lasted for the third was a good one.
_BEGIN_ANEW: Final = (2.0, 10.0)
_LASTED: Final = 60.0

#: Seconds until cancellations are read again where nothing moves.
_READ_AGAIN: Final = 10.0

#: Seconds until what waits is looked at again by a clock that is not the machine's: a test moves it at any moment.
_SET_BY_HAND: Final = 0.02

#: Seconds for a client to connect, and for which a start may go on after a stop; for what hangs at a stop; for leaving the group.
_START_TIMEOUT, _START_GRACE, _END, _LEAVE = 60.0, 0.25, 14.0, 3.0

#: Milliseconds after which the client asks for the partitions again: what is written to one that was added waits until then.
_METADATA_AGE: Final = 10_000

#: Milliseconds that the broker keeps a fetch which finds nothing, while something is moved.
_FETCH_WAIT: Final = 50


class DelayRelay:
    """Moves what is due for as long as `run` goes. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        *,
        max_delay: float = MAX_DELAY,
        counts: DelayCounts | None = None,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.time,
        suspect: Callable[[], None] = lambda: None,
    ) -> None:
        """`suspect` is called where a topic of the group may be gone."""
        self._settings = settings
        self._names = names
        self._max_delay = max_delay
        self._counts = counts or DelayCounts()
        self._sink = sink
        self._clock = clock
        self._suspect = suspect
        self._publisher = KafkaPublisher(settings, wall=clock)
        self._publisher.suspect = suspect
        self._sender = Sender(settings, options=settings.producer_options, wall=clock)  # connects with the first message that is due
        self._cancellations: Cancellations = CancelPartition(settings, names.delay)
        self._throttle = LogThrottle()

    @classmethod
    def of(cls, member: Member) -> DelayRelay:
        """Return the relay beside `member`."""
        return cls(
            member.settings,
            member.names,
            max_delay=member.later.max_delay,
            counts=member.delay_counts,
            sink=member.sink,
            clock=member.clock,
            suspect=member.own_topics.suspect,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then commit and leave the group. Stopping takes bounded time, whatever hangs."""
        stopping = asyncio.create_task(stop.wait(), name="ackwise relay stop")
        preparing = asyncio.create_task(self._prepare(), name="ackwise relay prepares")
        rest = _BEGIN_ANEW[0]
        async with AsyncExitStack() as opened:  # whatever one of them raises as it is closed, the others are
            for close in (self._cancellations.close, self._publisher.stop, self._sender.stop):
                opened.push_async_callback(close)
            for task in (stopping, preparing):
                opened.push_async_callback(asyncio.wait, {task})
                opened.callback(task.cancel)
            while not stop.is_set():
                begun = time.monotonic()
                if (ended := await self._belong(stopping)) is None:
                    return
                rest = _BEGIN_ANEW[0] if time.monotonic() - begun > _LASTED else rest
                self._log_end(ended, rest)
                await asyncio.wait({stopping}, timeout=rest)
                rest = min(2 * rest, _BEGIN_ANEW[1])

    async def _prepare(self) -> None:
        """Read what is cancelled before something is due, which would be late by that.

        Again and again, since a relay that could not read it may have nothing to move any more, and would be halted forever.
        """
        while True:
            with suppress(AckwiseError, KafkaError):
                await self._cancellations.read()
                self._counts.is_halted = False
            await asyncio.sleep(_READ_AGAIN)

    async def _belong(self, stopping: asyncio.Task[Any]) -> BaseException | None:
        """One membership, from joining to leaving; returns what ended it, `None` if that was the stop.

        It has its own task: what aiokafka cancels by mistake ends that, and never passes for an end that was asked for.
        """
        member = self._member()
        relaying = asyncio.create_task(self._relay(member), name="ackwise relay")
        try:
            await asyncio.wait({relaying, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not relaying.done():
                member.stop.set()
                await asyncio.wait({relaying}, timeout=_END)
                return None
            return _end_of(relaying)
        finally:
            self._counts.standing = tuple
            relaying.cancel()
            await asyncio.wait({relaying}, timeout=_LEAVE)

    def _member(self) -> DelayMember:
        settings = self._settings
        return DelayMember(
            settings,
            self._names,
            self._publisher,
            self._sender,
            self._cancellations,
            bounds=Bounds(self._max_delay, settings.clock_skew),
            counts=self._counts,
            sink=self._sink,
            clock=self._clock,
            longest_rest=LONGEST_REST if self._clock is time.time else _SET_BY_HAND,
        )

    async def _relay(self, member: DelayMember) -> None:
        """Consume the delay topic as a host does its sources. Ends with an error, or once `member` is stopped."""
        await self._publisher.ensure_started()
        consumer = self._consumer()
        try:
            if await until(member.stop, answer(start(consumer), within=_START_TIMEOUT), grace=_START_GRACE) is None:
                return
            keep_awake(consumer)
            member.cluster = await answer(cluster_id(consumer), within=_START_TIMEOUT)
            await self._consume(member, consumer)
        finally:
            await close_consumer(consumer, within=_LEAVE)
        if member.fatal is not None:
            raise member.fatal

    async def _consume(self, member: DelayMember, consumer: AIOKafkaConsumer) -> None:
        delay = self._names.delay
        client = AiokafkaClient(consumer, self._names.relay_group, wait=_FETCH_WAIT)
        opening = Opening(member, client)
        opening.ignored = frozenset({TopicPartition(delay, CANCELLATIONS)})
        member.find_ladder = lambda: ladder_of(len(partitions_of(consumer, [delay])))
        async with member.working(client):
            member.missing_topics = partial(self._missing_topics, client)
            client.subscribe([delay], member, opening)
            await Polling(member, client, opening).run()

    def _missing_topics(self, client: AiokafkaClient) -> Sequence[str]:
        if missing := client.missing_topics():
            self._suspect()
        return missing

    def _consumer(self) -> AIOKafkaConsumer:
        options: dict[str, Any] = dict(self._settings.client_options)
        return AIOKafkaConsumer(
            bootstrap_servers=self._settings.brokers,
            group_id=self._names.relay_group,
            client_id=f"{self._settings.client_id}-relay",
            enable_auto_commit=False,
            auto_offset_reset="none",  # every start position is ours, so that no rung is fed from somewhere else
            isolation_level="read_committed",
            session_timeout_ms=round(self._settings.session_timeout * 1000),
            heartbeat_interval_ms=round(self._settings.heartbeat_interval * 1000),
            rebalance_timeout_ms=round(REBALANCE_TIMEOUT * 1000),
            fetch_max_wait_ms=_FETCH_WAIT,
            **{"metadata_max_age_ms": _METADATA_AGE, **options},
        )

    def _log_end(self, ended: BaseException, rest: float) -> None:
        group = self._names.relay_group
        if is_refusal(ended):
            if self._throttle.is_due():
                log.error("Kafka refused the delay relay", group=group, error=said(ended), retry_in=rest)
        elif isinstance(ended, KafkaError | OSError | PublishUnavailable):
            log.warning("delay relay lost the broker", group=group, error=said(ended), retry_in=rest)
        else:
            log.error(
                "delay relay failed unexpectedly",
                group=group,
                error=type(ended).__name__,  # the text of such an error may hold a payload
                at=where_raised(ended),
                retry_in=rest,
            )


def relays_here(settings: HostSettings) -> bool:
    """Return whether a worker of these settings runs the relay itself; it is logged if it does not."""
    if settings.relay == "apart":
        log.info("delay relay runs apart from this worker", group=settings.group, relay=settings.relay)
    return settings.relay == "inside"


def _end_of(relaying: asyncio.Task[None]) -> BaseException:
    if relaying.cancelled():
        return asyncio.CancelledError()
    return relaying.exception() or KafkaConnectionError("the membership has ended")


#: Seconds until brokers that are unavailable are asked again.
_START_AGAIN: Final = 2.0


async def relay_apart(group: Group, stop: asyncio.Event, counts: DelayCounts | None = None) -> None:
    """Relay for `group` until `stop` is set: make its topics as a worker does, and record cancellations where its events go.

    Raises `ConfigurationError` if it can't start, `Unavailable` if the brokers are unavailable for longer than `start_timeout`, and
    another `AckwiseError` if the events can't be opened.
    """
    refuse_without_delays(group)
    if not await _await_topics(group, stop):
        return
    sink = group.slots.open_sink(group.settings.group, group.sources)
    async with AsyncExitStack() as opened:
        if sink is not None:
            opened.push_async_callback(sink.close)
            await sink.open()
        await _relay(group, stop, sink, counts)
    log.info("stopped", group=group.settings.group)


async def relay_delays(group: Group, stop: asyncio.Event, sink: EventSink | None, counts: DelayCounts | None = None) -> None:
    """`relay_apart` with a `sink` that is open, and stays so, beside something else of the group that is relayed."""
    if await _await_topics(group, stop):
        await _relay(group, stop, sink, counts)


async def _relay(group: Group, stop: asyncio.Event, sink: EventSink | None, counts: DelayCounts | None) -> None:
    own_topics = OwnTopics(group.settings, group.names, lambda: _ensure_topics(group))
    relay = DelayRelay(
        group.settings,
        group.names,
        max_delay=group.slots.later.max_delay,
        counts=counts,
        sink=sink,
        suspect=own_topics.suspect,
    )
    keeping = asyncio.create_task(own_topics.keep(), name="ackwise own topics")
    try:
        await relay.run(stop)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def _await_topics(group: Group, stop: asyncio.Event) -> bool:
    """Return whether the topics of the group are there before `stop` is set."""
    log.info("starting the delay relay", group=group.settings.group, brokers=group.settings.brokers)
    limit, throttle, begun = group.settings.start_timeout, LogThrottle(), time.monotonic()
    while not stop.is_set():
        try:
            await _ensure_topics(group)
        except Unavailable as error:
            if limit and time.monotonic() + _START_AGAIN > begun + limit:
                raise
            if throttle.is_due():
                log.warning(
                    "delay relay waits for the brokers",
                    group=group.settings.group,
                    error=said(error),
                    retry_in=_START_AGAIN,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_AGAIN):
                    await stop.wait()
        else:
            return True
    return False


async def _ensure_topics(group: Group) -> None:
    if group.made:  # a worker makes those when it starts, and the others are as wide as the widest of all
        found = await read_topics(group.settings, group.sources)
        if set(group.expected(found)) != set(group.sources):
            raise Unavailable("topics that the workers make are not there yet; start a worker")
        await ensure_topics(group.settings, group.names, list(group.sources), levels=group.levels)
    elif not (await ensure_topics_of(group)).sources:
        raise Unavailable(f"no topic matches {' or '.join(group.patterns.values())} yet")
