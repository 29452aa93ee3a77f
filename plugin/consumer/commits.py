"""Commits of a member: the offsets that its lanes have passed, with metadata for the next owner of each partition."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.events import Event, EventCode, EventSink, durable_of
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.progress.commitmetadata import CommitMetadata, FinishedMap, Tried, group_hash, read_own
from ackwise.middleware.progress.watermark import Finished, agents_hash, measure
from ackwise.plugin.consumer.lane import MAX_SPAN, MOST_IN_PLACE, Lane, Told
from ackwise.plugin.kafka.brokeroffsets import Topic
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.timeouts import answer


class Position(NamedTuple):
    """Where a partition goes on."""

    next: int
    committed: int | None  #: the offset that the broker has of this group
    generation: int | None = None  #: of the offset in the database, if it is kept there
    metadata: str = ""  #: what was committed beside it, unless that is about a topic that is gone
    topic: Topic = Topic()  #: with the number of partitions that it had when the group started with it
    end: int | None = None  #: of the log, when it was asked
    skips: bool = False  #: records before it are passed over, and no commit records that yet


log = Log()

Offsets = Mapping[TopicPartition, tuple[tuple[Lane, ...], Told]]
"""The lanes of each partition, and what is to be told of it: the next offset that all of them have passed, and what stands beside it."""

_Committed = dict[TopicPartition, OffsetAndMetadata]
_Left = Mapping[TopicPartition, tuple[int, CommitMetadata]]

#: Seconds that a commit gets, however late it is.
_AT_LEAST: Final = 0.5


class _Room(enum.Enum):
    """What the broker has room for beside a commit."""

    ALL = enum.auto()
    SHORT = enum.auto()
    """No map, and no attempts in place."""
    NONE = enum.auto()


class Commits:
    """The commits of one member of `group`, through `send`. Two of the same partition are never under way at once."""

    def __init__(
        self,
        group: str,
        agents: Sequence[str],
        sink: EventSink | None,
        send: Callable[[_Committed], Awaitable[Any]],
        lanes: Callable[[], Iterable[Lane]] = tuple,
    ) -> None:
        """`agents` are the names of all agents of the group, `lanes` those of all its partitions here."""
        self.cluster: str | None = None  #: the id of the cluster; without it a map could be about the offsets of another cluster
        self._group = group
        self._hash = group_hash(group)
        self._agents = agents
        self._sink = sink
        self._send = send
        self._lanes = lanes
        self._under_way: dict[TopicPartition, asyncio.Future[None]] = {}  #: commits that the broker has not answered
        self._room = _Room.ALL
        self._throttle = LogThrottle()

    def is_under_way(self, partition: TopicPartition) -> bool:
        """Return whether the broker has not answered the last commit of `partition`."""
        return partition in self._under_way

    async def wait(self, partitions: Collection[TopicPartition], by: float) -> None:
        """Wait until no commit of these is under way: what is committed next must not overtake it."""
        now = asyncio.get_running_loop().time
        while now() < by and (under_way := {self._under_way[partition] for partition in partitions if partition in self._under_way}):
            await asyncio.wait(under_way, timeout=by - now())

    async def commit(self, offsets: Offsets, by: float) -> bool:
        """Commit `offsets`, and record that; returns whether the broker took them. A failure is logged."""
        if not await self._commit({each: (told.offset, self._metadata(lanes, told)) for each, (lanes, told) in offsets.items()}, by):
            return False
        for partition, (lanes, told) in offsets.items():
            has_moved = lanes[0].told is None or lanes[0].told.offset != told.offset
            for lane in lanes:
                lane.told = told
            if self._sink is not None and has_moved:
                self._sink.record(Event(EventCode.COMMITTED, *partition, range_end=told.offset))
        return True

    async def announce(self, positions: Mapping[TopicPartition, Position], by: float) -> bool | None:
        """Commit where partitions start and that they have an owner, in one request.

        Return whether the broker took it; `None` if the partitions are no longer ours. A failure is logged.
        """
        return await self._commit({each: (position.next, self._announcement(position)) for each, position in positions.items()}, by)

    async def _commit(self, offsets: _Left, by: float) -> bool | None:
        """Commit `offsets`; returns whether the broker took them, `None` where the partitions have moved."""
        now, answered = asyncio.get_running_loop().time, asyncio.get_running_loop().create_future()
        self._under_way.update(dict.fromkeys(offsets, answered))
        try:
            await answer(self._with_metadata(offsets), within=max(_AT_LEAST, by - now()))
        except (CommitFailedError, IllegalStateError) as error:
            log.warning(
                "commit refused after a rebalance",
                group=self._group,
                partitions=len(offsets),
                error=said(error),
            )
            return None
        except (KafkaError, OSError) as error:
            self._log_failed(error, len(offsets))
            return False
        finally:
            for partition in offsets:
                if self._under_way.get(partition) is answered:
                    del self._under_way[partition]
            answered.set_result(None)
        self._throttle.reset("commit")
        return True

    def resume(self, lanes: Sequence[Lane], metadata: CommitMetadata | None) -> None:
        """Tell `lanes`, which are new, what their last owner had finished above its last commit, with the same agents."""
        if self._room is not _Room.ALL:
            _keep_no_map(lanes)
        found = None if metadata is None else metadata.finished
        if metadata is None or found is None or self.cluster is None or found.agents != self._agents_of(lanes):
            return
        for lane in lanes:
            if lane.max_span > MAX_SPAN and lane.position == found.base == lane.committed:
                lane.resume(found, metadata.in_place)

    def _agents_of(self, lanes: Sequence[Lane]) -> str:
        return agents_hash([*self._agents, *(lane.agent for lane in lanes if lane.agent is not None)])

    def _log_failed(self, error: KafkaError | OSError, partitions: int) -> None:
        """A refusal lasts until an operator acts: it is logged as an error, once a minute. Other failures may pass."""
        group = self._group
        if not is_refusal(error):
            log.warning("commit failed", group=group, partitions=partitions, error=said(error))
        elif self._throttle.is_due("commit"):
            log.error(
                "Kafka refused a commit",
                group=group,
                partitions=partitions,
                error=said(error),
            )

    async def _with_metadata(self, offsets: _Left) -> None:
        """Commit with what the next owner is to know; a broker that allows less gets less from then on, at last the bare offsets."""
        try:
            if self._room is _Room.NONE:
                texts = dict.fromkeys(offsets, "")
            elif self._room is _Room.SHORT:
                texts = {each: replace(left, finished=None, in_place=()).fit() for each, (_, left) in offsets.items()}
            else:
                texts = {each: left.fit() for each, (_, left) in offsets.items()}
            await self._send({each: OffsetAndMetadata(offset, texts[each]) for each, (offset, _) in offsets.items()})
        except OffsetMetadataTooLargeError as error:
            if self._room is _Room.NONE:
                raise
            self._room = _Room.SHORT if self._room is _Room.ALL else _Room.NONE
            log.warning(
                "broker refused the metadata of a commit",
                group=self._group,
                error=said(error),
                without="the map of what is finished" if self._room is _Room.SHORT else "any",
            )
            _keep_no_map(self._lanes())
            await self._with_metadata(offsets)

    def own(self, metadata: str) -> CommitMetadata | None:
        """What this group left beside a commit, in this cluster; `None` where that is foreign."""
        return read_own(metadata, self._group, self.cluster)

    def _metadata(self, lanes: Sequence[Lane], told: Told) -> CommitMetadata:
        finished = None
        if told.finished is not None and self.cluster is not None:
            base_ts, last_ts, bits = told.finished
            finished = FinishedMap(told.offset, base_ts, last_ts, self._agents_of(lanes), bits)
        in_place = () if finished is None else told.in_place
        writer, last = durable_of(self._sink) or (None, None)
        return CommitMetadata(writer, last, finished, in_place, self._hash, self.cluster, *lanes[0].log, told.is_open, told.tried)

    def _announcement(self, position: Position) -> CommitMetadata:
        """Pass on what the last owner left: this one may end before it has fetched anything, or has named the owner before it."""
        left = self.own(position.metadata) or CommitMetadata()
        if left.finished is None or left.finished.base != position.next:
            left = replace(left, finished=None, in_place=())
        topic_id, partitions = position.topic
        return replace(left, group=self._hash, cluster=self.cluster, topic_id=topic_id, partitions=partitions, is_open=True)


def _keep_no_map(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.max_span = MAX_SPAN


def to_commit(lanes: Mapping[TopicPartition, tuple[Lane, ...]], partitions: Iterable[TopicPartition]) -> Offsets:
    """Those of `partitions` of which there is news for the broker, each with its lanes and what is to be told of it."""
    found = {}
    for partition in partitions:
        its_lanes = lanes.get(partition, ())
        offset = passed(its_lanes)
        if offset is not None and not any(lane.cut_off for lane in its_lanes):
            told = _beside(its_lanes, offset)
            if told != its_lanes[0].told:
                found[partition] = its_lanes, told
    return found


def _beside(lanes: Sequence[Lane], offset: int) -> Told:
    """Return the commit: `offset`, what is finished above it, and what waits there in place."""
    in_place = sorted({entry for lane in lanes for entry in lane.in_place})
    bare = Told(offset, is_open=not all(lane.is_closed for lane in lanes), tried=_tried(lanes))
    if (unread := lanes[0].unread) is not None:
        left = Finished(unread.base_ts, unread.last_ts, unread.bits)
        return bare._replace(offset=unread.base, finished=left, in_place=lanes[0].in_place_before)
    for lane in lanes:
        lane.forget_times(offset)
    times = {at: time for lane in lanes for at, time in lane.times.items()}
    before = lanes[0].finished_before
    if not (in_place or times or before) or any(lane.max_span <= MAX_SPAN for lane in lanes):
        return bare
    base_ts = next((time for lane in lanes if (time := lane.time_at(offset)) is not None), None)
    if base_ts is None:
        if lanes[0].last_fetched is None or not (before or in_place):
            return bare
        # Nothing is in flight, and the last commit covered records that are not fetched yet: the last record is the base of that.
        offset, base_ts = lanes[0].last_fetched
    finished = measure([lane.watermark for lane in lanes], offset, base_ts, {**times, offset: base_ts}, before)
    bare = bare._replace(offset=offset)
    return bare._replace(finished=finished, in_place=in_place[:MOST_IN_PLACE]) if finished.bits or in_place else bare


def _tried(lanes: Sequence[Lane]) -> Tried | None:
    """What the lanes of a partition try: that of the one that works alone, or the range that has what all of them try."""
    found = {lane.tried for lane in lanes if lane.is_alone} or {lane.tried for lane in lanes}
    tried = [each for each in found if each is not None]
    if len(tried) <= 1:
        return tried[0] if tried else None
    return Tried(min(each.first for each in tried), max(each.end for each in tried), 0)


def passed(lanes: Sequence[Lane]) -> int | None:
    """The next offset to give to the broker: every lane has settled everything below it. `None` while one knows nothing."""
    offsets = [offset for lane in lanes if (offset := lane.watermark.commit) is not None]
    return min(offsets, default=None) if len(offsets) == len(lanes) else None
