"""Commits of a member: the offsets that its lanes have passed, told to the broker with what the next owner is to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.commitmetadata import CommitMetadata
from ackwise.middleware.events import Event, EventCode, EventSink, durable_of
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.group.lane import Lane

__all__ = ["Commits", "Offsets", "passed", "to_commit"]

log = Log()

Offsets = Mapping[TopicPartition, tuple[tuple[Lane, ...], int]]
"""The lanes of each partition, and the next offset that all of them have passed."""

#: Seconds that a commit gets, however late it is.
_AT_LEAST: Final = 0.5


class Commits:
    """The commits of one member of `group`, through `send`. Two of the same partition are never under way at once."""

    def __init__(
        self, group: str, sink: EventSink | None, send: Callable[[dict[TopicPartition, OffsetAndMetadata]], Awaitable[Any]]
    ) -> None:
        self._group = group
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
            sending = self._with_metadata({partition: offset for partition, (_, offset) in offsets.items()})
            await answer(sending, within=max(_AT_LEAST, by - now()))
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
        for partition, (lanes, offset) in offsets.items():
            for lane in lanes:
                lane.committed = offset
            if self._sink is not None:
                self._sink.record(Event(EventCode.COMMITTED, *partition, range_end=offset))
        return True

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

    async def _with_metadata(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit with what the next owner is to know; a broker that allows less gets the bare offsets from then on."""
        try:
            await self._send({partition: OffsetAndMetadata(offset, self._metadata()) for partition, offset in offsets.items()})
        except OffsetMetadataTooLargeError as error:
            if self._refuses_metadata:
                raise
            self._refuses_metadata = True
            log.warning(
                "the broker refuses the metadata of a commit, from now on this worker commits without",
                group=self._group,
                error=said(error),
            )
            await self._with_metadata(offsets)

    def _metadata(self) -> str:
        if self._refuses_metadata:
            return ""
        durable = durable_of(self._sink)
        return (CommitMetadata() if durable is None else CommitMetadata(*durable)).encode()


def to_commit(lanes: Mapping[TopicPartition, tuple[Lane, ...]], partitions: Iterable[TopicPartition]) -> Offsets:
    """Those of `partitions` that have moved since the broker was told, each with its lanes and its next offset."""
    found = {}
    for partition in partitions:
        its_lanes = lanes.get(partition, ())
        offset = passed(its_lanes)
        if offset is not None and offset != its_lanes[0].committed and not any(lane.cut_off for lane in its_lanes):
            found[partition] = its_lanes, offset
    return found


def passed(lanes: Sequence[Lane]) -> int | None:
    """The next offset to give to the broker: every lane has settled everything below it. `None` while one knows nothing."""
    offsets = [offset for lane in lanes if (offset := lane.watermark.commit) is not None]
    return min(offsets, default=None) if len(offsets) == len(lanes) else None
