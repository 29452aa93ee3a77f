"""Member of a consumer group, whatever client fetches for it: its parts, its lanes, and what is committed of them.

A host fetches and says which partitions it has; everything between the fetch and the commit is here. Only what
a watermark has passed is committed, and a commit always names its offsets.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.claims.isolation import Isolation, Suspects, agent_hash
from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import AckwiseError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.flow.flowcontrol import FlowControl, is_withheld_letter
from ackwise.middleware.flow.limits import Share, Thresholds, share_of
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.message import TopicPartition as Place
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.pipeline.transactionoffsets import for_copies, for_sources
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.delaytopic import send_later
from ackwise.middleware.policies.policies import Dedup, Transactional
from ackwise.middleware.progress.commitmetadata import CommitMetadata
from ackwise.middleware.runs.agent import Agent, readers_of
from ackwise.middleware.runs.redelivery import Dropping, put_off
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.transaction import OffsetsStore
from ackwise.middleware.usercode import class_name, is_a, where_raised
from ackwise.plugin.consumer.backlog import LANE_BYTES, MAX_MESSAGES, Budget, ByKey
from ackwise.plugin.consumer.clientprotocol import Broker
from ackwise.plugin.consumer.commits import Commits, Offsets, Position, passed, to_commit
from ackwise.plugin.consumer.deletedtopics import OwnTopics
from ackwise.plugin.consumer.lane import Lane, Told
from ackwise.plugin.consumer.routes import Routes
from ackwise.plugin.consumer.startup import Opening, Parts
from ackwise.plugin.consumer.tasks import Tasks
from ackwise.plugin.consumer.waitinginplace import Waiting
from ackwise.plugin.consumer.workerstate import CheckCounts, DelayCounts, OutboxCounts, ShareCounts, WorkerState
from ackwise.plugin.kafka.brokeroffsets import Topic
from ackwise.plugin.kafka.timeouts import answer, ended
from ackwise.plugin.process.lifelock import THIS_PROCESS
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.connecting import shown_store
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.controltopic import Control
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import Sources

log = Log()

_Lanes = Mapping[TopicPartition, tuple[Lane, ...]]

_NO_TOPIC = Topic()

#: Seconds after a handler was cancelled until its partition is given up; it may not come back at all.
_GRACE = 4.0

#: Seconds that the broker has to answer a commit or a look; a stop or a rebalance must not wait for a broker that is unavailable.
_BROKER_TIMEOUT = 10.0

#: Seconds after the cut-off for what is left to do, in a revoke and in a stop: to commit what was settled, and to release claims.
_AFTER_REVOKE, _AFTER_STOP = 10.0, 5.0

#: Seconds that a step of this gets, however late it is.
_AT_LEAST = 0.5

#: Seconds that a request for the state of a worker waits for the broker; the rest of it is known without.
_LOOK_TIMEOUT = 2.0

#: Seconds between two looks at the ends of the logs, which reconciliation needs to tell a backlog from a loss.
_BROKER_OFFSETS_EVERY = 30.0


class Member:
    """One member of a group. A host opens it, works inside of `working`, and tells it what it was assigned and has fetched."""

    leases: Leases | None
    worker: Worker
    pipelines: dict[str, Pipeline]  #: by the name of their agent, for its sources; for copies as well, where those need no other
    _client: Broker

    def __init__(
        self,
        settings: HostSettings,
        agents: Sequence[Agent],
        parts: Parts,
        *,
        pipeline: Callable[[Agent, Member], Pipeline] | None = None,
        before: Leases | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`before`: the leases of a worker of the same app that has ended in this process.

        `pipeline` makes the pipeline of an agent, where it is not the default one. `clock`: epoch seconds, by which copies are due.
        """
        self.settings = settings
        self.parts = parts
        self.names = TopicNames.of(settings, dead_letter=parts.dead_letter.topic)
        self.later = parts.later
        self.sink = parts.sink
        self.record: Callable[[Event], None] = (lambda _: None) if parts.sink is None else parts.sink.record
        self.clock = clock
        self.offsets: OffsetsStore | None = None  #: where the offsets of the sources are kept beside the broker
        self.owner = ""  #: whose offsets those are
        if isinstance(parts.dedup, Transactional) and parts.dedup.mode == "offsets":
            self.offsets = cast(OffsetsStore, parts.inbox)
            self.owner = owner_of(parts.dedup, settings.group)
        self.lanes: dict[TopicPartition, tuple[Lane, ...]] = {}
        self._working: dict[TopicPartition, set[asyncio.Task[None]]] = {}  #: tasks of lanes, also of those that were let go while they ran
        self.fatal: BaseException | None = None  #: what ends this member
        self.stop = asyncio.Event()
        self.has_joined = asyncio.Event()  #: it got its partitions, which may be none
        self.has_moved = asyncio.Event()  #: a lane has come to the end of a batch, and may have room again; or lanes came or went
        self.outbox = parts.outbox
        self.outbox_counts = OutboxCounts()  #: of the relay of that beside this member
        self.check_counts = CheckCounts()  #: of its check-back
        self.delay_counts = DelayCounts()  #: of the relay beside this member
        self.share_counts: ShareCounts | None = None  #: of its part in a share group, which its sources are consumed by
        self.budget = Budget(settings.max_buffered_bytes)
        self._shares: dict[str | None, Share] = {}  #: by the name of an agent
        self.missing_topics: Callable[[], Sequence[str]] = tuple  #: see `Broker`, of which this is
        self.is_gone: Callable[[str], bool] = lambda _: False  #: and this
        self.flow = parts.flow or FlowControl()
        self.waiting = Waiting(settings.group, lambda: _each_of(self.lanes), self.flow.burials, wall=clock)
        self._agents = [replace(agent, call=self.flow.guarded(agent.name, agent.call)) for agent in agents]
        self.sources = Sources(agents, self.names)
        self._make_pipeline = pipeline
        self.leases = None
        self.pipelines = {}
        self.pipelines_of_copies: dict[str, Pipeline] = {}
        self._before = before
        self._tasks = Tasks(settings.group, self._fail)
        names = [agent.name for agent in agents]
        self._commits = Commits(
            settings.group, names, parts.sink, lambda offsets: self._client.commit(offsets), lambda: _each_of(self.lanes)
        )
        #: Partitions that have no lane yet, and whether the broker knows that they have an owner.
        self._announced: dict[TopicPartition, bool] = {}
        self._isolation = Isolation()
        self._suspected = 0  # partitions whose last owner has not ended in order
        self.own_topics = OwnTopics(settings, self.names, lambda: self.opening.ensure_again(), lambda: self.missing_topics())
        self._foreign = 0  # partitions that came with metadata of others
        self.opening = Opening(
            settings,
            self.names,
            self._agents,
            parts,
            stop=self.stop,
            commits=self._commits,
            sources=self.sources,
            suspect=self.own_topics.suspect,
            clock=clock,
        )

    @asynccontextmanager
    async def opened(self, *, with_topics: bool = True, others: Iterable[str] = ()) -> AsyncIterator[None]:
        """With everything that was used open, and the pipelines built; `with_topics`, those of the group are there as well.

        `others` are agents whose pipelines the host makes itself.

        Raises `ConfigurationError` or another `AckwiseError` if something can't be opened, `KafkaError` if Kafka refuses a look at the
        topics, and at its end what stopped the member (`fatal`).
        """
        group, names = self.settings.group, sorted([*(agent.name for agent in self._agents), *others])
        log.info("starting", group=group, brokers=self.settings.brokers, agents=", ".join(names))
        async with self.opening.opened(with_topics=with_topics) as (publisher, sender):
            self._build_pipelines(publisher, sender)
            yield
        log.info("stopped", group=group)
        if self.fatal is not None:
            raise self.fatal

    def _build_pipelines(self, publisher: KafkaPublisher, sender: Sender | None = None) -> None:
        dedup, store = self.parts.dedup, self.parts.store
        self.leases = None
        if isinstance(dedup, Dedup) and store is not None:
            lease, retention = float(dedup.lease), float(dedup.retention)
            self.leases = Leases(store, lease=lease, retention=retention, wall=time.time, witness=THIS_PROCESS, sink=self.sink)
            if self._before is not None:
                self.leases.inherit(self._before)
        self.worker = Worker(
            group=self.settings.group,
            later=self.later,
            publisher=publisher,
            sender=sender,
            delayed=self._delayed if self.settings.delayed_sends else None,
            retry_topic=self.names.retry,
            dead_letter_topic=self.names.dead_letter,
            delay_topic=self.names.delay,
            dedup=dedup,
            leases=self.leases,
            sink=self.sink,
            outbox=None if self.parts.inbox is None else self.outbox,
            outbox_name="" if self.parts.outbox_policy is None else shown_store(self.parts.outbox_policy.store),
            flow=self.flow,
            dropping=None if self.names.all else Dropping(),
            error_text=self.settings.error_text,
            clock_skew=self.settings.clock_skew,
            wall=self.clock,
            isolation=self._isolation,
        )
        self.pipelines = {agent.name: self._pipeline(agent) for agent in self._agents}
        self.pipelines_of_copies = self._pipelines_of_copies()
        self.routes = Routes(self.worker, self.pipelines, self.pipelines_of_copies)

    def _delayed(self, message: Outgoing, due_ms: int) -> Outgoing:
        return send_later(
            message,
            due_ms,
            now_ms=round(self.clock() * 1000),
            group=self.settings.group,
            topic=self.names.delay,
            clock_skew=self.settings.clock_skew,
        )

    def _pipeline(self, agent: Agent) -> Pipeline:
        if self._make_pipeline is not None:
            return self._make_pipeline(agent, self)
        if self.parts.inbox is None:
            return Pipeline(agent, self.worker)
        if self.offsets is None:
            return Pipeline(agent, self.worker, partial(Transactions, store=self.parts.inbox))
        return Pipeline(agent, self.worker, for_sources(self.offsets, self.owner))

    def _pipelines_of_copies(self) -> dict[str, Pipeline]:
        offsets = self.offsets
        if offsets is None:
            return self.pipelines
        return {agent.name: Pipeline(agent, self.worker, for_copies(offsets, self.owner)) for agent in self._agents}

    @asynccontextmanager
    async def working(self, client: Broker) -> AsyncIterator[None]:
        """With what goes on beside the handlers: leases, regular commits, looks at the broker. At its end no task is left."""
        self._client = client
        self.missing_topics, self.is_gone = client.missing_topics, client.is_gone
        unlisten = self.flow.listen(self._look_again)
        control = Control(self.settings, self.names, self.flow, self.waiting.obey)
        state = WorkerState(
            self.names.control,
            self.settings.client_id,
            lambda: self.worker,
            lambda: _each_of(self.lanes),
            self.has_joined,
            lambda: control.is_there,
            None if self.names.dead_letter == self.names.default_dead_letter else self.names.dead_letter,
        )
        if self.names.all:  # an instance that broadcasts has no topic for commands
            self.keep(control.follow, "control")
            self.keep(state.tell, "state of the worker")
            self.keep(self.own_topics.keep, "own topics")
        self.keep(self._commit_regularly, "commit")
        self.keep(self._watch_broker, "broker offsets")
        if self.leases is not None:
            self.keep(self.leases.keep, "leases")
            self.keep(self.leases.deliver, "marks and releases")
        try:
            yield
        finally:
            unlisten()
            self._tasks.expect_end()
            self.abandon_lanes()
            await self._tasks.end(within=_AT_LEAST)
            await state.take_back()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do `work` beside the rest, until `working` ends at the latest."""
        return self._tasks.spawn(work, name)

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Do `work` beside the rest, again whenever something else than we has cancelled it."""
        self._tasks.keep(work, name)

    def _fail(self, error: BaseException, task: str) -> None:
        """A task of ours that fails stops the worker: what it did for the others would silently be missing."""
        cause = error.error if isinstance(error, HandlerStopped) else error
        self.fatal = cause if self.fatal is None else self.fatal
        ours = is_a(cause, AckwiseError, KafkaError, OSError)  # the text of any other may hold a payload
        log.error(
            "worker stops after an error",
            group=self.settings.group,
            task=task,
            error=said(cause) if ours else class_name(cause),
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

    async def _record_broker_offsets(
        self, of: Mapping[TopicPartition, Sequence[Lane]] | None = None, *, within: float = _BROKER_TIMEOUT
    ) -> None:
        of = self.lanes if of is None else of
        partitions = {partition: lanes[0] for partition, lanes in of.items() if not self.is_gone(partition.topic)}
        if self.sink is None or not partitions:
            return
        try:
            starts, ends = await answer(self._look([*partitions]), within=within)
        except (KafkaError, OSError) as error:
            log.debug("log ends could not be read", error=said(error))
            return
        for partition, lane in partitions.items():
            start, end = starts.get(partition), ends.get(partition)
            if start is not None and end is not None:  # else the answer was short, which says nothing
                attrs = json.dumps({"committed": lane.committed})
                self.record(Event(EventCode.BROKER_OFFSETS, *partition, start, range_end=end, role=lane.role, attrs=attrs))

    async def _look(self, partitions: list[TopicPartition]) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        return await self._client.beginning_offsets(partitions), await self._ends(partitions)

    async def _ends(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await self._client.end_offsets(partitions)

    async def ends(self) -> Mapping[TopicPartition, int]:
        """Return where the logs of its partitions end; empty if the broker does not say so soon."""
        if not self.lanes:
            return {}
        asked_at = self.worker.monotonic()
        try:
            found = await answer(self._ends([*self.lanes]), within=_LOOK_TIMEOUT)
        except (KafkaError, OSError) as error:
            log.debug("log ends could not be read", error=said(error))
            return {}
        for partition, end in found.items():
            for lane in self.lanes.get(partition, ()):
                lane.lag.see_end(end, asked_at)
        return found

    async def _flush_events(self, *, within: float = _BROKER_TIMEOUT) -> None:
        if self.sink is None:
            return
        why = f"no answer within {within:g} s"
        try:
            if await ended(self.sink.flush(), within=within):
                return
        except EventLogUnavailable as error:
            why = said(error)
        log.warning("events of a commit not durable yet", group=self.settings.group, error=why)

    def lane(
        self,
        topic: str,
        partition: int,
        role: Literal["source", "retry"],
        position: int,
        *,
        make: Callable[[Place, Sequence[Any]], list[Run]] | None = None,
        generation: int | None = None,
        overlapping: bool = False,
        agent: str | None = None,
    ) -> Lane:
        """A lane that starts at `position`. Without `make`, a record goes to the agent of its topic, a copy to the one that it names."""
        agents = [reader.name for reader in readers_of(self._agents, topic)]
        reading = readers_of([pipeline.agent for pipeline in self.pipelines.values()], topic) if make is None else []
        readers = [pipeline for pipeline in self.pipelines.values() if pipeline.agent in reading]
        keyed = next((pipeline for pipeline in readers if pipeline.agent.order == "key"), None)
        handler = agent or (agents[-1] if agents and role == "source" else None)
        return Lane(
            topic,
            partition,
            role,
            position,
            make=make or (self.routes.from_source if role == "source" else self.routes.from_retry),
            progressed=self._progressed,
            generation=generation,
            by_key=None if keyed is None else ByKey(keyed.find_order),
            in_order=any(pipeline.agent.order == "partition" for pipeline in readers),
            overlapping=overlapping,
            agent=agent,
            handler=handler,
            budget=self.budget,
            share=self._share_of(handler if role == "source" else None),
            put_off=self._put_off,
            flow=self.flow,
            isolation=self._isolation,
            commit=self._commit_lane,
        )

    async def announce(self, positions: Mapping[TopicPartition, Position]) -> set[TopicPartition]:
        """Commit where partitions start and that they have an owner, before anything of them is decoded; return those that may start.

        A first start that passes over records starts once that is committed: after a crash it would pass over more.
        """
        if not positions:
            return set()
        by = asyncio.get_running_loop().time() + _BROKER_TIMEOUT
        await self._commits.wait(positions, by)
        taken = await self._commits.announce(positions, by)
        self._announced.update(dict.fromkeys(positions, bool(taken)))
        if taken:
            return set(positions)
        return set() if taken is None else {partition for partition, position in positions.items() if not position.skips}

    def own(self, metadata: str) -> CommitMetadata | None:
        """What this group left beside a commit; `None` where that is foreign."""
        return self._commits.own(metadata)

    def add_lanes(
        self,
        partition: TopicPartition,
        lanes: tuple[Lane, ...],
        *,
        from_commit: int | None,
        metadata: str = "",
        topic: Topic = _NO_TOPIC,
        end: int | None = None,
    ) -> None:
        """Start with a partition, whose records go to each of `lanes`; those that it had before publish and commit nothing more.

        `from_commit` is the offset that the broker has of this group, and `metadata` what was left beside it. `topic` is whose log it is,
        which ended at `end`.
        """
        first = lanes[0]
        for replaced in self.lanes.get(partition, ()):
            replaced.cut()
            replaced.share.change(-1)
        self.lanes[partition] = lanes
        is_announced = self._announced.pop(partition, None)
        has = first.position if is_announced else from_commit
        for lane in lanes:
            lane.log = topic
            lane.told = None if has is None else Told(has, is_open=is_announced is not False)
            lane.share.change(+1)
        found = self.own(metadata)
        self._commits.resume(lanes, found)
        self._suspect(lanes, found, end)
        working = self._working.setdefault(partition, set())
        before = [*working]
        for lane in lanes:
            task = lane.start(after=before if lane.keeps_order else ())
            working.add(task)
            task.add_done_callback(working.discard)
            task.add_done_callback(partial(self._has_ended, lane))
            self._tasks.detach(task)
        self.has_moved.set()
        self._foreign += bool(metadata) and found is None
        attrs = None if found is None or found.writer_id is None else json.dumps({"writer": found.writer_id, "seq": found.last_seq})
        position = first.position
        self.record(Event(EventCode.ASSIGNED, *partition, position, role=first.role, from_commit=from_commit is not None, attrs=attrs))
        if is_announced and from_commit != position:
            self.record(Event(EventCode.COMMITTED, *partition, range_end=position))

    def _suspect(self, lanes: Sequence[Lane], left: CommitMetadata | None, end: int | None) -> None:
        """After an owner that did not end in order, what it may have ended at is tried first."""
        found = [None if left is None else Suspects.after(left, lane.position, end, agent_hash(lane.agent)) for lane in lanes]
        for lane, suspects in zip(lanes, found, strict=True):
            lane.suspect(suspects)
        self._suspected += any(each is not None for each in found)

    async def _commit_lane(self, lane: Lane) -> None:
        if lane in self.lanes.get(partition := TopicPartition(lane.topic, lane.partition), ()) and not self.is_gone(lane.topic):
            await self.commit([partition])

    async def begin(self) -> None:
        """Say what there is to work on, and commit where it starts: a group that never committed must start there after a crash too."""
        if not self.stop.is_set():
            roles = [lanes[0].role for lanes in self.lanes.values()]
            log.info(
                "running",
                group=self.settings.group,
                agents=", ".join(sorted(self.pipelines)),
                partitions=roles.count("source"),
                retry_partitions=roles.count("retry"),
                missing=", ".join(self.missing_topics()) or None,
            )
        if self._foreign:
            group, self._foreign, foreign = self.settings.group, 0, self._foreign
            log.info("foreign commit metadata overwritten", group=group, partitions=foreign)
        if self._suspected:
            group, self._suspected, suspected = self.settings.group, 0, self._suspected
            log.warning(
                "first messages of dead workers run in portions",
                group=group,
                partitions=suspected,
            )
        await self.commit([partition for partition, lanes in self.lanes.items() if lanes[0].committed is None])

    def offer(self, partition: TopicPartition, records: Sequence[Any], *, proved: bool | None = None) -> None:
        """Give what was fetched to the lanes. Without one that takes it, it is forgotten: the next lane starts with a seek to its start.

        `proved`: the fetch started where the one before it ended, so that the log has nothing in a hole.
        """
        lanes = self.lanes.get(partition, ())
        if not lanes or lanes[0].is_stopping:
            return
        for start, end in sorted({gap for lane in lanes for gap in lane.offer(records, proved=bool(proved))}):
            self.record(Event(EventCode.GAP, *partition, start, range_end=end, proved=proved))
        self.record(Event(EventCode.RECEIVED_RANGE, *partition, records[0].offset, range_end=records[-1].offset + 1))

    def skip(self, partition: TopicPartition, end: int) -> None:
        """A fetch from where the one before it ended has come to `end`, and the log has nothing to read behind what it gave."""
        lanes = self.lanes.get(partition, ())
        start = lanes[0].position if lanes else end
        if [lane for lane in lanes if lane.skip(end)]:
            self.record(Event(EventCode.GAP, *partition, start, range_end=end, proved=True))

    def _put_off(self, run: Run) -> None:
        put_off(run, self.worker.later_for(run))

    def _share_of(self, agent: str | None) -> Share:
        """What `agent` may have in flight; `None`: copies, and what several agents have, of which each partition has its own."""
        if agent not in self._shares:
            self._shares[agent] = Share(partial(self._thresholds, agent))
        return self._shares[agent]

    def _thresholds(self, agent: str | None, partitions: int) -> Thresholds:
        settings, its = self.settings, None if (pipeline := self.pipelines.get(agent or "")) is None else pipeline.agent
        messages, size = (None, None) if its is None else (its.max_messages, its.max_bytes)
        return Thresholds(
            share_of(messages, partitions) or _unless(settings.partition_messages, MAX_MESSAGES),
            share_of(size, partitions) or _unless(settings.partition_bytes, LANE_BYTES),
            settings.partition_span,
        )

    def _look_again(self) -> None:
        """Something may start that might not before, or may not."""
        for lane in _each_of(self.lanes):
            lane.look_again()
        self._isolation.stir()
        self.has_moved.set()

    def _progressed(self, lane: Lane) -> None:
        self.has_moved.set()
        if self.settings.commit_interval == 0 and not lane.cut_off and lane in self.lanes.get(TopicPartition(*lane.place), ()):
            self.spawn(self.commit([TopicPartition(*lane.place)]), "commit")

    async def commit(self, partitions: Iterable[TopicPartition] | None = None, *, within: float = _BROKER_TIMEOUT) -> None:
        """Commit what the watermarks of `partitions`, or of all that no commit is under way for, say, in at most `within` seconds.

        A commit that fails is made good by the next one.
        """
        by = asyncio.get_running_loop().time() + within
        if partitions is None:
            partitions = [partition for partition in self.lanes if not self._commits.is_under_way(partition)]
        else:
            partitions = list(partitions)
            await self._commits.wait(partitions, by)
        await self._commit(to_commit(self.lanes, partitions), by)

    async def _commit(self, offsets: Offsets, by: float) -> None:
        """Offsets of a deleted topic can't be committed: the broker would refuse that again and again, and the others would wait."""
        offsets = {partition: told for partition, told in offsets.items() if not self.is_gone(partition.topic)}
        if offsets and await self._commits.commit(offsets, by):
            await self._flush_events(within=max(_AT_LEAST, by - asyncio.get_running_loop().time()))

    async def drain(self, partitions: Iterable[TopicPartition], timeout: float, *, stopping: bool = False) -> None:
        """Stop taking, let what runs finish and settle for at most `timeout` seconds, commit; then cut off.

        What is ready is committed and let go at once, whatever the others do. Drains of the same partitions go on side by side: a
        rebalance may start while the app stops, and then the first cut-off is that of both.
        """
        drained = {partition: self.lanes[partition] for partition in partitions if partition in self.lanes}
        if not drained:
            return
        log.info("draining", group=self.settings.group, partitions=len(drained), at_most=timeout, stopping=stopping)
        now = asyncio.get_running_loop().time
        cut_at = now() + timeout
        by = cut_at + (_AFTER_STOP if stopping else _AFTER_REVOKE)
        for lane in _each_of(drained):
            lane.stop()
        late = await self._let_go_ready(drained, cut_at, by)
        if late:
            log.warning(
                "partitions did not drain in time",
                group=self.settings.group,
                partitions=len(late),
                seconds=timeout,
            )
            await self._cut_off(late, by, stopping=stopping)
        await self._record_broker_offsets(drained, within=max(_AT_LEAST, min(_BROKER_TIMEOUT, by - now())))
        await self._release(_each_of(drained), within=max(_AT_LEAST, by - now()))

    async def _let_go_ready(self, drained: _Lanes, cut_at: float, by: float) -> _Lanes:
        """Let each partition go as soon as nothing runs there and all is settled; returns those of which that is not so in time."""
        now = asyncio.get_running_loop().time
        left = dict(drained)
        while left:
            if ready := {partition: lanes for partition, lanes in left.items() if not _tasks_of(lanes)}:
                until = by if len(ready) == len(left) else cut_at  # no commit puts off the cut-off of the others
                for lane in _each_of(ready):
                    lane.close()
                await self.commit(ready, within=min(_BROKER_TIMEOUT, until - now()))
                self._let_go(ready)
            left = {partition: lanes for partition, lanes in left.items() if partition not in ready and self.lanes.get(partition) is lanes}
            if not left or now() >= cut_at:
                break
            if running := _tasks_of(_each_of(left)):
                await asyncio.wait(running, timeout=cut_at - now(), return_when=asyncio.FIRST_COMPLETED)
        return left

    async def _cut_off(self, late: _Lanes, by: float, *, stopping: bool) -> None:
        """From here on `late` publishes nothing, and commits only what it had settled before."""
        for lane in _each_of(late):
            lane.spare()
        running, offsets = _tasks_of(_each_of(late)), to_commit(self.lanes, late)
        for lane in _each_of(late):
            lane.cut()
            if stopping:
                lane.call_off()
        await self._commits.wait(offsets, by)  # the answer of an earlier one, or its repetition would overtake this
        await self._commit(offsets, by)
        if stopping and running:
            await asyncio.wait(running, timeout=min(_GRACE, max(_AT_LEAST, by - asyncio.get_running_loop().time())))
        self._let_go(late)

    def _let_go(self, drained: _Lanes) -> None:
        """Forget partitions, unless another drain has; nothing more is published or committed for them."""
        for partition, its_lanes in drained.items():
            if self.lanes.get(partition) is its_lanes:
                del self.lanes[partition]
                self.record(Event(EventCode.REVOKED, *partition, passed(its_lanes)))
                for lane in its_lanes:
                    lane.cut()
                    lane.share.change(-1)
        self.has_moved.set()

    async def _release(self, lanes: Collection[Lane], *, within: float) -> None:
        if not await ended(self.give_back(lanes), within=within):
            log.warning(
                "claims could not be released",
                group=self.settings.group,
                error=f"no answer within {within:g} s",
            )

    def _has_ended(self, lane: Lane, _: asyncio.Task[None]) -> None:
        """After its cut-off nothing comes up again in `lane`: the claims of what is left there go back at once.

        A drain that did not wait for it could not see them, and they would be renewed forever.
        """
        if self.leases is not None and lane.cut_off and (left := lane.unsettled()):
            for run in left:
                self.leases.give_back(run)
            self._tasks.spawn(self._flush_claims(self.leases), "claims of a lane that has ended")

    @staticmethod
    async def _flush_claims(leases: Leases) -> None:
        with suppress(StoreUnavailable):  # they go with the next trip that it answers
            await leases.flush()

    def abandon_lanes(self) -> list[Lane]:
        """After our error there was no drain: what is left publishes and commits nothing."""
        abandoned = [lane for lanes in self.lanes.values() for lane in lanes]
        self.lanes.clear()
        for lane in abandoned:
            lane.cut()
            lane.share.change(-1)
        return abandoned

    async def give_back(self, lanes: Iterable[Lane]) -> None:
        """Release what these lanes hold in the store, so that the next owner never waits for a lease."""
        unsettled = [run for lane in lanes for run in lane.unsettled()]
        withheld = self._give_up_letters(unsettled)
        if self.leases is None:
            if withheld:
                await self._flush_events()
            return
        for run in unsettled:
            self.leases.give_back(run)
        try:
            await self.leases.flush()
        except StoreUnavailable as error:
            log.warning("claims could not be released", group=self.settings.group, error=said(error))
        await self._flush_events()

    def _give_up_letters(self, unsettled: Iterable[Run]) -> bool:
        """What a breaker withholds is undecided: its failure is reported, and the next owner decides. Returns whether there was any."""
        letters = [run for run in unsettled if is_withheld_letter(run)]
        for run in letters:
            handler = "" if run.pipeline is None else run.pipeline.agent.name
            self.worker.record(EventCode.FAILED, handler, run, error=run.error)
        return bool(letters)


def _unless(value: int, default: int) -> int | None:
    """`value`, if it is configured: a lane may hold more than that where its agent takes more at a time."""
    return None if value == default else value


def _each_of(drained: _Lanes) -> list[Lane]:
    return [lane for lanes in drained.values() for lane in lanes]


def _tasks_of(lanes: Iterable[Lane]) -> set[asyncio.Task[None]]:
    """Those that have not ended."""
    return {lane.task for lane in lanes if lane.task is not None and not lane.task.done()}


def owner_of(policy: Transactional, group: str) -> str:
    """Whose offsets a database keeps for `group`."""
    return f"{policy.namespace}/{policy.epoch}/{group}"
