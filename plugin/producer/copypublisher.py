"""Outlet: what is written to one partition, in order; while one batch is on its way, the next one gathers.

Publisher of copies and dead letters, of workers and relays alike, with acks=all and an answer for each.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import TopicMissing
from ackwise.middleware.message.refusals import Place, RecordRefusals, Silence
from ackwise.middleware.message.wire import BUDGET, Copy
from ackwise.middleware.policies.delaytopic import ladder_of
from ackwise.plugin.kafka.aiokafkainternals import has_stopped_sending
from ackwise.plugin.kafka.clients import close_consumer, start
from ackwise.plugin.kafka.kafkaerrors import Refusal, UnencodableError, is_certain, reason, refusal_of
from ackwise.plugin.kafka.timeouts import answer
from ackwise.plugin.settings.hostsettings import HostSettings

#: Copies in a row that fail by themselves, in their own batches, until the rest of their batch is left alone.
_MOST_IN_A_ROW: Final = 10


class _Queued(NamedTuple):
    producer: AIOKafkaProducer
    copy: Copy
    within: float
    answered: asyncio.Future[BaseException | None]


class Outlet:
    """Writes copies to partition `partition` of `topic`."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._queue: deque[_Queued] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def send(self, producer: AIOKafkaProducer, copies: Sequence[Copy], *, within: float) -> list[BaseException | None]:
        """Write `copies`; what each was answered: nothing if all in-sync replicas have it, `KafkaTimeoutError` after `within` seconds.

        Whatever the client raises, its own cancellation too, is an answer.
        """
        loop = asyncio.get_running_loop()
        queued = [_Queued(producer, copy, within, loop.create_future()) for copy in copies]
        self._queue += queued
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name=f"ackwise writes {self._topic}/{self._partition}")
        return [await each.answered for each in queued]

    async def _write(self) -> None:
        while self._queue:
            taken: list[_Queued] = []
            try:
                batch = self._pack(taken)
            except Exception:  # noqa: BLE001  # the client can't encode a copy: the first, or the one behind those taken
                await self._write_singly(taken)
                continue
            error = await self._try(batch, taken[0])
            if len(taken) > 1 and error is not None and refusal_of(error).is_about_record:  # of some of them; which is unknown
                await self._write_singly(taken)
                continue
            if isinstance(error, KafkaTimeoutError):
                taken += self._queue  # what is behind it would wait as long
                self._queue.clear()
            for each in taken:
                _answer(each, error)

    async def _write_singly(self, taken: Sequence[_Queued]) -> None:
        """Each in its own batch; where many in a row fail, the partition itself may be at fault."""
        in_a_row = 0
        for each in taken:
            if in_a_row == _MOST_IN_A_ROW:
                _answer(each, KafkaError("the partition took none of the copies before it"))  # of this one nothing was said
                continue
            error = await self._try_one(each)
            in_a_row = in_a_row + 1 if error is not None and refusal_of(error).is_about_record else 0
            _answer(each, error)

    def _pack(self, taken: list[_Queued]) -> Any:
        """A batch of what is queued; what is in it goes from the queue to `taken`. One without records takes one of any size."""
        first = self._queue.popleft()
        taken.append(first)
        batch = first.producer.create_batch()
        _put(batch, first.copy)
        while self._queue and self._queue[0].producer is first.producer and _put(batch, self._queue[0].copy):
            taken.append(self._queue.popleft())
        batch.close()
        return batch

    async def _try_one(self, queued: _Queued) -> BaseException | None:
        try:
            batch = queued.producer.create_batch()
            _put(batch, queued.copy)
        except Exception as error:  # noqa: BLE001  # see `send`
            return error
        return await self._try(batch, queued)

    async def _try(self, batch: Any, first: _Queued) -> BaseException | None:
        try:
            await answer(_send(first.producer, batch, self._topic, self._partition), within=first.within)
        except Exception as error:  # noqa: BLE001  # see `send`
            return error
        return None


async def _send(producer: AIOKafkaProducer, batch: Any, topic: str, partition: int) -> None:
    await (await producer.send_batch(batch, topic, partition=partition))


def _put(batch: Any, copy: Copy) -> bool:
    """Whether the batch took it. Raises `UnencodableError`."""
    try:
        return batch.append(timestamp=None, key=copy.key, value=copy.value, headers=list(copy.headers)) is not None
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise UnencodableError(f"the client can't encode the copy ({type(error).__name__})") from error


def _answer(queued: _Queued, error: BaseException | None) -> None:
    if not queued.answered.done():  # the waiting caller may have been cancelled
        queued.answered.set_result(error)


log = Log()

#: Seconds until a copy that no broker acknowledged is reported; the sender keeps it and tries again.
_TIMEOUT: Final = 10.0

#: Seconds until a copy that waits for its delay is written to another partition, since this one does not acknowledge it.
_SILENT: Final = 5.0

