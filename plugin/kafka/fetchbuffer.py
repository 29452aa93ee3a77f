"""Taking: records out of the fetcher of aiokafka's consumer, a record batch at a time and without a `ConsumerRecord` for each.

The client's position moves only with the records that are returned: nothing is awaited between. What a broken batch has before it
is returned first, and its error is raised by the next take. The checks are those of aiokafka.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher as aiokafka_fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchError, FetchResult
from aiokafka.errors import ConsumerStoppedError, CorruptRecordException

from ackwise.middleware.log import Log

log = Log()

#: aiokafka's own reader of what a broker answered, and the functions that are done here in its place with all that they read.
_Reader: Any = aiokafka_fetcher.PartitionRecords
_KNOWN: Final = {
    "PartitionRecords._unpack_records": """
        CorruptRecordException Errors READ_COMMITTED _aborted_producers _check_crcs _consume_aborted_up_to _consumer_record
        _contains_abort_marker _isolation_level _records _tp base_offset debug discard has_next is_control_batch is_transactional log
        next_batch next_fetch_offset next_offset offset producer_id validate_crc""",
    "FetchResult.getall": "_partition_records _topic_partition _update_position append check_assignment has_more len",
    "FetchError.check_raise": "_error",
    "Fetcher.fetched_records": """
        FetchResult _closed _create_fetch_waiter _notify _records _subscriptions _wait_consume_future asyncio cancel
        check_raise done getall has_more is_assigned keys len list max monotonic pop reassignment_in_progress result time type wait
        wait_for_assignment""",
}

#: A reader that was not read from.
_UNTOUCHED: Final = "GEN_CREATED"

#: What the fetcher of a client has.
_PARTS: Final = ("_closed", "_create_fetch_waiter", "_notify", "_records", "_subscriptions", "_wait_consume_future")


def is_known(fetcher: Any) -> bool:
    """Return whether `fetcher` works as the version of aiokafka does that this was written for."""
    is_replaced = "fetched_records" in vars(fetcher)
    return (
        not is_replaced
        and all(hasattr(fetcher, part) for part in _PARTS)
        and all(_names(path) == set(names.split()) for path, names in _KNOWN.items())
    )


class Taking:
    """Takes records from `consumer`; with `getmany` where aiokafka is not as it is known here, or where it is overridden or traced."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self._is_known = None if _is_plain(consumer) else False

    def is_known(self) -> bool:
        """Return whether records are taken past `getmany`."""
        if self._is_known is None:
            self._is_known = is_known(self.consumer._fetcher)
            if not self._is_known:
                log.warning("getmany used with an unknown aiokafka")
        return self._is_known

    async def take(self, *partitions: TopicPartition, timeout_ms: int, most: int) -> dict[TopicPartition, list[Any]]:
        """Return the client's records of `partitions`, or of all: at most `most` of each. Wait for the first at most `timeout_ms`.

        A record has `offset`, `timestamp`, `timestamp_type`, `key`, `value` and `headers`. Raises what the client raises; all that was
        taken before an error is returned first.
        """
        consumer = self.consumer
        if not self.is_known():
            taken: dict[TopicPartition, list[Any]] = await consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=most)
            return taken
        if consumer._closed or consumer._fetcher._closed:
            raise ConsumerStoppedError
        fetcher, loop = consumer._fetcher, asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        with consumer._subscription.fetch_context():
            while True:
                if fetcher._subscriptions.reassignment_in_progress:
                    await fetcher._subscriptions.wait_for_assignment()
                taken = _drain(fetcher, partitions, most)
                if taken or (left := until - loop.time()) <= 0:
                    return taken
                if not await _comes(fetcher, left) or fetcher._closed:
                    return {}

    async def wait(self, within: float) -> bool:
        """Whether the client may have something to take; waits for that for at most `within` seconds. Raises what the client raises."""
        consumer = self.consumer
        if not self.is_known() or consumer._closed or consumer._fetcher._closed or consumer._subscription.reassignment_in_progress:
            return True
        with consumer._subscription.fetch_context():
            return bool(consumer._fetcher._records) or await _comes(consumer._fetcher, within)


async def _comes(fetcher: Any, within: float) -> bool:
    """Return whether the client gets something in that time (seconds). Raises what the group's coordinator refuses."""
    waiter = fetcher._create_fetch_waiter()
    try:
        await asyncio.wait([waiter], timeout=within)
        if waiter.done():
            waiter.result()
        return bool(waiter.done())
    finally:
        waiter.cancel()


