"""The engine: messages of a source are guarded, sent to the group's own retry topic, recorded and noted, in portions that can be repeated.

A kill leaves at most one portion sent and not noted. It is sent again as what it was, which the store knows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, Protocol, TypeVar

from ackwise.middleware.errors import AckwiseError, PublishRefused
from ackwise.middleware.events import EventCode, EventSink
from ackwise.middleware.wire import Copy, retry_copy
from ackwise.middleware.worker import Worker
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.matching import ensure_topics_of
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.resend.candidate import Candidate, Fate, Piece, Resent, open_ones

__all__ = ["Sender", "Source", "portioned", "resend"]

S = TypeVar("S")
T = TypeVar("T")

#: Messages that are looked up, guarded and sent together.
_PORTION: Final = 100

#: What is written of a message that was sent, or found to need no copy: the next reconciliation has nobody else to hear it from.
_SAID: Final = {Fate.SENT: EventCode.REDELIVERED, Fate.DONE: EventCode.DUP_SUPPRESSED, Fate.FOLLOWED: EventCode.STALE}


class Source(Protocol[T]):
    """Where the messages come from."""

    charges: bool  #: whether the attempt that ended counts

    def pieces(self, most: int) -> AsyncIterator[Piece[T]]:
        """Pieces of at most `most` records. A message that can't be sent has its fate, each other one has none."""
        ...

    def guarded(self, portion: Sequence[Piece[T]]) -> AbstractAsyncContextManager[None]:
        """Gives a fate to those that may not be sent now. When the block ends, those with the fate SENT are noted."""
        ...

    def note(self, portion: Sequence[Piece[T]]) -> None:
        """All of a portion has a fate."""


class Sender:
    """Sends copies to the retry topic of `app`, and records each for the next reconciliation."""

    def __init__(self, app: Group) -> None:
        """Raises `ConfigurationError` for events that can't be written."""
        self._app = app
        self._publisher = KafkaPublisher(app.settings)
        self.sink: EventSink | None = app.slots.open_sink(app.settings.group, app.sources)
        self.worker = Worker(
            group=app.settings.group,
            later=app.slots.later,
            publisher=self._publisher,
            retry_topic=app.names.retry,
            dead_letter_topic=app.names.dead_letter,
            delay_topic=app.names.delay,
            dedup=app.dedup,
            sink=self.sink,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[KafkaPublisher]:
        """With every topic there, and everything open that sending takes. Raises `AckwiseError`."""
        await ensure_topics_of(self._app)
        async with AsyncExitStack() as opened:
            if self.sink is not None:
                opened.push_async_callback(self.sink.close)
                await self.sink.open()
            opened.push_async_callback(self._publisher.stop)
            await self._publisher.start()
            yield self._publisher

    async def send(self, source: Source[T], portion: Sequence[Piece[T]]) -> None:
        """Send copies of those without a fate. Raises `AckwiseError` if some have no answer; those that have are noted then."""
        candidates = [each for piece in portion for each in piece.candidates]
        failed: AckwiseError | None = None
        async with source.guarded(portion):
            going, sent = open_ones(candidates), list[Candidate]()
            copies = [self._copy(each, charged=source.charges) for each in going]
            for each, answer in zip(going, await self._publisher.publish(copies), strict=True):
                if answer is None:
                    sent.append(each)
                elif isinstance(answer, PublishRefused):
                    each.fate = Fate.REFUSED
                else:
                    failed = failed or answer
            for each in candidates:
                self._record(each, Fate.SENT if each in sent else each.fate)
            await self.worker.make_durable()
            for each in sent:  # only now: a copy that no event tells of would be taken for somebody else's
                each.fate = Fate.SENT
        if failed is not None:
            raise failed

    def _copy(self, each: Candidate, *, charged: bool) -> Copy:
        delivery, now = each.run.delivery, round(self.worker.wall() * 1000)
        return retry_copy(
            delivery, topic=self.worker.retry_topic, partition=delivery.partition, group=self.worker.group, handler=each.handler, due=now,
            now_ms=now, reason=each.reason, charged=charged,
        )  # fmt: skip

    def _record(self, each: Candidate, fate: Fate | None) -> None:
        """In the coordinates of the origin, and said to be elsewhere: the group has not read it there now."""
        if fate is None or fate not in _SAID:
            return
        attrs = dict(each.attrs)
        if each.ran is not None:
            each.run.exec_ids = [each.ran.exec_id]
            attrs |= each.ran.attributes(str(each.run.origin))
        self.worker.record(
            _SAID[fate], each.handler, each.run, with_exec_id=each.ran is not None, attrs=json.dumps(attrs),
            phys_topic=self.worker.retry_topic, phys_partition=each.run.delivery.partition,
        )  # fmt: skip


async def resend(source: Source[T], sender: Sender, outcome: Resent, *, execute: bool, rate: float, stop: asyncio.Event | None) -> Resent:
    """Send what `source` has, at most `rate` copies per second; without `execute` only count what would be sent.

    After `stop` the portion at hand is finished. Raises `AckwiseError`: what was noted is done, and calling it again goes on.
    """
    most, begun, sent = min(_PORTION, max(1, round(rate))), time.monotonic(), 0
    async for portion in portioned(source.pieces(most), most, lambda piece: len(piece.candidates)):
        if execute:
            await sender.send(source, portion)
        source.note(portion)
        for piece in portion:
            outcome.add(piece.kind, piece.fates, piece.place)
        if stop is not None and stop.is_set():
            outcome.stopped = True
            break
        if now_sent := sum(piece.fates[Fate.SENT] for piece in portion):
            sent += now_sent
            await _wait(begun + sent / rate - time.monotonic(), stop)
    return outcome


async def portioned(items: AsyncIterator[S], most: int, weight: Callable[[S], int] = lambda item: 1) -> AsyncIterator[list[S]]:
    """Several together, as soon as they weigh `most`. Each weighs 1 at least."""
    portion, weighs = list[S](), 0
    async for item in items:
        portion.append(item)
        weighs += max(1, weight(item))
        if weighs >= most:
            yield portion
            portion, weighs = [], 0
    if portion:
        yield portion


async def _wait(seconds: float, stop: asyncio.Event | None) -> None:
    """Until that, or `stop`."""
    if seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await (stop or asyncio.Event()).wait()
        except TimeoutError:
            pass
