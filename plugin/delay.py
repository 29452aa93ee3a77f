"""The delay relay: moves copies from the delay topics to the retry topic when they are due.

It is a service of every worker, in a consumer group of its own, and writes no events about messages.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.delayline import DelayLine
from ackwise.plugin.settings import REBALANCE_TIMEOUT, HostSettings
from ackwise.plugin.topics import TopicNames

__all__ = ["DelayRelay", "first_offset"]

log = Log()

#: Seconds: between two looks at the lines, until a lost membership is begun anew, between two looks at the logs' ends.
_POLL, _BEGIN_ANEW, _BROKER_OFFSETS_EVERY = 0.5, 2.0, 30.0

#: Seconds for a commit and for a last look, and for what is being published when a partition is given up; a publisher answers within ten.
_COMMIT_TIMEOUT, _RELEASE_TIMEOUT = 5.0, 12.0

#: Seconds for which a start that has begun may go on after a stop.
_START_TIMEOUT: Final = 1.0

#: Records that one fetch takes.
_FETCH: Final = 500


def first_offset(committed: int | None, start: int, end: int) -> int:
    """Where to begin in a log that reaches from `start` to before `end`.

    Without a commit at its start: a copy that was sent before must not be missed. A commit outside of the log belongs
    to records that are gone, so everything that is there is new; RocketMQ's consumer goes to the end above it
    (`correctLogicOffset`), which would lose what was written meanwhile. What comes twice is told by its attempt.
    """
    return committed if committed is not None and start <= committed <= end else start


class DelayRelay:
    """Moves what is due for as long as `run` goes. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        levels: DelayLevels,
        publisher: Publisher,
        *,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._names = names
        self._levels = levels
        self._publisher = publisher
        self._sink = sink
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then commit and leave the group.

        Whatever the brokers do, it begins anew and goes on from the last commit. Raises only what is a defect of ours.
        """
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._relay(stopping)
        finally:
            stopping.cancel()

    async def _relay(self, stopping: asyncio.Task[Any]) -> None:
        membership = _Membership(self._consumer(), self._line, self._sink, self._settings.commit_interval)
        relaying = asyncio.create_task(membership.relay(self._names.delays), name="ackwise relay")
        try:
            await asyncio.wait({relaying, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                relaying.result()
        except (KafkaError, OSError) as error:
            log.warning(
                "the delay relay lost its broker, nothing is lost and it begins anew",
                group=self._names.relay_group,
                error=said(error),
                retry_in=_BEGIN_ANEW,
            )
        finally:
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
            await membership.close()
        await asyncio.wait({stopping}, timeout=_BEGIN_ANEW)

    def _consumer(self) -> AIOKafkaConsumer:
        options: dict[str, Any] = dict(self._settings.client_options)
        return AIOKafkaConsumer(
            bootstrap_servers=self._settings.brokers,
            group_id=self._names.relay_group,
            client_id=f"{self._settings.client_id}-relay",
            enable_auto_commit=False,
            auto_offset_reset="none",  # every start position is ours, so that no line is fed from somewhere else
            isolation_level="read_committed",
            session_timeout_ms=round(self._settings.session_timeout * 1000),
            heartbeat_interval_ms=round(self._settings.session_timeout * 1000 / 5),
            rebalance_timeout_ms=round(REBALANCE_TIMEOUT * 1000),
            **options,
        )

    def _line(self, partition: TopicPartition, position: int) -> DelayLine:
        return DelayLine(
            partition.topic,
            partition.partition,
            position,
            names=self._names,
            levels=self._levels,
            publisher=self._publisher,
            clock=self._clock,
        )


class _Membership(ConsumerRebalanceListener):
    """One stay in the relay's group, from joining to leaving, with a line for each assigned partition."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        make_line: Callable[[TopicPartition, int], DelayLine],
        sink: EventSink | None,
        commit_interval: float,
    ) -> None:
        self._consumer = consumer
        self._make_line = make_line
        self._sink = sink
        self._commit_interval = commit_interval
        self._lines: dict[TopicPartition, DelayLine] = {}
        self._assigned: set[TopicPartition] = set()
        self._next_commit = self._next_look = 0.0

    async def relay(self, topics: Iterable[str]) -> None:
        """Join, and feed the lines. Ends with an error only: a `KafkaError`, or what ended a line."""
        self._consumer.subscribe(list(topics), listener=self)
        await self._start()
        while True:
            await self._open_lines()
            self._regulate()
            for partition, records in (await self._consumer.getmany(timeout_ms=round(_POLL * 1000), max_records=_FETCH)).items():
                if (line := self._lines.get(partition)) is not None:  # without one, opening it seeks back to its start
                    line.offer(map(_delivery, records))
            for task in [line.task for line in self._lines.values() if line.task is not None and line.task.done()]:
                task.result()
            now = time.monotonic()
            if now >= self._next_commit:
                self._next_commit = now + self._commit_interval
                await self._commit(self._lines)
            if self._sink is not None and now >= self._next_look:
                self._next_look = now + _BROKER_OFFSETS_EVERY
                await self._record_broker_offsets(self._sink)

    async def _start(self) -> None:
        """A start that is cut short leaves a connection open in aiokafka, so it is let finish if it is quick."""
        starting = asyncio.create_task(self._consumer.start())
        try:
            await asyncio.shield(starting)
        finally:
            await asyncio.wait({starting}, timeout=_START_TIMEOUT)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def close(self) -> None:
        """Let what is being published finish, commit what was acknowledged, and leave the group."""
        lines = dict(self._lines)
        await self.on_partitions_revoked(lines)
        if self._sink is not None and lines:
            self._lines = lines
            with suppress(KafkaError, OSError):
                async with asyncio.timeout(_COMMIT_TIMEOUT):
                    await self._record_broker_offsets(self._sink)
        with suppress(KafkaError, OSError):  # the broker misses a member that could not say goodbye
            await self._consumer.stop()

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        """The loop opens their lines: it alone fetches, so that nothing is fetched before its line is there."""
        self._assigned = set(assigned)

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        """Commit what was acknowledged, and drop the rest, which the next owner fetches again."""
        self._assigned = set()
        lines, self._lines = {partition: self._lines[partition] for partition in revoked if partition in self._lines}, {}
        for line in lines.values():
            line.stop()
        tasks = {line.task for line in lines.values() if line.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_RELEASE_TIMEOUT)
            for task in late:
                task.cancel()
        await self._commit(lines)

    async def _open_lines(self) -> None:
        """A line begins with a seek to its position, in one step without an await."""
        assigned = self._assigned
        if not assigned:
            return
        partitions = sorted(assigned)
        starts = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        committed = await asyncio.gather(*(self._consumer.committed(partition) for partition in partitions))
        if self._assigned is not assigned:
            return  # revoked meanwhile
        for partition, offset in zip(partitions, committed, strict=True):
            position = first_offset(offset, starts[partition], ends[partition])
            if offset is not None and position != offset:
                log.warning(
                    "the relay's commit is outside of what the delay topic holds, it begins elsewhere",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=offset,
                    log_start=starts[partition],
                    log_end=ends[partition],
                    goes_on_at=position,
                )
            self._consumer.seek(partition, position)
            line = self._lines[partition] = self._make_line(partition, position)
            line.committed = offset
            line.start()
        self._assigned = set()

    def _regulate(self) -> None:
        paused = self._consumer.paused()
        for partition, line in self._lines.items():
            full = line.is_full(paused=partition in paused)
            if full and partition not in paused:
                self._consumer.pause(partition)
            elif partition in paused and not full:
                self._consumer.resume(partition)

    async def _commit(self, lines: dict[TopicPartition, DelayLine]) -> None:
        """Commit what was acknowledged. A commit that fails is made good by the next one, or copies come twice and are stale."""
        offsets = {
            partition: offset
            for partition, line in lines.items()
            if (offset := line.watermark.commit) is not None and offset != line.committed
        }
        if not offsets:
            return
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT):
                await self._consumer.commit(offsets)
        except (KafkaError, OSError) as error:
            log.debug("the relay's commit failed, copies may come twice, which is told by their attempt", error=said(error))
            return
        for partition, offset in offsets.items():
            lines[partition].committed = offset

    async def _record_broker_offsets(self, sink: EventSink) -> None:
        """Say how far each log reaches and how much of it is moved: reconciliation tells a backlog from a loss by it."""
        lines = dict(self._lines)
        partitions: Collection[TopicPartition] = list(lines)
        if not partitions:
            return
        starts = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        for partition, line in lines.items():
            sink.record(
                Event(
                    EventCode.BROKER_OFFSETS,
                    partition.topic,
                    partition.partition,
                    starts[partition],
                    range_end=ends[partition],
                    role="delay",
                    attrs=json.dumps({"committed": line.committed}),
                )
            )


def _delivery(record: Any) -> Delivery:
    origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
    return Delivery(*origin, record.key, record.value, tuple(record.headers), origin)
