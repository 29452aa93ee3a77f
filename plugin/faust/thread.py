"""Thread that Faust's consumer fetches in. It fetches from where Ackwise stands, whatever moved the client's position meanwhile.

A poll that Faust dropped and a fetch that raised may have moved the position over what nobody was given. So no fetch begins anywhere but
where the one before it ended that arrived; and a hole is passed only if such a fetch proved that the log has nothing there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, cast

from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException, KafkaConnectionError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP
from mode import Service

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer, ended
from ackwise.plugin.client.internals import (
    configure,
    has_left_the_group,
    is_closed,
    keep_awake,
    position_of,
    raise_group_errors,
    rejoin_if_broken,
    revive,
    serve_last,
    stands_before_an_error,
)
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.offsets import committed_by, offsets_of, reaches
from ackwise.plugin.client.opening import close_consumer
from ackwise.plugin.client.rawrecords import is_about_a_header, read_raw
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.client.taking import Taking
from ackwise.plugin.faust.internals import FaustThread, QueueServiceThread, read_offset_of
from ackwise.plugin.faust.stream import is_cancelled
from ackwise.plugin.group.lane import Lane
from ackwise.plugin.group.quarantine import Quarantine

__all__ = ["Cursor", "Fetched", "Reading", "ReliableThread"]

log = Log()

#: Milliseconds that the broker keeps a fetch which finds nothing; Faust says 1500. The client has one fetch to a broker on its way
#: at a time: while what it has of the sources waits for room it asks for the others alone, and then the sources wait for that answer.
_FETCH_WAIT: Final = 50

#: Records that one poll takes of a partition at most; without a bound it is a megabyte, whatever room there is.
_FETCHED: Final = 500

#: Seconds until it is looked again where there was nothing to fetch from.
_LOOK_AGAIN: Final = 0.02

#: Seconds until it is heard again what keeps the client out of its group.
_HEAR: Final = 0.5

#: Seconds until it is polled again after an error that no partition raises by itself.
_POLL_AGAIN: Final = 1.0

#: Seconds that all partitions are asked singly after an error, to find the one that raises. Its bytes are fetched anew before.
_SEARCH: Final = 10.0

#: Seconds that a broker has to answer a commit. One that hangs would keep everybody out who asks something of this thread.
_COMMIT: Final = 10.0

#: Seconds that leaving the group may take.
_LEAVE: Final = 3.0

#: Seconds at least until brokers that did not say what their logs hold are asked again, and no fewer than that answer took: the other
#: partitions wait for it.
_LOOK: Final = 1.0


class Cursor:
    """Where reading of one partition stands."""

    __slots__ = ("expected", "is_doubted", "is_lost", "look_at", "resume")

    def __init__(self, resume: int) -> None:
        self.resume = resume  #: the next offset that was not taken in
        self.expected: int | None = None  #: the client's position after what was taken in; `None` before the first seek
        self.is_lost = False  #: the log does not have `resume`
        self.is_doubted = False  #: a fetch of it alone raised: it is asked record by record
        self.look_at = 0.0  #: when its broker is asked again what the log holds (monotonic seconds)


class Fetched(dict[Any, Any]):
    """Records by partition, with the client's positions after them, for the cursors that they were fetched for."""

    after: Mapping[TopicPartition, tuple[Cursor, int]] = {}
    lost: Sequence[TopicPartition] = ()  #: the log does not have the position of these any more
    left_at: Mapping[TopicPartition, int] = {}  #: where the client stands after it, whoever reads them


class Reading(Protocol):
    """Who says what is read, and how far."""

    cursors: dict[TopicPartition, Cursor]

    @property
    def lanes(self) -> Mapping[TopicPartition, tuple[Lane, ...]]:
        """Those that what is read goes to."""
        ...

    def awaits(self, partition: TopicPartition) -> bool:
        """Whether it will be read, once it is known where that goes on."""
        ...


