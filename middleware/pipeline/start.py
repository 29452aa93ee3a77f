"""Start of messages: the order among those of a partition, the tasks that run them, and the checks before each call of a handler.

    no one runs alone → a slot → the claims → before each call: cut-off, pause, breaker, rate, slot

A batch has no claims before it has its first slot. A message that waits for its rate or for another slot keeps its claim. If the
partition is cut off, the handler is paused or stopped, or another message is to run alone, messages that have not started give their claims
back at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Done, Duplicate
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.pipeline.middlewarecall import MiddlewareCall
from ackwise.middleware.pipeline.settlement import Assignment
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.run import Run, Stage, count, divide
from ackwise.middleware.usercode import Raised, Stops


def first_unfinished(runs: list[Run]) -> int | None:
    """The offset of the first message of `runs` that is not to run now, and is neither done nor a dead letter that was acknowledged."""
    return min((run.first for run in runs if len(run) and run.leader is None and _is_unfinished(run)), default=None)


def hold_back(runs: list[Run], leases: Leases | None, now: float) -> None:
    """Give back what is ADMITTED behind the first that is unfinished. It costs no attempt, and comes up again behind that."""
    waiting = first_unfinished(runs)
    if waiting is None:
        return
    for run in [run for run in runs if run.stage is Stage.ADMITTED and run.last > waiting]:
        for part in divide(runs, run, [[place for place, offset in enumerate(run.offsets) if offset > waiting]]):
            if leases is not None:
                leases.give_back(part)
            part.forget_claim()
            part.postpone(now, "it waits behind an earlier message of its partition")


def _is_unfinished(run: Run) -> bool:
    return run.stage in (Stage.WITHHELD, Stage.FETCHED) or (run.stage is Stage.RULED and not isinstance(run.disposition, Done | Duplicate))


@dataclass(slots=True)
class Work:
    """The messages of one batch on their way through the handler."""

    runs: list[Run]
    ready: Sequence[Run]
    queue: deque[Any]
    """What has not started: messages, or parts of the batch."""
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
        """Return whether `call`, or a new one, may start with something."""
        is_over = self.assignment.cut_off or self.is_stuck or self.call.called_off or (call is not None and call.is_abandoned)
        return not is_over and self.call.stopped is None

    def __len__(self) -> int:
        """Return the number of messages that have not started."""
        return len(self.queue) + len(self.parts) + (0 if self.around is None else len(self.around.waiting))

    def take_unstarted(self) -> list[Run]:
        """Take out what has not started."""
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


#: Seconds that stand for a lease where there is none.
NO_LEASE: Final = 30.0


class StartControl:
    """The starts of the handler of `agent` in one worker."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._slots = agent.loops or (None if agent.slots is None else asyncio.Semaphore(agent.slots))

    def is_shut(self, assignment: Assignment, place: TopicPartition, call: HandlerCall) -> bool:
        """Return whether nothing of `place` may start in `call`, and its claims are to be given back."""
        flow, isolation = self._worker.flow, self._worker.isolation
        is_paused = not flow.is_quiet and flow.is_paused(self._agent.name, place)
        return assignment.cut_off or is_paused or isolation.is_shut(call)

    @asynccontextmanager
    async def turn(self, runs: Sequence[Run], assignment: Assignment, call: HandlerCall) -> AsyncIterator[bool]:
        """Wait until `call` may claim `runs`: it has a slot then, and no one runs alone. `False`: nothing of them may start now.

        What succeeded here is to be claimed and not to be run: it waits for nothing where its partition takes nothing new.
        """
        waiting = [run for run in runs if run.stage is Stage.FETCHED]
        if not waiting or (assignment.is_stopping and all(run.succeeded for run in waiting)):
            yield not assignment.cut_off
            return
        leases = self._worker.leases
        for run in waiting:
            run.call = call  # its lane can stir it
        try:
            with self._worker.isolation.beside(call):
                if leases is not None and any(run.alone for run in waiting):
                    async with self._alone(waiting[0].place, leases.lease, assignment, call) as may_claim:
                        call.unstarted = runs
                        yield may_claim
                else:
                    may_claim = await self._may_claim(waiting, assignment, call)
                    call.unstarted = runs
                    yield may_claim
        finally:
            call.unstarted = ()
            if call.task is None or call.task.done():  # else its slot is that of what still runs
                self.end(call)
            for run in waiting:
                if run.call is call:
                    run.call = None

    def _is_over(self, place: TopicPartition, assignment: Assignment, call: HandlerCall, *, stopping: bool = False) -> bool:
        """Return whether nothing of `place` starts in `call` any more; `stopping`, also since its partition takes nothing new."""
        flow, is_over = self._worker.flow, call.called_off or assignment.cut_off or (stopping and assignment.is_stopping)
        return is_over or (not flow.is_quiet and flow.is_paused(self._agent.name, place))

    async def _may_claim(self, waiting: Sequence[Run], assignment: Assignment, call: HandlerCall) -> bool:
        """Wait for a slot while no one runs alone."""
        isolation, place = self._worker.isolation, waiting[0].place
        while not self._is_over(place, assignment, call):
            if isolation.is_shut(call):
                self.end(call)
                if assignment.is_stopping:
                    return False
                await call.wait()
            elif self._slots is not None and not self._has_slot(call):
                if not await self._take_slot(call, partial(self._is_over, place, assignment, call, stopping=True)):
                    return False
                await self._take_more(call, count(waiting))
            else:
                return True
        return False

    @asynccontextmanager
    async def _alone(self, place: TopicPartition, lease: float, assignment: Assignment, call: HandlerCall) -> AsyncIterator[bool]:
        """Alone, for a message that workers died of."""
        isolation, is_over = self._worker.isolation, partial(self._is_over, place, assignment, call, stopping=True)
        while not self._is_over(place, assignment, call):
            async with isolation.exclusive(lease, call, is_over=is_over) as is_alone:
                if is_alone and await self._take_slot(call, lambda: is_over() or not isolation.is_alone(call)):
                    yield True
                    return
            if not await self._take_slot(call, is_over):  # calls without end have them all: others go on meanwhile
                break
        yield False

    async def _take_slot(self, call: HandlerCall, is_over: Callable[[], bool]) -> bool:
        """Wait for one of those that the handler has in this worker, unless it `is_over`."""
        if self._slots is None or self._has_slot(call):
            return not is_over()
        if not self._slots.locked():
            await self._slots.acquire()
            call.slots += 1
            return True
        acquiring = asyncio.ensure_future(self._slots.acquire())
        try:
            while not (acquiring.done() or is_over()):
                await call.wait(acquiring)
        finally:
            if acquiring.done():
                call.slots += 1
            else:
                acquiring.cancel()
        return call.slots > 0

    async def _take_more(self, call: HandlerCall, messages: int) -> None:
        """Take those that are free by now, for as many `messages` as may run side by side: what came first starts first."""
        most = min(self._agent.concurrency or 1, messages) if self.runs_beside(call) else 1
        while self._slots is not None and call.slots < most and not self._slots.locked():
            await self._slots.acquire()
            call.slots += 1

    def runs_beside(self, call: HandlerCall) -> bool:
        """Return whether messages of one batch may run side by side."""
        return self._agent.kind == "message" and self._agent.overlaps and call.transaction is None

    def _has_slot(self, call: HandlerCall) -> bool:
        return self._slots is None or call.slots > 0 or call.transaction is not None

    async def next(self, work: Work, call: HandlerCall) -> Any | None:
        """Take out of the queue of `work` what starts now, in `call`, which has a slot then; `None`: nothing more of it starts."""
        while work.queue and work.goes_on(call) and not self.is_shut(work.assignment, work.ready[0].place, work.call):
            limit = self._worker.flow.rate_limit_of(self._agent.name)
            place, seconds = (0, 0.0) if limit is None else self._first(work, limit)
            if seconds > 0:
                self.end(call)
                await self._wait(call, asyncio.sleep(seconds))
            elif self._slots is not None and not self._has_slot(call):
                await self._wait(call, self._slots.acquire())
                call.slots += 1
            else:
                found = work.queue[place]
                del work.queue[place]
                return found
        self.end(call)
        return None

    def _first(self, work: Work, rate_limit: RateLimit) -> tuple[int, float]:
        """The place in the queue of what the rate lets start first, and the seconds until then."""
        flow, name = self._worker.flow, self._agent.name
        in_order = self._agent.order == "partition" or work.call.transaction is not None
        waits = []
        for place, waiting in enumerate(work.queue):
            seconds = flow.start_after(name, [waiting] if isinstance(waiting, Run) else waiting)
            if seconds <= 0 or in_order or rate_limit.key is None:
                return place, seconds
            waits.append((seconds, place))
        seconds, place = min(waits)
        return place, seconds

    async def _wait(self, call: HandlerCall, waiting: Awaitable[object]) -> None:
        """Wait with nothing in flight: the task may be cancelled meanwhile."""
        call.is_waiting = True
        try:
            await waiting
        finally:
            call.is_waiting = False

    def end(self, call: HandlerCall) -> None:
        """Give the slot of `call`, which has ended, to the next one."""
        while call.slots and self._slots is not None:
            call.slots -= 1
            self._slots.release()
        self._worker.isolation.look()
