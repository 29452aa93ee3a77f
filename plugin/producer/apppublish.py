"""`Outside`: what `app.publish` sends outside of a handler, at once, with the settings of the app."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from ackwise.middleware.errors import ConfigurationError, PublishUnavailable
from ackwise.middleware.log import Log

if TYPE_CHECKING:
    from ackwise.middleware.message.outgoing import Acked, Outgoing
    from ackwise.plugin.producer.producer import Producer
    from ackwise.plugin.settings.hostsettings import HostSettings


log = Log()


class Outside:
    """Sends for an app. Beside its worker all calls share one producer; otherwise each call connects."""

    def __init__(self) -> None:
        self._workers: list[_Shared] = []  #: one, or in tests several at a time

    @property
    def _worker(self) -> _Shared | None:
        return self._workers[-1] if self._workers else None

    @asynccontextmanager
    async def beside(self, settings: HostSettings, wall: Callable[[], float] = time.time) -> AsyncIterator[None]:
        """Share a producer for as long as a worker with `settings` runs in this event loop. `wall`: epoch seconds."""
        async with AsyncExitStack() as opened:
            worker = _Shared(settings, opened, wall)
            self._workers.append(worker)
            try:
                yield
            finally:
                self._workers.remove(worker)

    def send(self, settings: HostSettings, message: Outgoing, **when: Any) -> Publish:
        """Return what sends the message once it is awaited, and returns where it was written. Raises as `Producer.send`."""
        return Publish(message, self._send(settings, message, **when))

    async def _send(self, settings: HostSettings, message: Outgoing, **when: Any) -> Acked:
        worker, wall = self._worker, time.time
        if worker is not None:  # those that it runs with: in a test the broker in memory, from whatever event loop
            settings, wall = worker.settings, worker.wall
        if worker is not None and worker.is_here:
            return await _send(await worker.producer(), settings, message, **when)
        async with AsyncExitStack() as opened:
            return await _send(await _producer(settings, opened, wall), settings, message, **when)


class Publish(Coroutine[Any, Any, "Acked"]):
    """The coroutine `sending`, which sends `message`. One that is never awaited sends nothing, and logs an error when it is deleted."""

    def __init__(self, message: Outgoing, sending: Coroutine[Any, Any, Acked]) -> None:
        self._message = message
        self._sending = sending
        self._is_awaited = False

    def __await__(self) -> Generator[Any, Any, Acked]:
        self._is_awaited = True
        return self._sending.__await__()

    def send(self, value: Any, /) -> Any:
        """See `Coroutine`: a task awaits it by this."""
        self._is_awaited = True
        return self._sending.send(value)

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`: a task that is cancelled before it has started knows that nothing was sent."""
        self._is_awaited = True
        return self._sending.throw(*error)

    def close(self) -> None:
        """See `Coroutine`."""
        self._sending.close()

    def __del__(self) -> None:
        if not self._is_awaited:
            log.error(
                "publish was never awaited",
                topic=self._message.topic,
                message_id=self._message.message_id,
            )


class _Shared:
    """The producer beside a worker, opened with the first message."""

    def __init__(self, settings: HostSettings, opened: AsyncExitStack, wall: Callable[[], float]) -> None:
        self.settings = settings
        self._opened = opened
        self.wall = wall
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._producer: Producer | None = None

    @property
    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def producer(self) -> Producer:
        async with self._opening:
            if self._producer is None:
                self._producer = await _producer(self.settings, self._opened, self.wall)
            return self._producer


async def _producer(settings: HostSettings, opened: AsyncExitStack, wall: Callable[[], float]) -> Producer:
    """A producer that is closed with `opened`."""
    from ackwise.plugin.producer.producer import Producer  # the Kafka client is imported by those who run it
    from ackwise.plugin.producer.sender import Sender

    sender = Sender(settings, options=settings.producer_options, wall=wall)
    opened.push_async_callback(sender.stop)
    skew, topic_names = settings.clock_skew, settings.topic_names
    producer = Producer(settings.brokers, group=settings.group, topic_names=topic_names, clock_skew=skew, sender=sender, wall=wall)
    await producer.__aenter__()
    opened.push_async_callback(_close, producer)
    return producer


async def _close(producer: Producer) -> None:
    """What was not acknowledged by then fails where it is awaited; no other error is kept back."""
    with suppress(PublishUnavailable):
        await producer.close()


async def _send(producer: Producer, settings: HostSettings, message: Outgoing, *, delay: Any, at: Any) -> Acked:
    """Send `message` as it was made of what the user gave, which may be used up by that."""
    if not settings.delayed_sends and (delay, at) != (None, None):
        raise ConfigurationError("app.publish with delay= or at= needs topics of the group that wait for it; set delayed_sends=True")
    return await producer.send(  # type: ignore[return-value]  # without an outbox nothing is saved there
        message.topic,
        message.value,
        key=message.key,
        headers=message.headers,
        partition=message.partition,
        message_id=message.message_id,
        delay=delay,
        at=at,
    )