#: Seconds to learn the partitions of a topic.
_LEARN: Final = 5.0

#: Partitions that a copy tries in one call, so that it is answered in time.
_ROUNDS: Final = round(_TIMEOUT / _SILENT)

#: Seconds for a producer to connect, which may try several addresses; and for one that is let go of.
_START_TIMEOUT, _CLOSE_TIMEOUT = 60.0, 2.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

#: Bytes of a batch: every topic of a group takes records that are larger by `BUDGET` than what its sources take, so it takes this.
_BATCH: Final = BUDGET

_Answer = PublishUnavailable | PublishRefused | None


class KafkaPublisher:
    """A producer that is not idempotent on purpose: a second copy is recognised by its attempt, a stuck producer is not.

    What goes to one partition is written in the order of the calls, as much in a batch as there is. A copy that waits for its delay names
    no partition: it takes a rung of its topic by what is left, and another one where that does not acknowledge it in time. So a partition
    without a leader stops nobody; a late acknowledgement leaves two copies, as any lost one does.
    """

    def __init__(
        self, settings: HostSettings, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        """`clock`: seconds, by which a copy that fails by itself is refused in time. `wall`: epoch seconds, by which copies are due."""
        self.suspect: Callable[[], None] = lambda: None  #: called where a topic may be gone
        self._settings = settings
        self._wall = wall
        self._refusals = RecordRefusals(clock)
        self._silence = Silence()
        self._outlets: dict[Place, Outlet] = {}
        self._producer: AIOKafkaProducer | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()

    async def start(self) -> None:
        """Connect. Raises `PublishUnavailable` if no broker answers, `ConfigurationError` for options that can't be used."""
        self._producer = await self._connected()

    async def ensure_started(self) -> None:
        """As `start`, unless it is connected."""
        if self._producer is None:
            await self.start()

    async def stop(self) -> None:
        """Let go of the connections; without a start it does nothing. Raises nothing of the client's."""
        producer, self._producer = self._producer, None
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if producer is not None:
            await close_consumer(producer, within=_TIMEOUT)

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        """Send all copies side by side; one answer for each, in order. Raises nothing but cancellation."""
        if (producer := self._producer) is None:
            return [PublishUnavailable("the publisher is not started") for _ in copies]
        if has_stopped_sending(producer):
            self._begin_anew(producer)
            return [PublishUnavailable("the producer has stopped by itself, another one is started") for _ in copies]
        counts = await self._counts(producer, {copy.topic for copy in copies})
        answers: list[_Answer] = [None] * len(copies)
        widths: dict[str, int] = {}
        tried: dict[int, set[int]] = {}  #: the partitions that each copy was written to which may be written to another one
        for number, copy in enumerate(copies):
            if isinstance(count := counts[copy.topic], int):
                widths[copy.topic], tried[number] = count, set()
            else:
                answers[number] = count
        for _ in range(_ROUNDS):
            if tried:
                await self._write(producer, copies, widths, tried, answers)
        return answers

    def _ways(self, copy: Copy, count: int) -> Iterator[int]:
        """The partitions that `copy` may be written to now, the best first."""
        if copy.until is None:
            return iter((copy.partition % count,))
        return ladder_of(count).ways(copy.until / 1000 - self._wall(), sends=copy.is_send, spread=copy.partition)

    async def _counts(self, producer: AIOKafkaProducer, topics: Collection[str]) -> dict[str, int | PublishUnavailable]:
        """How many partitions each topic has, or why that is unknown."""

        async def count(topic: str) -> int | PublishUnavailable:
            try:
                return len(await answer(producer.partitions_for(topic), within=_LEARN))
            except (KafkaTimeoutError, UnknownTopicOrPartitionError) as error:
                return await self._missing(producer, topic, error)
            except Exception as error:  # noqa: BLE001  # whatever the client raises, nothing was sent
                return self._unavailable(topic, error)

        return dict(zip(topics, await asyncio.gather(*map(count, topics)), strict=True))

    async def _missing(self, producer: AIOKafkaProducer, topic: str, error: BaseException) -> PublishUnavailable:
        """The answer for a topic of which no partition was learnt: only brokers that answer know that it is not there."""
        unavailable = self._unavailable(topic, error)
        with suppress(Exception):  # then no more is known than before
            if await answer(producer.client.force_metadata_update(), within=_LEARN):
                return TopicMissing(f"topic {topic!r} does not exist")
        return unavailable

    async def _write(
        self,
        producer: AIOKafkaProducer,
        copies: Sequence[Copy],
        widths: Mapping[str, int],
        tried: dict[int, set[int]],
        answers: list[_Answer],
    ) -> None:
        """Write each copy of `tried` once, and tell `answers`. Those stay in `tried` that may be written to another partition."""
        places = self._places(copies, widths, tried, answers)
        try:
            found = await asyncio.gather(
                *(self._send(producer, place, [copies[each] for each in chosen]) for place, chosen in places.items())
            )
        finally:
            for place in places:
                self._silence.end_try(place)  # what is reported below counts
        for (place, chosen), errors in zip(places.items(), found, strict=True):
            self._silence.tell(place, is_silent=any(map(_is_silence, errors)))
            for number, error in zip(chosen, errors, strict=True):
                answers[number] = self._judged(copies[number], place, error)
                if copies[number].until is None or not _is_silence(error):
                    del tried[number]

    def _places(
        self, copies: Sequence[Copy], widths: Mapping[str, int], tried: dict[int, set[int]], answers: list[_Answer]
    ) -> dict[Place, list[int]]:
        """Where the copies of `tried` go now, by their numbers. Those that can go nowhere get their answer in `answers`."""
        places: dict[Place, list[int]] = {}
        for number in [*tried]:
            topic, may_wait = copies[number].topic, copies[number].until is not None
            ways = (way for way in self._ways(copies[number], widths[topic]) if way not in tried[number])
            way = next((way for way in ways if not may_wait or self._silence.may_try((topic, way))), None)
            if way is not None:
                tried[number].add(way)
                places.setdefault((topic, way), []).append(number)
                continue
            del tried[number]
            answers[number] = answers[number] or PublishUnavailable(f"no partition of topic {topic!r} acknowledges copies")
        return places

    async def _send(self, producer: AIOKafkaProducer, place: Place, copies: Sequence[Copy]) -> list[BaseException | None]:
        if (outlet := self._outlets.get(place)) is None:
            outlet = self._outlets[place] = Outlet(*place)
        return await outlet.send(producer, copies, within=_TIMEOUT if copies[0].until is None else _SILENT)

    def _judged(self, copy: Copy, place: Place, error: BaseException | None) -> _Answer:
        """The answer of a copy: whatever was raised, it may be there or not, unless it is refused.

        A missing topic or right is no refusal: it can be given while the copy waits.
        """
        if error is None:
            self._refusals.take(hash(copy), place)
            return None
        refusal = refusal_of(error)
        if refusal is Refusal.OF_RECORD or (
            refusal is Refusal.OF_RECORD_IN_TIME and self._refusals.is_refused(hash(copy), place, certain=is_certain(error))
        ):
            return PublishRefused(f"topic {copy.topic!r} refuses the copy for good ({type(error).__name__})")
        return self._unavailable(copy.topic, error)

    def _unavailable(self, topic: str, error: BaseException) -> PublishUnavailable:
        if isinstance(error, KafkaTimeoutError | UnknownTopicOrPartitionError):
            self.suspect()
        if isinstance(error, KafkaTimeoutError):
            return PublishUnavailable(f"topic {topic!r} did not acknowledge the copy within {_TIMEOUT:g} s")
        advice = "; give this client Write on it" if isinstance(error, TopicAuthorizationFailedError) else ""
        return PublishUnavailable(f"topic {topic!r} did not acknowledge the copy ({type(error).__name__}){advice}")

    async def _connected(self) -> AIOKafkaProducer:
        options: dict[str, Any] = {"max_batch_size": _BATCH, **self._settings.client_options, **self._settings.producer_options}
        try:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._settings.brokers,
                client_id=self._settings.client_id,
                acks="all",
                max_request_size=_UNBOUNDED,
                request_timeout_ms=round(_TIMEOUT * 1000),
                **options,
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"client_options can't be used for a producer: {error}") from error
        is_connected = False
        try:
            await answer(start(producer), within=_START_TIMEOUT)
            is_connected = True
        except (KafkaError, OSError) as error:
            raise PublishUnavailable(f"the brokers {self._settings.brokers!r} do not answer a producer ({reason(error)})") from error
        finally:
            if not is_connected:
                await close_consumer(producer, within=_CLOSE_TIMEOUT)
        return producer

    def _begin_anew(self, stopped: AIOKafkaProducer) -> None:
        """Nothing starts the client's own task that sends again: get another client, beside those that wait for it."""
        if self._renewing is not None and not self._renewing.done():
            return
        if self._throttle.is_due():
            log.warning("publisher's producer stopped by itself", group=self._settings.group)
        self._renewing = asyncio.create_task(self._renew(stopped), name="ackwise producer")

    async def _renew(self, stopped: AIOKafkaProducer) -> None:
        try:
            self._producer = await self._connected()
        except Exception as error:  # noqa: BLE001  # whatever it was, it may pass
            log.debug("publisher's producer could not start", error=said(error))
            return
        await close_consumer(stopped, within=_CLOSE_TIMEOUT)


def _is_silence(error: BaseException | None) -> bool:
    """Whether a partition has not acknowledged what it was given, though its topic is there."""
    return error is not None and refusal_of(error) is Refusal.PASSING and not isinstance(error, UnknownTopicOrPartitionError)
