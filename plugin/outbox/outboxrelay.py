"""The relay of an outbox: sends the rows of its shards, in a worker or alone, one session after the other.

Each session (`outboxsession.py`) has its own producer: once a session has ended and its shards are free, it sends nothing more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import MessageSender
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import OutboxStore, RelayStore
from ackwise.middleware.usercode import where_raised
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import DelayCounts, OutboxCounts, RelayCounts
from ackwise.plugin.delays.delayrelay import relay_apart, relay_delays
from ackwise.plugin.kafka.clients import brokers_answer
from ackwise.plugin.kafka.timeouts import ended
from ackwise.plugin.outbox.checkback import CheckBack
from ackwise.plugin.outbox.outboxsession import LeaseOver, OutboxSession, RelayContext
from ackwise.plugin.outbox.outboxwindow import AckMemory
from ackwise.plugin.outbox.readsize import ReadSize
from ackwise.plugin.outbox.sendsize import SendSize
from ackwise.plugin.producer.idempotentproducer import SenderSettings
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, checked_options
from ackwise.plugin.settings.connecting import parse_brokers, shown_store, with_credentials
from ackwise.plugin.topics.group import Group

log = Log()

#: Seconds until a session that ended is started again, doubling up to the second; one that lasted for the third was a good one.
_BEGIN_ANEW: Final = (1.0, 10.0)
_LASTED: Final = 60.0

#: Seconds after a stop for what is being sent to be acknowledged and deleted, for the producer to close, and for the shards to be freed.
_DRAIN, _CLOSE, _LEAVE = 8.0, 3.0, 2.0

#: Seconds for a task that was cancelled.
_CANCEL: Final = 3.0


class OpenSender(MessageSender, Protocol):
    """A sender that connects, and closes."""

    async def start(self) -> None:
        """Connect. Raises `Unavailable` if no broker answers, `ConfigurationError` for options that can't be used."""

    async def stop(self) -> None:
        """Close in bounded time; nothing is sent after that. Raises nothing of the client's."""


