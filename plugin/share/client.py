"""Client of a share group: a `ShareConsumer` of confluent-kafka in a thread of its own, handed to the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.message import Headers, TopicPartition
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.share.caller import Caller

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException, ShareConsumer

__all__ = ["Acknowledged", "Poll", "Record", "ShareClient"]

log = Log()

#: Seconds that a poll waits for records: a stop waits for it.
_POLL: Final = 0.5

#: Seconds until a poll is tried again that has failed.
_POLL_AGAIN: Final = 1.0

#: Not `message.headers()`: for a name that is no UTF-8 the client returns a list with a hole in it and an error beside it. Python sees
#: that error at once in a call from C; in bytecode it has run often, only later and elsewhere, and whoever touches the hole crashes.
_READ_HEADERS: Final = methodcaller("headers")

#: What stands for headers that the client can't read, since the name of one is no UTF-8: a name that is none.
_UNREADABLE: Final[Headers] = (("\udcff", None),)


class Record(NamedTuple):
    """A record as the pipeline takes it."""

    offset: int
    timestamp: int
    """Epoch milliseconds; -1 for none."""
    key: bytes | None
    value: bytes | None
    headers: Headers


class Poll(NamedTuple):
    """What one poll brought: records by partition, in the order of their offsets."""

    at: float
    """Monotonic seconds at which the poll began, which is before the lock: what is believed of it ends too early, not too late."""
    first: dict[TopicPartition, list[Record]]
    again: dict[TopicPartition, list[Record]]
    """What was delivered before: to this worker or another, which ended or was too slow."""


#: Is told what the broker says of acknowledgements: offsets of a partition, and why they are refused, if they are.
Acknowledged = Callable[[TopicPartition, Sequence[int], str | None], None]


class ShareClient:
    """One consumer of a share group. All of a poll must be acknowledged before the next one."""

    def __init__(self, config: dict[str, Any], topics: Sequence[str], acknowledged: Acknowledged, *, group: str) -> None:
        self._config = config
        self._topics = list(topics)
        self._acknowledged = acknowledged
        self._group = group
        self._caller = Caller(f"ackwise share {group}")
        self._loop = asyncio.get_running_loop()
        self._consumer: ShareConsumer | None = None
        self._throttle = LogThrottle()

    async def open(self) -> None:
        """Make the consumer, which joins the group once it is polled. Raises `ConfigurationError` for options that it refuses."""
        await self._caller.call(self._open)

    async def poll(self) -> Poll | None:
        """What is locked for this worker now; `None` if nothing came for a moment. Raises `AckwiseError` if it never will."""
        from confluent_kafka import KafkaException

        began = time.monotonic()
        try:
            return await self._caller.call(partial(self._poll, began))
        except KafkaException as error:
            self._report(error.args[0])
            await asyncio.sleep(_POLL_AGAIN)
            return None

    def accept(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        """These are settled. What the broker says of that is told later."""
        self._caller.call(partial(self._acknowledge, place, [*offsets], is_done=True))

    def release(self, place: TopicPartition, offsets: Iterable[int]) -> None:
        """These are for another worker, which the broker counts as a delivery."""
        self._caller.call(partial(self._acknowledge, place, [*offsets], is_done=False))

    async def close(self) -> None:
        """Send what was acknowledged, and leave the group."""
        try:
            await self._caller.call(self._close)
        finally:
            self._caller.end()

    # In the thread.

    def _open(self) -> None:
        from confluent_kafka import KafkaException, ShareConsumer

        try:
            self._consumer = ShareConsumer({**self._config, "error_cb": self._report})
            self._consumer.set_acknowledgement_commit_callback(self._told)
            self._consumer.subscribe(self._topics)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(f"client_options of Share can't be used: {error}") from error

    def _poll(self, began: float) -> Poll | None:
        if self._consumer is None:
            raise AckwiseError("the consumer of the share group is not open")
        first: dict[TopicPartition, list[Record]] = {}
        again: dict[TopicPartition, list[Record]] = {}
        message: Any  # its place and offset are `None` only beside an error
        for message in self._consumer.poll(_POLL):
            if (error := message.error()) is not None:
                self._report(error)
                continue
            kind, timestamp = message.timestamp()
            record = Record(message.offset(), timestamp if kind else -1, message.key(), message.value(), _headers(message))
            records = first if (message.delivery_count() or 1) == 1 else again
            records.setdefault(TopicPartition(message.topic(), message.partition()), []).append(record)
        return Poll(began, first, again) if first or again else None

    def _acknowledge(self, place: TopicPartition, offsets: Sequence[int], *, is_done: bool) -> None:
        from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException

        kind, consumer, gone = AcknowledgeType.ACCEPT if is_done else AcknowledgeType.RELEASE, self._consumer, []
        if consumer is None:
            return
        for offset in offsets:
            try:
                consumer.acknowledge_offset(*place, offset, kind)
            except (IllegalStateException, KafkaException):  # the client has given it up, as after it was thrown out of the group
                gone.append(offset)
        if gone:
            self._loop.call_soon_threadsafe(self._acknowledged, place, gone, "the client has given it up")
        try:
            consumer.commit_async()
        except KafkaException as error:
            self._report(error.args[0])

    def _told(self, offsets: dict[Any, set[int]], error: KafkaException | None) -> None:
        why = None if error is None else error.args[0].name()
        for partition, acknowledged in offsets.items():
            place = TopicPartition(partition.topic, partition.partition)
            self._loop.call_soon_threadsafe(self._acknowledged, place, sorted(acknowledged), why)

    def _close(self) -> None:
        from confluent_kafka import KafkaException

        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except KafkaException as error:
                self._report(error.args[0])

    def _report(self, error: KafkaError) -> None:
        """One line for what the client says of brokers that are away; what it can't go on with ends the worker."""
        if error.fatal():
            raise AckwiseError(f"Kafka refuses this worker of share group {self._group!r} ({error.name()}: {error.str()})")
        if self._throttle.is_due(error.name()):
            log.warning(
                "the client of the share group reports an error, it goes on", group=self._group, error=f"{error.name()}: {error.str()}"
            )


def _headers(message: Any) -> Headers:
    try:
        return tuple(_READ_HEADERS(message) or ())
    except (UnicodeDecodeError, SystemError):  # 2.16 raises the first inside of the second; asked again, it would crash the process
        return _UNREADABLE
