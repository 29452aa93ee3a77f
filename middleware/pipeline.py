"""The spine: admit, execute, settle. What a batch of entries goes through between fetch and commit.

Nothing here commits. The host looks at the stage of each entry afterwards: SETTLED ones move the watermark, all
others are held and come up again at `not_before`, from the stage that they reached. So an error in our own machinery
is never an acknowledgement, and a step that failed is repeated alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ackwise.middleware.admission import Admission
from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Duplicate
from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.execution import Execution
from ackwise.middleware.settlement import Assignment, Settlement
from ackwise.middleware.worker import Worker

__all__ = ["HandlerStopped", "Pipeline", "follow"]


class HandlerStopped(BaseException):
    """A handler raised what stops a program, such as `SystemExit`; its message is not ruled on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Pipeline:
    """The spine for one handler.

    `await pipeline(entries, assignment)` takes entries of one partition, in any stage below SETTLED, and leaves
    each of them SETTLED or held. Raises `HandlerStopped` after everything else was settled.
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

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        stopped = self._admission.prepare(entries)
        if stopped is None:
            async with self._turn(entries) as may_run:
                if may_run:
                    await self._admission.claim(entries)
                    stopped = (await self._execution.run(entries)).stopped
        follow(entries)
        await self._settle(entries, assignment)
        if stopped is not None:
            raise HandlerStopped(stopped)

    @asynccontextmanager
    async def _turn(self, entries: Sequence[Entry]) -> AsyncIterator[bool]:
        """Beside other batches, or alone for a message that workers died of; `False` if the worker did not come to rest."""
        isolation, leases = self._worker.isolation, self._worker.leases
        alone = [entry for entry in entries if entry.alone and entry.stage is Stage.FETCHED]
        if leases is None or not alone:
            async with isolation.shared():
                yield True
            return
        async with isolation.exclusive(leases.lease) as idle:
            if not idle:
                self._worker.hold(alone, "it runs alone, and the worker is not idle", wait=leases.lease)
            yield idle


def follow(entries: Sequence[Entry]) -> None:
    """Duplicates inside a batch share their leader's fate: settled with it, no second copy; held with it."""
    for entry in entries:
        leader = entry.leader
        if leader is None or entry.stage is not Stage.FETCHED:
            continue
        if leader.disposition is None:
            entry.leader = None
            entry.hold(leader.not_before, leader.why)
        else:
            stale = isinstance(leader.disposition, Duplicate) and leader.disposition.stale
            entry.rule(Duplicate(stale, leader=str(leader.delivery.origin)))
