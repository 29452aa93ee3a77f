"""Sender of a redrive: copies go to the group's own retry topic, then events, then the states of their letters.

In this order a kill leaves at most one portion sent and not noted. It is sent again under the same replay id, which the store knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from ackwise.middleware.errors import AckwiseError, PublishRefused
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.wire import Copy
from ackwise.plugin.deadletters.letter import REPLAY
from ackwise.plugin.deadletters.letterstate import LetterState
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.redrive import RedriveFate, Replay, copy_of
from ackwise.plugin.deadletters.statetopic import ensure_state_topic, write_states
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.matching import ensure_topics_of
from ackwise.plugin.group.publisher import KafkaPublisher

__all__ = ["Sender"]


class Sender:
    """Sends letters of `place` again, for its app. `clock`: epoch seconds."""

    def __init__(self, place: Place, app: Group, *, clock: Callable[[], float] = time.time) -> None:
        """Raises `ConfigurationError` for events that can't be written."""
        self._place = place
        self._app = app
        self._clock = clock
        self._publisher = KafkaPublisher(place.settings)
        self._sink: EventSink | None = app.slots.open_sink(place.group, app.sources)

    @property
    def records(self) -> bool:
        """Whether events say what is sent."""
        return self._sink is not None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """With every topic there, and everything open that sending takes. Raises `AckwiseError`."""
        await ensure_topics_of(self._app)
        await ensure_state_topic(self._place)
        async with AsyncExitStack() as opened:
            if self._sink is not None:
                opened.push_async_callback(self._sink.close)
                await self._sink.open()
            opened.push_async_callback(self._publisher.stop)
            await self._publisher.start()
            yield

    async def send(self, replays: Sequence[Replay]) -> None:
        """Send those without a fate, and note them. Raises `AckwiseError` if some have no answer; those that have are noted then."""
        now_ms = round(self._clock() * 1000)
        going = [each for each in replays if each.fate is None]
        answers = await self._publisher.publish([self._copy(each, now_ms) for each in going])
        failed: AckwiseError | None = None
        for each, answer in zip(going, answers, strict=True):
            if answer is None:
                each.fate = RedriveFate.SENT
            elif isinstance(answer, PublishRefused):
                each.fate = RedriveFate.REFUSED
            else:
                failed = failed or answer
        sent = [each for each in going if each.fate is RedriveFate.SENT]
        await self._record(sent)
        said = [(each.letter.id, LetterState("redriven", each.number, now_ms, each.letter.message)) for each in sent]
        await write_states(self._publisher, self._place, said)
        if failed is not None:
            raise failed

    def _copy(self, replay: Replay, now_ms: int) -> Copy:
        return copy_of(replay, _replay_id(replay).encode(), topic=self._app.names.retry, group=self._place.group, now_ms=now_ms)

    async def _record(self, sent: Sequence[Replay]) -> None:
        """In the coordinates of the origin, and said to be elsewhere: the group has not read it there now."""
        if self._sink is None or not sent:
            return
        epoch = None if self._app.dedup is None else self._app.dedup.epoch
        for each in sent:
            origin = each.delivery.origin
            attrs = json.dumps({"redrive": _replay_id(each), "letter": f"{self._place.names.dead_letter}/{each.letter.id}"})
            self._sink.record(
                Event(
                    EventCode.REDELIVERED, origin.topic, origin.partition, origin.offset, each.letter.handler, 1, dedup_epoch=epoch,
                    record_ts_ms=origin.timestamp_ms, phys_topic=self._app.names.retry, phys_partition=origin.partition, attrs=attrs,
                )
            )  # fmt: skip
        await self._sink.flush()


def _replay_id(replay: Replay) -> str:
    return f"{REPLAY}{replay.number}"
