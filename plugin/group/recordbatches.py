"""Record batches: copies for one partition in the form in which Kafka takes them, packed ahead and sent as a whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.message import Headers
from ackwise.middleware.refusals import RecordRefusals
from ackwise.middleware.wire import BUDGET, Copy
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.internals import has_stopped_sending
from ackwise.plugin.client.opening import start
from ackwise.plugin.client.produceerrors import Refusal, is_certain, refusal_of
from ackwise.plugin.client.rawrecords import BatchBuilder, read_back
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["RecordBatch", "RecordBatches"]

log = Log()

#: Bytes of a batch: every topic of a group takes records that are larger by `BUDGET` than what its sources take, so it takes this.
_BATCH: Final = BUDGET

#: Seconds that the brokers have to acknowledge what is sent together; for a producer to connect; and for one that is let go of.
_TIMEOUT, _START_TIMEOUT, _CLOSE_TIMEOUT = 10.0, 10.0, 2.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

_UNCOMPRESSED: Final = 0

#: Copies in a row that fail by themselves until their partition is left alone.
_MOST_IN_A_ROW: Final = 10

#: What is raised of a topic that is gone; a time-out may have another reason.
_MISSING: Final = (UnknownTopicOrPartitionError, KafkaTimeoutError)

#: Brokers that are too old for an idempotent producer, or do not allow one.
_NOT_IDEMPOTENT: Final = (ClusterAuthorizationFailedError, IncompatibleBrokerVersion, UnsupportedVersionError)

_Answer = PublishUnavailable | PublishRefused | None


class _AboutRecord(PublishUnavailable):
    """Some record of the batch may be refused in time. `certain`: see `RecordRefusals`."""

    def __init__(self, text: str, *, certain: bool) -> None:
        super().__init__(text)
        self.certain = certain


class RecordBatch:
    """Records for one partition. It is sent once; `copies` has what is in it, for who must send it again."""

    __slots__ = ("_builder", "_kept", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._builder = BatchBuilder(_BATCH, _UNCOMPRESSED)
        self._kept: bytes | None = None

    def __len__(self) -> int:
        return int(self._builder.record_count())

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> bool:
        """Take one more record; `False` if there is no room, and never will be. A batch without records takes one of any size."""
        return self._builder.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers)) is not None

    def sealed(self) -> BatchBuilder:
        """What a producer takes; nothing can be added from now on."""
        self._builder.close()
        return self._builder

    def copies(self) -> list[Copy]:
        """The records, read back."""
        return [Copy(self.topic, self.partition, each.key, each.value, tuple(each.headers)) for each in read_back(self._builder)]


class RecordBatches:
    """A publisher that sends whole batches, in order on each partition, with acks=all.

    Its producer is idempotent where the brokers allow one, so a batch that is sent again within the client is there once. After a
    batch that was refused or not acknowledged another producer is begun: the sequence has a hole, and brokers take nothing behind it.
    """

    def __init__(self, settings: HostSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, by which a copy that fails by itself is refused in time."""
        self.suspect: Callable[[], None] = lambda: None  #: called where a topic may be gone
        self._settings = settings
        self._refusals = RecordRefusals(clock)
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        self._is_idempotent = True
        self._closing: set[asyncio.Task[Any]] = set()

    def new_batch(self, topic: str, partition: int) -> RecordBatch:
        """An empty batch for a partition, which is folded into the topic's own if that has fewer."""
        return RecordBatch(topic, partition)

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        """Send all copies, packed; one answer for each, in order. Raises nothing but cancellation."""
        packed: list[tuple[RecordBatch, list[int]]] = []
        last: dict[tuple[str, int], tuple[RecordBatch, list[int]]] = {}
        for place, copy in enumerate(copies):
            target = copy.topic, copy.partition
            if target not in last or not _put(last[target][0], copy):
                last[target] = RecordBatch(*target), []
                packed.append(last[target])
                _put(last[target][0], copy)
            last[target][1].append(place)
        answers: list[_Answer] = [None] * len(copies)
        for (_, places), found in zip(packed, await self.send([batch for batch, _ in packed]), strict=True):
            if isinstance(found, PublishRefused | _AboutRecord) and len(places) > 1:  # it may be about some of them alone
                for place, each in zip(places, await self._publish_alone([copies[place] for place in places], found), strict=True):
                    answers[place] = each
                continue
            for place in places:
                answers[place] = self._judged(copies[place], found)
        return answers

    async def _publish_alone(self, copies: Sequence[Copy], found: PublishRefused | _AboutRecord) -> list[_Answer]:
        """Send each in a batch of its own. Where many in a row fail the partition is left alone: each costs a producer."""
        answers: list[_Answer] = []
        in_a_row = 0
        for copy in copies:
            if in_a_row >= _MOST_IN_A_ROW:
                answers.append(PublishUnavailable(str(found)))
                continue
            (answer_of_it,) = await self.publish([copy])
            in_a_row = in_a_row + 1 if isinstance(answer_of_it, _AboutRecord) else 0
            answers.append(answer_of_it)
        return answers

    def _judged(self, copy: Copy, found: _Answer) -> _Answer:
        """The answer of a copy; that of one which failed by itself is a refusal after a while."""
        place = copy.topic, copy.partition
        if found is None:
            self._refusals.take(hash(copy), place)
        elif isinstance(found, _AboutRecord) and self._refusals.is_refused(hash(copy), place, certain=found.certain):
            return PublishRefused(f"{found}; it is refused for good")
        return found

    async def send(self, batches: Sequence[RecordBatch]) -> list[_Answer]:
        """Send batches that were never sent; one answer for each, in order. Raises nothing but cancellation."""
        if not batches:
            return []
        try:
            producer = await self._connected()
        except Exception as error:  # noqa: BLE001  # whatever the client raises, nothing was sent
            return [PublishUnavailable(f"a producer can't be begun ({said(error)})") for _ in batches]
        sent: list[asyncio.Future[Any]] = []
        failed: BaseException | None = None
        try:
            await answer(_send(producer, batches, sent), within=_TIMEOUT)
        except Exception as error:  # noqa: BLE001  # what is not acknowledged may be there or not; whoever sent it keeps it
            failed = error
        if any(isinstance(error, _MISSING) for error in (failed, *map(_error_of, sent))):
            self.suspect()
        answers = [_answer_of(sent[place] if place < len(sent) else None, batch, failed) for place, batch in enumerate(batches)]
        for batch, found in zip(batches, answers, strict=True):
            if found is None:
                self._refusals.take(None, (batch.topic, batch.partition))
        if any(answers):
            self._let_go(producer)
        return answers

    async def connect(self, topic: str) -> None:
        """Be ready to send to `topic`, which the first batch would wait for otherwise. Raises whatever the client raises."""
        await answer((await self._connected()).partitions_for(topic), within=_TIMEOUT)

    async def stop(self) -> None:
        """Let go of the connections. Raises nothing of the client's."""
        if self._producer is not None:
            self._let_go(self._producer)
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=2 * _CLOSE_TIMEOUT)

    async def _connected(self) -> AIOKafkaProducer:
        async with self._connecting:
            if self._producer is not None and has_stopped_sending(self._producer):
                self._let_go(self._producer)
            if self._producer is None:
                self._producer = await self._connect()
            return self._producer

    async def _connect(self) -> AIOKafkaProducer:
        options: dict[str, Any] = {"request_timeout_ms": round(_TIMEOUT * 1000), **self._settings.client_options}
        try:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._settings.brokers,
                client_id=f"{self._settings.client_id}-relay",
                acks="all",
                enable_idempotence=self._is_idempotent,
                max_request_size=_UNBOUNDED,
                **options,
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"client_options can't be used for a producer: {error}") from error
        try:
            await answer(start(producer), within=_START_TIMEOUT)
        except BaseException as error:
            self._closing_of(producer)
            if self._is_idempotent and isinstance(error, _NOT_IDEMPOTENT):
                self._is_idempotent = False
                log.info("the brokers allow no idempotent producer, the delay relay goes on with a plain one", error=said(error))
                return await self._connect()
            raise
        return producer

    def _let_go(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            self._closing_of(producer)

    def _closing_of(self, producer: AIOKafkaProducer) -> None:
        closing = asyncio.create_task(close_consumer(producer, within=_CLOSE_TIMEOUT), name="ackwise relay producer ends")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _put(batch: RecordBatch, copy: Copy) -> bool:
    return batch.append(copy.key, copy.value, copy.headers, _NOW)


#: Milliseconds: the client's own clock at the moment.
_NOW: Final[Any] = None


async def _send(producer: AIOKafkaProducer, batches: Sequence[RecordBatch], sent: list[asyncio.Future[Any]]) -> None:
    """Hand over `batches` one after the other, and wait for all answers; `sent` has the future of each that was handed over."""
    for batch in batches:
        partition = batch.partition % len(await producer.partitions_for(batch.topic))
        future = await producer.send_batch(batch.sealed(), batch.topic, partition=partition)
        future.add_done_callback(_take_note)
        sent.append(future)
    await asyncio.wait(sent)


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    return future.exception() if future.done() and not future.cancelled() else None


def _take_note(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _answer_of(future: asyncio.Future[Any] | None, batch: RecordBatch, failed: BaseException | None) -> _Answer:
    """What became of a batch that was handed over, or was not since `failed` came first."""
    if future is not None and future.done():
        if future.cancelled():
            return PublishUnavailable(f"topic {batch.topic!r} did not acknowledge a batch of copies (CancelledError)")
        failed = future.exception()
        if failed is None:
            return None
    refusal = Refusal.PASSING if failed is None else refusal_of(failed)
    if refusal is Refusal.OF_RECORD:
        return PublishRefused(f"topic {batch.topic!r} refuses a batch for good ({type(failed).__name__})")
    if failed is None or isinstance(failed, KafkaTimeoutError):
        return PublishUnavailable(f"topic {batch.topic!r} did not acknowledge a batch of copies within {_TIMEOUT:g} s")
    why = said(failed) if isinstance(failed, KafkaError) else type(failed).__name__
    text = f"topic {batch.topic!r} did not acknowledge a batch of copies ({why})"
    return _AboutRecord(text, certain=is_certain(failed)) if refusal is Refusal.OF_RECORD_IN_TIME else PublishUnavailable(text)
