"""Publishes copies and dead letters with acks=all, and says of each whether it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.wire import Copy
from ackwise.plugin.settings import HostSettings

__all__ = ["KafkaPublisher"]

#: Seconds until a copy that no broker acknowledged is reported; whoever sent it keeps it and tries again.
_TIMEOUT: Final = 10.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

#: Only what is wrong with the copy itself, and stays wrong. A missing topic or right can be mended while the copy waits.
_REFUSALS: Final = (MessageSizeTooLargeError, RecordListTooLargeError)

_Answer = PublishUnavailable | PublishRefused | None


class KafkaPublisher:
    """A producer that is not idempotent on purpose: a second copy is recognised by its attempt, a stuck producer by nobody."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._started: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect. Raises `PublishUnavailable` if no broker answers, `ConfigurationError` for options that can't be used."""
        options: dict[str, Any] = dict(self._settings.client_options)
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
        try:
            await producer.start()
        except KafkaError as error:
            raise PublishUnavailable(f"the brokers {self._settings.brokers!r} do not answer a producer ({type(error).__name__})") from error
        else:
            self._started = producer
        finally:
            if self._started is not producer:
                await producer.stop()

    async def stop(self) -> None:
        """Let go of the connections; without a start it does nothing."""
        if self._started is not None:
            await self._started.stop()

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        """Send all copies side by side; one answer for each, in order. Raises nothing but cancellation."""
        if self._started is None:
            return [PublishUnavailable("the publisher is not started") for _ in copies]
        return list(await asyncio.gather(*(_answer(self._started, copy) for copy in copies)))


async def _answer(producer: AIOKafkaProducer, copy: Copy) -> _Answer:
    try:
        async with asyncio.timeout(_TIMEOUT):
            await _send(producer, copy)
    except _REFUSALS as error:
        return PublishRefused(f"topic {copy.topic!r} refuses the copy for good ({type(error).__name__})")
    except KafkaError as error:
        return PublishUnavailable(f"topic {copy.topic!r} did not acknowledge the copy ({type(error).__name__})")
    except TimeoutError:
        return PublishUnavailable(f"topic {copy.topic!r} did not acknowledge the copy within {_TIMEOUT:g} s")
    return None


async def _send(producer: AIOKafkaProducer, copy: Copy) -> None:
    """Send one copy to the partition that it names, folded into the topic's own if that has fewer."""
    partition = copy.partition % len(await producer.partitions_for(copy.topic))
    headers = list(copy.headers)
    if copy.key is not None or copy.value is not None:
        await producer.send_and_wait(copy.topic, copy.value, key=copy.key, partition=partition, headers=headers)
        return
    # aiokafka's send() takes no record without key and value, though Kafka does; a batch of one may hold it.
    batch = producer.create_batch()
    batch.append(timestamp=None, key=None, value=None, headers=headers)
    await (await producer.send_batch(batch, copy.topic, partition=partition))
