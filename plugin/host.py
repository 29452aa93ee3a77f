"""The host on aiokafka: fetches, feeds its member's lanes, and takes and gives back partitions in order.

aiokafka's own `commit()` and deserializers are never used: the first commits what was merely fetched, the second block
a partition for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from ackwise.middleware.agent import Agent
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.policies import DeadLetter, Dedup, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore
from ackwise.middleware.transaction import TransactionalStore
from ackwise.plugin.delay import DelayRelay
from ackwise.plugin.member import Member
from ackwise.plugin.positions import Positions
from ackwise.plugin.settings import REBALANCE_TIMEOUT, HostSettings

__all__ = ["Host"]

log = Log()

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


class Host:
    """A member of a consumer group that aiokafka fetches for, with the relay of its delay topics."""

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
        self._member = Member(settings, agents, later=later, dead_letter=dead_letter, dedup=dedup, store=store, inbox=inbox, sink=sink)
        self._topics = sorted({topic for agent in agents for topic in agent.topics})
        self._users_own = consumer

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set, then drain for at most `drain_timeout` seconds, commit and leave the group.

        Raises `ConfigurationError` or another `AckwiseError` if it can't start or Kafka refuses it, what a handler stopped
        the app with, and any error in Ackwise's own machinery; nothing that is not settled is committed then.
        """
        try:
            async with self._member.opened(self._topics):
                await self._consume(stop)
        except KafkaError as error:
            raise AckwiseError(
                f"Kafka refuses this worker of group {self._member.settings.group!r} ({said(error)}); "
                "ackwise doctor MODULE:APP says what it may do"
            ) from error

    async def _consume(self, stop: asyncio.Event) -> None:
        member = self._member
        self._consumer = self._users_own or AIOKafkaConsumer(**self._consumer_options())
        self._positions = Positions(member, self._consumer)
        try:
            async with member.working(self._consumer), self._relaying():
                member.spawn(self._stop_when(stop), "stop")
                self._consumer.subscribe([*self._topics, member.names.retry], listener=_Listener(self))
                if self._users_own is None:
                    await self._consumer.start()
                await self._poll()
                await member.drain(set(member.lanes), member.settings.drain_timeout, stopping=True)
        finally:
            if self._users_own is None:
                await self._consumer.stop()
            else:
                self._users_own.unsubscribe()

    def _consumer_options(self) -> dict[str, Any]:
        settings = self._member.settings
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

    @asynccontextmanager
    async def _relaying(self) -> AsyncIterator[None]:
        member, stop = self._member, asyncio.Event()
        relay = DelayRelay(member.settings, member.names, member.later.levels, member.worker.publisher, sink=member.sink)
        relaying = member.spawn(relay.run(stop), "relay")
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait({relaying}, timeout=member.settings.drain_timeout)

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._member.stop.set()

    # -- fetch

    async def _poll(self) -> None:
        while not self._member.stop.is_set():
            polled, is_any_full = self._regulate()
            try:
                fetched = await self._fetch(polled, is_any_full)
            except KafkaError as error:
                log.warning("fetching failed, nothing is lost", group=self._member.settings.group, error=said(error), retry_in=_POLL_AGAIN)
                await asyncio.sleep(_POLL_AGAIN)
                continue
            for partition, records in fetched.items():
                self._member.offer(partition, records)

    def _regulate(self) -> tuple[list[TopicPartition], bool]:
        """The partitions to poll, and whether one is passed over; pauses lanes that stay full, lets go on what has room.

        What is paused is polled all the same: it answers nothing, and shows the group that this member is alive.
        """
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        polled = []
        passed_over = False
        for partition, (lane,) in self._member.lanes.items():
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

    async def _fetch(self, polled: Sequence[TopicPartition], is_any_full: bool) -> dict[TopicPartition, Any]:
        """What there is for the partitions that have room. While one is full the wait ends as soon as a lane has moved.

        The wait is not cancelled within aiokafka: only outside of it is it certain that no record is on its way to us.
        """
        if not is_any_full:
            return await self._ask(timeout_ms=200)
        self._member.has_moved.clear()
        fetched = await self._ask(*polled, timeout_ms=0) if polled else {}
        if not fetched:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._member.has_moved.wait()
        return fetched

    async def _ask(self, *partitions: TopicPartition, timeout_ms: int) -> dict[TopicPartition, Any]:
        try:
            fetched: dict[TopicPartition, Any] = await self._consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=_FETCHED)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            await self._reposition(error)
            return {}
        return fetched

    async def _reposition(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """The log does not have the position: settle what was read of it, and begin anew where `Positions` says."""
        named = error.args[0]  # one partition that has no position yet, or several that lost theirs
        for partition in [named] if isinstance(named, TopicPartition) else list(named):
            if not (lanes := self._member.lanes.get(partition, ())):
                continue
            start = (await self._consumer.beginning_offsets([partition]))[partition]
            end = (await self._consumer.end_offsets([partition]))[partition]
            if self._member.lanes.get(partition, ()) is not lanes:
                continue  # revoked meanwhile; a lane that is there now has a position of its own
            for lane in lanes:
                if start <= lane.position <= end:
                    self._consumer.seek(partition, lane.position)
                else:
                    await self._revoke([partition])
                    await self._assign([partition])

    # -- assignment

    async def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Make a lane for each partition, at its committed offset or at the start that is configured.

        The lane and the seek to its position are one step without an await, so that nothing that was fetched before
        can be missing from the lane.
        """
        member = self._member
        for partition in [] if member.stop.is_set() else sorted(partitions):
            position = await self._positions.find(partition)
            if partition not in self._consumer.assignment():
                return  # revoked meanwhile; the next assignment begins anew
            self._consumer.seek(partition, position.next)
            role: Literal["source", "retry"] = "retry" if partition.topic == member.names.retry else "source"
            lane = member.lane(*partition, role, position.next, generation=position.generation)
            member.add_lanes(partition, (lane,), from_commit=position.committed)
        await member.begin()

    async def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        await self._member.drain(partitions, self._member.settings.revoke_timeout)


class _Listener(ConsumerRebalanceListener):
    """aiokafka logs and swallows what a listener raises; a partition without a lane would then never be consumed."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        await self._guard(self._host._revoke(revoked))

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        await self._guard(self._host._assign(assigned))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wait({self._host._member.spawn(work, "assignment")})
