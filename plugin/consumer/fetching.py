"""Fetching: each fetch starts where its partition stands. What raises is found and left alone, and the others go on.

A fetch that raises, or that somebody drops, may have moved the client's position over what nobody was given. So the position is
remembered once what was fetched is given, and no fetch starts anywhere else: what moved meanwhile is sought back to where its lane is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from aiokafka import TopicPartition
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.plugin.consumer.clientprotocol import Source
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.unreadablepartitions import Quarantine
from ackwise.plugin.kafka.brokeroffsets import Reach
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.recordbatches import is_about_a_header
from ackwise.plugin.kafka.timeouts import answer, is_asked_to_end

log = Log()

#: Records that one fetch takes of a partition at most; without a bound it is a megabyte, whatever room there is.
FETCHED: Final = 500

#: Seconds until it is fetched again after an error that no partition raises by itself.
_FETCH_AGAIN = 1.0

#: Seconds that all partitions are asked singly after an error, to find the one that raises. Its bytes are fetched again before.
_SEARCH = 10.0

#: Seconds for reading a record batch past the client.
_RAW_TIMEOUT = 15.0

#: Seconds at least until brokers that did not say what their logs hold are asked again, and no fewer than that answer took: the other
#: partitions wait for it.
_LOOK: Final = 1.0

#: The log does not have the position of a partition, or the client has none; what was drained is given before either is raised.
_NO_POSITION: Final = (OffsetOutOfRangeError, NoOffsetForPartitionError)

_Reaches = Callable[[list[TopicPartition]], Awaitable[tuple[Mapping[TopicPartition, Reach], Mapping[TopicPartition, KafkaError]]]]


_T = TypeVar("_T")


class Reading(Protocol):
    """Who says what is read."""

    @property
    def lanes(self) -> Mapping[TopicPartition, tuple[Lane, ...]]:
        """Those that what is read goes to."""
        ...


class Fetched(dict[Any, Any]):
    """Records by partition."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: dict[TopicPartition, Lane] = {}  #: those that it was fetched for, from where they are
        self.left_at: dict[TopicPartition, int] = {}  #: where the client stands after it
        self.lost: list[TopicPartition] = []  #: the log does not have the position of these, or the client has none
        self.has_waited = False  #: until there was something, or for as long as it was to


