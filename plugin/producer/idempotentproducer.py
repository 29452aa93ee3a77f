"""Partitions of a topic, and which of them a message is for: the one that Kafka's own clients choose, or a rung of a delay topic. Pure.

One idempotent producer of aiokafka: what is on its way through it, and whether it can still be used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.structs import RecordMetadata

from ackwise.middleware.errors import ConfigurationError, PublishUnavailable
from ackwise.middleware.message.outgoing import Acked, Outgoing
from ackwise.middleware.policies.delaytopic import due_of_send, ladder_of
from ackwise.plugin.kafka.aiokafkainternals import has_stopped_sending, learn_topic
from ackwise.plugin.kafka.clients import close_consumer, start
from ackwise.plugin.kafka.kafkaerrors import UnencodableError, reason
from ackwise.plugin.kafka.timeouts import answer


class Partitions:
    """The partitions of one topic, for the messages of one call. Those without key and partition share one, so that they share a batch."""

    def __init__(self, known: Sequence[int], available: Sequence[int]) -> None:
        self._known = known
        self._keyless = random.choice(available or known)  # it spreads load and hides nothing

    def __len__(self) -> int:
        return len(self._known)

    def of(self, message: Outgoing, now: float, may_take: Callable[[int], bool] = lambda _: True) -> int | None:
        """The partition of `message`; `None` if it names one that the topic has not. `now`: epoch seconds.

        A message that waits for its time takes the best rung that `may_take` it; the best one if none may.
        """
        if message.partition is not None:
            return message.partition if message.partition in self._known else None
        if (due := due_of(message)) is not None:
            ways = ladder_of(len(self._known)).ways(due / 1000 - now, sends=True, spread=hash(message.message_id))
            best = next(ways, None)
            return best if best is None or may_take(best) else next(filter(may_take, ways), best)
        if message.key is None:
            return self._keyless
        hashed: int = murmur2(message.key) & 0x7FFFFFFF
        return self._known[hashed % len(self._known)]

    def hops(self, message: Outgoing, now: float) -> int:
        """How often a message that waits to be sent is written until it is due; 0 for any other."""
        due, ladder = due_of(message), ladder_of(len(self._known))
        return ladder.hops(due / 1000 - now) if due is not None and ladder else 0


def due_of(message: Outgoing) -> int | None:
    """When a message is due that waits on a rung, epoch milliseconds; `None` for any other."""
    return due_of_send(message.headers) if message.headers and message.partition is None else None


#: Seconds for a producer to connect, which may try several addresses; and for one that is let go of.
_START_TIMEOUT, _CLOSE_TIMEOUT = 60.0, 2.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

#: Bytes of a batch before compression; a larger record has its own batch.
_BATCH: Final = 64 * 1024


class SenderSettings(Protocol):
    """How a sender talks to Kafka. `HostSettings` is one."""

    @property
    def brokers(self) -> str:
        """`host:port`, several with commas between."""
        ...

    @property
    def client_id(self) -> str:
        """Name of the Kafka client."""
        ...

    @property
    def client_options(self) -> Mapping[str, object]:
        """Options of the Kafka client, such as `security_protocol`."""
        ...


class OnItsWay(NamedTuple):
    """Messages that were given to the client in one batch, and the future of its answer."""

    partition: int
    messages: Sequence[Outgoing]
    future: asyncio.Future[RecordMetadata]
    timestamps: Sequence[int]
    is_alone: bool
    """No other message can be in its batch."""
    given_at: float
    """By the clock of the event loop, in seconds."""

    def acked(self, place: int) -> Acked:
        """Where the message at `place` was written. Raises what its batch failed with; a cancellation is an error of the client."""
        if self.future.cancelled():
            raise KafkaConnectionError("the client gave up its own batch")
        written = self.future.result()
        return Acked(
            written.topic,
            written.partition,
            written.offset + place if written.offset >= 0 else -1,
            written.timestamp if written.timestamp is not None and written.timestamp >= 0 else self.timestamps[place],
            self.messages[place].message_id,
        )


class IdempotentClient:
    """A started producer. After the first batch that failed it is spoiled: the broker misses its sequence, and refuses what follows."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.is_silent = False  #: it did not answer in time, and may fill the link that the next one needs
        self._producer = producer
        self._is_spoiled = False
        self._under_way: set[asyncio.Future[RecordMetadata]] = set()

    @property
    def is_usable(self) -> bool:
        """Whether what is given to it may still be acknowledged."""
        return not self._is_spoiled and not has_stopped_sending(self._producer)

    def spoil(self) -> None:
        """Let nothing more be given to it."""
        self._is_spoiled = True

    async def partitions(self, topic: str) -> tuple[list[int], list[int]]:
        """The partitions of `topic`, and those that have a leader now.

        Raises `UnknownTopicOrPartitionError` at once if a broker says that there is no such topic, and any other `KafkaError`.
        """
        cluster = self._producer.client.cluster
        if cluster.partitions_for_topic(topic) is None:
            await learn_topic(self._producer, topic)
        if (known := cluster.partitions_for_topic(topic)) is None:
            raise KafkaConnectionError(f"no broker told the partitions of topic {topic!r}")
        return sorted(known), sorted(cluster.available_partitions_for_topic(topic) or ())

    async def learn(self) -> bool:
        """Ask the brokers again for the partitions of all topics; return whether one answered."""
        return bool(await self._producer.client.force_metadata_update())

    async def submit(self, partition: int, messages: Sequence[Outgoing], *, alone: bool) -> OnItsWay:
        """Give the client as many of `messages`, from the first, as fit a batch: one if it shall be `alone`.

        Raises `KafkaError`, and `UnencodableError` if one of those can't be written.
        """
        first = messages[0]
        if len(messages) == 1 and not alone and (first.key is not None or first.value is not None):
            sent = await self._producer.send(first.topic, first.value, first.key, partition, headers=list(first.sent_headers))
            return OnItsWay(partition, messages, self._watched(sent), [-1], False, _now())
        # A batch of our own costs one future, not one for each message, and holds one without key and value, which `send` takes for a slip.
        batch = self._producer.create_batch()
        timestamps: list[int] = []
        for message in messages[:1] if alone else messages:
            try:
                added = batch.append(timestamp=None, key=message.key, value=message.value, headers=list(message.sent_headers))
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise UnencodableError(f"the client can't encode the message ({type(error).__name__})") from error
            if added is None:
                break
            timestamps.append(added.timestamp)
        batch.close()
        sent = await self._producer.send_batch(batch, first.topic, partition=partition)
        return OnItsWay(partition, messages[: len(timestamps)], self._watched(sent), timestamps, len(timestamps) == 1, _now())

    async def close(self, *, within: float) -> int:
        """Wait up to `within` seconds for what is under way, and close. Return how many batches were not acknowledged. Raises nothing."""
        self.spoil()
        try:
            if self._under_way:
                await asyncio.wait(set(self._under_way), timeout=within)
        finally:
            unanswered = len(self._under_way)
            await close_consumer(self._producer, within=0.0 if self.is_silent else _CLOSE_TIMEOUT)
        return unanswered

    def _watched(self, future: asyncio.Future[RecordMetadata]) -> asyncio.Future[RecordMetadata]:
        self._under_way.add(future)
        future.add_done_callback(self._has_ended)
        return future

    def _has_ended(self, future: asyncio.Future[RecordMetadata]) -> None:
        self._under_way.discard(future)
        if future.cancelled() or future.exception() is not None:
            self._is_spoiled = True


def _now() -> float:
    return asyncio.get_running_loop().time()


async def connected(
    settings: SenderSettings, options: Mapping[str, object], *, timeout: float, is_acknowledged: bool = True
) -> IdempotentClient:
    """Start a producer: idempotent with acks=all, or with acks=0 where it `is_acknowledged` not.

    Raises `PublishUnavailable` if no broker answers, `ConfigurationError` for options that can't be used.
    """
    try:
        given: dict[str, Any] = {"max_batch_size": _BATCH, **settings.client_options, **options}
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.brokers,
            client_id=settings.client_id,
            acks="all" if is_acknowledged else 0,
            enable_idempotence=is_acknowledged,
            max_request_size=_UNBOUNDED,
            request_timeout_ms=max(1, round(timeout * 1000)),
            **given,
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"client_options can't be used for a producer: {error}") from error
    is_connected = False
    try:
        await answer(start(producer), within=_START_TIMEOUT)
        is_connected = True
    except (KafkaError, OSError) as error:
        raise PublishUnavailable(f"the brokers {settings.brokers!r} do not answer a producer ({reason(error)})") from error
    finally:
        if not is_connected:
            await close_consumer(producer, within=_CLOSE_TIMEOUT)
    return IdempotentClient(producer)
