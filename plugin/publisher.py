"""Publishes copies and dead letters with acks=all, and says of each whether it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.wire import Copy
from ackwise.plugin.settings import HostSettings

__all__ = ["KafkaPublisher"]

#: Seconds until a copy that no broker acknowledged is reported; the pipeline then keeps it and tries again.
_TIMEOUT: Final = 10.0

#: The brokers and topics decide how large a record may be. The client would judge before compression, and too early.
_UNBOUNDED: Final = 2**31 - 1

_REFUSALS: Final = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError)

_Answer = PublishUnavailable | PublishRefused | None


class KafkaPublisher:
    """A producer that is not idempotent on purpose: a second copy is recognised by its attempt, a stuck producer by nobody."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect. Raises aiokafka's `KafkaConnectionError` if no broker answers."""
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._settings.brokers,
            client_id=self._settings.client_id,
            acks="all",
            max_request_size=_UNBOUNDED,
            request_timeout_ms=round(_TIMEOUT * 1000),
            **self._settings.client_options,
        )
        await self._producer.start()

    async def stop(self) -> None:
        """Let go of the connections; without a start it does nothing."""
        if self._producer is not None:
            await self._producer.stop()

    async def publish(self, copies: Sequence[Copy]) -> list[_Answer]:
        """Send all copies side by side; one answer for each, in order. Raises nothing but cancellation."""
        return list(await asyncio.gather(*map(self._send, copies)))

    async def _send(self, copy: Copy) -> _Answer:
        assert self._producer is not None, "start() comes before publish()"
        try:
            async with asyncio.timeout(_TIMEOUT * 2):
                partition = await self._partition(self._producer, copy)
                await self._producer.send_and_wait(copy.topic, copy.value, key=copy.key, partition=partition, headers=list(copy.headers))
        except _REFUSALS as error:
            return PublishRefused(f"{copy.topic} refuses the copy: {type(error).__name__}")
        except KafkaError as error:
            return PublishUnavailable(f"{copy.topic} did not acknowledge the copy: {type(error).__name__}")
        except TimeoutError:
            return PublishUnavailable(f"{copy.topic} did not acknowledge the copy within {_TIMEOUT * 2:.0f} s")
        return None

    @staticmethod
    async def _partition(producer: Any, copy: Copy) -> int:
        """The partition that the copy names; folded into the topic's own if that has fewer."""
        partitions = await producer.partitions_for(copy.topic)
        return copy.partition if copy.partition in partitions else copy.partition % max(1, len(partitions))
