"""Commits of a member: the offsets that its lanes have passed, told to the broker with what the next owner is to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.commitmetadata import CommitMetadata, FinishedMap
from ackwise.middleware.events import Event, EventCode, EventSink, durable_of
from ackwise.middleware.log import Log, said
from ackwise.middleware.progress import agents_hash, measure
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.group.lane import MAX_SPAN, MOST_IN_PLACE, Lane, Told

__all__ = ["Commits", "Offsets", "passed", "to_commit"]

log = Log()

Offsets = Mapping[TopicPartition, tuple[tuple[Lane, ...], Told]]
"""The lanes of each partition, and what is to be told of it: the next offset that all of them have passed, and what stands beside it."""

#: Seconds that a commit gets, however late it is.
_AT_LEAST: Final = 0.5


class Commits:
    """The commits of one member of `group`, through `send`. Two of the same partition are never under way at once."""

    def __init__(
        self,
        group: str,
        agents: Sequence[str],
        sink: EventSink | None,
        send: Callable[[dict[TopicPartition, OffsetAndMetadata]], Awaitable[Any]],
    ) -> None:
        """`agents` are the names of all agents of the group."""
        self.cluster: str | None = None  #: the id of the cluster; without it nobody could tell whose offsets a map is about
        self._group = group
        self._agents = agents
        self._sink = sink
        self._send = send
        self._under_way: dict[TopicPartition, asyncio.Future[None]] = {}  #: what the broker was told and has not answered
        self._refuses_metadata = False  # the broker, with a lower limit than others have
        self._throttle = LogThrottle()

    def is_under_way(self, partition: TopicPartition) -> bool:
        """Whether the broker has not answered the last commit of `partition`."""
        return partition in self._under_way

    async def wait(self, partitions: Collection[TopicPartition], by: float) -> None:
        """Until no commit of these is under way: what is committed next must not overtake it."""
        now = asyncio.get_running_loop().time
        while now() < by and (under_way := {self._under_way[partition] for partition in partitions if partition in self._under_way}):
            await asyncio.wait(under_way, timeout=by - now())

    async def commit(self, offsets: Offsets, by: float) -> bool:
        """Commit `offsets`, and record that; returns whether the broker took them. A failure is logged."""
        now, answered = asyncio.get_running_loop().time, asyncio.get_running_loop().create_future()
        self._under_way.update(dict.fromkeys(offsets, answered))
        try:
            await answer(self._with_metadata(offsets), within=max(_AT_LEAST, by - now()))
        except (CommitFailedError, IllegalStateError) as error:
            log.warning(
                "a commit was refused since the partitions moved, the next owner goes on from the last one",
                group=self._group,
                partitions=len(offsets),
                error=said(error),
            )
            return False
        except (KafkaError, OSError) as error:
            self._log_failed(error, len(offsets))
            return False
        finally:
            for partition in offsets:
                if self._under_way.get(partition) is answered:
                    del self._under_way[partition]
            answered.set_result(None)
        self._throttle.reset("commit")
        for partition, (lanes, told) in offsets.items():
            has_moved = lanes[0].committed != told.offset
            for lane in lanes:
                lane.told = told
            if self._sink is not None and has_moved:
                self._sink.record(Event(EventCode.COMMITTED, *partition, range_end=told.offset))
        return True

    def resume(self, lanes: Sequence[Lane], metadata: CommitMetadata | None) -> None:
        """Tell `lanes`, which are new, what their last owner had finished above its last commit: in this cluster, with the same agents."""
        if self._refuses_metadata:
            _keep_no_map(lanes)
        found = None if metadata is None else metadata.finished
        if metadata is None or found is None or (found.cluster, found.agents) != (self.cluster, self._agents_of(lanes)):
            return
        for lane in lanes:
            if lane.max_span > MAX_SPAN and lane.position == found.base == lane.committed:
                lane.resume(found, metadata.in_place)

    def _agents_of(self, lanes: Sequence[Lane]) -> str:
        return agents_hash([*self._agents, *(lane.agent for lane in lanes if lane.agent is not None)])

    def _log_failed(self, error: KafkaError | OSError, partitions: int) -> None:
        """A refusal lasts until somebody lifts it: it is an alarm, and said once a minute. What fails otherwise may pass."""
        group = self._group
        if not is_refusal(error):
            log.warning("a commit failed and is made good by the next one", group=group, partitions=partitions, error=said(error))
        elif self._throttle.is_due("commit"):
            log.error(
                "Kafka refuses the commits of this worker, it goes on and tries each again; after a crash what is done comes again",
                group=group,
                partitions=partitions,
                error=said(error),
            )

    async def _with_metadata(self, offsets: Offsets) -> None:
        """Commit with what the next owner is to know; a broker that allows less gets the bare offsets from then on."""
        try:
            await self._send(
                {partition: OffsetAndMetadata(told.offset, self._metadata(lanes, told)) for partition, (lanes, told) in offsets.items()}
            )
        except OffsetMetadataTooLargeError as error:
            if self._refuses_metadata:
                raise
            self._refuses_metadata = True
            log.warning(
                "the broker refuses the metadata of a commit, from now on this worker commits without",
                group=self._group,
                error=said(error),
            )
            for lanes, _ in offsets.values():
                _keep_no_map(lanes)
            await self._with_metadata(offsets)

    def _metadata(self, lanes: Sequence[Lane], told: Told) -> str:
        if self._refuses_metadata:
            return ""
        durable = durable_of(self._sink)
        finished = None
        if told.finished is not None and self.cluster is not None:
            base_ts, last_ts, bits = told.finished
            finished = FinishedMap(self.cluster, told.offset, base_ts, last_ts, self._agents_of(lanes), bits)
        writer, last = durable or (None, None)
        if finished is None:
            return CommitMetadata(writer, last).encode()
        try:
            return CommitMetadata(writer, last, finished, told.in_place).encode()
        except ValueError:  # attempts without measure take more room than there is
            return CommitMetadata(writer, last, finished).encode()


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
    """`offset` with what is finished above it, and what waits there in place, as far as there is any."""
    in_place = sorted({entry for lane in lanes for entry in lane.in_place})
    for lane in lanes:
        lane.forget_times(offset)
    times = {at: time for lane in lanes for at, time in lane.times.items()}
    before = lanes[0].finished_before
    if not (in_place or times or before) or any(lane.max_span <= MAX_SPAN for lane in lanes):
        return Told(offset)
    base_ts = next((time for lane in lanes if (time := lane.time_at(offset)) is not None), None)
    if base_ts is None:
        if lanes[0].last_fetched is None or not (before or in_place):
            return Told(offset)
        # Nothing is in hand, and more was told of what is not fetched yet: the last record, though finished, is the base of that.
        offset, base_ts = lanes[0].last_fetched
    finished = measure([lane.watermark for lane in lanes], offset, base_ts, {**times, offset: base_ts}, before)
    return Told(offset, finished, in_place[:MOST_IN_PLACE]) if finished.bits or in_place else Told(offset)


def passed(lanes: Sequence[Lane]) -> int | None:
    """The next offset to give to the broker: every lane has settled everything below it. `None` while one knows nothing."""
    offsets = [offset for lane in lanes if (offset := lane.watermark.commit) is not None]
    return min(offsets, default=None) if len(offsets) == len(lanes) else None
