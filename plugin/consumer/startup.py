"""Start and stop of a member: its parts are made from the policies, opened in order, and closed in the remaining time.

The lifespans open first and close last. Brokers that are unavailable at the start are asked again; messages that handlers publish have
their own sender.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.policies.policies import DeadLetter, Dedup, Outbox, Transactional
from ackwise.middleware.policies.retry import ConsumeLater, all_levels
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.storage.outbox import OutboxStore
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.plugin.consumer.commits import Commits
from ackwise.plugin.handlers.lifespan import Lifespans, StoppedWhileStarting
from ackwise.plugin.kafka.timeouts import ended, until
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.groupstate import has_committed
from ackwise.plugin.topics.leftovers import find_copies_elsewhere, find_leftovers, find_strays
from ackwise.plugin.topics.topicadmin import ensure_topics, list_topics
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import Sources, named_topics
from ackwise.plugin.topics.topicplan import waits_in_place


@dataclass(frozen=True, slots=True)
class Parts:
    """What a member is made of, none of it open yet."""

    later: ConsumeLater
    dead_letter: DeadLetter
    dedup: Dedup | Transactional | None = None
    store: ClaimStore | None = None  #: that of `Dedup`
    inbox: TransactionalStore | None = None  #: that of `Transactional`
    outbox: OutboxStore | None = None  #: that of `Outbox`
    outbox_policy: Outbox | None = None
    sink: EventSink | None = None
    flow: FlowControl | None = None  #: what is paused and limited
    lifespans: Lifespans | None = None  #: open before anything else is, and until everything else is closed

    @classmethod
    def of(cls, slots: Slots, group: str, agents: Sequence[Agent]) -> Self:
        """What was used, for a member of `group` that runs `agents`. Raises `ConfigurationError`."""
        return cls(
            slots.later,
            slots.dead_letter,
            slots.dedup or slots.transactional,
            slots.open_store(),
            slots.open_inbox(),
            slots.open_outbox(),
            slots.outbox,
            slots.open_sink(group, named_topics(agents), agents),
            slots.flow_control([agent.name for agent in agents]),
            slots.lifespans,
        )


log = Log()

#: Seconds for closing what is open, after an error; after a stop it is what is left of its time.
_CLOSE_TIMEOUT = 5.0

#: Seconds that closing one thing gets, however late it is.
_AT_LEAST = 0.5

#: Seconds until brokers that are unavailable at the start are asked again, and for which an attempt may go on after a stop.
_START_AGAIN, _START_GRACE = 2.0, 1.0


class Opening:
    """What a member needs open: lifespans, topics, stores, and what publishes."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        agents: Sequence[Agent],
        parts: Parts,
        *,
        stop: asyncio.Event,
        commits: Commits,
        sources: Sources,
        suspect: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`stop` calls off what still waits for brokers. `commits` gets the cluster that the topics were found in.

        `suspect` is called where a topic of the group may be gone. `clock`: epoch seconds, by which copies are due.
        """
        self._settings = settings
        self._names = names
        self._agents = agents
        self._levels = all_levels(parts.later, *(agent.later for agent in agents))
        self._stop = stop
        self._lifespans = parts.lifespans or Lifespans()
        self._parts = [part for part in (parts.sink, parts.store, parts.inbox, parts.outbox) if part is not None]
        self._inbox = parts.inbox
        self._outbox = parts.outbox
        self._commits = commits
        self._sources = sources
        self._suspect = suspect
        self._clock = clock
        self._ensured: frozenset[str] = frozenset()  #: sources that the topics of the group fit
        self._end_by: float | None = None
        self._throttle = LogThrottle()

    @asynccontextmanager
    async def opened(self, *, with_topics: bool) -> AsyncIterator[tuple[KafkaPublisher, Sender]]:
        """With everything open, and `with_topics` the group's topics there as well. Yields what sends copies, and what handlers publish.

        Raises `AckwiseError` if something can't be opened, and `KafkaError` if Kafka refuses a look at the topics.
        """
        lifespans = self._lifespans.opened(self._settings.group, self._stop, time_to_leave=self._time_to_leave)
        async with lifespans, AsyncExitStack() as opened:
            if with_topics:
                await self._find_sources()
                await self.insist(self._refuse_leftovers)
                await self.insist(lambda: self.refuse_other_names(self._sources.topics))
                await self.tell_strays()
            parts = len(self._parts)
            for behind, part in enumerate(self._parts, 1):
                opened.push_async_callback(self._close, part.close, type(part).__name__, behind)
                await self.insist(part.open, part=type(part).__name__)
            await self.insist(self._require_one_database, part=type(self._inbox).__name__)
            publisher = KafkaPublisher(self._settings, wall=self._clock)
            publisher.suspect = self._suspect
            sender = Sender(self._settings, options=self._settings.producer_options, wall=self._clock)  # it connects with the first message
            opened.push_async_callback(self._close, sender.stop, "sender", parts + 2)
            if self._names.all:  # else nothing is ever published
                opened.push_async_callback(self._close, publisher.stop, "publisher", parts + 1)
                await self.insist(publisher.start)
            yield publisher, sender

    def end_by(self, time: float) -> None:
        """Everything has to be closed at `time` of the event loop."""
        self._end_by = time

    def time_left(self, otherwise: float) -> float:
        """Seconds until everything has to be closed; `otherwise` where no limit is set."""
        return otherwise if self._end_by is None else self._end_by - asyncio.get_running_loop().time()

    def _time_to_leave(self) -> float:
        return max(_AT_LEAST, self.time_left(_CLOSE_TIMEOUT))

    async def insist(self, call: Callable[[], Awaitable[None]], *, part: str | None = None) -> None:
        """Call the brokers, or `part`, again while they are unavailable. Raise `Unavailable` after `start_timeout`."""
        now, limit = asyncio.get_running_loop().time, self._settings.start_timeout
        begun = now()
        while True:
            try:
                if await until(self._stop, call(), grace=_START_GRACE) is None:
                    raise StoppedWhileStarting
                return
            except Unavailable as error:
                if limit and now() + _START_AGAIN > begun + limit:
                    raise
                self._tell_away(part, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_AGAIN):
                    await self._stop.wait()
            if self._stop.is_set():
                raise StoppedWhileStarting

    def _tell_away(self, part: str | None, error: Unavailable) -> None:
        """A line a minute for the brokers, and for each part that a worker has as well."""
        if not self._throttle.is_due(part or "start"):
            return
        group, at_most = self._settings.group, self._settings.start_timeout or None
        if part is None:
            log.warning(
                "worker waits for the brokers",
                group=group,
                error=said(error),
                at_most=at_most,
                retry_in=_START_AGAIN,
            )
            return
        log.warning(
            "store or log could not be opened",
            group=group,
            part=part,
            error=said(error),
            at_most=at_most,
            retry_in=_START_AGAIN,
        )

    async def _find_sources(self) -> None:
        """Wait until there is a topic to read, and those of the group fit all that are read."""
        sources, settings = self._sources, self._settings
        while True:
            await self.insist(self._look_for_sources)
            if sources.topics or not sources.patterns:
                return
            if self._throttle.is_due("pattern"):
                log.warning(
                    "no topic matches a pattern yet",
                    group=settings.group,
                    patterns=" ".join(sources.patterns.values()),
                    retry_in=min(_START_AGAIN, settings.pattern_interval),
                )
            if await until(self._stop, asyncio.sleep(min(_START_AGAIN, settings.pattern_interval)), grace=0.0) is None:
                raise StoppedWhileStarting

    async def _look_for_sources(self) -> None:
        sources, settings = self._sources, self._settings
        if sources.named or not sources.patterns:
            await self.ensure_topics(sources.named)
        if not sources.patterns:
            return
        is_new = settings.start == "latest" and not await has_committed(settings, settings.group)
        await sources.take_up(await list_topics(settings), self.ensure_topics)
        if is_new:
            sources.begin_new()

    async def ensure_topics(self, sources: Collection[str], *, made: Collection[str] = ()) -> None:
        """Create or check the group's topics for `sources`, and wait for those of them that are `made` elsewhere in this worker.

        Raises `AckwiseError`, or `KafkaError` if Kafka refuses a look at them.
        """
        self._commits.cluster = await ensure_topics(
            self._settings, self._names, sorted(sources), levels=self._levels, made=made, in_place=waits_in_place(self._agents, sources)
        )
        self._ensured = frozenset(sources)

    async def ensure_again(self) -> None:
        """Like `ensure_topics`, for the sources of the last time that are still there."""
        if there := self._ensured & await list_topics(self._settings):
            await ensure_topics(self._settings, self._names, sorted(there), levels=self._levels)

    async def _refuse_leftovers(self) -> None:
        """Refuse an order over copies that would break it. What can't be read is logged: such copies would be flagged."""
        found, unread = await find_leftovers(self._settings, self._names, self._agents)
        for leftover in found:
            raise ConfigurationError(leftover.sentence)
        if unread is not None:
            log.warning(
                "order of older copies not checked",
                group=self._settings.group,
                error=unread,
            )

    async def refuse_other_names(self, sources: Collection[str]) -> None:
        """Refuse names of topics if copies from before would wait forever; `sources` are what is read. What can't be checked is logged.

        Raises `ConfigurationError`.
        """
        settings = self._settings
        if settings.create_topics == "broker":
            return
        found, unread = await find_copies_elsewhere(settings, self._names, sources)
        for sentence in found:
            raise ConfigurationError(sentence)
        if unread is not None:
            log.warning(
                "copies under other topic names not checked",
                group=settings.group,
                error=unread,
            )

    async def tell_strays(self) -> None:
        """Log what is left in topics of an earlier configuration. What can't be read holds no start."""
        if not self._names.all or self._settings.create_topics == "broker":
            return
        try:
            found, unread = await find_strays(self._settings, self._names)
        except Unavailable as error:
            found, unread = [], said(error)
        for stray in found:
            log.warning(
                "dead letters remain in the previous dead-letter topic", group=stray.group, topic=stray.topic, records=stray.records
            )
        if unread is not None:
            log.warning("topics of an earlier configuration not checked", group=self._settings.group, error=unread)

    async def _require_one_database(self) -> None:
        """Rows of an outbox in another database would not be in the handlers' transactions. Raises `ConfigurationError`."""
        if self._inbox is None or self._outbox is None:
            return
        async with self._inbox.begin(retention=1.0) as transaction:
            found = await _id_through(self._outbox, transaction.connection)
        if found != await self._outbox.database_id():
            raise ConfigurationError(
                "Outbox and Transactional are in different databases, so what a handler publishes would not be in its transaction; "
                "give both the same database and schema"
            )

    async def _close(self, close: Callable[[], Awaitable[None]], what: str, among: int) -> None:
        """Close `what` in its share of the time that is left for it and those after it, `among` in all."""
        if self._end_by is None:
            self.end_by(asyncio.get_running_loop().time() + _CLOSE_TIMEOUT)
        if not await ended(close(), within=max(_AT_LEAST, self.time_left(_CLOSE_TIMEOUT)) / among):
            log.warning("part could not be closed in time", group=self._settings.group, part=what)


async def _id_through(outbox: OutboxStore, connection: Any) -> str | None:
    """The id of the database that `connection` leads to; `None` if it has no outbox, or if its driver is not that of the outbox."""
    try:
        return await outbox.database_id(connection)
    except (ConfigurationError, AttributeError, TypeError):
        return None
