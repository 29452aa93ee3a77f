"""`OneWay`: messages to Kafka that no broker acknowledges (acks=0). They are counted, and nothing is promised of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.structs import RecordMetadata

from ackwise.middleware.errors import ConfigurationError, PublishUnavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.plugin.kafka.kafkaerrors import UnencodableError, reason
from ackwise.plugin.kafka.timeouts import answer
from ackwise.plugin.producer.idempotentproducer import IdempotentClient, Partitions, SenderSettings, connected

log = Log()

Outcome = Literal["sent", "failed"]

#: Messages of this process: written to a connection, or not.
ONE_WAY: Final[Counter[Outcome]] = Counter()

#: Seconds for a message to be handed to the client, which may have to connect or to learn its topic first.
_WITHIN: Final = 10.0

#: Seconds at the end for what the client has not written yet.
_CLOSE: Final = 5.0


class OneWay:
    """Sends through one producer with acks=0, which is started with the first message; a broken one is replaced with the next."""

    def __init__(self, settings: SenderSettings, options: Mapping[str, object]) -> None:
        self._settings = settings
        self._options = options
        self._client: IdempotentClient | None = None
        self._connecting = asyncio.Lock()
        self._throttle = LogThrottle()

    async def send(self, message: Outgoing, *, within: float) -> None:
        """Hand `message` to the client. Raises `PublishUnavailable` if that fails or takes longer than `within` seconds, 10 at most.

        Raises `ConfigurationError` if the topic has no such partition, or the client can't write the message.
        """
        try:
            future = await answer(self._submit(message), within=min(_WITHIN, within))
        except (KafkaError, OSError, PublishUnavailable, UnencodableError, ConfigurationError) as error:
            ONE_WAY["failed"] += 1
            if isinstance(error, ConfigurationError):
                raise
            if isinstance(error, UnencodableError):
                raise ConfigurationError(f"topic {message.topic!r}: {error}") from None
            why = f"topic {message.topic!r}: the message could not be handed to a broker ({reason(error)}); it is not sent again"
            raise PublishUnavailable(why) from error
        future.add_done_callback(partial(self._count, message.topic))

    async def stop(self) -> None:
        """Write what is left, within 5 seconds, and close. Raises nothing of the client's."""
        client, self._client = self._client, None
        if client is not None:
            await client.close(within=_CLOSE)

    async def _submit(self, message: Outgoing) -> asyncio.Future[RecordMetadata]:
        client = await self._current()
        known, available = await client.partitions(message.topic)
        if (partition := Partitions(known, available).of(message, time.time())) is None:
            raise ConfigurationError(f"topic {message.topic!r} has {len(known)} partitions, and no partition {message.partition}")
        return (await client.submit(partition, [message], alone=False)).future

    async def _current(self) -> IdempotentClient:
        async with self._connecting:
            if self._client is None or not self._client.is_usable:
                await self.stop()
                self._client = await connected(self._settings, self._options, timeout=_WITHIN, is_acknowledged=False)
            return self._client

    def _count(self, topic: str, future: asyncio.Future[RecordMetadata]) -> None:
        error = KafkaConnectionError("the client gave up its own batch") if future.cancelled() else future.exception()
        ONE_WAY["sent" if error is None else "failed"] += 1
        if error is not None and self._throttle.is_due():
            log.warning("one-way message failed", topic=topic, error=said(error))
