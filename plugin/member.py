"""One member of a consumer group, whatever client fetches for it: its parts, its lanes, and what is committed of them.

A host fetches and says which partitions it has; everything between the fetch and the commit is here. Nothing is
committed that a watermark did not pass, and a commit always names its offsets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, Protocol, cast

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.agent import Agent
from ackwise.middleware.commitmetadata import CommitMetadata, decode
from ackwise.middleware.errors import AckwiseError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink, durable_of
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.offsets import OffsetsPipeline
from ackwise.middleware.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.policies import DeadLetter, Dedup, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore
from ackwise.middleware.transaction import OffsetsStore, TransactionalStore
from ackwise.middleware.transactional import TransactionalPipeline
from ackwise.middleware.whereabouts import where_raised
from ackwise.middleware.worker import Worker
from ackwise.plugin.lane import Lane, LaneEntry
from ackwise.plugin.publisher import KafkaPublisher
from ackwise.plugin.routes import Routes
from ackwise.plugin.settings import HostSettings
from ackwise.plugin.topics import TopicNames, ensure_topics

__all__ = ["Client", "Member", "delivery_of"]

log = Log()

#: Seconds after a handler was cancelled until its partition is given up; it may not come back at all.
_GRACE = 5.0

#: Seconds that the broker has to answer a commit or a look; a stop or a rebalance must not wait for a broker that is away.
_BROKER_TIMEOUT = 10.0

#: Seconds that whoever asks for the state of a worker waits for the broker; the rest of it is known without.
_LOOK_TIMEOUT = 2.0

#: Seconds between two looks at the ends of the logs, which reconciliation needs to tell a backlog from a loss.
_BROKER_OFFSETS_EVERY = 30.0


class Client(Protocol):
    """What a member asks of the client that fetches for it. Each call may raise `KafkaError`."""

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], /) -> object:
        """Commit these next offsets."""

    async def beginning_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The first offset that each log still has."""
        ...

    async def end_offsets(self, partitions: list[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The offset after the last that may be read."""
        ...


class Member:
    """One member of a group. A host opens it, works inside of `working`, and tells it what it was assigned and has fetched."""

    leases: Leases | None
    worker: Worker
    pipelines: dict[str, Pipeline]  #: by the name of their agent
    _client: Client

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
    ) -> None:
        """`store` is that of `Dedup`, `inbox` that of `Transactional`."""
        self.settings = settings
        self.later = later
        self.names = TopicNames(settings.group, later.levels, dead_letter=dead_letter.topic)
        self.sink = sink
        self.offsets: OffsetsStore | None = None  #: where the offsets of the sources are kept beside the broker
        self.owner = ""  #: whose offsets those are
        if isinstance(dedup, Transactional) and dedup.mode == "offsets":
            self.offsets = cast(OffsetsStore, inbox)
            self.owner = f"{dedup.namespace}/{dedup.epoch}/{settings.group}"
        self.lanes: dict[TopicPartition, tuple[Lane, ...]] = {}
        self.fatal: BaseException | None = None  #: what ends this member
        self.stop = asyncio.Event()
        self.has_moved = asyncio.Event()  #: a lane has come to the end of a batch, and may have room again
        self._agents = agents
        self._dedup = dedup
        self._store = store
        self._inbox = inbox
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = asyncio.Lock()
        self._refuses_metadata = False  # the broker, with a lower limit than others have
        self._foreign = 0  # partitions that came with metadata of others
        self._drains = asyncio.Lock()

    # -- its parts

    @asynccontextmanager
    async def opened(self, sources: Collection[str] | None, *, others: Iterable[str] = ()) -> AsyncIterator[None]:
        """With everything that was used open, and the pipelines built; with `sources`, the group's topics are there as well.

        `others` are agents whose pipelines the host makes itself.

        Raises `ConfigurationError` or another `AckwiseError` if something can't be opened, `KafkaError` if Kafka refuses a look at the
        topics, and at its end what stopped the member (`fatal`).
        """
        group, names = self.settings.group, sorted([*(agent.name for agent in self._agents), *others])
        log.info("starting", group=group, brokers=self.settings.brokers, agents=", ".join(names))
        publisher = KafkaPublisher(self.settings)
        async with AsyncExitStack() as opened:  # one that can't be closed must not keep the others open
            if sources is not None:
                await self.ensure_topics(sources)
            for part in (self.sink, self._store, self._inbox):
                if part is not None:
                    opened.push_async_callback(part.close)
                    await part.open()
            opened.push_async_callback(publisher.stop)
            await publisher.start()
            self._build_pipelines(publisher)
            yield
        log.info("stopped", group=group)
        if self.fatal is not None:
            raise self.fatal

    async def ensure_topics(self, sources: Collection[str], *, made: Collection[str] = ()) -> None:
        """Create or check the group's topics for `sources`, and wait for those of them that are `made` elsewhere in this worker.

        Raises `AckwiseError`, or `KafkaError` if Kafka refuses a look at them.
        """
        await ensure_topics(self.settings, self.names, sorted(sources), levels=self.later.levels, made=made)

    def _build_pipelines(self, publisher: KafkaPublisher) -> None:
        dedup, store = self._dedup, self._store
        self.leases = None
        if isinstance(dedup, Dedup) and store is not None:
            self.leases = Leases(store, lease=float(dedup.lease), retention=float(dedup.retention))
        self.worker = Worker(
            group=self.settings.group,
            later=self.later,
            publisher=publisher,
            retry_topic=self.names.retry,
            dead_letter_topic=self.names.dead_letter,
            delay_topics=self.names.delays,
            dedup=dedup,
            leases=self.leases,
            sink=self.sink,
            clock_skew=self.settings.clock_skew,
        )
        self.pipelines = {agent.name: self._pipeline(agent) for agent in self._agents}
        self.routes = Routes(self.worker, self.pipelines)

    def _pipeline(self, agent: Agent) -> Pipeline:
        if self._inbox is None:
            return Pipeline(agent, self.worker)
        if self.offsets is None:
            return TransactionalPipeline(agent, self.worker, self._inbox)
        return OffsetsPipeline(agent, self.worker, self.offsets, self.owner)

    # -- background

    @asynccontextmanager
    async def working(self, client: Client) -> AsyncIterator[None]:
        """With what goes on beside the handlers: leases, regular commits, looks at the broker. At its end no task is left."""
        self._client = client
        self.spawn(self._commit_regularly(), "commit")
        self.spawn(self._watch_broker(), "broker offsets")
        if self.leases is not None:
            self.spawn(self.leases.keep(), "leases")
        try:
            yield
        finally:
            working = [lane.task for lane in self.abandon_lanes() if lane.task is not None]
            tasks = [*self._tasks, *working]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do `work` beside the rest, until `working` ends at the latest."""
        task = asyncio.create_task(work, name=f"ackwise {name}")
        self.detach(task)
        return task

    def detach(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for `task`; its failure stops the member all the same."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours that fails stops the worker: what it did for the others would silently be missing."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        cause = error.error if isinstance(error, HandlerStopped) else error
        self.fatal = self.fatal or cause
        ours = isinstance(cause, AckwiseError | KafkaError | OSError)  # of any other nobody knows whose words its text has
        log.error(
            "the worker stops, nothing unsettled is committed",
            group=self.settings.group,
            task=task.get_name(),
            error=said(cause) if ours else type(cause).__name__,
            at=where_raised(cause),
        )
        log.debug("what stops the worker", group=self.settings.group, raised=cause)
        self.stop.set()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval or 5.0)
            await self.commit()

    async def _watch_broker(self) -> None:
        while self.sink is not None:
            await asyncio.sleep(_BROKER_OFFSETS_EVERY)
            await self._record_broker_offsets()

    async def _record_broker_offsets(self) -> None:
        partitions = {partition: lanes[0] for partition, lanes in self.lanes.items()}
        if self.sink is None or not partitions:
            return
        try:
            async with asyncio.timeout(_BROKER_TIMEOUT):
                starts, ends = await self._client.beginning_offsets([*partitions]), await self._client.end_offsets([*partitions])
        except (KafkaError, TimeoutError) as error:
            log.debug("the ends of the logs can't be read now", error=said(error))
            return
        for partition, lane in partitions.items():
            attrs = json.dumps({"committed": lane.committed})
            start, end = starts[partition], ends[partition]
            self.record(Event(EventCode.BROKER_OFFSETS, *partition, start, range_end=end, role=lane.role, attrs=attrs))

    async def ends(self) -> Mapping[TopicPartition, int]:
        """Where the logs of its partitions end; empty if the broker does not say so soon."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT):
                return await self._client.end_offsets([*self.lanes]) if self.lanes else {}
        except (KafkaError, TimeoutError) as error:
            log.debug("the ends of the logs can't be read now", error=said(error))
            return {}

    def record(self, event: Event) -> None:
        """Give `event` to the sink, if there is one."""
        if self.sink is not None:
            self.sink.record(event)

    async def _flush_events(self) -> None:
        if self.sink is not None:
            try:
                await self.sink.flush()
            except EventLogUnavailable as error:
                log.warning("the events of a commit are not durable yet", group=self.settings.group, error=said(error))

    # -- lanes

    def lane(
        self,
        topic: str,
        partition: int,
        role: Literal["source", "retry"],
        position: int,
        *,
        make: Callable[[Delivery], LaneEntry | None] | None = None,
        generation: int | None = None,
        overlapping: bool = False,
        agent: str | None = None,
    ) -> Lane:
        """A lane that begins at `position`. Without `make`, a record goes to the agent of its topic, a copy to the one that it names."""
        return Lane(
            topic,
            partition,
            role,
            position,
            make=make or (self.routes.from_source if role == "source" else self.routes.from_retry),
            progressed=self._progressed,
            generation=generation,
            overlapping=overlapping,
            agent=agent,
        )

    def add_lanes(self, partition: TopicPartition, lanes: tuple[Lane, ...], *, from_commit: int | None, metadata: str = "") -> None:
        """Begin with a partition, whose records go to each of `lanes`.

        `from_commit` is the offset that the broker has of this group, and `metadata` what was left beside it.
        """
        first = lanes[0]
        self.lanes[partition] = lanes
        for lane in lanes:
            lane.committed = from_commit
            lane.start().add_done_callback(self._ended)
        found = decode(metadata)
        self._foreign += bool(metadata) and found is None
        attrs = None if found is None or found.writer_id is None else json.dumps({"writer": found.writer_id, "seq": found.last_seq})
        position = first.position
        self.record(Event(EventCode.ASSIGNED, *partition, position, role=first.role, from_commit=from_commit is not None, attrs=attrs))

    async def begin(self) -> None:
        """Say what there is to work on, and commit where it begins: a group that never committed must begin there after a crash too."""
        if not self.stop.is_set():
            roles = [lanes[0].role for lanes in self.lanes.values()]
            log.info(
                "running",
                group=self.settings.group,
                agents=", ".join(sorted(self.pipelines)),
                partitions=roles.count("source"),
                retry_partitions=roles.count("retry"),
            )
        if self._foreign:
            group, self._foreign, foreign = self.settings.group, 0, self._foreign
            log.info("commits have metadata that Ackwise did not write, it is overwritten", group=group, partitions=foreign)
        await self.commit([partition for partition, lanes in self.lanes.items() if lanes[0].committed is None])

    def offer(self, partition: TopicPartition, records: Sequence[Any], *, proved: bool | None = None) -> None:
        """Give what was fetched to the lanes. Without one it is forgotten: the assignment seeks back to its start.

        `proved`: the fetch began where the one before it ended, so that the log has nothing in a hole.
        """
        if not (lanes := self.lanes.get(partition)):
            return
        for start, end in sorted({gap for lane in lanes for gap in lane.offer(map(delivery_of, records))}):
            self.record(Event(EventCode.GAP, *partition, start, range_end=end, proved=proved))
        self.record(Event(EventCode.RECEIVED_RANGE, *partition, records[0].offset, range_end=records[-1].offset + 1))

    # -- commit

    def _progressed(self, lane: Lane) -> None:
        self.has_moved.set()
        partition = TopicPartition(lane.topic, lane.partition)
        if self.settings.commit_interval == 0 and not lane.cut_off and lane in self.lanes.get(partition, ()):
            self.spawn(self.commit([partition]), "commit")

    async def commit(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Commit what the watermarks of `partitions`, or of all, say. A commit that fails is made good by the next one."""
        async with self._commits:
            offsets = self._to_commit([*self.lanes] if partitions is None else partitions)
            if not offsets:
                return
            try:
                async with asyncio.timeout(_BROKER_TIMEOUT):
                    await self._commit({partition: offset for partition, (_, offset) in offsets.items()})
            except (CommitFailedError, IllegalStateError) as error:
                log.warning(
                    "a commit was refused since the partitions moved, the next owner goes on from the last one",
                    group=self.settings.group,
                    partitions=len(offsets),
                    error=said(error),
                )
                return
            except (KafkaError, TimeoutError) as error:
                log.warning(
                    "a commit failed and is made good by the next one",
                    group=self.settings.group,
                    partitions=len(offsets),
                    error=said(error),
                )
                return
            for partition, (lanes, offset) in offsets.items():
                for lane in lanes:
                    lane.committed = offset
                self.record(Event(EventCode.COMMITTED, *partition, range_end=offset))
        await self._flush_events()

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit with what the next owner is to know; a broker that allows less gets the bare offsets from then on."""
        try:
            await self._client.commit({partition: OffsetAndMetadata(offset, self._metadata()) for partition, offset in offsets.items()})
        except OffsetMetadataTooLargeError as error:
            if self._refuses_metadata:
                raise
            self._refuses_metadata = True
            log.warning(
                "the broker refuses the metadata of a commit, from now on this worker commits without",
                group=self.settings.group,
                error=said(error),
            )
            await self._commit(offsets)

    def _metadata(self) -> str:
        if self._refuses_metadata:
            return ""
        durable = durable_of(self.sink)
        return (CommitMetadata() if durable is None else CommitMetadata(*durable)).encode()

    def _to_commit(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[tuple[Lane, ...], int]]:
        """The lanes and the next offset of each partition that has moved since the broker was told."""
        found = {}
        for partition in partitions:
            lanes = self.lanes.get(partition, ())
            passed = _passed(lanes)
            if passed is not None and passed != lanes[0].committed and not any(lane.cut_off for lane in lanes):
                found[partition] = lanes, passed
        return found

    # -- giving partitions back

    async def drain(self, partitions: Iterable[TopicPartition], timeout: float, *, stopping: bool = False) -> None:
        """Stop taking, let what runs finish and settle for at most `timeout` seconds, commit; then cut off.

        A rebalance may begin while the app stops: the second one waits for the first, and finds nothing left to do.
        """
        async with self._drains:
            drained = {partition: self.lanes[partition] for partition in partitions if partition in self.lanes}
            if drained:
                await self._drain(drained, timeout, stopping=stopping)

    async def _drain(self, drained: Mapping[TopicPartition, tuple[Lane, ...]], timeout: float, *, stopping: bool) -> None:
        log.info("draining", group=self.settings.group, partitions=len(drained), at_most=timeout, stopping=stopping)
        lanes = [lane for lanes in drained.values() for lane in lanes]
        for lane in lanes:
            lane.stop()
        tasks = {lane.task for lane in lanes if lane.task is not None}
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        await self.commit(drained)
        await self._record_broker_offsets()
        for lane in lanes:
            lane.cut()
            if stopping:
                lane.call_off()
        for partition, its_lanes in drained.items():
            del self.lanes[partition]
            self.record(Event(EventCode.REVOKED, *partition, _passed(its_lanes)))
        if pending:
            log.warning(
                "partitions did not drain in time, what still runs there publishes and commits nothing",
                group=self.settings.group,
                partitions=len(pending),
                seconds=timeout,
            )
        if stopping and pending:
            await asyncio.wait(pending, timeout=_GRACE)
        for task in tasks:
            if not task.done():
                self.detach(task)
        await self.give_back(lanes)

    def abandon_lanes(self) -> list[Lane]:
        """After an error of ours there was no drain: what is left publishes and commits nothing."""
        abandoned = [lane for lanes in self.lanes.values() for lane in lanes]
        self.lanes.clear()
        for lane in abandoned:
            lane.cut()
        return abandoned

    async def give_back(self, lanes: Iterable[Lane]) -> None:
        """Release what these lanes hold in the store, so that the next owner never waits for a lease."""
        if self.leases is None:
            return
        for entry in (entry for lane in lanes for entry in lane.unsettled()):
            self.leases.give_back(entry)
        try:
            await self.leases.flush()
        except StoreUnavailable as error:
            log.warning("claims could not be released, the next owner waits for their leases", group=self.settings.group, error=said(error))
        await self._flush_events()


def _passed(lanes: Sequence[Lane]) -> int | None:
    """The next offset to give to the broker: every lane has settled everything below it. `None` while one knows nothing."""
    passed = [offset for lane in lanes if (offset := lane.watermark.commit) is not None]
    return min(passed, default=None) if len(passed) == len(lanes) else None


def delivery_of(record: Any) -> Delivery:
    """A record of aiokafka as it was read at its origin."""
    origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
    return Delivery(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers), origin
    )
