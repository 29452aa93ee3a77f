"""The host on aiokafka: opens and closes it, and takes and gives back partitions in order.

aiokafka's own `commit()` and deserializers are never used: the first commits what was merely fetched, the second block
a partition for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.agent import Agent
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import said
from ackwise.middleware.policies import DeadLetter, Dedup, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import ClaimStore
from ackwise.middleware.transaction import TransactionalStore
from ackwise.plugin.clientstate import missing_topics
from ackwise.plugin.delay import DelayRelay
from ackwise.plugin.fetching import Fetching
from ackwise.plugin.member import Member
from ackwise.plugin.opening import Opening
from ackwise.plugin.settings import REBALANCE_TIMEOUT, HostSettings
from ackwise.plugin.standing import ask

__all__ = ["Host"]

#: Milliseconds that the broker keeps a fetch which finds nothing. aiokafka has one fetch to a broker on its way at a time: while
#: the sources are being worked on it asks for the retry topics alone, and the sources wait for that answer.
_FETCH_WAIT = 50


class Host:
    """A member of a consumer group that aiokafka fetches for, with the relay of its delay topics."""

    def __init__(
        self,
        settings: HostSettings,
        agents: Sequence[Agent],
        *,
        later: ConsumeLater,
        dead_letter: DeadLetter,
        dedup: Dedup | Transactional | None = None,
        store: ClaimStore | None = None,
        inbox: TransactionalStore | None = None,
        sink: EventSink | None = None,
        consumer: AIOKafkaConsumer | None = None,
    ) -> None:
        """`store` is that of `Dedup`, `inbox` that of `Transactional`.

        `consumer`: one of the user's, started and without a subscription; the host takes it, and never stops it.
        """
        self._member = Member(settings, agents, later=later, dead_letter=dead_letter, dedup=dedup, store=store, inbox=inbox, sink=sink)
        self._topics = sorted({topic for agent in agents for topic in agent.topics})
        self._users_own = consumer

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set, then drain for at most `drain_timeout` seconds, commit and leave the group.

        Raises `ConfigurationError` or another `AckwiseError` if it can't start or Kafka refuses it, what a handler stopped
        the app with, and any error in Ackwise's own machinery; nothing that is not settled is committed then.
        """
        try:
            async with self._member.opened(self._topics):
                await self._consume(stop)
        except KafkaError as error:
            raise AckwiseError(
                f"Kafka refuses this worker of group {self._member.settings.group!r} ({said(error)}); "
                "ackwise doctor MODULE:APP says what it may do"
            ) from error

    async def _consume(self, stop: asyncio.Event) -> None:
        member = self._member
        self._consumer = self._users_own or AIOKafkaConsumer(**self._consumer_options())
        opening = Opening(member, self._consumer, partial(ask, self._consumer, member.settings.group))
        member.missing_topics = partial(missing_topics, self._consumer)
        try:
            async with member.working(self._consumer), self._relaying():
                member.spawn(self._stop_when(stop), "stop")
                self._consumer.subscribe([*self._topics, member.names.retry], listener=_Listener(member, opening))
                member.keep(opening.keep, "assignment")
                if self._users_own is None:
                    await self._consumer.start()
                await Fetching(member, self._consumer, opening).poll()
                await member.drain(set(member.lanes), member.settings.drain_timeout, stopping=True)
        finally:
            if self._users_own is None:
                await self._consumer.stop()
            else:
                self._users_own.unsubscribe()

    def _consumer_options(self) -> dict[str, Any]:
        settings = self._member.settings
        return {
            "bootstrap_servers": settings.brokers,
            "group_id": settings.group,
            "client_id": settings.client_id,
            "enable_auto_commit": False,
            "fetch_max_wait_ms": _FETCH_WAIT,
            "auto_offset_reset": "none",  # every start position is ours, so that none is skipped silently
            "isolation_level": "read_committed",
            "session_timeout_ms": round(settings.session_timeout * 1000),
            "heartbeat_interval_ms": round(settings.session_timeout * 1000 / 5),
            "rebalance_timeout_ms": round(REBALANCE_TIMEOUT * 1000),
            **settings.client_options,
        }

    @asynccontextmanager
    async def _relaying(self) -> AsyncIterator[None]:
        member, stop = self._member, asyncio.Event()
        relay = DelayRelay.of(member)
        relaying = member.spawn(relay.run(stop), "relay")
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait({relaying}, timeout=member.settings.drain_timeout)

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._member.stop.set()


class _Listener(ConsumerRebalanceListener):
    """aiokafka logs and swallows what a listener raises; a partition without a lane would then never be consumed."""

    def __init__(self, member: Member, opening: Opening) -> None:
        self._member = member
        self._opening = opening

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        await asyncio.wait({self._member.spawn(self._opening.give_up(revoked), "revoke")})

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        self._opening.note(assigned)
