"""The relay of an outbox by itself, without workers around it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import OutboxStore
from ackwise.middleware.policies import Outbox
from ackwise.plugin.checkback.checkback import CheckBack
from ackwise.plugin.client.bounded import ended
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.relaycounts import DelayCounts, RelayCounts
from ackwise.plugin.outbox.beside import name_of_outbox, new_relay
from ackwise.plugin.producer.sender import SenderSettings
from ackwise.plugin.relay.apart import relay_apart, relay_delays
from ackwise.plugin.settings.addresses import parse_brokers
from ackwise.plugin.settings.clientoptions import EVERY_CLIENT, checked_options
from ackwise.plugin.settings.credentials import with_credentials

__all__ = ["AloneSettings", "relay_group", "relay_outbox_apart"]

log = Log()

#: Seconds until a database that is away is asked again, and for closing what is open.
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

    Raises `ConfigurationError` if it can't start. A database that is away is waited for.
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
    """Whether the outbox is open before `stop` is set."""
    throttle: Final = LogThrottle()
    while not stop.is_set():
        try:
            await store.open()
        except StoreUnavailable as error:
            if throttle.is_due():
                log.warning(
                    "the database of the outbox is away, the relay waits for it",
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
