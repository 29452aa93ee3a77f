"""Following of topic patterns: topics that are made while a worker runs are joined, and those that are deleted are let go.

All workers look at the same moments of the wall clock, so that a new topic makes the group join anew once, and not once for each.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiokafka.errors import KafkaError

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import subscribe_instead
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.group.member import Member

__all__ = ["Following"]

log = Log()

#: Seconds for the brokers to say which topics there are.
_WITHIN: Final = 15.0

#: Seconds until a change is tried again for which the group was joining just then.
_JOIN_AGAIN: Final = 0.2


class Following:
    """Keeps what `consumer` subscribes to as the patterns of `member` match."""

    def __init__(self, member: Member, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer
        self._throttle = LogThrottle()

    async def follow(self) -> None:
        """Look again and again. What can't be looked at stays as it is."""
        interval = self._member.settings.pattern_interval
        while True:
            await asyncio.sleep(interval - time.time() % interval)
            try:
                there = await answer(self._consumer.topics(), within=_WITHIN)
                await self._member.sources.take_up(there, self._member.opening.ensure_topics)
            except (KafkaError, OSError, Unavailable, ConfigurationError) as error:
                self._tell(error, interval)
            else:
                self._throttle.reset()
            await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe to what is read now, if that is another thing than before."""
        names = self._member.names
        while {*self._consumer.subscription()} != {*(wanted := (*self._member.sources.topics, names.retry))}:
            if not subscribe_instead(self._consumer, wanted):
                await asyncio.sleep(_JOIN_AGAIN)

    def _tell(self, error: Exception, interval: float) -> None:
        if self._throttle.is_due():
            log.warning(
                "which topics match a pattern can't be looked at now, those that are read go on",
                group=self._member.settings.group,
                error=said(error),
                retry_in=interval,
            )
