"""Parking: what a lane has in hand for a handler that is paused, or that the breaker has stopped. It is held, and nobody begins it.

In the retry topic, where others wait behind it, what is too much or waits for its codec for too long goes back to a delay topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from ackwise.middleware.breaker import GRACE
from ackwise.middleware.decoding import CODEC_AWAY
from ackwise.middleware.errors import CodecUnavailable
from ackwise.middleware.flowcontrol import PAUSED, FlowControl, is_withheld_letter
from ackwise.middleware.message import TopicPartition
from ackwise.middleware.run import Run, Stage, count
from ackwise.plugin.group.backlog import Backlog, is_decided

__all__ = ["MOST_COPIES", "Parking"]

#: Copies for paused handlers that a partition of the retry topic keeps in memory; those above go back to a delay topic.
MOST_COPIES: Final = 200

#: How often a copy of the retry topic is tried to be decoded while its codec is away, some 16 seconds, until it goes back to a delay topic.
_MOST_TRIES: Final = 8


class Parking:
    """The paused messages of the lane of `place`, which are held in its `backlog`. `handler` takes everything that it has, if one does."""

    def __init__(
        self,
        flow: FlowControl,
        place: TopicPartition,
        role: Literal["source", "retry"],
        handler: str | None,
        backlog: Backlog,
        put_off: Callable[[Run], None] | None = None,
    ) -> None:
        """`put_off` rules that a copy goes to a delay topic, at no attempt; without it all copies stay here."""
        self._flow = flow
        self._put_off = put_off if role == "retry" else None
        self._place = place
        self._handler = handler if role == "source" else None
        self._backlog = backlog

    @property
    def is_shut(self) -> bool:
        """Whether nothing more is to be fetched. A partition of the retry topic has copies for others than one paused handler."""
        return self._flow.is_shut(self._handler, self._place)

    @property
    def is_held(self) -> bool:
        """Whether nothing may begin: the one handler is paused or stopped, or it is not known yet what is paused."""
        return self._flow.held_until(self._handler or "", self._place) is not None

    def admit(self, batch: list[Run]) -> list[Run]:
        """Those of `batch`, all of one pipeline, that go on now: all, unless they are paused. What is decided needs no more user code."""
        if (self._flow.is_quiet and self._put_off is None) or (pipeline := batch[0].pipeline) is None or all(map(is_decided, batch)):
            return batch
        until = self._flow.held_until(pipeline.agent.name, self._place)
        if until is None:
            if self._put_off is not None:
                self._spare_others(batch, self._put_off)
            return batch
        decided = [run for run in batch if is_decided(run)]
        aside = [run for run in batch if not is_decided(run)]
        if self._put_off is not None and aside:
            room = max(0, MOST_COPIES - count(run for run in self._backlog.held if run.why == PAUSED))
            aside, surplus = aside[:room], aside[room:]  # each is a copy, and so a run of one
            for run in surplus:
                self._put_off(run)
            decided += surplus
        self._set_aside(aside, until)
        return decided

    def _spare_others(self, batch: Sequence[Run], put_off: Callable[[Run], None]) -> None:
        """Copies that wait for their codec for long go back: they would stop a partition that has copies for other handlers, too."""
        for run in batch:
            if run.why == CODEC_AWAY and run.stage is Stage.WITHHELD and run.tries >= _MOST_TRIES:
                put_off(run)
                run.error = CodecUnavailable.__name__

    def look_again(self) -> None:
        """Something was resumed: what was set aside comes up at once."""
        for run in self._backlog.held:
            if run.why == PAUSED or is_withheld_letter(run):
                run.not_before = 0.0

    def _set_aside(self, runs: Sequence[Run], until: float) -> None:
        for run in runs:
            if is_withheld_letter(run):
                run.not_before = until + GRACE
            else:
                run.postpone(max(until, run.not_before), PAUSED)
        self._backlog.hold(runs)
