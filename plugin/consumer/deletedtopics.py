"""Deleted topics: own topics of a group are created again, and a source that was created again is noticed.

Creating one again raises an alarm that names what was lost. A partition that is paused, or without a broker, is not fetched: if its topic
is created again meanwhile and grows past its position, no fetch would show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import AckwiseError, Unavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.kafka.brokeroffsets import Topic
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import list_topics
from ackwise.plugin.topics.topicnames import TopicNames

log = Log()

#: Seconds between two questions to the client, which cost nothing, whether it misses a topic.
_LOOK_EVERY: Final = 5.0

#: Seconds after which the brokers are asked once more whether a topic is gone. One that has just started may not know all. And meanwhile
#: clients see that it is gone, and the last commit has been given up, which may be tried for ten seconds: in the new log, where it would
#: succeed, it is about other records.
_CONFIRM: Final = 12.0

#: Seconds until the next look after one that found something, doubling up to the second.
_FIRST, _LONGEST = 5.0, 60.0


class OwnTopics:
    """Looks after the topics of one group. `ensure` makes what is missing of them, as a start does.

    `missing` are topics that a client is subscribed to and does not find. Whatever else meets a topic that is not there calls `suspect`.
    What is kept of dead letters (`<group>.dlq.state`) is made by commands alone, and never again by a worker.
    """

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        ensure: Callable[[], Awaitable[object]],
        missing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._settings = settings
        self._names = names
        self._ensure = ensure
        self._missing = missing
        self._suspected = asyncio.Event()
        self._throttle = LogThrottle()

    def suspect(self) -> None:
        """A topic of the group may be gone."""
        self._suspected.set()

    async def keep(self) -> None:
        """Make again what goes, until cancelled."""
        rest = _FIRST
        while True:
            await self._wait_for_suspicion()
            self._suspected.clear()
            gone: set[str] = set()
            try:
                if gone := await self._gone():
                    await self._make(gone)
            except Exception as error:  # noqa: BLE001  # whatever the client raises, it ends no worker
                self._suspected.set()
                if gone or not isinstance(error, Unavailable | KafkaError):  # otherwise brokers are unavailable, and others log it
                    self._tell_failed(gone, error, rest)
            await asyncio.sleep(rest)
            rest = min(2 * rest, _LONGEST) if gone or self._suspected.is_set() else _FIRST

    async def _wait_for_suspicion(self) -> None:
        while not (self._suspected.is_set() or self._names.own.intersection(self._missing())):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._suspected.wait()

    async def _gone(self) -> set[str]:
        """Those that two looks have not found."""
        wanted = {*self._names.all, self._names.control}
        if gone := wanted - await list_topics(self._settings):
            await asyncio.sleep(_CONFIRM)
            gone -= await list_topics(self._settings)
        return gone

    async def _make(self, gone: Collection[str]) -> None:
        await self._ensure()
        for topic in sorted(gone):
            log.error(
                "deleted topic of the group created again",
                group=self._settings.group,
                topic=topic,
                forgotten=self._held(topic),
            )

    def _tell_failed(self, gone: Collection[str], error: Exception, rest: float) -> None:
        if self._throttle.is_due():
            log.error(
                "missing topics of the group not created",
                group=self._settings.group,
                topics=", ".join(sorted(gone)) or None,
                error=said(error) if isinstance(error, AckwiseError | KafkaError | OSError) else type(error).__name__,
                retry_in=rest,
            )

    def _held(self, topic: str) -> str:
        names = self._names
        if topic == names.retry:
            return "copies that were due; their messages do not come back"
        if topic == names.delay:
            return "copies that waited, and cancellations; their messages do not come back"
        if topic == names.dead_letter:
            return "dead letters"
        return "what was paused or buried by command"


#: Seconds between two looks. One request to each broker.
_EVERY: Final = 5.0

_Ask = Callable[[Collection[TopicPartition]], Awaitable[tuple[Mapping[TopicPartition, Topic], Mapping[TopicPartition, KafkaError]]]]


class TopicWatch:
    """Compares the topics of `lanes` with what brokers say now; `ask` is `topics_of` of the client."""

    def __init__(
        self, lanes: Callable[[], Mapping[TopicPartition, tuple[Lane, ...]]], ask: _Ask, begin_again: Callable[[list[TopicPartition]], None]
    ) -> None:
        """`begin_again` opens again the partitions whose topic was recreated."""
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
            log.warning("assigned topics were created again", topics=", ".join(sorted({each.topic for each in found})))
            self._begin_again(found)
