"""The host on aiokafka: fetches, feeds the lanes, commits what their watermarks say, and gives partitions back in order.

It commits nothing that a watermark did not pass, and always names the offsets. aiokafka's own `commit()` and
deserializers are never used: the first commits what was merely fetched, the second block a partition for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal, cast

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.commit import OffsetFetchRequest

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Dead, Failure, Reason
from ackwise.middleware.entry import Entry
from ackwise.middleware.errors import AckwiseError, ConfigurationError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.offsets import OffsetsPipeline
from ackwise.middleware.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.policies import DeadLetter, Dedup, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore
from ackwise.middleware.transaction import OffsetsStore, Progress, TransactionalStore
from ackwise.middleware.transactional import TransactionalPipeline
from ackwise.middleware.whereabouts import where_raised
from ackwise.middleware.wire import ForeignCopy, NewerWire, parse_copy
from ackwise.middleware.worker import Worker
from ackwise.plugin.delay import DelayRelay
from ackwise.plugin.lane import Lane, LaneEntry
from ackwise.plugin.publisher import KafkaPublisher
from ackwise.plugin.settings import REBALANCE_TIMEOUT, HostSettings
from ackwise.plugin.topics import TopicNames, ensure_topics

__all__ = ["Host"]

log = Log()

#: Seconds after a handler was cancelled until its partition is given up; it may not come back at all.
_GRACE = 5.0

#: Seconds that the broker has to answer a commit or a look; a stop or a rebalance must not wait for a broker that is away.
_BROKER_TIMEOUT = 10.0

#: Milliseconds that the broker keeps a fetch which finds nothing. aiokafka has one fetch to a broker on its way at a time: while
#: the sources are being worked on it asks for the retry topics alone, and the sources wait for that answer.
_FETCH_WAIT = 50

#: Records that one poll takes at most.
_FETCHED = 500

#: Seconds until it is polled again after an error.
_POLL_AGAIN = 1.0

#: Seconds that a full lane is only passed over; then its partition is paused. aiokafka throws away what it has fetched of a
#: paused partition and fetches a megabyte anew, so pausing is for handlers that take long.
_PASSED_OVER = 1.0

#: Seconds until other partitions are looked at again while one is full.
_LOOK_AGAIN = 0.02

#: Looks at the end of a log, half a second apart, until it is believed to end before what the database has passed.
_LOOKS_AT_END = 10

#: Seconds between two looks at the ends of the logs, which reconciliation needs to tell a backlog from a loss.
_BROKER_OFFSETS_EVERY = 30.0


class Host:
    """One member of a consumer group, with the relay of its delay topics."""

    def __init__(
        self,
        settings: HostSettings,
        agents: Sequence[Agent],
        *,
        later: ConsumeLater,
        dead_letter: DeadLetter,
        dedup: Dedup | Transactional | None = None,
        store: ClaimStore | None = None,
        inbox: TransactionalStore | None = None,
        sink: EventSink | None = None,
        consumer: AIOKafkaConsumer | None = None,
    ) -> None:
        """`store` is that of `Dedup`, `inbox` that of `Transactional`.

        `consumer`: one of the user's, started and without a subscription; the host takes it, and never stops it.
        """
        self._settings = settings
        self._users_own = consumer
        self._agents = {agent.name: agent for agent in agents}
        self._by_topic = {topic: agent for agent in agents for topic in agent.topics}
        self._later = later
        self._names = TopicNames(settings.group, later.levels, dead_letter=dead_letter.topic)
        self._dedup = dedup
        self._store = store
        self._inbox = inbox
        self._offsets: OffsetsStore | None = None
        if isinstance(dedup, Transactional) and dedup.mode == "offsets":
            self._offsets = cast(OffsetsStore, inbox)
            self._owner = f"{dedup.namespace}/{dedup.epoch}/{settings.group}"
        self._sink = sink
        self._lanes: dict[TopicPartition, Lane] = {}
        self._detached: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        self._stop = asyncio.Event()
        self._has_moved = asyncio.Event()  #: a lane has come to the end of a batch, and may have room again
        self._commits = asyncio.Lock()
        self._revokes = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set, then drain for at most `drain_timeout` seconds, commit and leave the group.

        Raises `ConfigurationError` or another `AckwiseError` if it can't start or Kafka refuses it, what a handler stopped
        the app with, and any error in Ackwise's own machinery; nothing that is not settled is committed then.
        """
        try:
            await self._run(stop)
        except KafkaError as error:
            raise AckwiseError(
                f"Kafka refuses this worker of group {self._settings.group!r} ({said(error)}); "
                "ackwise doctor MODULE:APP says what it may do"
            ) from error

    async def _run(self, stop: asyncio.Event) -> None:
        log.info("starting", group=self._settings.group, brokers=self._settings.brokers, agents=", ".join(sorted(self._agents)))
        publisher = KafkaPublisher(self._settings)
        async with AsyncExitStack() as opened:  # one that can't be closed must not keep the others open
            await ensure_topics(self._settings, self._names, sorted(self._by_topic), levels=self._later.levels)
            for part in (self._sink, self._store, self._inbox):
                if part is not None:
                    opened.push_async_callback(part.close)
                    await part.open()
            opened.push_async_callback(publisher.stop)
            await publisher.start()
            await self._consume(stop, publisher)
        log.info("stopped", group=self._settings.group)
        if self._fatal is not None:
            raise self._fatal

    async def _consume(self, stop: asyncio.Event, publisher: KafkaPublisher) -> None:
        self._build_pipelines(publisher)
        self._consumer = self._users_own or AIOKafkaConsumer(**self._consumer_options())
        relay = DelayRelay(self._settings, self._names, self._later.levels, publisher, sink=self._sink)
        relay_stop = asyncio.Event()
        services = {
            self._spawn(self._stop_when(stop), "stop"),
            self._spawn(self._commit_regularly(), "commit"),
            self._spawn(self._watch_broker(), "broker offsets"),
        }
        if self._leases is not None:
            services.add(self._spawn(self._leases.keep(), "leases"))
        relaying = self._spawn(relay.run(relay_stop), "relay")
        try:
            self._consumer.subscribe([*self._by_topic, self._names.retry], listener=_Listener(self))
            if self._users_own is None:
                await self._consumer.start()
            await self._poll()
            await self._revoke(set(self._lanes), self._settings.drain_timeout, stopping=True)
        finally:
            relay_stop.set()
            await asyncio.wait({relaying}, timeout=self._settings.drain_timeout)
            working = [lane.task for lane in self._abandon_lanes() if lane.task is not None]
            for task in (*services, relaying, *self._detached, *working):
                task.cancel()
            await asyncio.gather(*services, relaying, *self._detached, *working, return_exceptions=True)
            if self._users_own is None:
                await self._consumer.stop()
            else:
                self._users_own.unsubscribe()

    def _abandon_lanes(self) -> list[Lane]:
        """After an error of ours there was no drain: what is left publishes and commits nothing."""
        lanes = list(self._lanes.values())
        self._lanes.clear()
        for lane in lanes:
            lane.cut()
        return lanes

    def _build_pipelines(self, publisher: KafkaPublisher) -> None:
        dedup, store = self._dedup, self._store
        self._leases = None
        if isinstance(dedup, Dedup) and store is not None:
            self._leases = Leases(store, lease=float(dedup.lease), retention=float(dedup.retention))
        self._worker = Worker(
            group=self._settings.group,
            later=self._later,
            publisher=publisher,
            retry_topic=self._names.retry,
            dead_letter_topic=self._names.dead_letter,
            delay_topics=self._names.delays,
            dedup=dedup,
            leases=self._leases,
            sink=self._sink,
            clock_skew=self._settings.clock_skew,
        )
        self._pipelines = {name: self._pipeline(agent) for name, agent in self._agents.items()}
        self._by_source = {topic: self._pipelines[agent.name] for topic, agent in self._by_topic.items()}

    def _pipeline(self, agent: Agent) -> Pipeline:
        if self._inbox is None:
            return Pipeline(agent, self._worker)
        if self._offsets is None:
            return TransactionalPipeline(agent, self._worker, self._inbox)
        return OffsetsPipeline(agent, self._worker, self._offsets, self._owner)

    def _consumer_options(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "bootstrap_servers": settings.brokers,
            "group_id": settings.group,
            "client_id": settings.client_id,
            "enable_auto_commit": False,
            "fetch_max_wait_ms": _FETCH_WAIT,
            "auto_offset_reset": "none",  # every start position is ours, so that none is skipped silently
            "isolation_level": "read_committed",
            "session_timeout_ms": round(settings.session_timeout * 1000),
            "heartbeat_interval_ms": round(settings.session_timeout * 1000 / 5),
            "rebalance_timeout_ms": round(REBALANCE_TIMEOUT * 1000),
            **settings.client_options,
        }

    # -- background

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=f"ackwise {name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours that fails stops the worker: what it did for the others would silently be missing."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        cause = error.error if isinstance(error, HandlerStopped) else error
        self._fatal = self._fatal or cause
        ours = isinstance(cause, AckwiseError | KafkaError | OSError)  # of any other nobody knows whose words its text has
        log.error(
            "the worker stops, nothing unsettled is committed",
            group=self._settings.group,
            task=task.get_name(),
            error=said(cause) if ours else type(cause).__name__,
            at=where_raised(cause),
        )
        log.debug("what stops the worker", group=self._settings.group, raised=cause)
        self._stop.set()

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stop.set()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval or 5.0)
            await self._commit(list(self._lanes.values()))

    async def _watch_broker(self) -> None:
        while self._sink is not None:
            await asyncio.sleep(_BROKER_OFFSETS_EVERY)
            await self._record_broker_offsets()

    async def _record_broker_offsets(self) -> None:
        lanes = list(self._lanes.values())
        if self._sink is None or not lanes:
            return
        partitions = [TopicPartition(lane.topic, lane.partition) for lane in lanes]
        try:
            async with asyncio.timeout(_BROKER_TIMEOUT):
                starts, ends = await self._consumer.beginning_offsets(partitions), await self._consumer.end_offsets(partitions)
        except (KafkaError, TimeoutError) as error:
            log.debug("the ends of the logs can't be read now", error=said(error))
            return
        for lane, partition in zip(lanes, partitions, strict=True):
            attrs = json.dumps({"committed": lane.committed})
            self._sink.record(
                Event(
                    EventCode.BROKER_OFFSETS,
                    lane.topic,
                    lane.partition,
                    starts[partition],
                    range_end=ends[partition],
                    role=lane.role,
                    attrs=attrs,
                )
            )

    # -- fetch

    async def _poll(self) -> None:
        while not self._stop.is_set():
            polled, is_any_full = self._regulate()
            try:
                fetched = await self._fetch(polled, is_any_full)
            except KafkaError as error:
                log.warning("fetching failed, nothing is lost", group=self._settings.group, error=said(error), retry_in=_POLL_AGAIN)
                await asyncio.sleep(_POLL_AGAIN)
                continue
            for partition, records in fetched.items():
                if (lane := self._lanes.get(partition)) is not None:  # without one, the assignment seeks back to its start
                    self._offer(lane, records)

    async def _fetch(self, polled: Sequence[TopicPartition], is_any_full: bool) -> dict[TopicPartition, Any]:
        """What there is for the partitions that have room. While one is full the wait ends as soon as a lane has moved.

        The wait is not cancelled within aiokafka: only outside of it is it certain that no record is on its way to us.
        """
        if not is_any_full:
            return await self._ask(timeout_ms=200)
        self._has_moved.clear()
        fetched = await self._ask(*polled, timeout_ms=0) if polled else {}
        if not fetched:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._has_moved.wait()
        return fetched

    async def _ask(self, *partitions: TopicPartition, timeout_ms: int) -> dict[TopicPartition, Any]:
        try:
            fetched: dict[TopicPartition, Any] = await self._consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=_FETCHED)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            await self._reposition(error)
            return {}
        return fetched

    def _offer(self, lane: Lane, records: Sequence[Any]) -> None:
        start = records[0].offset
        gap = lane.offer(map(_delivery, records))
        if gap is not None:
            self._record(Event(EventCode.GAP, lane.topic, lane.partition, gap[0], range_end=gap[1]))
        self._record(Event(EventCode.RECEIVED_RANGE, lane.topic, lane.partition, start, range_end=records[-1].offset + 1))

    def _regulate(self) -> tuple[list[TopicPartition], bool]:
        """The partitions to poll, and whether one is passed over; pauses lanes that stay full, lets go on what has room.

        What is paused is polled all the same: it answers nothing, and shows the group that this member is alive.
        """
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        polled = []
        passed_over = False
        for partition, lane in self._lanes.items():
            if partition not in assigned:
                continue
            if not lane.is_full():
                if partition in paused:
                    self._consumer.resume(partition)
            elif partition not in paused:
                if not lane.is_full_for(_PASSED_OVER):
                    passed_over = True
                    continue
                self._consumer.pause(partition)
            polled.append(partition)
        return polled, passed_over

    async def _reposition(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """The log no longer has the position: go on at its start, and say that what lay between is gone."""
        for partition in list(error.args[0]):
            lane = self._lanes.get(partition)
            if lane is None:
                continue
            start = (await self._consumer.beginning_offsets([partition]))[partition]
            end = (await self._consumer.end_offsets([partition]))[partition]
            if self._lanes.get(partition) is not lane:
                continue  # revoked meanwhile; a lane that is there now has a position of its own
            target = start if lane.position < start else end if lane.position > end else lane.position
            log.error(
                "the position is outside of what the topic holds, reading goes on elsewhere",
                topic=lane.topic,
                partition=lane.partition,
                offset=lane.position,
                log_start=start,
                log_end=end,
                goes_on_at=target,
            )
            if target != lane.position:
                attrs = json.dumps({"reason": "out-of-range"})
                self._record(
                    Event(
                        EventCode.SEEK,
                        lane.topic,
                        lane.partition,
                        min(lane.position, target),
                        range_end=max(lane.position, target),
                        attrs=attrs,
                    )
                )
            lane.position = target
            self._consumer.seek(partition, target)

    def _make(self, role: Literal["source", "retry"]) -> Any:
        return self._from_source if role == "source" else self._from_retry

    def _from_source(self, delivery: Delivery) -> LaneEntry:
        return LaneEntry(Entry(delivery), self._by_source[delivery.topic])

    def _from_retry(self, delivery: Delivery) -> LaneEntry:
        """A copy goes to the handler that it names; what can't be delivered is a dead letter, what can't be read yet waits."""
        try:
            copy = parse_copy(delivery, self._settings.group)
        except NewerWire as error:
            entry = Entry(delivery)
            entry.why = str(error)
            return LaneEntry(entry, None)
        except ForeignCopy as error:
            return self._undeliverable(delivery, Reason.FOREIGN_COPY, error)
        if copy.handler not in self._pipelines:
            known = ", ".join(sorted(self._pipelines))
            return self._undeliverable(
                copy, Reason.NO_HANDLER, ConfigurationError(f"no handler {copy.handler!r} in this app; it has {known}")
            )
        pipeline, entry = self._pipelines[copy.handler], Entry(copy)
        return LaneEntry(entry, pipeline, pipeline.batch_limit(entry))

    def _undeliverable(self, delivery: Delivery, reason: str, error: AckwiseError) -> LaneEntry:
        entry = Entry(delivery)
        entry.error = type(error).__name__
        entry.rule(Dead(reason, Failure.of(error)))
        return LaneEntry(entry, Pipeline(Agent(delivery.handler or "-", (), "message", _never, _never), self._worker))

    # -- commit

    def _progressed(self, lane: Lane) -> None:
        self._has_moved.set()
        if self._settings.commit_interval == 0 and not lane.cut_off and self._lanes.get(TopicPartition(lane.topic, lane.partition)) is lane:
            self._detach(asyncio.create_task(self._commit([lane]), name="ackwise commit"))

    def _detach(self, task: asyncio.Task[None]) -> None:
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        task.add_done_callback(self._ended)

    async def _commit(self, lanes: Iterable[Lane]) -> None:
        """Commit what the watermarks say. A commit that fails is made good by the next one."""
        async with self._commits:
            offsets = {
                TopicPartition(lane.topic, lane.partition): (lane, lane.watermark.commit)
                for lane in lanes
                if not lane.cut_off and lane.watermark.commit is not None and lane.watermark.commit != lane.committed
            }
            if not offsets:
                return
            try:
                async with asyncio.timeout(_BROKER_TIMEOUT):
                    await self._consumer.commit({partition: offset for partition, (_, offset) in offsets.items()})
            except (CommitFailedError, IllegalStateError) as error:
                log.warning(
                    "a commit was refused since the partitions moved, the next owner goes on from the last one",
                    group=self._settings.group,
                    partitions=len(offsets),
                    error=said(error),
                )
                return
            except (KafkaError, TimeoutError) as error:
                log.warning(
                    "a commit failed and is made good by the next one",
                    group=self._settings.group,
                    partitions=len(offsets),
                    error=said(error),
                )
                return
            for lane, offset in offsets.values():
                lane.committed = offset
                self._record(Event(EventCode.COMMITTED, lane.topic, lane.partition, range_end=offset))
        await self._flush_events()

    async def _flush_events(self) -> None:
        if self._sink is not None:
            try:
                await self._sink.flush()
            except EventLogUnavailable as error:
                log.warning("the events of a commit are not durable yet", group=self._settings.group, error=said(error))

    def _record(self, event: Event) -> None:
        if self._sink is not None:
            self._sink.record(event)

    # -- assignment

    async def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Make a lane for each partition, at its committed offset or at the start that is configured.

        The lane and the seek to its position are one step without an await, so that nothing that was fetched before
        can be missing from the lane.
        """
        for partition in [] if self._stop.is_set() else sorted(partitions):
            role: Literal["source", "retry"] = "retry" if partition.topic == self._names.retry else "source"
            committed = await self._insist(self._committed, partition)
            position = committed if committed is not None else await self._insist(self._start_of, partition)
            generation = None
            if self._offsets is not None and role == "source":
                position, generation = await self._take_over(self._offsets, partition, position, is_new=committed is None)
            lane = Lane(
                partition.topic,
                partition.partition,
                role,
                position,
                make=self._make(role),
                progressed=self._progressed,
                generation=generation,
            )
            if partition not in self._consumer.assignment():
                return  # revoked meanwhile; the next assignment begins anew
            self._consumer.seek(partition, position)
            lane.committed = committed
            self._lanes[partition] = lane
            task = lane.start()
            task.add_done_callback(self._ended)
            self._record(
                Event(EventCode.ASSIGNED, partition.topic, partition.partition, position, role=role, from_commit=committed is not None)
            )
        if not self._stop.is_set():
            log.info(
                "running",
                group=self._settings.group,
                agents=", ".join(sorted(self._agents)),
                partitions=sum(lane.role == "source" for lane in self._lanes.values()),
                retry_partitions=sum(lane.role == "retry" for lane in self._lanes.values()),
            )
        # a group that never committed must not begin somewhere else after a crash
        await self._commit([lane for lane in self._lanes.values() if lane.committed is None])

    async def _take_over(self, offsets: OffsetsStore, partition: TopicPartition, position: int, *, is_new: bool) -> Progress:
        """Where the database says that its partition goes on; `position` is what the broker says, which is told later.

        `is_new`: the broker has no offset of this group. Raises `ConfigurationError` if the log ends before that.
        """
        while True:
            try:
                progress = await offsets.take_over(self._owner, *partition, position=position)
            except StoreUnavailable as error:
                log.warning(
                    "the offset of a partition can't be taken over, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)
                continue
            if progress.next > position:
                await self._require_log(partition, progress.next)
                if is_new:
                    log.warning(
                        "the broker has no offset of a partition that the database has passed, the database is believed",
                        topic=partition.topic,
                        partition=partition.partition,
                        offset=progress.next,
                    )
                self._record(Event(EventCode.TX_SETTLED, partition.topic, partition.partition, position, range_end=progress.next))
                await self._insist_on_events(partition)
            elif progress.next < position:
                log.warning(
                    "the database is behind the broker, its messages from there on are run again",
                    topic=partition.topic,
                    partition=partition.partition,
                    committed=position,
                    offset=progress.next,
                )
            return progress

    async def _require_log(self, partition: TopicPartition, passed: int) -> None:
        """What the database has passed must be in the log, or it speaks of another. A new leader may not know its end at once."""
        looks = 1
        while passed > (end := await self._insist(self._end_of, partition)) and looks < _LOOKS_AT_END:
            looks += 1
            await asyncio.sleep(0.5)
        if passed <= end:
            return
        raise ConfigurationError(
            f"the database says that {partition.topic}/{partition.partition} goes on at {passed}, and its log ends at {end}: the topic was "
            "made anew, or lost its end; raise epoch of Transactional, and everything that is in the topics is run"
        )

    async def _end_of(self, partition: TopicPartition) -> int:
        return int((await self._consumer.end_offsets([partition]))[partition])

    async def _insist_on_events(self, partition: TopicPartition) -> None:
        """Wait until they are durable: the broker is told next what they say, and nobody would say it again."""
        while self._sink is not None:
            try:
                await self._sink.flush()
            except EventLogUnavailable as error:
                log.warning(
                    "what a partition has passed can't be exported, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)
            else:
                return

    async def _start_of(self, partition: TopicPartition) -> int:
        """Retry topics begin at their earliest record, or retries that were sent before would be missed."""
        earliest = partition.topic == self._names.retry or self._settings.start == "earliest"
        offsets = await self._consumer.beginning_offsets([partition]) if earliest else await self._consumer.end_offsets([partition])
        return int(offsets[partition])

    async def _committed(self, partition: TopicPartition) -> int | None:
        """The committed offset; `None` only if the coordinator itself says that there is none.

        aiokafka overlooks an error that is about the whole answer, such as a coordinator that is still loading, and
        takes it for "nothing was committed": the group would begin somewhere else, and commit that.
        """
        offset: int | None = await self._consumer.committed(partition)
        if offset is not None:
            return offset
        request = OffsetFetchRequest(self._settings.group, [(partition.topic, [partition.partition])])
        coordinator: Any = self._consumer._coordinator
        answer = await coordinator._send_req(request)
        found = [(offset, code) for _, partitions in answer.topics for _, offset, _, code in partitions]
        for code in (answer.error_code, *(code for _, code in found)):
            if code:
                raise for_code(code)
        return next((offset for offset, _ in found if offset >= 0), None)

    async def _insist(self, call: Any, partition: TopicPartition) -> Any:
        while True:
            try:
                return await call(partition)
            except KafkaError as error:
                log.warning(
                    "the position of a partition can't be read, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)

    async def _revoke(self, partitions: Iterable[TopicPartition], timeout: float, *, stopping: bool = False) -> None:
        """Stop taking, let what runs finish and settle for at most `timeout` seconds, commit; then cut off.

        A rebalance may begin while the app stops: the second one waits for the first, and finds nothing left to do.
        """
        async with self._revokes:
            lanes = [self._lanes[partition] for partition in partitions if partition in self._lanes]
            if lanes:
                await self._drain(lanes, timeout, stopping=stopping)

    async def _drain(self, lanes: Sequence[Lane], timeout: float, *, stopping: bool) -> None:
        log.info("draining", group=self._settings.group, partitions=len(lanes), at_most=timeout, stopping=stopping)
        for lane in lanes:
            lane.stop()
        tasks = {lane.task for lane in lanes if lane.task is not None}
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        await self._commit(lanes)
        await self._record_broker_offsets()
        for lane in lanes:
            lane.cut()
            if stopping:
                lane.call_off()
            del self._lanes[TopicPartition(lane.topic, lane.partition)]
            self._record(Event(EventCode.REVOKED, lane.topic, lane.partition, lane.watermark.commit))
        if pending:
            log.warning(
                "partitions did not drain in time, what still runs there publishes and commits nothing",
                group=self._settings.group,
                partitions=len(pending),
                seconds=timeout,
            )
        if stopping and pending:
            await asyncio.wait(pending, timeout=_GRACE)
        for task in tasks:
            if not task.done():
                self._detach(task)
        await self._give_back(lanes)

    async def _give_back(self, lanes: Sequence[Lane]) -> None:
        """Release what these lanes hold in the store, so that the next owner never waits for a lease."""
        if self._leases is None:
            return
        for entry in (entry for lane in lanes for entry in lane.unsettled()):
            self._leases.give_back(entry)
        try:
            await self._leases.flush()
        except StoreUnavailable as error:
            log.warning(
                "claims could not be released, the next owner waits for their leases", group=self._settings.group, error=said(error)
            )
        await self._flush_events()


class _Listener(ConsumerRebalanceListener):
    """aiokafka logs and swallows what a listener raises; a partition without a lane would then never be consumed."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        await self._guard(self._host._revoke(revoked, self._host._settings.revoke_timeout))

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        await self._guard(self._host._assign(assigned))

    async def _guard(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._host._detach(task)
        await asyncio.wait({task})


def _delivery(record: Any) -> Delivery:
    origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
    return Delivery(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers), origin
    )


async def _never(_: object) -> None:
    raise AckwiseError("this handler does not exist and can't be called")
