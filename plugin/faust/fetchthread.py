"""Thread that Faust's consumer fetches in, from where Ackwise stands, whatever moved the client's position meanwhile.

What agents read is fetched as on any other host (`plugin/consumer/fetching.py`). What Faust reads itself
comes as Faust fetches it, and what Faust drops of it is fetched again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, cast

from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP
from mode import Service

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.fetching import FETCHED, Fetched, Fetching, Reading, spoken
from ackwise.plugin.faust.faustinternals import FaustThread, QueueServiceThread, read_offset_of
from ackwise.plugin.kafka.aiokafkainternals import configure, is_closed, keep_awake, raise_group_errors, serve_last, show_alive
from ackwise.plugin.kafka.brokeroffsets import EARLIEST, LATEST, UNCOMMITTED, committed_by, offsets_of, reaches
from ackwise.plugin.kafka.clients import close_consumer
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.throttling import watch_throttling
from ackwise.plugin.kafka.timeouts import answer, ended, is_asked_to_end

log = Log()

#: Milliseconds that the broker keeps a fetch which finds nothing; Faust says 1500. The client has one fetch to a broker on its way
#: at a time: while what it has of the sources waits for room it asks for the others alone, and then the sources wait for that answer.
_FETCH_WAIT: Final = 50

#: Seconds until it is looked again where there was nothing to fetch from.
_LOOK_AGAIN: Final = 0.02

#: Seconds until it is heard again what keeps the client out of its group.
_HEAR: Final = 0.5

#: Seconds until it is polled again after an error of what Faust reads itself.
_POLL_AGAIN: Final = 1.0

#: Seconds that a broker has to answer a commit. A call that hangs would block every other call to this thread.
_COMMIT: Final = 10.0

#: Seconds that leaving the group may take.
_LEAVE: Final = 3.0

#: Seconds until brokers that did not say what Faust has to know are asked again.
_LOOK: Final = 1.0


class Awaiting(Reading, Protocol):
    """Who says what is read, and how far."""

    def awaits(self, partition: TopicPartition) -> bool:
        """Return whether it will be read, once it is known where that goes on."""
        ...


class _Source(AiokafkaClient):
    """The client of a worker of Faust, in its thread."""

    def __init__(self, consumer: Any, thread: ReliableThread) -> None:
        super().__init__(consumer, thread.app.conf.id)
        self._thread = thread
        self.fetching = Fetching(self, thread.reading, group=thread.app.conf.id, reaches=self._reaches, clock=lambda: thread.clock())

    async def _reaches(self, partitions: list[TopicPartition]) -> Any:
        """Behind an open transaction nothing is given yet, and a position there is in the log all the same."""
        return await reaches(self.consumer, partitions, isolation=UNCOMMITTED)

    def pause(self, partition: TopicPartition, /) -> None:
        """Nothing is asked for of what is left alone."""

    async def take(
        self, partitions: Collection[TopicPartition] | None, /, *, timeout: float, most: int | None
    ) -> Mapping[Any, Sequence[Any]]:
        """See `Source`; what keeps the client out of its group is heard beside.

        What Faust reads itself comes as Faust fetches it: that needs records of the client's own kind.
        """
        if not partitions:
            await show_alive(self.consumer)
            return {}
        if any(partition not in self._thread.reading.lanes for partition in partitions) or not self._taking.is_known():
            return await self._thread.fetch_as_faust(self.consumer, partitions, timeout, most)
        if not self._thread.consumer.flow_active:
            return {}
        return await self._taking.take(*partitions, timeout_ms=round(timeout * 1000), most=most or FETCHED)


class ReliableThread(FaustThread):
    """Fetches from where Ackwise stands. What can't be read is left alone, and the others go on."""

    _is_fetching = False
    _given: Mapping[TopicPartition, tuple[int, int, int]] = {}  #: to Faust: first and last offset, and where that left the client
    _raised_at: Mapping[TopicPartition, int] = {}  #: where the client stood in what Faust reads itself as that raised last
    _source: _Source | None = None
    clock: Callable[[], float] = staticmethod(time.monotonic)

    @cached_property
    def _throttle(self) -> LogThrottle:
        return LogThrottle(clock=self.clock)

    @property
    def reading(self) -> Awaiting:
        """Return the partitions that are read, and how far."""
        reading: Awaiting = cast(Any, self.app).ackwise
        return reading

    def source_of(self, consumer: Any) -> _Source:
        """Return the source that fetches with `consumer`, the client of this thread."""
        if self._source is None or self._source.consumer is not consumer:
            self._source = _Source(consumer, self)
        return self._source

    async def call_thread(self, fun: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Like Faust's. Raise `KafkaConnectionError` if the call was cancelled inside the client.

        The task that waits here is not cancelled then, and would end as if it had been asked to.
        """
        try:
            return await super().call_thread(fun, *args, **kwargs)
        except asyncio.CancelledError:
            if is_asked_to_end() or self.should_stop:
                raise
            raise KafkaConnectionError("the client gave up its own call") from None

    def make_client(self, transport: Any) -> Any:
        """Like Faust's. What an aborted transaction wrote must not be consumed."""
        consumer: Any = super().make_client(transport)
        configure(consumer, fetch_wait_ms=_FETCH_WAIT, isolation_level="read_committed")
        return consumer

    async def fetch_records(self, consumer: Any, active_partitions: Any, timeout: Any = None, max_records: Any = None) -> Any:
        """Like Faust's. A fetch that Faust has given up goes on here, and its records have no taker: no other fetch starts beside it.

        Raises what a partition raises that Ackwise does not read, and `AckwiseError` if the client has left the group for good.
        """
        if self._is_fetching:
            await asyncio.sleep(_LOOK_AGAIN)
            return Fetched()
        self._is_fetching = True
        try:
            return await self._fetch(self.source_of(consumer), active_partitions or (), timeout or 0.0, max_records)
        finally:
            self._is_fetching = False

    async def _fetch(self, source: _Source, active: Collection[Any], timeout: float, max_records: int | None) -> Fetched:
        lanes, fetching = self.reading.lanes, source.fetching
        ours = [partition for partition in active if partition in lanes]
        theirs = {partition for partition in active if partition not in lanes}
        self._return_to_dropped(source, theirs)
        alone = theirs if fetching.is_searching else theirs & source.raising()
        most = (max_records or FETCHED) if ours else max_records
        fetched = await fetching.fetch(ours, beside=theirs - alone, timeout=0.0 if alone else timeout, most=most)
        if alone:
            fetched.update(await self._ask_theirs(source, alone, max_records))
            fetched.left_at.update(source.positions(alone))
        if not (fetched or fetched.has_waited):
            await asyncio.sleep(_LOOK_AGAIN)
        serve_last(source.consumer, fetched)
        return fetched

    async def fetch_as_faust(self, consumer: Any, partitions: Collection[Any], timeout: float, most: int | None) -> Mapping[Any, Any]:
        """Return the client's records as Faust takes them."""
        return cast(Mapping[Any, Any], await super().fetch_records(consumer, cast(Any, partitions), timeout=timeout, max_records=most))

    @Service.task
    async def _keep_membership(self) -> None:
        """Retrieve the error that keeps the client out of its group; it waits until it is retrieved, and Faust never does.

        Raises `AckwiseError` if the group refuses this worker, or if the client has left it for good.
        """
        while not self.should_stop:
            await asyncio.sleep(_HEAR)
            if (consumer := self.client) is not None and not is_closed(consumer):
                self._hear(consumer)

    def _hear(self, consumer: Any) -> None:
        source = self.source_of(consumer)
        source.require_membership()
        source.rejoin_if_broken()
        try:
            raise_group_errors(consumer)
        except KafkaError as error:
            if is_refusal(error) and not consumer.assignment():
                raise AckwiseError(
                    f"the group of app {self.app.conf.id!r} refuses this worker ({said(error)}); the worker stops, it has to be let in"
                ) from error
            if self._throttle.is_due("membership"):
                log.warning("worker could not join its group", group=self.app.conf.id, error=said(error))

    def give(self, records: Mapping[Any, Sequence[Any]], left_at: Mapping[TopicPartition, int]) -> None:
        """Note that Faust was given `records`. What it drops of them, as the flow stops or a generation starts, is fetched again."""
        given = {TopicPartition(*partition): found for partition, found in records.items() if found and partition in left_at}
        self._given = {
            **self._given,
            **{partition: (found[0].offset, found[-1].offset, left_at[partition]) for partition, found in given.items()},
        }

    def _return_to_dropped(self, source: _Source, theirs: Collection[Any]) -> None:
        """Seek back to what Faust has dropped of `theirs`, unless something has sought elsewhere meanwhile.

        A table would wait for its changes forever. Repeated ones are recognised by their offsets.
        """
        asked = self._given.keys() & theirs & source.assignment()
        positions = source.positions(asked)
        for partition in asked:
            first, last, left_at = self._given[partition]
            read = read_offset_of(self.consumer, partition)
            if (read is None or read < last) and positions.get(partition) == left_at:
                source.seek(partition, first if read is None else max(first, read + 1))
        self._given = {partition: given for partition, given in self._given.items() if partition not in asked}

    async def _ask_theirs(self, source: _Source, theirs: Collection[Any], max_records: int | None) -> Mapping[Any, Any]:
        """What Faust reads itself, as the changelogs of tables: fetched again after an error. One that comes again is Faust's as well."""
        stood = source.positions(theirs)
        is_known = not source.raising() & {*theirs}  # where it stood before that
        try:
            return await source.take(theirs, timeout=0.0, most=max_records)
        except (ConsumerStoppedError, asyncio.CancelledError):
            raise
        except Exception as error:
            is_passing = stood != self._raised_at or (isinstance(error, KafkaError) and error.retriable)
            if not (is_known and is_passing):
                raise
            self._raised_at = stood
            for partition, position in stood.items():
                if partition in source.assignment():
                    source.seek(TopicPartition(*partition), position)
            log.warning("fetch failed", group=self.app.conf.id, error=spoken(error), retry_in=_POLL_AGAIN)
            await asyncio.sleep(_POLL_AGAIN)
            return {}

    async def seek_to_committed(self) -> Any:
        """Like Faust's, without asking for what Ackwise reads: each fetch of that starts at its cursor. One request for the rest.

        It is asked again until the coordinator has answered for each: an empty answer is no position to start from.
        """
        while True:
            sought, unknown = await self.call_thread(self._seek_to_committed)
            if not unknown:
                return sought
            await self._ask_again(unknown)

    async def _seek_to_committed(self) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, KafkaError]]:
        consumer: Any = self.require_client()
        lanes = self.reading.lanes
        sought: dict[TopicPartition, int | None] = {}
        theirs = []
        for partition in consumer.assignment():
            if self.reading.awaits(partition):
                sought[partition] = None
            elif its_lanes := lanes.get(partition):
                sought[partition] = its_lanes[0].position
            else:
                theirs.append(partition)
        committed, unknown = await committed_by(consumer, self.app.conf.id, theirs)
        for partition, each in committed.items():
            sought[partition] = offset = None if each is None else each.offset
            if offset and partition in consumer.assignment():
                consumer.seek(partition, offset)
        return sought, unknown

    async def highwaters(self, *partitions: Any) -> Any:
        """Like Faust's, of each of them: a table would count as recovered without what an answer leaves out."""
        return await self._complete(LATEST, partitions)

    async def earliest_offsets(self, *partitions: Any) -> Any:
        """Like Faust's, of each of them."""
        return await self._complete(EARLIEST, partitions)

    async def _complete(self, time: int, partitions: Iterable[Any]) -> Any:
        """The offsets of `partitions` for `time`, asked again until each is known. Faust has a limit for that itself."""
        asked = [TopicPartition(*partition) for partition in partitions]
        while True:
            found = await self.call_thread(offsets_of, self.require_client(), time, asked)
            unknown = {partition: each for partition, each in found.items() if isinstance(each, KafkaError)}
            if not unknown:
                return {TP(*partition): offset for partition, offset in found.items()}
            await self._ask_again(unknown)

    async def _ask_again(self, unknown: Mapping[TopicPartition, KafkaError]) -> None:
        if self._throttle.is_due("offsets"):
            partition, error = min(unknown.items())
            log.warning(
                "offsets for Faust could not be read",
                group=self.app.conf.id,
                partitions=len(unknown),
                topic=partition.topic,
                partition=partition.partition,
                error=said(error),
                retry_in=_LOOK,
            )
        await asyncio.sleep(_LOOK)

    async def on_start(self) -> None:
        """Like Faust's, once there is a broker."""
        await cast(Any, self.app).ackwise.insist(super().on_start, self._close_client)
        keep_awake(self.client)
        watch_throttling(self.client)

    async def _close_client(self) -> None:
        if self.client is not None:
            await self.client.stop()

    def close(self) -> None:
        """Nothing: Faust would close the client in the loop of the app as the group rebalances during a stop.

        It could not leave its group there, and would never be closed here. `on_thread_stop` comes soon, and does both.
        """

    async def on_thread_stop(self) -> None:
        """Like Faust's, for as long as a broker has to answer: who leaves must not wait for one that is unavailable."""
        await ended(QueueServiceThread.on_thread_stop(self), within=_LEAVE)
        if self.client is not None and (error := await close_consumer(self.client, within=_LEAVE)) is not None:
            log.warning(
                "broker did not let the worker leave",
                group=self.app.conf.id,
                error=said(error),
            )

    async def commit_exactly(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these next offsets. Raises what the broker answers."""
        commit = self.require_client().commit({TopicPartition(*tp): each for tp, each in offsets.items()})
        await answer(commit, within=_COMMIT)
