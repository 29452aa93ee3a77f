"""Fetching for the relay: all records of its delay topics, also where the client drops some of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from ackwise.middleware.log import Log, said
from ackwise.middleware.message import delivery_of
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import (
    buffered,
    fetch_wait,
    has_left_the_group,
    has_stopped_fetching,
    idle_wait,
    position_of,
    set_fetch_wait,
    stands_before_an_error,
)
from ackwise.plugin.client.rawrecords import is_about_a_header, read_raw
from ackwise.plugin.group.quarantine import Quarantine
from ackwise.plugin.relay.line import DelayLine

__all__ = ["DelayFetch"]

log = Log()

#: Seconds for a fetch, which waits while the group assigns anew; what takes longer hangs.
_FETCH_TIMEOUT: Final = 180.0

#: Seconds for reading a record batch past the client.
_RAW_TIMEOUT: Final = 15.0

#: Seconds that partitions are asked singly after an error, to find the one that raises, and between two rounds of that.
_SEARCH, _ROUND = 10.0, 0.05

#: Seconds between two looks whether the client stands where the lines do.
_COMPARE: Final = 5.0

#: Records that one fetch takes.
_FETCH: Final = 500

#: How a record says that the broker set its timestamp.
_APPEND_TIME: Final = 1

#: Asked where nobody has a line yet: it answers nothing, and shows the group that this member is alive.
_NOBODYS: Final = TopicPartition("", -1)


#: What a fetch found, and the client's positions after that, as far as they are known.
_Drained = tuple[dict[TopicPartition, Any], dict[TopicPartition, int | None]]


class DelayFetch:
    """Feeds `lines`. `reopen` is told of a partition whose log does not have the position of its line.

    A fetch that raises has moved the client's position over what it drained and never gave. So after one every line is fetched from
    its own position, and a jump counts as a hole in the log only if the fetch began at the line.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        group: str,
        lines: dict[TopicPartition, DelayLine],
        *,
        reopen: Callable[[TopicPartition], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._lines = lines
        self._reopen = reopen
        self._clock = clock
        self._full: set[TopicPartition] = set()
        self._quarantine = Quarantine(clock)
        self._isolated: set[TopicPartition] = set()  #: those that the quarantine knows
        self._doubted: set[TopicPartition] = set()  #: those that raised once in this search
        self._jumped: set[TopicPartition] = set()  #: those that are fetched again since records seemed to be missing
        self._left_at: dict[TopicPartition, int] = {}  #: where fetches that gave something left the client
        self._found_none = False  #: the last search
        self._own_wait = 0  #: milliseconds that a fetch lasts which finds nothing, as the client was made
        self._searching_until = self._next_compare = 0.0

    async def feed(self, wait: float, *, only_lines: bool) -> None:
        """Give to the lines what there is, for at most `wait` seconds; `only_lines` if there are partitions without one.

        Raises whatever the client raises once that is about no partition that could be left alone.
        """
        if has_stopped_fetching(self._consumer) or has_left_the_group(self._consumer):
            raise KafkaConnectionError("the client has stopped working by itself")
        self._resume()
        self._set_wait()
        self._compare()
        try:
            await self._feed_singly()
            if self._clock() >= self._searching_until:
                await self._take(*((self._lines or [_NOBODYS]) if only_lines else ()), wait=wait)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            self._reposition(error)
        except KafkaTimeoutError:
            raise  # it hangs, and nothing is known of what it has
        except Exception as error:  # noqa: BLE001  # an unreadable record raises whatever its parser does
            self._search(error)

    async def _take(self, *partitions: TopicPartition, wait: float = 0.0, most: int = _FETCH) -> bool:
        """Take what the client has of `partitions`, or of all; returns whether it had anything."""
        begun = {partition: position_of(self._consumer, partition) for partition in self._jumped}
        fetched, left_at = await answer(self._drain(*partitions, wait=wait, most=most), within=_FETCH_TIMEOUT)
        for partition, records in fetched.items():
            if (line := self._lines.get(partition)) is not None:
                self._give(partition, line, records, left_at.get(partition), is_proved=begun.get(partition) == line.position)
        return bool(fetched)

    async def _drain(self, *partitions: TopicPartition, wait: float, most: int) -> _Drained:
        """What the client has, and where that leaves it: taken at once, since it may move by itself in whatever is awaited next."""
        fetched: dict[TopicPartition, Any] = await self._consumer.getmany(*partitions, timeout_ms=round(wait * 1000), max_records=most)
        known = [partition for partition in fetched if not stands_before_an_error(self._consumer, partition)]
        return fetched, {partition: position_of(self._consumer, partition) for partition in known}

    def _give(self, partition: TopicPartition, line: DelayLine, records: list[Any], left_at: int | None, *, is_proved: bool) -> None:
        if records[0].offset > line.position and not is_proved and records[0].offset != self._left_at.get(partition):
            self._jumped.add(partition)
            self._return(partition, line)
            return
        self._jumped.discard(partition)
        line.offer(
            (delivery_of(partition, record) for record in records),
            is_append_time=all(record.timestamp_type == _APPEND_TIME for record in records),
        )
        if left_at is not None:
            self._left_at[partition] = left_at
        if line.is_full(paused=False):
            self._full.add(partition)
            self._consumer.pause(partition)

    def _resume(self) -> None:
        for partition in [*self._full]:
            line = self._lines.get(partition)
            if line is None or not line.is_full(paused=True):
                self._full.discard(partition)
                if line is None or not self._quarantine.holds(partition, line):
                    self._consumer.resume(partition)

    def _set_wait(self) -> None:
        """While no line is full a fetch is for all partitions, and may last; whatever is written to one of them ends it at once."""
        self._own_wait = self._own_wait or fetch_wait(self._consumer)
        set_fetch_wait(self._consumer, self._own_wait if self._full else max(self._own_wait, idle_wait(len(self._lines))))

    def _compare(self) -> None:
        """Fetch again what the client has passed and did not give, whether it raised or not."""
        if self._clock() < self._next_compare:
            return
        self._next_compare = self._clock() + _COMPARE
        for partition, line in self._lines.items():
            if stands_before_an_error(self._consumer, partition):
                continue  # it is raised first; what raised is sought back then
            if position_of(self._consumer, partition) not in (line.position, self._left_at.get(partition)):
                self._return(partition, line)

    def _return(self, partition: TopicPartition, line: DelayLine) -> None:
        self._left_at.pop(partition, None)
        if partition in self._consumer.assignment():
            self._consumer.seek(partition, line.position)

    def _reposition(self, error: OffsetOutOfRangeError | NoOffsetForPartitionError) -> None:
        """The log does not have these positions; the client gave what it had drained before it raised that."""
        named = error.args[0]  # one partition that has no position yet, or several that lost theirs
        for partition in [named] if isinstance(named, TopicPartition) else list(named):
            if partition in self._lines:
                self._reopen(partition)

    def _search(self, error: Exception) -> None:
        """Lose nothing of what the client may have drained, then look for the partition that raises."""
        assigned = self._consumer.assignment()
        self._left_at.clear()
        for partition, line in self._lines.items():
            if partition in assigned:
                self._consumer.seek(partition, line.position)
        if self._clock() < self._searching_until + (_SEARCH if self._found_none else 0.0):
            raise error  # asked singly, none of them raises it: it is the client's own
        self._searching_until, self._found_none = self._clock() + _SEARCH, True
        self._doubted.clear()
        log.warning("fetching failed, nothing is lost and partitions are asked singly", group=self._group, error=_spoken(error))

    async def _feed_singly(self) -> None:
        """Ask each partition by itself that may be unreadable: after an error those that have something, later those in quarantine."""
        suspects: list[TopicPartition] = self._asked_again()
        if is_searching := self._clock() < self._searching_until:
            await self._take(_NOBODYS)  # what is raised now is about no partition
            suspects += [partition for partition in buffered(self._consumer) if partition in self._lines]
        for partition in suspects:
            line = self._lines[partition]
            if self._quarantine.holds(partition, line):
                self._found_none = False  # an error that the client had for it before it was paused may be what raised
                continue
            try:
                await self._take_one(partition, line)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError):
                raise
            except Exception as error:  # noqa: BLE001  # see `feed`
                if not await self._give_raw(partition, line, error):
                    self._doubt(partition, line, error)
            else:
                self._quarantine.answered(partition, self._consumer.last_poll_timestamp(partition))
        if is_searching:
            await asyncio.sleep(_ROUND)

    def _asked_again(self) -> list[TopicPartition]:
        if not self._isolated:
            return []
        isolated = {partition: (line,) for partition in self._isolated if (line := self._lines.get(partition)) is not None}
        again = self._quarantine.asked_again(isolated)
        self._isolated = {partition for partition, (line,) in isolated.items() if line.unreadable is not None}
        for partition, (line,) in isolated.items():
            if partition in again:
                self._consumer.resume(partition)
            elif self._quarantine.holds(partition, line):  # its probation may have ended undecided
                self._leave_alone(partition)
        return again

    def _leave_alone(self, partition: TopicPartition) -> None:
        if partition in self._consumer.assignment():
            self._consumer.pause(partition)

    async def _take_one(self, partition: TopicPartition, line: DelayLine) -> None:
        """Of a partition that raised, record by record: what is before the one that raises is given."""
        if line.unreadable is None and partition not in self._doubted:
            await self._take(partition)
            return
        for _ in range(_FETCH):
            if not await self._take(partition, most=1):
                return

    async def _give_raw(self, partition: TopicPartition, line: DelayLine, error: Exception) -> bool:
        """Whether the record batch that the client can't read could be read past it, and was given: it is about a header's name alone."""
        self._return(partition, line)
        if not is_about_a_header(error):
            return False
        try:
            found = await answer(read_raw(self._consumer, partition, line.position), within=_RAW_TIMEOUT)
        except Exception as another:  # noqa: BLE001  # whatever a parser raises: then nobody can read it
            log.debug("a record batch can't be read past the client either", topic=partition.topic, raised=another)
            return False
        if self._lines.get(partition) is line and partition in self._consumer.assignment():
            line.offer(
                (delivery_of(partition, record) for record in found.records),
                is_append_time=all(each.timestamp_type == _APPEND_TIME for each in found.records),
            )
            self._consumer.seek(partition, found.goes_on_at)
            self._left_at[partition] = found.goes_on_at
            self._doubted.discard(partition)
            self._found_none = False
        return True

    def _doubt(self, partition: TopicPartition, line: DelayLine, error: Exception) -> None:
        """It raised, asked by itself. Asked for a single record it raises of that one, and is left alone."""
        self._return(partition, line)
        if line.unreadable is None and partition not in self._doubted:
            self._doubted.add(partition)
            return
        self._found_none = False
        self._leave_alone(partition)
        self._isolated.add(partition)
        self._quarantine.admit(partition, line, error)


def _spoken(error: BaseException) -> str:
    """Return what the client raised, without the bytes that a parser repeats."""
    return said(error) if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException) else type(error).__name__
