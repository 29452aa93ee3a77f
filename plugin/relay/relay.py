"""The delay relay: moves copies from the delay topics to the retry topic when they are due.

It is a service of every worker, or of processes of its own (`apart.py`), in a consumer group of its own. Of messages it records
only that they were cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import MAX_DELAY, DelayLevels
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.group.budget import Budget
from ackwise.plugin.group.member import Member
from ackwise.plugin.group.recordbatches import RecordBatches
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.relay.cancellations import CancelTopic
from ackwise.plugin.relay.line import LONGEST_REST, DelayLine
from ackwise.plugin.relay.member import DelayMember, OtherLevels
from ackwise.plugin.relay.sendline import SendingPublisher, SendLine
from ackwise.plugin.settings.hostsettings import REBALANCE_TIMEOUT, HostSettings

__all__ = ["DelayRelay", "relays_here"]

log = Log()

#: Seconds until a membership that ended is begun anew, doubling up to the second; one that lasted for the third was a good one.
_BEGIN_ANEW: Final = (2.0, 10.0)
_LASTED: Final = 60.0

#: Seconds until a head is looked at again by a clock that is not the machine's: a test moves it at any moment.
_SET_BY_HAND: Final = 0.02

#: Bytes of copies that are packed before they are due, over all lines.
_PACKED: Final = 64 * 2**20

#: Seconds for a membership to notice that it is cancelled.
_CANCEL: Final = 3.0


class DelayRelay:
    """Moves what is due for as long as `run` goes. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        levels: DelayLevels,
        publisher: Publisher,
        *,
        max_delay: float = MAX_DELAY,
        counts: DelayCounts | None = None,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.time,
        longest_rest: float = LONGEST_REST,
        cancellations: CancelTopic | None = None,
        suspect: Callable[[], None] = lambda: None,
    ) -> None:
        """`publisher` may be one that takes whole batches; what it and `cancellations` have open is closed when `run` ends.

        `suspect` is called where a topic of the group may be gone.
        """
        self._settings = settings
        self._names = names
        self._levels = levels
        self._read = names  #: what is read: with the topics of other levels that there are
        self._publisher = publisher
        self._max_delay = max_delay
        self._counts = counts or DelayCounts()
        self._sink = sink
        self._clock = clock
        self._longest_rest = longest_rest
        self._cancellations = cancellations
        self._suspect = suspect
        if isinstance(publisher, RecordBatches):
            publisher.suspect = suspect
        self._budget = Budget(_PACKED)
        self._sender = Sender(settings, options=settings.producer_options)  # connects with the first message that is due
        self._sending = SendingPublisher(self._sender, publisher, names.of_sends())
        self._throttle = LogThrottle()

    @classmethod
    def of(cls, member: Member) -> DelayRelay:
        """Return the relay beside `member`."""
        return cls(
            member.settings,
            member.names,
            member.later.levels,
            RecordBatches(member.settings),
            max_delay=member.later.max_delay,
            counts=member.delay_counts,
            sink=member.sink,
            clock=member.clock,
            longest_rest=LONGEST_REST if member.clock is time.time else _SET_BY_HAND,
            cancellations=CancelTopic(member.settings, member.names.cancel),
            suspect=member.own_topics.suspect,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then commit and leave the group.

        Whatever ends a membership, it begins anew and goes on from the last commit. Stopping takes bounded time, whatever hangs.
        """
        stopping = asyncio.create_task(stop.wait(), name="ackwise relay stop")
        preparing = asyncio.create_task(self._prepare(), name="ackwise relay prepares")
        rest = _BEGIN_ANEW[0]
        try:
            while not stop.is_set():
                begun = time.monotonic()
                ended = await self._belong(stopping)
                if ended is None:
                    return
                if isinstance(ended, OtherLevels):
                    self._take_levels(ended.names)
                    continue
                rest = _BEGIN_ANEW[0] if time.monotonic() - begun > _LASTED else rest
                self._log_end(ended, rest)
                await asyncio.wait({stopping}, timeout=rest)
                rest = min(2 * rest, _BEGIN_ANEW[1])
        finally:
            stopping.cancel()
            preparing.cancel()
            await asyncio.wait({preparing}, timeout=_CANCEL)
            await self._sender.stop()
            if isinstance(self._publisher, RecordBatches):
                await self._publisher.stop()
            if self._cancellations is not None:
                await self._cancellations.close()

    def _take_levels(self, names: TopicNames) -> None:
        """Read these from now on."""
        before, now = {*self._read.delays, *self._read.sends}, {*names.delays, *names.sends}
        log.info(
            "the delay relay reads topics of other levels, until nothing is left there",
            group=names.relay_group,
            new=", ".join(sorted(now - before)) or None,
            gone=", ".join(sorted(before - now)) or None,
        )
        self._read = names

    async def _prepare(self) -> None:
        """Connect before something is due, which would be late by that; what fails here is done again when it is needed."""
        with suppress(Exception):
            if isinstance(self._publisher, RecordBatches):
                await self._publisher.connect(self._names.retry)
            if self._cancellations is not None:
                await self._cancellations.read()

    async def _belong(self, stopping: asyncio.Task[Any]) -> BaseException | None:
        """One membership, from joining to leaving; returns what ended it, `None` if that was the stop.

        It has a task of its own: what aiokafka cancels by mistake ends that, and never passes for an end that was asked for.
        """
        member = DelayMember(
            self._consumer(),
            self._read,
            self._line,
            sink=self._sink,
            commit_interval=self._settings.commit_interval,
            suspect=self._suspect,
            wanted=self._names.with_levels_of,
        )
        self._counts.standing = member.standing
        relaying = asyncio.create_task(member.relay(), name="ackwise relay")
        try:
            await asyncio.wait({relaying, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return _end_of(relaying) if relaying.done() else None
        finally:
            self._counts.standing = tuple
            relaying.cancel()
            try:
                await asyncio.wait({relaying}, timeout=_CANCEL)
            finally:
                await member.close()

    def _log_end(self, ended: BaseException, rest: float) -> None:
        if is_refusal(ended):
            if self._throttle.is_due():
                log.error(
                    "Kafka refuses the delay relay, copies wait and nothing is lost until it lets it in",
                    group=self._names.relay_group,
                    error=said(ended),
                    retry_in=rest,
                )
            return
        if isinstance(ended, KafkaError | OSError):
            log.warning(
                "the delay relay lost its broker, nothing is lost and it begins anew",
                group=self._names.relay_group,
                error=said(ended),
                retry_in=rest,
            )
            return
        log.error(
            "the delay relay ended by an error that nobody expects, nothing is lost and it begins anew",
            group=self._names.relay_group,
            error=type(ended).__name__,  # of such an error nobody knows whose words its text has
            at=where_raised(ended),
            retry_in=rest,
        )

    def _consumer(self) -> AIOKafkaConsumer:
        options: dict[str, Any] = dict(self._settings.client_options)
        return AIOKafkaConsumer(
            bootstrap_servers=self._settings.brokers,
            group_id=self._names.relay_group,
            client_id=f"{self._settings.client_id}-relay",
            enable_auto_commit=False,
            auto_offset_reset="none",  # every start position is ours, so that no line is fed from somewhere else
            isolation_level="read_committed",
            session_timeout_ms=round(self._settings.session_timeout * 1000),
            heartbeat_interval_ms=round(self._settings.session_timeout * 1000 / 5),
            rebalance_timeout_ms=round(REBALANCE_TIMEOUT * 1000),
            **options,
        )

    def _line(self, partition: TopicPartition, position: int) -> DelayLine:
        sends = partition.topic in self._read.sends
        names = self._read.of_sends() if sends else self._read
        return (SendLine if sends else DelayLine)(
            partition.topic,
            partition.partition,
            position,
            names=names,
            levels=self._levels if len(names.delays) == len(self._levels) else DelayLevels([names.level_of(each) for each in names.delays]),
            publisher=self._sending if sends else self._publisher,
            clock=self._clock,
            max_delay=self._max_delay,
            clock_skew=self._settings.clock_skew,
            counts=self._counts,
            longest_rest=self._longest_rest,
            cancellations=None if sends else self._cancellations,
            sink=self._sink,
            budget=self._budget,
        )


def relays_here(settings: HostSettings) -> bool:
    """Whether a worker of these settings runs the relay itself; it is logged if it does not."""
    if settings.relay == "apart":
        log.info("this worker moves no copies, they wait until ackwise relay MODULE:APP runs", group=settings.group, relay=settings.relay)
    return settings.relay == "inside"


def _end_of(relaying: asyncio.Task[None]) -> BaseException:
    return (
        asyncio.CancelledError() if relaying.cancelled() else relaying.exception() or AssertionError("a membership does not end by itself")
    )
