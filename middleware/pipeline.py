"""Pipeline, the spine: admit, execute, settle. A batch of runs goes through it between fetch and commit.

Nothing here commits. The host looks at the stage of each run afterwards: SETTLED ones move the watermark, all
others are held and come up again at `not_before`, from the stage that they reached. So an error in our own machinery
is never an acknowledgement, and a step that failed is repeated alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ackwise.middleware.admission import Admission
from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Dead, Duplicate, Suspended
from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.execution import Execution
from ackwise.middleware.fate import batch_limit
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.run import Run, Stage
from ackwise.middleware.settlement import Assignment, Settlement
from ackwise.middleware.usercode import shown
from ackwise.middleware.worker import Worker

__all__ = ["HandlerStopped", "Pipeline", "follow"]


class HandlerStopped(BaseException):
    """A handler raised what stops a program, such as `SystemExit`; its message is not ruled on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(shown(error))
        self.error = error


class Pipeline:
    """The spine for one handler.

    `await pipeline(runs, assignment)` takes runs of one partition, in any stage below SETTLED, and leaves each of them SETTLED or
    held; those that fell out of another are added to the list. Raises `HandlerStopped` after everything else was settled.
    """

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self.agent = agent
        self._worker = worker
        self._admission = Admission(agent, worker)
        self._execution = Execution(agent, worker)
        self._settle = Settlement(agent, worker)

    @property
    def undeduplicated(self) -> int:
        """How many messages ran without a claim because their key was `None` or empty."""
        return self._admission.undeduplicated

    @property
    def unprotected(self) -> int:
        """How many messages ran without a claim because the store was down."""
        return self._admission.unprotected

    @property
    def timed_out(self) -> int:
        """How many calls of its handler took longer than the consume timeout."""
        return self._execution.overtime.timed_out

    @property
    def abandoned(self) -> int:
        """How many of those have not ended though they were cancelled."""
        return len(self._execution.overtime.abandoned)

    @property
    def running(self) -> int:
        """How many calls of its handler have not ended, those that were abandoned or left behind among them."""
        return self._execution.running

    def find_order(self, runs: list[Run]) -> None:
        """Find the keys of `runs` for the order `key`. A message whose function raises has the key of its record."""
        if self.agent.order_by is not None:
            self._admission.decode(runs)  # what stops the app does so again once it is taken
        for run in runs:
            if run.order_keys is None and run.stage is Stage.FETCHED:
                run.order_keys = [record.key for record in run.records]

    def batch_limit(self, run: Run) -> int:
        """How many messages may be in a batch with `run`, itself included."""
        return batch_limit(run, self.agent.max_batch, self._worker.later, self.agent.in_place)

    async def __call__(self, runs: list[Run], assignment: Assignment) -> None:
        try:
            await self._process(runs, assignment)
        finally:
            self._worker.flow.forget(self.agent.name, runs)

    async def _process(self, runs: list[Run], assignment: Assignment) -> None:
        stopped = await self._admission.prepare(runs)
        if stopped is None and await self._may_begin(runs, assignment):
            call = HandlerCall()
            async with self._execution.starts.turn(runs, assignment, call) as may_claim:
                if may_claim:
                    await self._admission.claim(runs)
                    settle = partial(self._settle_finished, runs, assignment)
                    stopped = (await self._execution.run(runs, assignment, call, meanwhile=settle)).stopped
        follow(runs)
        await self._settle(runs, assignment)
        self._stop_if(stopped)

    def _stop_if(self, stopped: BaseException | None) -> None:
        """Raise `HandlerStopped` if user code raised what stops the app, in a call or in a retry policy."""
        error = self._worker.stopping.error if stopped is None else stopped
        if error is not None:
            raise HandlerStopped(error)

    async def _settle_finished(self, runs: list[Run], assignment: Assignment) -> None:
        """Settle what is finished while the rest still runs, so that it can be committed before the partition is gone."""
        follow([run for run in runs if run.leader is not None and run.leader.disposition is not None])
        await self._settle(runs, assignment, due=self._worker.monotonic())
        assignment.pass_settled(runs)

    async def _may_begin(self, runs: list[Run], assignment: Assignment) -> bool:
        """Return whether a batch may begin: the partition is still ours, and the event log works.

        Otherwise it could not be settled, and a kill would repeat all of it. Where nobody claims anything, that it was received must be
        durable first: after a kill nothing else would say that it may have run.
        """
        if assignment.cut_off or not (self._worker.outage.is_on or self._worker.dedup is None):
            return not assignment.cut_off
        try:
            await self._worker.make_durable()
        except EventLogUnavailable as error:
            fetched = [run for run in runs if run.stage is Stage.FETCHED]
            self._worker.postpone(fetched, "the event log is not durable, nothing is begun", error)
            return False
        return True


def follow(runs: Sequence[Run]) -> None:
    """Duplicates inside a batch share their leader's fate: settled with it, no second copy; held with it."""
    for run in runs:
        leader = run.leader
        if leader is None or run.stage is not Stage.FETCHED:
            continue
        if leader.disposition is None or isinstance(leader.disposition, Suspended):
            run.leader = None
            run.postpone(leader.not_before, leader.why)
        else:
            ruling = leader.disposition
            stale = isinstance(ruling, Duplicate) and ruling.stale
            dead = isinstance(ruling, Dead) or (isinstance(ruling, Duplicate) and ruling.dead)
            ran = ruling.ran if isinstance(ruling, Duplicate) else None
            run.rule(Duplicate(stale, None if ran else str(leader.origin), dead, ran))
