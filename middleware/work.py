"""Work: the messages of one batch on their way through the handler, in one task or in several."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ackwise.middleware.batch import Batch
from ackwise.middleware.handlercall import HandlerCall
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

    until: float | None = None
    """Until when what failed together may run again in halves, monotonic seconds."""

    told: set[Run] = field(default_factory=set)
    """What the log has told of."""
    is_stuck: bool = False
    """A portion of it could not be settled: nothing more of it starts."""

    def goes_on(self, call: HandlerCall) -> bool:
        """Whether `call` may begin with something."""
        is_over = self.assignment.cut_off or self.is_stuck or self.call.called_off or call.is_abandoned
        return not is_over and self.call.stopped is None


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
