"""`AiokafkaHost`: a worker on aiokafka. `host_of` builds it from the policies of an app, the only place where both meet.

aiokafka's `commit()` and deserializers are never used: the first commits fetched messages, the second block a partition forever.
All workers look for topics of patterns at the same moments of the wall clock, so that a new topic causes one rebalance, not one per
worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import AckwiseError, ConfigurationError, Unavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.policies.policies import Share
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.consumer.staticmember import StaticMember, instance_of_this_process
from ackwise.plugin.consumer.waitinginplace import Waiting
from ackwise.plugin.delays.delayrelay import DelayRelay, relays_here
from ackwise.plugin.handlers.lifespan import StoppedWhileStarting
from ackwise.plugin.kafka.aiokafkainternals import keep_awake, subscribe_instead
from ackwise.plugin.kafka.clients import close_consumer, start
from ackwise.plugin.kafka.kafkaerrors import is_refusal
from ackwise.plugin.kafka.throttling import watch_throttling
from ackwise.plugin.kafka.timeouts import answer, until
from ackwise.plugin.modes.broadcasting import Clustering, MessageModel, model_of
from ackwise.plugin.operate.explanation import explain
from ackwise.plugin.outbox.outboxrelay import relay_outbox
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.settings.hostsettings import REBALANCE_TIMEOUT, HostSettings

if TYPE_CHECKING:
    from ackwise.plugin.web.workerpages import Watching


def host_of(
    slots: Slots,
    settings: HostSettings,
    agents: Sequence[Agent],
    consumer: AIOKafkaConsumer | None = None,
    *,
    before: AiokafkaHost | None = None,
) -> AiokafkaHost:
    """Return the host of `agents` with the policies in `slots`, on the user's `consumer` if given. `before` is the previous host.

    Raises `ConfigurationError`.
    """
    slots.check(agents)
    slots.log_overrides(settings.group)
    parts = Parts.of(slots, settings.group, agents)
    if (watching := watching_of(slots, settings, agents)) is not None:
        parts = replace(parts, store=watching.timed(parts.store), sink=watching.counted(parts.sink))
    return AiokafkaHost(
        settings,
        agents,
        parts,
        consumer=consumer,
        model=model_of(settings, slots.broadcasting),
        sharing=None if (share := slots.share) is None else _sharing(share),
        watching=watching,
        before=before,
    )


def watching_of(slots: Slots, settings: HostSettings, agents: Sequence[Agent]) -> Watching | None:
    """Return the pages of the worker, if `Watch` is used. Raises `ConfigurationError` without the packages of its extra."""
    if (policy := slots.watch) is None:
        return None
    try:
        from ackwise.plugin.web.workerpages import Watching  # its dependencies are an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"Watch needs {error.name}, which is not installed; pip install 'ackwise[watch]'") from None
    return Watching(policy, lambda: explain(settings, slots, agents, slots.config))


def _sharing(share: Share) -> Callable[[Sequence[str], Member], AbstractAsyncContextManager[None]]:
    from ackwise.plugin.modes.sharegroup import Sharing  # its client is an extra

    return lambda topics, member: Sharing(share, topics, member).working()


log = Log()

#: Seconds for the brokers to list their topics.
_WITHIN: Final = 15.0

#: Seconds until a change of the subscription is tried again after a rebalance interfered.
_JOIN_AGAIN: Final = 0.2


class Following:
    """Updates the subscription of `consumer` with the topics that match the patterns of `member`."""

    def __init__(self, member: Member, consumer: Any) -> None:
        self._member = member
        self._consumer = consumer
        self._throttle = LogThrottle()

    async def follow(self) -> None:
        """Check periodically, without end. After an error the subscription stays as it is."""
        interval = self._member.settings.pattern_interval
        while True:
            await asyncio.sleep(interval - time.time() % interval)
            try:
                there = await answer(self._consumer.topics(), within=_WITHIN)
                await self._member.sources.take_up(there, self._member.opening.ensure_topics)
            except (KafkaError, OSError, Unavailable, ConfigurationError) as error:
                self._log_failure(error, interval)
            else:
                self._throttle.reset()
            await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe to the current topics, if they have changed."""
        names = self._member.names
        while {*self._consumer.subscription()} != {*(wanted := (*self._member.sources.topics, names.retry))}:
            if not subscribe_instead(self._consumer, wanted):
                await asyncio.sleep(_JOIN_AGAIN)

    def _log_failure(self, error: Exception, interval: float) -> None:
        if self._throttle.is_due():
            log.warning(
                "topics of patterns could not be read",
                group=self._member.settings.group,
                error=said(error),
                retry_in=interval,
            )


#: Seconds after `drain_timeout` within which a worker ends even if a task hangs; a little less than promised.
_END_AFTER = 9.0

#: Seconds of these for closing store, event log and producer after leaving the group, and for a client that does not close.
_CLOSE_RESERVE, _TEAR_RESERVE = 2.0, 1.0