class ReliableThread(FaustThread):
    """Fetches from where Ackwise stands. What can't be read is left alone, and the others go on."""

    _is_fetching = False
    _searching_until = 0.0
    _given: Mapping[TopicPartition, tuple[int, int, int]] = {}  #: to Faust: first and last offset, and where that left the client
    _raised_at: Mapping[TopicPartition, int] = {}  #: where the client stood in what Faust reads itself as that raised last
    _left_at: Mapping[TopicPartition, int] = {}  #: the client's positions as the asking that returned last of each has left them
    _taking: Taking | None = None
    _clock: Callable[[], float] = staticmethod(time.monotonic)

    @cached_property
    def _quarantine(self) -> Quarantine:
        return Quarantine(self._clock)

    @cached_property
    def _throttle(self) -> LogThrottle:
        return LogThrottle(clock=self._clock)

    @property
    def _reading(self) -> Reading:
        reading: Reading = cast(Any, self.app).ackwise
        return reading

    async def call_thread(self, fun: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """As Faust's. Raise `KafkaConnectionError` if the call was cancelled inside the client.

        The task that waits here is not cancelled then, and would end as if somebody had asked it to.
        """
        try:
            return await super().call_thread(fun, *args, **kwargs)
        except asyncio.CancelledError:
            if is_cancelled() or self.should_stop:
                raise
            raise KafkaConnectionError("the client gave up a call of its own") from None

    def make_client(self, transport: Any) -> Any:
        """As Faust's. What an aborted transaction wrote must not be consumed."""
        consumer: Any = super().make_client(transport)
        configure(consumer, fetch_wait_ms=_FETCH_WAIT, isolation_level="read_committed")
        return consumer

    async def fetch_records(self, consumer: Any, active_partitions: Any, timeout: Any = None, max_records: Any = None) -> Any:
        """As Faust's. A fetch that Faust has given up goes on here, and takes records for nobody: none begins beside it.

        Raises what a partition raises that Ackwise does not read, and `AckwiseError` if the client has left the group for good.
        """
        if self._is_fetching:
            await asyncio.sleep(_LOOK_AGAIN)
            return Fetched()
        self._is_fetching = True
        stood = _positions(consumer, active_partitions or ())
        try:
            return await self._fetch(consumer, active_partitions, timeout, max_records)
        except (ConsumerStoppedError, AckwiseError):
            raise
        except _NotOurs as raised:
            raise raised.error from None
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return await self._recover(consumer, stood, error)
        finally:
            self._is_fetching = False

    async def _fetch(self, consumer: Any, active_partitions: Any, timeout: Any, max_records: Any) -> Fetched:
        self._look_after(consumer)
        singly = self._quarantine.asked_again(self._reading.lanes)
        readable = [partition for partition in active_partitions or () if not self._is_held(partition)]
        cursors = await self._stand(consumer, readable)
        theirs = {partition for partition in readable if partition not in self._reading.cursors}
        self._return_to_dropped(consumer, theirs)
        most = (max_records or _FETCHED) if cursors else max_records
        is_searching = self._clock() < self._searching_until
        raising = {partition for partition in (*cursors, *theirs) if stands_before_an_error(consumer, partition)}
        alone = {partition: cursor for partition, cursor in cursors.items() if is_searching or partition in singly or partition in raising}
        theirs_alone = theirs if is_searching else theirs & raising
        self._left_at = {}
        fetched = Fetched(await self._ask_singly(consumer, alone))
        if together := {*cursors.keys() - alone.keys(), *(theirs - theirs_alone)}:
            fetched.update(await self._ask(consumer, together, 0.0 if alone else timeout, most))
        if theirs_alone:
            fetched.update(await self._ask_theirs(consumer, theirs_alone, max_records))
        if not (fetched or (together and not alone)):
            await asyncio.sleep(_LOOK_AGAIN)
        serve_last(consumer, fetched)
        fetched.left_at = dict(self._left_at)
        await self._prove(consumer, cursors, fetched)
        return fetched

    def _look_after(self, consumer: Any) -> None:
        """The client's own tasks may have ended, though nobody asked them to."""
        self._require_membership(consumer)
        if (ended := revive(consumer)) is not None:
            raise ended

    def _require_membership(self, consumer: Any) -> None:
        if has_left_the_group(consumer):
            raise AckwiseError(
                f"the Kafka client of app {self.app.conf.id!r} has left its group and does not come back; the worker stops, start it again"
            )

    def _is_held(self, active: Any) -> bool:
        partition = TopicPartition(*active)
        lanes = self._reading.lanes.get(partition)
        return lanes is not None and self._quarantine.holds(partition, lanes[0])

    @Service.task
    async def _keep_membership(self) -> None:
        """Hear what keeps the client out of its group; it waits until somebody does, and Faust never asks.

        Raises `AckwiseError` if the group refuses this worker, or if the client has left it for good.
        """
        while not self.should_stop:
            await asyncio.sleep(_HEAR)
            if (consumer := self.client) is not None and not is_closed(consumer):
                self._hear(consumer)

    def _hear(self, consumer: Any) -> None:
        self._require_membership(consumer)
        rejoin_if_broken(consumer)
        try:
            raise_group_errors(consumer)
        except KafkaError as error:
            if is_refusal(error) and not consumer.assignment():
                raise AckwiseError(
                    f"the group of app {self.app.conf.id!r} refuses this worker ({said(error)}); the worker stops, it has to be let in"
                ) from error
            if self._throttle.is_due("membership"):
                log.warning(
                    "the worker can't join its group now, nothing is lost and it tries again", group=self.app.conf.id, error=said(error)
                )

    def give(self, records: Mapping[Any, Sequence[Any]], left_at: Mapping[TopicPartition, int]) -> None:
        """Note that Faust was given `records`. What it drops of them, as the flow stops or a generation begins, is fetched again."""
        given = {TopicPartition(*partition): found for partition, found in records.items() if found and partition in left_at}
        self._given = {
            **self._given,
            **{partition: (found[0].offset, found[-1].offset, left_at[partition]) for partition, found in given.items()},
        }

    def _return_to_dropped(self, consumer: Any, theirs: Collection[Any]) -> None:
        """Seek back to what Faust has dropped of `theirs`, unless something has sought elsewhere meanwhile.

        A table would wait for its changes for ever. Those that come twice are told by their offsets.
        """
        asked = self._given.keys() & theirs & consumer.assignment()
        for partition in asked:
            first, last, left_at = self._given[partition]
            read = read_offset_of(self.consumer, partition)
            is_dropped = (read is None or read < last) and position_of(consumer, partition) == left_at
            if is_dropped and not stands_before_an_error(consumer, partition):
                consumer.seek(partition, first if read is None else max(first, read + 1))
        self._given = {partition: given for partition, given in self._given.items() if partition not in asked}

    async def _ask(self, consumer: Any, partitions: Collection[Any], timeout: float | None, most: int | None) -> Mapping[Any, Any]:
        fetched = await self._take(consumer, partitions, timeout, most)
        asked = (partition for partition in partitions if not stands_before_an_error(consumer, partition))
        self._left_at = {**self._left_at, **_positions(consumer, asked)}  # now: the client may move by itself in whatever is awaited next
        return fetched

    async def _take(self, consumer: Any, partitions: Collection[Any], timeout: float | None, most: int | None) -> Mapping[Any, Any]:
        """What the client has. What Faust reads itself comes as Faust fetches it: that needs records of the client's own kind."""
        if self._taking is None or self._taking.consumer is not consumer:
            self._taking = Taking(consumer)
        if any(partition not in self._reading.cursors for partition in partitions) or not self._taking.is_known():
            return cast(Mapping[Any, Any], await super().fetch_records(consumer, cast(Any, partitions), timeout=timeout, max_records=most))
        if not self.consumer.flow_active:
            return {}
        return await self._taking.take(*partitions, timeout_ms=round((timeout or 0.0) * 1000), most=most or _FETCHED)

    async def _ask_singly(self, consumer: Any, cursors: dict[TopicPartition, Cursor]) -> dict[Any, Any]:
        """Ask each by itself, and leave alone which raises; it is taken out of `cursors`."""
        fetched = dict[Any, Any]()
        for partition, cursor in list(cursors.items()):
            records = list[Any]()
            try:
                while len(records) < _FETCHED and (
                    found := await self._ask(consumer, {partition}, 0.0, 1 if cursor.is_doubted else _FETCHED)
                ):
                    records += found.get(partition, ())
                    if not cursor.is_doubted:
                        break
            except ConsumerStoppedError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                if (raw := await self._read_raw(consumer, partition, cursor, records, error)) is None:
                    self._doubt(partition, cursor, error, came=bool(records))
                else:
                    records += raw
            else:
                self._quarantine.answered(partition, consumer.last_poll_timestamp(partition))
            if records:
                fetched[partition] = records
        return fetched

    async def _read_raw(
        self, consumer: Any, partition: TopicPartition, cursor: Cursor, before: Sequence[Any], error: BaseException
    ) -> list[Any] | None:
        """The records behind `before` that the client can't read for the name of a header alone; `None` if it is about anything else."""
        if not is_about_a_header(error):
            return None
        try:
            found = await read_raw(consumer, partition, before[-1].offset + 1 if before else cursor.resume)
        except Exception as another:  # noqa: BLE001  # whatever a parser raises: then nobody can read it
            log.debug("a record batch can't be read past the client either", topic=partition.topic, raised=another)
            return None
        if partition in consumer.assignment():
            consumer.seek(partition, found.goes_on_at)
            self._left_at = {**self._left_at, partition: found.goes_on_at}
        return found.records

    def _doubt(self, partition: TopicPartition, cursor: Cursor, error: BaseException, *, came: bool) -> None:
        """It raised, asked by itself. What came before, record by record, is given; asked for a single one it is left alone."""
        if not cursor.is_doubted:
            cursor.is_doubted, cursor.expected = True, None
        elif not came and (lanes := self._reading.lanes.get(partition)):
            cursor.expected = None
            self._quarantine.admit(partition, lanes[0], error)

    async def _ask_theirs(self, consumer: Any, theirs: Collection[Any], max_records: int | None) -> Mapping[Any, Any]:
        """What Faust reads itself, as the changelogs of tables: fetched anew after an error. One that comes again is Faust's as well."""
        stood = _positions(consumer, theirs)
        is_known = not any(stands_before_an_error(consumer, partition) for partition in theirs)  # where it stood before that
        try:
            return await self._ask(consumer, theirs, 0.0, max_records)
        except (ConsumerStoppedError, asyncio.CancelledError):
            raise
        except Exception as error:
            is_passing = stood != self._raised_at or (isinstance(error, KafkaError) and error.retriable)
            if not (is_known and is_passing):
                raise _NotOurs(error) from error
            self._raised_at = stood
            for partition, position in stood.items():
                if partition in consumer.assignment():
                    consumer.seek(TopicPartition(*partition), position)
            log.warning("fetching failed, nothing is lost", group=self.app.conf.id, error=_spoken(error), retry_in=_POLL_AGAIN)
            await asyncio.sleep(_POLL_AGAIN)
            return {}

    async def _stand(self, consumer: Any, partitions: Iterable[Any]) -> dict[TopicPartition, Cursor]:
        """The cursors of those of `partitions` that the client stands at; it is sought back where something moved it.

        But not before an error that it has still to raise.
        """
        assigned, cursors = consumer.assignment(), dict(self._reading.cursors)
        ours = {
            TopicPartition(*partition): cursors[partition] for partition in partitions if partition in cursors and partition in assigned
        }
        moved = {
            partition: cursor
            for partition, cursor in ours.items()
            if cursor.expected is None
            or (position_of(consumer, partition) != cursor.expected and not stands_before_an_error(consumer, partition))
        }
        for partition in moved.keys() - await self._look_for(consumer, moved):
            del ours[partition]
        for partition, cursor in moved.items():
            if partition in ours and partition in consumer.assignment():  # or it was taken away while the broker was asked
                consumer.seek(partition, cursor.resume)
                cursor.expected = cursor.resume
        return {partition: cursor for partition, cursor in ours.items() if cursor.expected is not None}

    async def _prove(self, consumer: Any, cursors: Mapping[TopicPartition, Cursor], fetched: Fetched) -> None:
        """Where a fetch did not begin at its cursor there is a hole, or the client has begun elsewhere by itself: the log says which.

        What a broker does not say that of is fetched again. Positions are those that the fetch itself has left: the client may begin
        elsewhere while the broker is asked.
        """
        left_at = self._left_at
        stood = {partition: cursor for partition, cursor in cursors.items() if cursor.expected is not None}
        begun = {partition: found[0].offset if (found := fetched.get(partition)) else left_at.get(partition) for partition in stood}
        jumped = {partition: cursor for partition, cursor in stood.items() if begun[partition] not in (None, cursor.resume)}
        for partition in jumped.keys() - await self._look_for(consumer, jumped):
            fetched.pop(partition, None)
            jumped[partition].expected = None
        fetched.after = {
            partition: (cursor, position)
            for partition, cursor in cursors.items()
            if not cursor.is_lost and cursor.expected is not None and (position := left_at.get(partition)) is not None
        }
        fetched.lost = [partition for partition, cursor in cursors.items() if cursor.is_lost]

    async def _look_for(self, consumer: Any, cursors: Mapping[TopicPartition, Cursor]) -> set[TopicPartition]:
        """See whether the logs have them still, and answer of which it is known.

        Where one has not, the client begins elsewhere by its own rule, and says nothing.
        """
        now = self._clock()
        due = [partition for partition, cursor in cursors.items() if now >= cursor.look_at]
        known, unknown = await reaches(consumer, due) if due else ({}, {})
        if unknown:
            self._wait_for_brokers(cursors, unknown, now)
        for partition, standing in known.items():
            cursors[partition].is_lost = not standing.start <= cursors[partition].resume <= standing.end
        return set(known)

    def _wait_for_brokers(
        self, cursors: Mapping[TopicPartition, Cursor], unknown: Mapping[TopicPartition, KafkaError], asked: float
    ) -> None:
        """Fetch nothing of these until they are asked for again, as it is not known what their logs hold; asked at `asked`."""
        now = self._clock()
        again = max(_LOOK, now - asked)
        for partition in unknown:
            cursors[partition].look_at = now + again
        if self._throttle.is_due():
            partition, error = min(unknown.items())
            log.warning(
                "what logs hold can't be read now, their partitions wait and it is asked again",
                group=self.app.conf.id,
                partitions=len(unknown),
                topic=partition.topic,
                partition=partition.partition,
                error=said(error),
                retry_in=again,
            )

    async def seek_to_committed(self) -> Any:
        """As Faust's, without asking for what Ackwise reads: each fetch of that begins at its cursor. One request for the rest.

        It is asked again until the coordinator has said something of each: nobody begins anywhere on an answer that says nothing.
        """
        while True:
            sought, unknown = await self.call_thread(self._seek_to_committed)
            if not unknown:
                return sought
            await self._ask_again(unknown)

    async def _seek_to_committed(self) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, KafkaError]]:
        consumer: Any = self.require_client()
        cursors = dict(self._reading.cursors)
        sought: dict[TopicPartition, int | None] = {}
        theirs = []
        for partition in consumer.assignment():
            if partition in cursors:
                sought[partition] = cursors[partition].resume
            elif self._reading.awaits(partition):
                sought[partition] = None
            else:
                theirs.append(partition)
        committed, unknown = await committed_by(consumer, self.app.conf.id, theirs)
        for partition, each in committed.items():
            sought[partition] = offset = None if each is None else each.offset
            if offset and partition in consumer.assignment():
                consumer.seek(partition, offset)
        return sought, unknown

    async def highwaters(self, *partitions: Any) -> Any:
        """As Faust's, of each of them: a table would count as recovered without what an answer leaves out."""
        return await self._complete(self.ask_highwaters, partitions)

    async def earliest_offsets(self, *partitions: Any) -> Any:
        """As Faust's, of each of them."""
        return await self._complete(self.require_client().beginning_offsets, partitions)

    async def _complete(self, look: Any, partitions: Iterable[Any]) -> Any:
        """What `look` says of `partitions`, asked again until it says something of each. Faust has a limit for that itself."""
        asked = [TopicPartition(*partition) for partition in partitions]
        while True:
            found = await self.call_thread(offsets_of, self.require_client(), look, asked)
            unknown = {partition: each for partition, each in found.items() if isinstance(each, KafkaError)}
            if not unknown:
                return {TP(*partition): offset for partition, offset in found.items()}
            await self._ask_again(unknown)

    async def _ask_again(self, unknown: Mapping[TopicPartition, KafkaError]) -> None:
        if self._throttle.is_due("offsets"):
            partition, error = min(unknown.items())
            log.warning(
                "what Faust has to know of partitions can't be read now, it is asked again",
                group=self.app.conf.id,
                partitions=len(unknown),
                topic=partition.topic,
                partition=partition.partition,
                error=said(error),
                retry_in=_LOOK,
            )
        await asyncio.sleep(_LOOK)

    async def _recover(self, consumer: Any, stood: Mapping[Any, int], error: BaseException) -> Fetched:
        """Lose nothing of what the client may have drained, then look for the partition that raises."""
        was_searching = self._clock() < self._searching_until
        for cursor in dict(self._reading.cursors).values():
            cursor.expected = None  # so that it is sought back
            cursor.is_doubted = cursor.is_doubted and was_searching
        for partition, position in stood.items():
            if partition not in self._reading.cursors and partition in consumer.assignment():
                consumer.seek(TopicPartition(*partition), position)
        self._searching_until = self._clock() + _SEARCH
        if was_searching:  # asked singly, none of them raises it
            log.warning("fetching failed, nothing is lost", group=self.app.conf.id, error=_spoken(error), retry_in=_POLL_AGAIN)
            await asyncio.sleep(_POLL_AGAIN)
        else:
            log.warning("fetching failed, nothing is lost and partitions are asked singly", group=self.app.conf.id, error=_spoken(error))
        return Fetched()

    async def on_start(self) -> None:
        """As Faust's, once there is a broker."""
        await cast(Any, self.app).ackwise.insist(super().on_start, self._close_client)
        keep_awake(self.client)

    async def _close_client(self) -> None:
        if self.client is not None:
            await self.client.stop()

    def close(self) -> None:
        """Nothing: Faust would close the client in the loop of the app as the group rebalances during a stop.

        It could not leave its group there, and would never be closed here. `on_thread_stop` comes soon, and does both.
        """

    async def on_thread_stop(self) -> None:
        """As Faust's, for as long as a broker has to answer: who leaves must not wait for one that is away."""
        await ended(QueueServiceThread.on_thread_stop(self), within=_LEAVE)
        if self.client is not None and (error := await close_consumer(self.client, within=_LEAVE)) is not None:
            log.warning(
                "the broker does not let the worker leave, its partitions are free when its session is over",
                group=self.app.conf.id,
                error=said(error),
            )

    async def commit_exactly(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these next offsets. Raises what the broker answers."""
        commit = self.require_client().commit({TopicPartition(*tp): each for tp, each in offsets.items()})
        await answer(commit, within=_COMMIT)


class _NotOurs(Exception):
    """A partition raised `error` that Faust reads itself."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _positions(consumer: Any, partitions: Iterable[Any]) -> dict[Any, int]:
    return {partition: position for partition in partitions if (position := position_of(consumer, TopicPartition(*partition))) is not None}


def _spoken(error: BaseException) -> str:
    """What the client raised, without the bytes that a parser repeats."""
    return said(error) if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException) else type(error).__name__
