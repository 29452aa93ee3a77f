"""Pipeline, the spine: admit, execute, settle. A batch of runs goes through it between fetch and commit.

Nothing here commits. The host looks at the stage of each run afterwards: SETTLED ones move the watermark, all
others are held and come up again at `not_before`, from the stage that they reached. So an error in our own machinery
is never an acknowledgement, and a step that failed is repeated alone.

Ways of consuming differ in their `Steps`: calls of a handler (`Calls`), a transaction of a database, a loop, receivers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, NamedTuple, Protocol

from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.message.disposition import Dead, Duplicate, Suspended
from ackwise.middleware.pipeline.admission import Admission
from ackwise.middleware.pipeline.execution import Execution
from ackwise.middleware.pipeline.settlement import Assignment, Settlement
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.runs.agent import Agent, HandlerCall
from ackwise.middleware.runs.expiry import has_expired
from ackwise.middleware.runs.redelivery import batch_limit
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.usercode import shown

#: The turn of a batch that waits for no other one.
AT_ONCE: Final = nullcontext()


class HandlerStopped(BaseException):
    """A handler raised what stops a program, such as `SystemExit`; its message is not ruled on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(shown(error))
        self.error = error


class Phases(NamedTuple):
    """The phases of one handler, which the steps of each way of consuming use."""

    agent: Agent
    worker: Worker
    admission: Admission
    execution: Execution
    settlement: Settlement


class Steps(Protocol):
    """The steps in which ways of consuming differ.

    `assignment` is of the kind that they need. `call` is made for each batch, and gets the exception that stops the app.
    """

    fails_together: bool
    """Whether a handler that raises fails all messages of its batch, so that they come back in smaller ones."""

    def new_call(self) -> Any:
        """The call of a new batch: a `HandlerCall`."""

    def turn(self, assignment: Any, /) -> AbstractAsyncContextManager[object]:
        """Wait until a batch of `assignment` may be admitted; others wait until it has been executed."""
        ...

    async def execute(self, runs: list[Run], assignment: Any, call: Any, /) -> None:
        """Claim what is FETCHED, and let it run."""

    async def settle(self, runs: list[Run], assignment: Any, call: Any, /) -> None:
        """Take what is decided as far as it goes."""


class Pipeline:
    """The spine for one handler.

    `await pipeline(runs, assignment)` takes runs of one partition, in any stage below SETTLED, and leaves each of them SETTLED or
    held; those that fell out of another are added to the list. Raises `HandlerStopped` after everything else was settled.
    """

    def __init__(self, agent: Agent, worker: Worker, steps: Callable[[Phases], Steps] | None = None) -> None:
        """`steps` makes those of another way of consuming than `Calls`."""
        self.agent = agent
        self.admission = Admission(agent, worker)
        self.execution = Execution(agent, worker)
        self.phases = Phases(agent, worker, self.admission, self.execution, Settlement(agent, worker))
        self.steps: Steps = (steps or Calls)(self.phases)
        self._worker = worker

    async def __call__(self, runs: list[Run], assignment: Assignment) -> None:
        steps, call = self.steps, self.steps.new_call()
        try:
            async with steps.turn(assignment):
                call.stopped = await self.admission.prepare(runs)
                needs_log = self._worker.outage.is_on or self._worker.dedup is None
                if call.stopped is None and not assignment.cut_off and (not needs_log or await self._is_durable(runs)):
                    await steps.execute(runs, assignment, call)
            await steps.settle(runs, assignment, call)
        finally:
            if self._worker.flow.rate_limit_of(self.agent.name) is not None:
                self._worker.flow.forget(self.agent.name, runs)
        error = self._worker.stopping.error if call.stopped is None else call.stopped  # the user's, which may be false
        if error is not None:
            raise HandlerStopped(error)

    async def _is_durable(self, runs: list[Run]) -> bool:
        """Return whether the event log works; otherwise hold `runs`, which could not be settled: a kill would repeat all of them.

        Without claims, the event that they were received must be durable first: after a kill nothing else would say that they may have run.
        """
        try:
            await self._worker.make_durable()
        except EventLogUnavailable as error:
            fetched = [run for run in runs if run.stage is Stage.FETCHED]
            self._worker.postpone(fetched, "the event log is not durable, nothing is started", error)
            return False
        return True

    def find_order(self, runs: list[Run]) -> None:
        """Find the keys of `runs` for the order `key`. A message whose function raises has the key of its record."""
        if self.agent.order_by is not None:
            self.admission.decode(runs)  # what stops the app does so again once it is taken
        for run in runs:
            if run.order_keys is None and run.stage is Stage.FETCHED:
                run.order_keys = [record.key for record in run.records]

    def batch_limit(self, run: Run) -> int:
        """Return the largest batch for `run`, in messages, itself included."""
        if not self.steps.fails_together:
            return self.agent.max_batch
        return batch_limit(run, self.agent.max_batch, self._worker.later_of(self.agent), self.agent.in_place)

    @property
    def undeduplicated(self) -> int:
        """Return the number of messages that ran without a claim because their key was `None` or empty."""
        return self.admission.undeduplicated

    @property
    def unprotected(self) -> int:
        """Return the number of messages that ran without a claim because the store was down."""
        return self.admission.unprotected

    @property
    def timed_out(self) -> int:
        """Return the number of its handler's calls that exceeded the consume timeout."""
        return self.execution.overtime.timed_out

    @property
    def abandoned(self) -> int:
        """Return the number of those that have not ended though they were cancelled."""
        return len(self.execution.overtime.abandoned)

    @property
    def running(self) -> int:
        """Return the number of its handler's calls that have not ended, including abandoned ones."""
        return self.execution.running


