"""Work: the messages of one batch on their way through the handler, in one task or in several."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ackwise.middleware.batch import Batch
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.middlewarecall import MiddlewareCall
from ackwise.middleware.run import Run
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.usercode import Raised, Stops

__all__ = ["Work", "parts_of"]


@dataclass(slots=True)
class Work:
    """The messages of one batch on their way through the handler."""

    runs: list[Run]
    ready: Sequence[Run]
    queue: deque[Any]
    """What has not begun: messages, or parts of the batch."""
    assignment: Assignment
    call: HandlerCall
    calls: list[HandlerCall] = field(default_factory=list)
    """Those that are waited for."""
    batch: Batch[Any] | None = None
    """What a handler of batches has now."""
    raised: dict[Run, BaseException] = field(default_factory=dict)
    broken: list[Raised | Stops] = field(default_factory=list)

    around: MiddlewareCall | None = None
    """The middleware around what is handled now."""
    parts: deque[list[Run]] = field(default_factory=deque)
    """What is handled after that, where each part has a call of the middleware around it."""
    until: float | None = None
    """Until when what failed together may run again in halves, monotonic seconds."""

    told: set[Run] = field(default_factory=set)
    """What the log has told of."""
    is_stuck: bool = False
    """A portion of it could not be settled: nothing more of it starts."""

    def goes_on(self, call: HandlerCall | None = None) -> bool:
        """Whether `call`, or a new one, may begin with something."""
        is_over = self.assignment.cut_off or self.is_stuck or self.call.called_off or (call is not None and call.is_abandoned)
        return not is_over and self.call.stopped is None

    def __len__(self) -> int:
        """How much has not begun."""
        return len(self.queue) + len(self.parts) + (0 if self.around is None else len(self.around.waiting))

    def take_unstarted(self) -> list[Run]:
        """Take out what has not begun."""
        found = [run for waiting in (*self.queue, *self.parts) for run in ([waiting] if isinstance(waiting, Run) else waiting)]
        self.queue.clear()
        self.parts.clear()
        if self.around is not None:
            found += self.around.waiting
            self.around.waiting = []
        return found


def parts_of(ready: Sequence[Run]) -> Iterator[list[Run]]:
    """`ready` in order, in parts that are as large as each message in them allows."""
    part: list[Run] = []
    size, limit = 0, sys.maxsize
    for run in ready:
        limit = min(limit, run.at_most or limit)
        if part and size + len(run) > limit:
            yield part
            part, size, limit = [], 0, run.at_most or sys.maxsize
        part.append(run)
        size += len(run)
    if part:
        yield part
