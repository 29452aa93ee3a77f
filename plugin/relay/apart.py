"""The delay relay of a group by itself, without workers around it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import Final

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.matching import ensure_topics_of
from ackwise.plugin.group.owntopics import OwnTopics
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import ensure_topics, read_topics
from ackwise.plugin.relay.cancel import refuse_without_delays
from ackwise.plugin.relay.relay import DelayRelay

__all__ = ["relay_apart", "relay_delays"]

log = Log()

#: Seconds until brokers that are away are asked again.
_START_AGAIN: Final = 2.0


async def relay_apart(group: Group, stop: asyncio.Event, counts: DelayCounts | None = None) -> None:
    """Relay for `group` until `stop` is set: make its topics as a worker does, and record cancellations where its events go.

    Raises `ConfigurationError` if it can't start, `Unavailable` if the brokers are away for longer than `start_timeout`, and
    another `AckwiseError` if the events can't be opened.
    """
    refuse_without_delays(group)
    if not await _await_topics(group, stop):
        return
    sink = group.slots.open_sink(group.settings.group, group.sources)
    async with AsyncExitStack() as opened:
        if sink is not None:
            opened.push_async_callback(sink.close)
            await sink.open()
        await _relay(group, stop, sink, counts)
    log.info("stopped", group=group.settings.group)


async def relay_delays(group: Group, stop: asyncio.Event, sink: EventSink | None, counts: DelayCounts | None = None) -> None:
    """`relay_apart` with a `sink` that is open, and stays so, beside something else of the group that is relayed."""
    if await _await_topics(group, stop):
        await _relay(group, stop, sink, counts)


async def _relay(group: Group, stop: asyncio.Event, sink: EventSink | None, counts: DelayCounts | None) -> None:
    own_topics = OwnTopics(group.settings, group.names, lambda: _ensure_topics(group))
    relay = DelayRelay(
        group.settings,
        group.names,
        max_delay=group.slots.later.max_delay,
        counts=counts,
        sink=sink,
        suspect=own_topics.suspect,
    )
    keeping = asyncio.create_task(own_topics.keep(), name="ackwise own topics")
    try:
        await relay.run(stop)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def _await_topics(group: Group, stop: asyncio.Event) -> bool:
    """Whether the topics of the group are there before `stop` is set."""
    log.info("starting the delay relay", group=group.settings.group, brokers=group.settings.brokers)
    limit, throttle, begun = group.settings.start_timeout, LogThrottle(), time.monotonic()
    while not stop.is_set():
        try:
            await _ensure_topics(group)
        except Unavailable as error:
            if limit and time.monotonic() + _START_AGAIN > begun + limit:
                raise
            if throttle.is_due():
                log.warning(
                    "the brokers are away, the delay relay waits for them",
                    group=group.settings.group,
                    error=said(error),
                    retry_in=_START_AGAIN,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_AGAIN):
                    await stop.wait()
        else:
            return True
    return False


async def _ensure_topics(group: Group) -> None:
    if group.made:  # a worker makes those when it starts, and the others are as wide as the widest of all
        found = await read_topics(group.settings, group.sources)
        if set(group.expected(found)) != set(group.sources):
            raise Unavailable("topics that the workers make are not there yet; start a worker")
        await ensure_topics(group.settings, group.names, list(group.sources), levels=group.levels)
    elif not (await ensure_topics_of(group)).sources:
        raise Unavailable(f"no topic matches {' or '.join(group.patterns.values())} yet")
