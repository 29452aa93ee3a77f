"""Consume timeout: a handler that takes too long is cancelled, and one that goes on all the same is left alone.

RocketMQ 5.3: `ConsumeMessageConcurrentlyService.cleanExpiredMsg` sends a message back after 15 minutes, and lets its handler go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConsumeTimeout
from ackwise.middleware.log import Log
from ackwise.middleware.message.message import Origin
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.run import count

log = Log()

#: Seconds between warnings about a handler that does not come back, and between looks at the time at most.
HANG_WARNING: Final = 60.0

#: Seconds that a handler has to end after it was cancelled.
ABANDON_AFTER: Final = 5.0


class Overtime:
    """The calls of the handler of `agent` that take longer than its consume timeout."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.timeout = agent.consume_timeout  #: seconds that a call may last; 0: forever
        self.every = min(HANG_WARNING, self.timeout / 10) if self.timeout else HANG_WARNING  #: seconds between looks
        self.timed_out = 0  #: calls that were cancelled
        self.abandoned: dict[asyncio.Task[None], Origin] = {}  #: of those, what did not end and has not ended yet, with its first message

    def sweep(self, calls: Iterable[HandlerCall], now: float) -> Iterator[HandlerCall]:
        """Cancel what is over its time, and return what was cancelled and did not end."""
        for call in calls:
            if call.deadline is None or now <= call.deadline or call.task is None or call.task.done():
                continue
            if not call.timed_out:
                call.timed_out = True
                call.deadline = now + ABANDON_AFTER
                self.timed_out += 1
                self._log_timed_out(call)
                call.task.cancel()
            else:
                call.deadline = None
                self._log_swallowed(call)
                yield call

    def error(self) -> ConsumeTimeout:
        """Return the error of a handler that was cancelled at its timeout."""
        return ConsumeTimeout(f"the handler took longer than {format_duration(self.timeout)}, or than the time that it asked for")

    def abandon(self, call: HandlerCall) -> None:
        """`call` is abandoned; it has its slot until it ends."""
        assert call.task is not None
        call.is_abandoned = True
        self.abandoned[call.task] = call.working_on[0].origin
        call.task.add_done_callback(self.abandoned.pop)

    def log_ended(self, call: HandlerCall, succeeded: bool) -> None:
        """A call that was abandoned has ended."""
        assert call.task is not None
        where = self.abandoned[call.task]
        log.warning(
            "a handler that was abandoned has ended",
            handler=self._agent.name,
            succeeded=succeeded,
            topic=where.topic,
            partition=where.partition,
            offset=where.offset,
        )

    def _log_timed_out(self, call: HandlerCall) -> None:
        where = call.working_on[0].origin
        log.warning(
            "handler exceeded its consume timeout",
            handler=self._agent.name,
            seconds=self.timeout,
            messages=count(call.working_on),
            topic=where.topic,
            partition=where.partition,
            offset=where.offset,
        )

    def _log_swallowed(self, call: HandlerCall) -> None:
        where = call.working_on[0].origin
        log.error(
            "cancelled handler still runs",
            handler=self._agent.name,
            seconds=ABANDON_AFTER,
            messages=count(call.working_on),
            topic=where.topic,
            partition=where.partition,
            offset=where.offset,
        )
