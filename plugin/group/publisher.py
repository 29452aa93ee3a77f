"""Publisher of copies and dead letters, with acks=all and an answer for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.refusals import RecordRefusals
from ackwise.middleware.wire import Copy
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.internals import has_stopped_sending
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.opening import start
from ackwise.plugin.client.produceerrors import Refusal, is_certain, refusal_of
from ackwise.plugin.client.refusal import reason
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["KafkaPublisher"]

log = Log()

#: Seconds until a copy that no broker acknowledged is reported; whoever sent it keeps it and tries again.
_TIMEOUT: Final = 10.0

#: Seconds for a producer to connect, which may try several addresses; and for one that is let go of.
_START_TIMEOUT, _CLOSE_TIMEOUT = 60.0, 2.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

_Answer = PublishUnavailable | PublishRefused | None


class KafkaPublisher:
    """A producer that is not idempotent on purpose: a second copy is recognised by its attempt, a stuck producer by nobody."""

    def __init__(self, settings: HostSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, by which a copy that fails by itself is refused in time."""
        self.suspect: Callable[[], None] = lambda: None  #: called where a topic may be gone
        self._settings = settings
        self._refusals = RecordRefusals(clock)
        self._producer: AIOKafkaProducer | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()

    async def start(self) -> None:
        """Connect. Raises `PublishUnavailable` if no broker answers, `ConfigurationError` for options that can't be used."""
        self._producer = await self._connected()

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
            return [PublishUnavailable("the producer has stopped by itself, another one is begun") for _ in copies]
        return list(await asyncio.gather(*(self._answer(producer, copy) for copy in copies)))

    async def _answer(self, producer: AIOKafkaProducer, copy: Copy, *, alone: bool = False) -> _Answer:
        """Send one copy; where an error is about a record of its batch, again with a batch of its own.

        Whatever the client raises, a cancellation of its own too, the copy may be there or not, unless it is refused. A missing topic or
        right is no refusal: it can be given while the copy waits.
        """
        place, name = (copy.topic, copy.partition), f"topic {copy.topic!r}"
        try:
            await answer(_send(producer, copy, alone=alone), within=_TIMEOUT)
        except KafkaTimeoutError:
            self.suspect()
            return PublishUnavailable(f"{name} did not acknowledge the copy within {_TIMEOUT:g} s")
        except Exception as error:  # noqa: BLE001  # see above; whoever sent it keeps it
            if isinstance(error, UnknownTopicOrPartitionError):
                self.suspect()
            refusal = refusal_of(error)
            if refusal.is_about_record and not alone:
                return await self._answer(producer, copy, alone=True)
            if refusal is Refusal.OF_RECORD or (
                refusal is Refusal.OF_RECORD_IN_TIME and self._refusals.is_refused(hash(copy), place, certain=is_certain(error))
            ):
                return PublishRefused(f"{name} refuses the copy for good ({type(error).__name__})")
            return PublishUnavailable(f"{name} did not acknowledge the copy ({type(error).__name__})")
        self._refusals.take(hash(copy), place)
        return None

    async def _connected(self) -> AIOKafkaProducer:
        options: dict[str, Any] = {**self._settings.client_options, **self._settings.producer_options}
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
        """Nothing begins the client's own task that sends again: get another client, beside those that wait for it."""
        if self._renewing is not None and not self._renewing.done():
            return
        if self._throttle.is_due():
            log.warning("the producer has stopped by itself, nothing is lost and another one is begun", group=self._settings.group)
        self._renewing = asyncio.create_task(self._renew(stopped), name="ackwise producer")

    async def _renew(self, stopped: AIOKafkaProducer) -> None:
        try:
            self._producer = await self._connected()
        except Exception as error:  # noqa: BLE001  # whatever it was, it may pass
            log.debug("another producer can't be begun now, it is tried again with the next copy", error=said(error))
            return
        await close_consumer(stopped, within=_CLOSE_TIMEOUT)


async def _send(producer: AIOKafkaProducer, copy: Copy, *, alone: bool) -> None:
    """Send one copy to the partition that it names, folded into the topic's own if that has fewer; if `alone`, in a batch of its own."""
    partition = copy.partition % len(await producer.partitions_for(copy.topic))
    headers = list(copy.headers)
    if not alone and (copy.key is not None or copy.value is not None):
        await producer.send_and_wait(copy.topic, copy.value, key=copy.key, partition=partition, headers=headers)
        return
    # aiokafka's send() takes no record without key and value, though Kafka does; a batch of one may hold it.
    batch = producer.create_batch()
    batch.append(timestamp=None, key=copy.key, value=copy.value, headers=headers)
    await (await producer.send_batch(batch, copy.topic, partition=partition))