class OutboxRelay:
    """Relays the rows of `store`, which is open, for as long as `run` goes."""

    def __init__(
        self,
        store: RelayStore,
        policy: Outbox,
        *,
        name: str,
        new_sender: Callable[[], OpenSender],
        brokers_answer: Callable[[], Awaitable[bool]],
        sink: EventSink | None = None,
        counts: OutboxCounts | None = None,
        is_alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is that of the outbox in events and in the log. With `is_alone`, a refusal of its first session is raised."""
        self._store = store
        self._new_sender = new_sender
        self._is_alone = is_alone
        self._clock = clock
        self._around = RelayContext(
            name=name,
            owner=_new_owner(),
            policy=policy,
            brokers_answer=brokers_answer,
            sink=sink,
            counts=counts or OutboxCounts(),
            memory=AckMemory(),
            read_size=ReadSize(name),
            send_size=SendSize(name, clock),
            throttle=LogThrottle(),
            clock=clock,
        )
        self._has_owned = False

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent is acknowledged and deleted, or left, and the shards are free.

        A session that ends is followed by another one. Raises `ConfigurationError` if the relay is alone and can't start. Stopping takes
        bounded time, whatever hangs.
        """
        rest = _BEGIN_ANEW[0]
        self._around.counts.relaying = True
        try:
            while not stop.is_set():
                begun = self._clock()
                ended_by = await self._stay(stop)
                if ended_by is None:
                    return
                if self._is_alone and not self._has_owned and isinstance(ended_by, ConfigurationError):
                    raise ended_by
                rest = _BEGIN_ANEW[0] if self._clock() - begun > _LASTED else rest
                self._log_end(ended_by, rest)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await stop.wait()
                rest = min(2 * rest, _BEGIN_ANEW[1])
        finally:
            self._around.counts.relaying = False

    async def _stay(self, stop: asyncio.Event) -> BaseException | None:
        """One session, in its own tasks; returns what ended it, `None` if that was the stop."""
        try:
            sender = self._new_sender()
            await sender.start()
        except Exception as error:  # noqa: BLE001  # whatever it was, nothing was started
            return error
        session = OutboxSession(self._store, sender, self._around)
        relaying = asyncio.create_task(session.relay(stop), name="ackwise outbox relay")
        keeping = asyncio.create_task(session.keep_lease(), name="ackwise outbox lease")
        freeing = asyncio.create_task(session.free_rows(), name="ackwise outbox rows behind")
        stopping = asyncio.create_task(stop.wait(), name="ackwise outbox stop")
        try:
            await asyncio.wait({relaying, keeping, freeing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not (relaying.done() or keeping.done()):
                await asyncio.wait({relaying, keeping}, timeout=_DRAIN, return_when=asyncio.FIRST_COMPLETED)
            self._has_owned |= bool(self._around.counts.shards)
            return next((_end_of(task) for task in (relaying, keeping, freeing) if task.done()), None)
        finally:
            await self._end(sender, relaying, keeping, freeing, stopping)

    async def _end(self, sender: OpenSender, *tasks: asyncio.Task[Any]) -> None:
        """Stop sending, then free the shards. Two signals or an error don't wait longer than these few seconds."""
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks, timeout=_CANCEL)
        finally:
            closing = asyncio.ensure_future(self._close(sender))
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError:  # of the second signal, which comes while the first one is obeyed
                await asyncio.wait([closing])
                raise
            closing.result()

    async def _close(self, sender: OpenSender) -> None:
        await ended(sender.stop(), within=_CLOSE)
        self._around.counts.shards = 0
        with suppress(Unavailable):  # then the lease ends by itself
            await ended(self._store.leave(self._around.owner), within=_LEAVE)

    def _log_end(self, ended_by: BaseException, rest: float) -> None:
        around, outbox = self._around, self._around.name
        match ended_by:
            case ConfigurationError():
                if around.throttle.is_due("refused"):
                    log.error("outbox relay refused", outbox=outbox, error=str(ended_by))
            case LeaseOver():
                log.warning("lease of outbox shards ran out", outbox=outbox, retry_in=rest)
            case AckwiseError():
                if around.throttle.is_due(type(ended_by).__name__):
                    log.warning(
                        "outbox relay interrupted", outbox=outbox, error=said(ended_by),
                        retry_in=rest,
                    )  # fmt: skip
            case _:
                log.error(
                    "outbox relay failed unexpectedly",
                    outbox=outbox,
                    error=type(ended_by).__name__,  # the text of such an error may hold a payload
                    at=where_raised(ended_by),
                    retry_in=rest,
                )


def _new_owner() -> str:
    """Return a new id of a relay: each process has its own, so the tokens of a replaced process do not count."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _end_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def relay_outbox(member: Member, stop: asyncio.Event) -> asyncio.Task[None] | None:
    """Start the relay of the outbox of `member`, until `stop` is set; `None` if there is none, or if it runs apart.

    Half messages whose barrier is in that outbox are checked beside it, also where the relay runs apart.
    """
    store, policy = member.outbox, member.parts.outbox_policy
    if store is None or policy is None:
        return None
    member.spawn(CheckBack(store, name=name_of_outbox(policy), sink=member.sink, counts=member.check_counts).run(stop), "check-back")
    if policy.relay == "apart":
        log.info("outbox relay runs apart from this worker", group=member.settings.group)
        return None
    relay = new_relay(store, policy, member.settings, sink=member.sink, counts=member.outbox_counts)
    return member.spawn(relay.run(stop), "outbox relay")


def new_relay(
    store: OutboxStore,
    policy: Outbox,
    settings: SenderSettings,
    *,
    sink: EventSink | None,
    counts: OutboxCounts | None = None,
    is_alone: bool = False,
) -> OutboxRelay:
    """A relay that sends as `settings` say. `store` is open, and stays so."""
    return OutboxRelay(
        store,
        policy,
        name=name_of_outbox(policy),
        new_sender=partial(Sender, settings),
        brokers_answer=partial(brokers_answer, settings.brokers, settings.client_id, settings.client_options),
        sink=sink,
        counts=counts,
        is_alone=is_alone,
    )


def name_of_outbox(policy: Outbox) -> str:
    """Return the name of an outbox in events and log: its URL without user, password and options, or the object's class."""
    return shown_store(policy.store)


#: Seconds until a database that is unavailable is asked again, and for closing what is open.
_START_AGAIN, _CLOSE = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class AloneSettings:
    """How a relay without an app talks to Kafka. Raises `ConfigurationError` for brokers that can't be so called, and such options."""

    brokers: str
    client_id: str = "ackwise"
    client_options: dict[str, Any] = field(default_factory=dict, repr=False)  # it may hold a password

    def __post_init__(self) -> None:
        parse_brokers(self.brokers)
        object.__setattr__(self, EVERY_CLIENT, with_credentials(checked_options(EVERY_CLIENT, self.client_options)))


async def relay_group(group: Group, stop: asyncio.Event, counts: RelayCounts | None = None) -> None:
    """Relay everything of a group until `stop` is set: what waits in its delay topics, and the rows of its outbox if it has one.

    Raises `ConfigurationError` if it can't start, and what else ends one of the two; the other one is stopped then.
    """
    counts = counts or RelayCounts()
    store, policy = group.slots.open_outbox(), group.slots.outbox
    if group.names.all:  # an instance that broadcasts sends nothing back
        counts.delay_counts = DelayCounts()
    if store is None or policy is None:
        await relay_apart(group, stop, counts.delay_counts)
        return
    sink = group.slots.open_sink(group.settings.group, group.sources)
    async with AsyncExitStack() as opened:
        if sink is not None:
            opened.push_async_callback(sink.close)
            await sink.open()
        relays = [relay_outbox_apart(store, policy, group.settings, stop, sink=sink, counts=counts)]
        if counts.delay_counts is not None:
            relays.append(relay_delays(group, stop, sink, counts.delay_counts))
        await _side_by_side(relays, stop)
    log.info("stopped", group=group.settings.group)


async def _side_by_side(relays: Sequence[Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    running = [asyncio.create_task(relay, name="ackwise relay apart") for relay in relays]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.wait(running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    for task in running:
        task.result()


async def relay_outbox_apart(
    store: OutboxStore,
    policy: Outbox,
    settings: SenderSettings,
    stop: asyncio.Event,
    *,
    sink: EventSink | None = None,
    counts: RelayCounts | None = None,
) -> None:
    """Relay the rows of `store` until `stop` is set, and check the half messages whose barrier is in it. `sink` is open, and stays so.

    What it does is counted in `counts`.

    Raises `ConfigurationError` if it can't start. A database that is unavailable is waited for.
    """
    counts = counts or RelayCounts()
    log.info("starting the relay of the outbox", outbox=name_of_outbox(policy), brokers=settings.brokers)
    try:
        if await _opened(store, policy, stop):
            counts.outbox = store
            relay = new_relay(store, policy, settings, sink=sink, counts=counts.outbox_counts, is_alone=True)
            checking = CheckBack(store, name=name_of_outbox(policy), sink=sink, counts=counts.check_counts)
            await _side_by_side([relay.run(stop), checking.run(stop)], stop)
    finally:
        counts.outbox = None
        await ended(store.close(), within=_CLOSE)
    log.info("stopped the relay of the outbox", outbox=name_of_outbox(policy))


async def _opened(store: OutboxStore, policy: Outbox, stop: asyncio.Event) -> bool:
    """Return whether the outbox is open before `stop` is set."""
    throttle: Final = LogThrottle()
    while not stop.is_set():
        try:
            await store.open()
        except StoreUnavailable as error:
            if throttle.is_due():
                log.warning(
                    "database of the outbox unavailable",
                    outbox=name_of_outbox(policy),
                    error=said(error),
                    retry_in=_START_AGAIN,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_AGAIN):
                    await stop.wait()
        else:
            return True
    return False