class Calls:
    """A handler that is called: with each batch, or with one message after the other."""

    fails_together = True

    def __init__(self, phases: Phases) -> None:
        self._worker = phases.worker
        self._admission = phases.admission
        self._execution = phases.execution
        self._settle = phases.settlement

    new_call = HandlerCall

    def turn(self, _: Assignment) -> AbstractAsyncContextManager[object]:
        """None: batches of a partition overlap as their lane lets them."""
        return AT_ONCE

    async def execute(self, runs: list[Run], assignment: Assignment, call: HandlerCall) -> None:
        """Claim once there is a slot, and call the handler."""
        async with self._execution.starts.turn(runs, assignment, call) as may_claim:
            if may_claim:
                await self._admission.claim(runs)
                await self._execution.run(runs, assignment, call, meanwhile=self._settle_finished)

    async def settle(self, runs: list[Run], assignment: Assignment, _: HandlerCall) -> None:
        """Settle what is decided."""
        if any(run.leader is not None for run in runs):
            follow(runs)
        await self._settle(runs, assignment)

    async def _settle_finished(self, runs: list[Run], assignment: Assignment) -> None:
        """Settle what is finished while the rest still runs, so that it can be committed before the partition is gone."""
        follow([run for run in runs if run.leader is not None and run.leader.disposition is not None])
        await self._settle(runs, assignment, due=self._worker.monotonic())
        assignment.pass_settled(runs)


def follow(runs: Sequence[Run]) -> None:
    """Duplicates inside a batch share their leader's fate: settled with it, no second copy; held with it.

    If it expired, they come up again: each expires by itself, or runs.
    """
    for run in runs:
        leader = run.leader
        if leader is None or run.stage is not Stage.FETCHED:
            continue
        if leader.disposition is None or isinstance(leader.disposition, Suspended) or has_expired(leader):
            run.leader = None
            run.postpone(leader.not_before, leader.why)
        else:
            ruling = leader.disposition
            stale = isinstance(ruling, Duplicate) and ruling.stale
            dead = isinstance(ruling, Dead) or (isinstance(ruling, Duplicate) and ruling.dead)
            ran = ruling.ran if isinstance(ruling, Duplicate) else None
            run.rule(Duplicate(stale, None if ran else str(leader.origin), dead, ran))
