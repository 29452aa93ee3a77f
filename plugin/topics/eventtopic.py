"""`EventTopic`: a Kafka topic that events are published to, each as its own record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.kafkaerrors import reason
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected

#: Seconds until the brokers must have acknowledged what is under way.
_TIMEOUT: Final = 60.0
#: Records that wait for their acknowledgement at most; a record is a few hundred bytes.
_UNDER_WAY: Final = 20_000


class EventTopic:
    """A topic that records are sent to; made by `event_topic`."""

    def __init__(self, producer: AIOKafkaProducer, name: str, cluster: str, *, is_untouched: bool) -> None:
        self.name: Final = name
        self.cluster: Final = cluster
        """The id of the Kafka cluster that it is in."""
        self.is_untouched: Final = is_untouched
        """Nothing was ever written to it, since it was made, or made again."""
        self._producer = producer

    async def publish(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Send keys and values, and return once all replicas have them. Records of one key keep their order.

        Raises `Unavailable` if one was not acknowledged; some of the others may be there then.
        """
        remaining = iter(records)
        try:
            while some := list(islice(remaining, _UNDER_WAY)):
                async with asyncio.timeout(_TIMEOUT):
                    sent = [await self._producer.send(self.name, value, key=key) for key, value in some]
                    await asyncio.gather(*sent)
        except (KafkaError, TimeoutError) as error:
            raise Unavailable(f"topic {self.name!r} did not acknowledge all events ({type(error).__name__}); run it again") from error


@asynccontextmanager
async def event_topic(settings: HostSettings, name: str) -> AsyncIterator[EventTopic]:
    """The topic `name` at the brokers of `settings`.

    Raises `ConfigurationError` if it is not there, and `Unavailable` if the brokers do not answer.
    """
    async with connected(settings) as admin:
        if name not in await admin.list_topics():
            raise ConfigurationError(f"there is no topic {name!r} at {settings.brokers}; create it, with as much retention as you need")
        cluster = (await admin.describe_cluster())["cluster_id"]
        reader = TopicReader(admin, committed=False)
        is_untouched = not any((await reader.ends(await reader.partitions([name]))).values())
    options: dict[str, Any] = dict(settings.client_options)
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.brokers,
        client_id=settings.client_id,
        acks="all",
        compression_type="gzip",  # the only one that needs no further package
        linger_ms=20,
        **options,
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(opened(producer))
        except KafkaError as error:
            raise Unavailable(f"the brokers {settings.brokers!r} do not answer a producer ({reason(error)})") from error
        yield EventTopic(producer, name, cluster, is_untouched=is_untouched)