#: Minimum of seconds for leaving the group.
_LEAVE_TIMEOUT = 0.5

#: Seconds for a client to connect; it may try several addresses.
_START_TIMEOUT = 60.0

#: Seconds for which a running start may continue after a stop. A member that starts waits for a second.
_START_GRACE = 0.25

#: Seconds for the tasks that a second signal cancels.
_CANCEL_TIMEOUT = 5.0

#: Milliseconds that the broker holds an empty fetch while a lane works. aiokafka sends one fetch to a broker at a time: while the
#: sources are full it fetches the retry topics alone, and the sources wait for that answer.
_FETCH_WAIT = 50


class Watched(Protocol):
    """The pages of a worker."""

    def opened(self, member: Member, /) -> AbstractAsyncContextManager[None]:
        """Serve the pages of `member`, which opens inside of the block. Raises `ConfigurationError` if they can't be served."""
        ...

    def begin(self) -> None:
        """Start to ask the brokers: the member is ready."""


class AiokafkaHost:
    """A member of a consumer group that aiokafka fetches for, with the relay of its delay topics."""

    def __init__(
        self,
        settings: HostSettings,
        agents: Sequence[Agent],
        parts: Parts,
        *,
        consumer: AIOKafkaConsumer | None = None,
        model: MessageModel | None = None,
        pipeline: Callable[[Agent, Member], Pipeline] | None = None,
        sharing: Callable[[Sequence[str], Member], AbstractAsyncContextManager[None]] | None = None,
        watching: Watched | None = None,
        before: AiokafkaHost | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`pipeline` returns the pipeline of an agent, if it is not the default one. With `sharing` the host consumes only copies.

        `consumer`: the user's, started and without a subscription; the host uses it and never stops it. `clock`: epoch seconds, which
        decide when copies are due. `model`: assigns the partitions; default: as a member of the group. `before`: the previous, ended host
        of the same app, whose memory is taken over. `watching`: the pages of this host.
        """
        self._model = model or Clustering(settings)
        self._before: AiokafkaHost | None = before if before is None or before.has_begun else before._before  #: the last that started
        if self._before is not None:
            self._before._before = None  # it has ended, or this host would have been refused
        self._member: Member = Member(
            settings,
            agents,
            parts,
            pipeline=pipeline,
            before=None if self._before is None else self._before.leases,
            clock=clock,
        )
        self._users_own = consumer
        self._sharing = sharing
        self._watching = watching

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set, then drain for at most `drain_timeout` seconds, commit and leave the group.

        It returns ten seconds later at the latest, even if a task hangs; hanging tasks are cancelled and commit nothing.

        Raises `ConfigurationError` or another `AckwiseError` if it can't start or Kafka refuses it, the exception with which a handler
        stopped the app, and any internal error; then only settled messages are committed.
        """
        running = asyncio.create_task(self._outcome(), name="ackwise host")
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self._end(running)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait({running}, timeout=_CANCEL_TIMEOUT)
            raise
        finally:
            stopping.cancel()
        if not running.done() or (running.cancelled() and stop.is_set()):
            if self.failed_by is not None:  # it failed before the stop, or during the drain
                raise self.failed_by
            return
        if running.cancelled():
            raise AckwiseError("the worker was cancelled from outside of Ackwise; it stops, and unsettled messages will be redelivered")
        if (raised := running.result()) is not None:
            raise raised

    @property
    def failed_by(self) -> BaseException | None:
        """The error that ends this worker, if any; set before everything is closed."""
        return self._member.fatal

    @property
    def has_joined(self) -> asyncio.Event:
        """Set once it has joined its group and got its partitions, possibly none."""
        return self._member.has_joined

    @property
    def has_begun(self) -> bool:
        """Return True once handlers could be called."""
        return bool(self._member.pipelines)

    @property
    def leases(self) -> Leases | None:
        """The claims of this process in the store of `Dedup`, and its memory."""
        return self._member.leases

    @property
    def left_running(self) -> list[str]:
        """The names of handlers with a running call, here or in the previous host."""
        pipelines = [*self._member.pipelines.values(), *self._member.pipelines_of_copies.values()]
        before = [] if self._before is None else self._before.left_running
        return sorted({pipeline.agent.name for pipeline in pipelines if pipeline.running}.union(before))

    @property
    def waiting(self) -> Waiting:
        """The messages that wait in place here."""
        return self._member.waiting

    async def _end(self, running: asyncio.Task[BaseException | None]) -> None:
        """Wait for the drain and the close, within the time limit."""
        member = self._member
        member.opening.end_by(asyncio.get_running_loop().time() + member.settings.drain_timeout + _END_AFTER)
        member.stop.set()
        await asyncio.wait({running}, timeout=member.settings.drain_timeout + _END_AFTER)
        if not running.done():
            log.error("worker did not end in time", group=member.settings.group)
            running.cancel()
            await asyncio.wait({running}, timeout=_LEAVE_TIMEOUT)

    async def _outcome(self) -> BaseException | None:
        """Return the exception for `run` to raise: a task that raises `SystemExit` would stop the event loop."""
        try:
            async with self._watched(), self._member.opened():
                await self._consume_or_fail()
        except StoppedWhileStarting:
            return None
        except KafkaError as error:
            refused = AckwiseError(
                f"Kafka refuses this worker of group {self._member.settings.group!r} ({said(error)}); "
                "ackwise topics export prints the rights that it needs, and ackwise doctor shows those that it has"
            )
            refused.__cause__ = error
            return refused
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # it is raised where the caller waits
            return error
        return None

    async def _consume_or_fail(self) -> None:
        try:
            await self._consume()
        except (StoppedWhileStarting, asyncio.CancelledError):
            raise
        except BaseException as error:
            self._member.fatal = error if self._member.fatal is None else self._member.fatal
            raise

    async def _consume(self) -> None:
        member = self._member
        if self._users_own is None:
            await member.opening.insist(self._connect)
        else:
            self._consumer = self._users_own
        static, wait = StaticMember.of(self._consumer), self._fetch_wait if self._users_own is None else None
        connected = AiokafkaClient(self._consumer, member.settings.group, wait=wait, static=static)
        try:
            async with self._model.opened(member, connected) as client, member.working(client), self._relaying(), self._shared():
                if self._watching is not None:
                    self._watching.begin()
                opening = Opening(member, client)
                self._model.join(member, client, member.sources.topics if self._sharing is None else [], opening)
                keep_awake(self._consumer)
                watch_throttling(self._consumer)
                if static is not None:
                    member.keep(static.keep_covered, "static membership")
                if member.sources.patterns:
                    member.keep(Following(member, self._consumer).follow, "topics")
                await Polling(member, client, opening).run()
        finally:
            if self._users_own is None:
                await self._leave()
            else:
                self._users_own.unsubscribe()

    async def _connect(self) -> None:
        """Connect a client. It joins the group when it is polled, not here, so that obstacles can be reported meanwhile."""
        consumer = AIOKafkaConsumer(**self._consumer_options())
        is_connected = False
        try:
            if await until(self._member.stop, answer(start(consumer), within=_START_TIMEOUT), grace=_START_GRACE) is None:
                raise StoppedWhileStarting
            is_connected = True
        except (KafkaError, OSError) as error:
            if is_refusal(error):
                raise
            raise Unavailable(f"the brokers {self._member.settings.brokers!r} do not answer a consumer ({type(error).__name__})") from error
        finally:
            if not is_connected:
                await close_consumer(consumer, within=_LEAVE_TIMEOUT)
        self._consumer = consumer

    async def _leave(self) -> None:
        """Leave the group. Everything is settled or given up by now, so errors of the client are ignored."""
        within = max(_LEAVE_TIMEOUT, self._member.opening.time_left(_LEAVE_TIMEOUT * 10) - _CLOSE_RESERVE - _TEAR_RESERVE)
        if (error := await close_consumer(self._consumer, within=within)) is not None:
            spoken = said(error) if isinstance(error, KafkaError | OSError) else type(error).__name__
            log.warning("group could not be left", error=spoken)

    def _consumer_options(self) -> dict[str, Any]:
        settings = self._member.settings
        return {
            "bootstrap_servers": settings.brokers,
            "group_id": self._model.group_id,
            "group_instance_id": instance_of_this_process(settings.group_instance_id),
            "client_id": settings.client_id,
            "enable_auto_commit": False,
            "fetch_max_wait_ms": self._fetch_wait,
            "auto_offset_reset": "none",  # Ackwise sets each start position, so that no message is skipped silently
            "isolation_level": "read_committed",
            "session_timeout_ms": round(settings.session_timeout * 1000),
            "rebalance_timeout_ms": round(REBALANCE_TIMEOUT * 1000),
            **settings.client_options,
            **settings.consumer_options,
            "heartbeat_interval_ms": round(settings.heartbeat_interval * 1000),
        }

    @property
    def _fetch_wait(self) -> int:
        return cast(int, self._member.settings.consumer_options.get("fetch_max_wait_ms") or _FETCH_WAIT)

    def _watched(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._watching is None else self._watching.opened(self._member)

    def _shared(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._sharing is None else self._sharing(self._member.sources.topics, self._member)

    @asynccontextmanager
    async def _relaying(self) -> AsyncIterator[None]:
        """Run the relays; they stop during the drain, not after it."""
        member = self._member
        relaying = {outbox} if (outbox := relay_outbox(member, member.stop)) is not None else set()
        if member.names.all and relays_here(member.settings):
            relaying.add(member.spawn(DelayRelay.of(member).run(member.stop), "relay"))
        if not relaying:
            yield
            return
        try:
            yield
        finally:
            member.stop.set()
            left = member.opening.time_left(member.settings.drain_timeout) - 2 * _CLOSE_RESERVE
            await asyncio.wait(relaying, timeout=max(_LEAVE_TIMEOUT, left))