class _FetchFailed(Exception):
    """The client raised `error`. Whatever it had drained is not known here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Fetching:
    """Fetches from `source` for lanes. What was fetched counts once it was given to them, see `give`."""

    def __init__(
        self,
        source: Source,
        reading: Reading,
        *,
        group: str,
        reaches: _Reaches | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic.

        `reaches` asks what logs hold: for a client that starts elsewhere by itself, in silence, where a log does not have its position.
        """
        self._source = source
        self._reading = reading
        self._group = group
        self._reaches = reaches
        self._clock = clock
        self.quarantine = Quarantine(clock)  #: what can't be read, and is not asked now
        self._searching_until = 0.0
        #: Those that raised and are asked record by record, and when their broker had answered last by then.
        self._doubted = WeakKeyDictionary[Lane, int | None]()
        self._look_at = WeakKeyDictionary[Lane, float]()  #: when it is asked again what the log holds
        self._has_joined = False  #: the group; nothing is fetched before
        self._throttle = LogThrottle(clock=clock)

    @property
    def is_searching(self) -> bool:
        """Return whether partitions are asked singly, to find the one that raises."""
        return self._clock() < self._searching_until

    def seek_back(self, partition: TopicPartition) -> None:
        """Let the client stand where the lane of `partition` is, in the loop that it lives in."""
        lane, *_ = self._reading.lanes[partition]
        if partition in self._source.assignment():
            self._source.seek(partition, lane.position)
            lane.left_at = lane.position

    async def fetch(
        self, partitions: Collection[Any] | None = None, *, beside: Collection[Any] = (), timeout: float, most: int | None = FETCHED
    ) -> Fetched:
        """Take what there is of `partitions`, or of all, waiting for at most `timeout` seconds: up to `most` records of each.

        `beside` are partitions without a lane that are asked with the others. After an error it is empty, and what the client may have
        drained is fetched again.

        Raises `AckwiseError` if the client has left the group for good, or another process has its place; what Kafka refuses a member
        with that has never joined; and `ConsumerStoppedError` if somebody has closed the client.
        """
        fetched, stood = Fetched(), self._source.positions(beside) if beside else {}
        try:
            self._source.require_membership()
            if (ended := self._source.revive()) is not None:
                raise _FetchFailed(ended)
            together, alone = self._readable(partitions)
            if alone:
                await self._take((), 0.0, most)  # what is raised here is about no partition
                for partition in await self._stand(alone, fetched):  # all at once: brokers may be asked for each, and may hang
                    await self._fetch_alone(partition, alone[partition], fetched, most or FETCHED)
            if together or beside or not alone:
                wait = 0.0 if alone else timeout
                await self._fetch_together(together, beside, fetched, wait, most, is_all=partitions is None and not alone)
            if self._doubted:
                self._trust(fetched)
            if self._reaches is not None:
                await self._prove(fetched)
        except _FetchFailed as failed:
            await self._recover(failed.error, stood)
            return Fetched()
        return fetched

    async def wait(self, timeout: float) -> bool:
        """Return whether there may be something to fetch; waits for that for at most `timeout` seconds, once the group is joined.

        It looks at no partition. Raises as `fetch`.
        """
        self._source.require_membership()
        try:
            return not self._has_joined or await self._answer_of(partial(self._source.wait, timeout))
        except _FetchFailed as failed:
            await self._recover(failed.error, {})
            return True

    def _readable(self, partitions: Collection[Any] | None) -> tuple[dict[TopicPartition, Lane], dict[TopicPartition, Lane]]:
        """Those of `partitions`, or of all, that may be fetched; apart those that can't be read perhaps: they are asked alone."""
        lanes, found = dict(self._reading.lanes), dict[TopicPartition, Lane]()
        for partition in lanes if partitions is None else [TopicPartition(*each) for each in partitions]:
            its_lanes = lanes.get(partition)
            if its_lanes and not (its_lanes[0].is_stopping or self.quarantine.holds(partition, its_lanes[0])):
                found[partition] = its_lanes[0]
        doubtful = {*self.quarantine.asked_again(lanes), *self._source.raising()}
        if self.is_searching:
            return {}, found
        alone = {partition: found.pop(partition) for partition in [*found] if partition in doubtful} if doubtful else {}
        return found, alone

    async def _fetch_together(
        self,
        lanes: Mapping[TopicPartition, Lane],
        beside: Collection[Any],
        fetched: Fetched,
        timeout: float,
        most: int | None,
        *,
        is_all: bool,
    ) -> None:
        asked = {*await self._stand(lanes, fetched), *beside}
        if not (asked or is_all):
            return
        fetched.has_waited = timeout > 0
        try:
            fetched.update(await self._take(None if is_all else asked, timeout, most))
        except _FetchFailed as failed:
            if not isinstance(failed.error, _NO_POSITION):
                raise
            fetched.lost += _named(failed.error)
            return
        fetched.left_at.update(self._source.positions(asked))  # now: the client may move by itself in whatever is awaited next

    async def _fetch_alone(self, partition: TopicPartition, lane: Lane, fetched: Fetched, most: int) -> None:
        """Ask it by itself. Of one that raised before, record by record: what is before the one that raises is given."""
        records: list[Any] = []
        at_once = 1 if lane.unreadable is not None or lane in self._doubted else most
        try:
            while len(records) < most and (found := (await self._take({partition}, 0.0, at_once)).get(partition)):
                records += found
                fetched.left_at.update(self._source.positions([partition]))
                if at_once == most:
                    break
        except _FetchFailed as failed:
            if isinstance(failed.error, _NO_POSITION):
                fetched.lost += _named(failed.error)
            elif not await self._read_past(partition, lane, records, fetched, failed.error):
                self._doubt(partition, lane, fetched, failed.error, came=bool(records))
        else:
            fetched.left_at.update(self._source.positions([partition]))  # where nothing came the log may have nothing to give
            if partition in self._source.assignment():  # the group may have joined again while it was asked
                self.quarantine.answered(partition, self._source.answered_at(partition))
        if records:
            fetched[partition] = records

    async def _take(self, partitions: Collection[Any] | None, timeout: float, most: int | None) -> Mapping[Any, Sequence[Any]]:
        """What the client has. Raises `_FetchFailed`."""
        taken = await self._answer_of(partial(self._source.take, partitions, timeout=timeout, most=most))
        self._has_joined = True
        self._throttle.reset()
        return taken

    async def _answer_of(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """What the client returns. Raises `_FetchFailed` for what it raises."""
        try:
            return await call()
        except ConsumerStoppedError:
            raise
        except asyncio.CancelledError as error:
            if is_asked_to_end():
                raise
            raise _FetchFailed(error) from error  # from within the client: this task was not cancelled
        except Exception as error:
            raise _FetchFailed(error) from error

    async def _stand(self, lanes: Mapping[TopicPartition, Lane], fetched: Fetched) -> Collection[TopicPartition]:
        """Let the client stand where `lanes` are, and return those of which it does; but leave it before an error that it has to raise."""
        assigned, raising = self._source.assignment(), self._source.raising()
        positions = self._source.positions(lanes)
        stood = {partition: lane for partition, lane in lanes.items() if partition in assigned}
        moved = {
            partition: lane
            for partition, lane in stood.items()
            if lane.left_at is None or (positions.get(partition) != lane.left_at and partition not in raising)
        }
        if moved:
            there = await self._look_for(moved, fetched)
            assigned = self._source.assignment()  # it may have been taken away while the broker was asked
            for partition, lane in moved.items():
                if partition in there and partition in assigned:
                    self._source.seek(partition, lane.position)
                    lane.left_at = lane.position
                else:
                    del stood[partition]
        fetched.lanes.update(stood)
        return stood

    async def _prove(self, fetched: Fetched) -> None:
        """Where a fetch did not start at its lane there is a hole, or the client has started elsewhere by itself: the log says which.

        What a broker does not say that of is fetched again.
        """
        begun = {each: found[0].offset if (found := fetched.get(each)) else fetched.left_at.get(each) for each in fetched.lanes}
        jumped = {each: lane for each, lane in fetched.lanes.items() if begun[each] not in (None, lane.position)}
        for partition in jumped.keys() - (await self._look_for(jumped, fetched) if jumped else ()):
            jumped[partition].left_at = None
            del fetched.lanes[partition]

    async def _look_for(self, lanes: Mapping[TopicPartition, Lane], fetched: Fetched) -> Collection[TopicPartition]:
        """Those of `lanes` whose log has their position, as far as that is known; a client that would raise for others need not ask."""
        if self._reaches is None:
            return lanes.keys()
        asked_at = self._clock()
        due = [partition for partition, lane in lanes.items() if asked_at >= self._look_at.get(lane, 0.0)]
        known, unknown = await self._reaches(due) if due else ({}, {})
        if unknown:
            self._wait_for_brokers(lanes, unknown, asked_at)
        lost = [partition for partition, reach in known.items() if not reach.start <= lanes[partition].position <= reach.end]
        fetched.lost += lost
        return known.keys() - lost

    def _wait_for_brokers(
        self, lanes: Mapping[TopicPartition, Lane], unknown: Mapping[TopicPartition, KafkaError], asked_at: float
    ) -> None:
        """Fetch nothing of these until they are asked for again, as it is not known what their logs hold."""
        now = self._clock()
        again = max(_LOOK, now - asked_at)
        self._look_at.update((lanes[partition], now + again) for partition in unknown)
        if self._throttle.is_due("reaches"):
            partition, error = min(unknown.items())
            log.warning(
                "log offsets could not be read",
                group=self._group,
                partitions=len(unknown),
                topic=partition.topic,
                partition=partition.partition,
                error=said(error),
                retry_in=again,
            )

    async def _read_past(self, partition: TopicPartition, lane: Lane, records: list[Any], fetched: Fetched, error: BaseException) -> bool:
        """Whether what the client can't read behind `records` could be read past it, and was added: it is about a header's name alone."""
        if not is_about_a_header(error):
            return False
        position = records[-1].offset + 1 if records else lane.position
        try:
            found = await answer(self._source.read_past(partition, position), within=_RAW_TIMEOUT)
        except Exception as another:  # noqa: BLE001  # whatever a parser raises: then it can't be read
            log.debug("record batch unreadable for both parsers", topic=partition.topic, raised=another)
            return False
        if partition in self._source.assignment():
            self._source.seek(partition, found.goes_on_at)
            fetched.left_at[partition] = found.goes_on_at
            records += found.records
        return True

    def _doubt(self, partition: TopicPartition, lane: Lane, fetched: Fetched, error: BaseException, *, came: bool) -> None:
        """It raised, asked by itself. Asked for a single record it raises of that one, and is left alone once what came before is given."""
        is_doubted = lane.unreadable is not None or lane in self._doubted
        if is_doubted and came:
            return
        self._doubted[lane] = self._source.answered_at(partition) if partition in self._source.assignment() else None
        lane.left_at = None
        del fetched.lanes[partition]
        if is_doubted and partition in self._source.assignment():
            self._source.pause(partition)
            self.quarantine.admit(partition, lane, error)

    def _trust(self, fetched: Fetched) -> None:
        """Doubt those no longer that gave something, or of which a broker has answered since that there is nothing."""
        ours = self._source.assignment()
        for partition, lane in fetched.lanes.items():
            is_asked = lane in self._doubted and partition in ours
            # Two answers within a millisecond have the same time: what came tells more.
            if is_asked and (partition in fetched or self._source.answered_at(partition) != self._doubted[lane]):
                del self._doubted[lane]

    async def _recover(self, error: BaseException, beside: Mapping[Any, int]) -> None:
        """Lose nothing of what the client may have drained, then look for the partition that raises."""
        for lane, *_ in dict(self._reading.lanes).values():
            lane.left_at = None
        assigned = self._source.assignment()
        for partition, position in beside.items():
            if partition in assigned:
                self._source.seek(TopicPartition(*partition), position)
        self._source.require_membership()
        self._source.rejoin_if_broken()
        if not self._has_joined and not assigned:
            if is_refusal(error):
                raise error
            await self._back_off(error)
            return
        was_searching = self.is_searching
        self._searching_until = self._clock() + _SEARCH
        if was_searching:  # asked singly, none of them raises it
            await self._back_off(error)
        else:
            self._doubted.clear()
            log.warning("partitions fetched one by one after an error", group=self._group, error=spoken(error))

    async def _back_off(self, error: BaseException) -> None:
        """Rest, and say why: at once, and then once in a minute for as long as nothing is fetched."""
        if self._throttle.is_due():
            if is_refusal(error):
                log.error(
                    "Kafka revoked this member's access",
                    group=self._group,
                    error=said(error),
                    retry_in=_FETCH_AGAIN,
                )
            else:
                log.warning("fetch failed", group=self._group, error=spoken(error), retry_in=_FETCH_AGAIN)
        await asyncio.sleep(_FETCH_AGAIN)


def give(member: Member, fetched: Fetched, is_halted: Callable[[TopicPartition], bool]) -> list[TopicPartition]:
    """Give the lanes of `member` what was fetched for them, as far as they have room; returns those that had too little.

    What was fetched for a lane that its partition has no more, or that `is_halted`, is dropped; it is fetched again where that goes on.
    """
    overflown = []
    for partition, lane in fetched.lanes.items():
        if member.lanes.get(partition, ())[:1] != (lane,) or lane.is_stopping or is_halted(partition):
            continue
        records = fetched.get(partition, ())
        kept = lane.fitting(records) if records else 0
        if kept:
            member.offer(partition, records[:kept], proved=True)
        if kept < len(records):  # fetched again once there is room
            lane.overflow()
            lane.left_at = None
            overflown.append(partition)
        elif (position := fetched.left_at.get(partition)) is not None:
            lane.left_at = position
            if position > lane.position:  # beyond the lane too, where the log has nothing that is given to anybody
                member.skip(partition, position)
    return overflown


def _named(error: BaseException) -> list[TopicPartition]:
    """One partition that has no position yet, or several that lost theirs."""
    named: Any = error.args[0]
    return [named] if isinstance(named, TopicPartition) else [*named]


def spoken(error: BaseException) -> str:
    """What the client raised, without the bytes that a parser repeats."""
    return said(error) if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException) else type(error).__name__
