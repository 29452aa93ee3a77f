"""Topic watch: notices that a topic was deleted and made again while its partitions were here.

A partition that is paused, or whose broker is away, is not fetched. If its topic is made again meanwhile and grows past its position,
no fetch tells that the log is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.log import Log, said
from ackwise.plugin.client.offsets import Topic
from ackwise.plugin.group.lane import Lane

__all__ = ["TopicWatch"]

log = Log()

#: Seconds between two looks. One request to each broker.
_EVERY: Final = 5.0

_Ask = Callable[[Collection[TopicPartition]], Awaitable[tuple[Mapping[TopicPartition, Topic], Mapping[TopicPartition, KafkaError]]]]


class TopicWatch:
    """Compares the topics of `lanes` with what brokers say now; `ask` is `topics_of` of the client."""

    def __init__(
        self, lanes: Callable[[], Mapping[TopicPartition, tuple[Lane, ...]]], ask: _Ask, begin_again: Callable[[list[TopicPartition]], None]
    ) -> None:
        """`begin_again` opens again the partitions whose topic was made again."""
        self._lanes = lanes
        self._ask = ask
        self._begin_again = begin_again

    async def keep(self) -> None:
        """Look every few seconds."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Look once. A broker that does not answer is asked again by the next look."""
        asked = {partition: lanes[0].log.id for partition, lanes in self._lanes().items() if lanes[0].log.id is not None}
        if not asked:
            return
        try:
            known, _ = await self._ask(asked)
        except Exception as error:  # noqa: BLE001  # whatever the client raises, it ends no worker
            log.debug("the ids of topics can't be read now", error=said(error) if isinstance(error, KafkaError) else type(error).__name__)
            return
        lanes = self._lanes()
        found = [
            partition
            for partition, topic in sorted(known.items())
            if topic.id is not None and partition in lanes and lanes[partition][0].log.id not in (None, topic.id)
        ]
        if found:
            log.warning("topics were made again while their partitions were here", topics=", ".join(sorted({each.topic for each in found})))
            self._begin_again(found)