def _drain(fetcher: Any, partitions: tuple[TopicPartition, ...], most: int) -> dict[TopicPartition, list[Any]]:
    """Take what is buffered. What raises ends it: at once if nothing was taken before, otherwise in the next call."""
    taken: dict[TopicPartition, list[Any]] = {}
    for partition in list(fetcher._records):
        if partitions and partition not in partitions:
            if not fetcher._subscriptions.is_assigned(partition):
                del fetcher._records[partition]
            continue
        found = fetcher._records[partition]
        if type(found) is not FetchResult:
            if taken:
                break
            _forget(fetcher, partition)
            found.check_raise()
        try:
            records = _records_of(found, most)
        except Exception as error:
            if taken:
                fetcher._records[partition] = FetchError(error=error, backoff=0.0)
                break
            _forget(fetcher, partition)  # it is fetched again from behind what was given
            raise
        if not found.has_more():
            _forget(fetcher, partition)
        if records:
            taken[partition] = records
    return taken


def _forget(fetcher: Any, partition: TopicPartition) -> None:
    """Let the client fetch the partition again."""
    del fetcher._records[partition]
    fetcher._notify(fetcher._wait_consume_future)


def _records_of(found: Any, most: int) -> list[Any]:
    """Up to `most` records, and the client's position moves behind them. Raises where the first can't be read."""
    if not found.check_assignment(found._topic_partition) or not found.has_more():
        return []
    source = found._partition_records
    if type(source) is not _Batches:
        if source._key_deserializer or source._value_deserializer or inspect.getgeneratorstate(source._records_iterator) != _UNTOUCHED:
            given: list[Any] = found.getall(most)
            return given
        source = found._partition_records = _Batches(source)
    records: list[Any] = source.take(most)
    if not records and source.error is not None:
        raise source.error
    found._update_position()
    if source.error is None and not source._rest and not source._records.has_next():
        found._partition_records = None
    return records


class _Batches(_Reader):  # type: ignore[misc]
    """aiokafka's reader, a record batch at a time. `error` is why the next record can't be read."""

    _tp: TopicPartition
    next_fetch_offset: int
    _records: Any

    def __init__(self, reader: Any) -> None:
        """Take the place of `reader`, of which nothing was read."""
        self.__dict__.update(reader.__dict__)
        self._records_iterator = self._unpack_records()
        self._rest: list[Any] = []  #: of the batch that is at work, less the first `_given`
        self._given = 0
        self._ends_at = self.next_fetch_offset  #: the batch that is at work
        self.error: Exception | None = None

    def take(self, most: int) -> list[Any]:
        """The next records, at most `most`. `next_fetch_offset` is behind them, and behind the batch once that is given whole."""
        taken: list[Any] = []
        while len(taken) < most:
            if not self._rest and not self._read():
                break
            end = self._given + most - len(taken)
            if end >= len(self._rest):
                taken += self._rest[self._given :] if self._given else self._rest
                self._rest, self._given = [], 0
                self.next_fetch_offset = self._ends_at
            else:
                taken += self._rest[self._given : end]
                self._given = end
                self.next_fetch_offset = taken[-1].offset + 1
        return taken

    def _read(self) -> bool:
        """Read the next batch that has records to give; returns whether there is one."""
        if self.error is not None:
            return False
        try:
            while not self._rest and self._records.has_next():
                self._read_batch(self._records.next_batch())
        except Exception as error:  # noqa: BLE001  # whatever a parser raises; it is raised once what is before it was taken
            self.error = error
        return bool(self._rest)

    def _read_batch(self, batch: Any) -> None:
        """Like `_unpack_records` of aiokafka."""
        if self._check_crcs and not batch.validate_crc():
            raise CorruptRecordException(f"Invalid CRC - {self._tp}")
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                self.next_fetch_offset = batch.next_offset
                return
        if batch.is_control_batch:
            self.next_fetch_offset = batch.next_offset
            return
        records: list[Any] = []
        try:
            records.extend(batch)  # keeps what came before an error
        finally:
            if records and records[0].offset < self.next_fetch_offset:
                records = [record for record in records if record.offset >= self.next_fetch_offset]
            self._rest, self._given = records, 0
            if records:
                self._ends_at = records[-1].offset + 1
        self._ends_at = batch.next_offset
        if not records:
            self.next_fetch_offset = self._ends_at

    def _unpack_records(self) -> Iterator[Any]:
        """For who takes past this: aiokafka's own records."""
        while taken := self.take(1):
            yield self._consumer_record(self._tp, taken[0])
        if self.error is not None:
            raise self.error


def _is_plain(consumer: Any) -> bool:
    """Return whether `getmany` is aiokafka's own: who overrides it, or wraps it as tracing does, wants to see what is fetched."""
    getmany = inspect.getattr_static(consumer, "getmany", None)
    return inspect.isfunction(getmany) and getmany.__module__ == AIOKafkaConsumer.__module__ and not hasattr(getmany, "__wrapped__")


def _names(path: str) -> set[str] | None:
    """All names that a function of aiokafka's fetcher reads; `None` if there is no such function."""
    found: Any = aiokafka_fetcher
    for name in path.split("."):
        found = getattr(found, name, None)
    code = getattr(inspect.unwrap(found), "__code__", None) if found is not None else None
    return None if code is None else set(code.co_names)
