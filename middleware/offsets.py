"""The two spines of `Transactional(mode="offsets")`: one for partitions of sources, one for those of the retry topic.

On a source, a batch, what it wrote and the partition's next offset are one transaction: one row per partition instead of
one per message. Messages of a partition are passed in order, each after the one before it. A message that comes
back has a row of its own, written by the transaction that passed it. A copy without such a row is one of a transaction
that was rolled back, and does not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Duplicate, Later
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.run import Run, Stage
from ackwise.middleware.settlement import PUBLISH_AGAIN, Assignment
from ackwise.middleware.transaction import OffsetsStore, OffsetsTransaction, Permit, Transaction
from ackwise.middleware.transactional import UNDONE, RollBack, TransactionalPipeline, finish_of, one_by_one
from ackwise.middleware.worker import Worker

__all__ = ["CopiesPipeline", "OffsetsPipeline", "OwnedPartition"]


class OwnedPartition(Assignment, Protocol):
    """The partition of a source that a batch came from; `generation` is that of its offset in the database."""

    topic: str
    partition: int
    generation: int


class OffsetsPipeline(TransactionalPipeline):
    """The spine for one handler on its sources, in `store`; `owner` is whose offsets they are: namespace, epoch and group."""

    def __init__(self, agent: Agent, worker: Worker, store: OffsetsStore, owner: str) -> None:
        super().__init__(agent, worker, store)
        self._owner = owner
        self._in_doubt: weakref.WeakSet[Run] = weakref.WeakSet()

    async def _process(self, runs: list[Run], assignment: Assignment) -> None:
        one_by_one(runs)
        partition = cast(OwnedPartition, assignment)
        stopped = await self._admission.prepare(runs)
        if stopped is None and await self._is_clear(runs, partition) and await self._may_begin(runs, assignment):
            await self._settle.publish([run for run in runs if run.stage is Stage.RULED], partition)
            stopped = await self._transact(_before_the_first_that_waits(runs), partition)
        passed = list(takewhile(self._is_passed, runs))
        if await self._pass_what_did_not_run(passed, partition):
            await self._settle(passed, partition)
        self._stop_if(stopped)

    async def _pass_what_did_not_run(self, passed: Sequence[Run], partition: OwnedPartition) -> bool:
        """Behind the last one that ran: what can't be decoded is passed too, or each next owner would send its dead letter again."""
        if not passed or passed[-1].exec_id is not None:
            return True
        end = passed[-1].delivery.offset + 1
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                if await self._lock(transaction, partition) < end:
                    offsets = cast(OffsetsTransaction, transaction)
                    await offsets.advance(self._owner, partition.topic, partition.partition, partition.generation, end)
        except UNDONE as error:
            self._worker.postpone(passed, "the database does not know yet that they are passed", error)
            return False
        return True

    async def _is_clear(self, runs: Sequence[Run], partition: OwnedPartition) -> bool:
        """Ask for the outcome of commits that are in doubt: what was passed goes on, the rest is fetched again."""
        doubtful = [run for run in runs if run in self._in_doubt]
        if not doubtful:
            return True
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                passed = await self._lock(transaction, partition)
        except UNDONE as error:
            self._worker.postpone(doubtful, "it is not known whether they were committed", error)
            return False
        for run in doubtful:
            self._in_doubt.discard(run)
            if run.delivery.offset >= passed:
                run.undo()
        return True

    async def _transact(self, runs: Sequence[Run], assignment: Assignment) -> BaseException | None:
        fetched = [run for run in runs if run.stage is Stage.FETCHED]
        if not fetched or assignment.cut_off:
            return None
        if (stopped := await self._admission.renew(fetched)) is not None:
            return stopped
        if not all(run.stage is Stage.FETCHED for run in fetched):
            return None  # one could not be decoded again: what is behind it waits
        call = await self._attempt(fetched, assignment)
        if call.raised is None or call.stopped is not None:
            return call.stopped
        if len(fetched) == 1:
            await self._mark_failed(fetched, assignment)
            return None
        middle = len(fetched) // 2
        stopped = await self._transact(fetched[:middle], assignment)
        if stopped is None and all(self._is_passed(run) for run in fetched[:middle]):
            stopped = await self._transact(fetched[middle:], assignment)
        return stopped

    async def _claim(self, transaction: Transaction, fetched: Sequence[Run], assignment: Assignment) -> list[Run]:
        await self._lock(transaction, cast(OwnedPartition, assignment))
        for run in fetched:
            run.stage = Stage.ADMITTED
        return list(fetched)

    async def _publish_and_mark(self, transaction: Transaction, mine: Sequence[Run], assignment: Assignment) -> None:
        partition = cast(OwnedPartition, assignment)
        await self._settle.publish(mine, partition)
        if any(run.stage is not Stage.PUBLISHED for run in mine):
            raise RollBack  # it can't be passed, and what was written for the others can't stay without it
        sent_back = [run for run in mine if isinstance(run.disposition, Later)]
        await transaction.finish([finish_of(run, run.key) for run in sent_back if run.key is not None])
        offsets = cast(OffsetsTransaction, transaction)
        await offsets.advance(self._owner, partition.topic, partition.partition, partition.generation, mine[-1].delivery.offset + 1)

    def _roll_back(self, mine: Sequence[Run], call: HandlerCall, *, alone: bool = True) -> None:
        waits = [run for run in mine if run.stage is not Stage.ADMITTED]
        if call.raised is None and not call.called_off and call.stopped is None and len(waits) == len(mine):
            for run in mine:
                run.undo()
            self._worker.postpone(mine, "copies are not acknowledged", wait=PUBLISH_AGAIN)
        else:
            super()._roll_back(mine, call, alone=alone)

    async def _mark_failed(self, runs: Sequence[Run], assignment: Assignment) -> None:
        partition = cast(OwnedPartition, assignment)
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                await self._lock(transaction, partition)
                await self._publish_and_mark(transaction, runs, assignment)
        except RollBack:
            self._roll_back(runs, HandlerCall())
        except UNDONE as error:
            self._undo_and_postpone(runs, error)

    def _undo_and_postpone(self, runs: Sequence[Run], error: AckwiseError) -> None:
        """What had come to the commit is in doubt, and is asked for before anything is run again."""
        doubtful = [run for run in runs if run.stage is Stage.PUBLISHED and run.delivery.at_origin]
        self._in_doubt.update(doubtful)
        self._worker.postpone(doubtful, "it is not known whether they were committed", error)
        super()._undo_and_postpone([run for run in runs if run not in self._in_doubt], error)

    async def _lock(self, transaction: Transaction, partition: OwnedPartition) -> int:
        offsets = cast(OffsetsTransaction, transaction)
        return await offsets.lock(self._owner, partition.topic, partition.partition, partition.generation)

    def _stands(self, run: Run) -> bool:
        # A copy counts only with the transaction that passed its original.
        return super()._stands(run) and not run.delivery.at_origin

    def _is_passed(self, run: Run) -> bool:
        return run.stage >= Stage.PUBLISHED and run not in self._in_doubt


class CopiesPipeline(TransactionalPipeline):
    """The spine for one handler on the retry topic: copies whose originals were passed, each with the row that passed it."""

    def __init__(self, agent: Agent, worker: Worker, store: OffsetsStore, owner: str) -> None:
        super().__init__(agent, worker, store)
        self._owner = owner

    async def _claim(self, transaction: Transaction, fetched: Sequence[Run], assignment: Assignment) -> list[Run]:
        return await super()._claim(transaction, await self._permitted(transaction, fetched), assignment)

    async def _permitted(self, transaction: Transaction, fetched: Sequence[Run]) -> list[Run]:
        # What an operator redrives was sent back by no transaction, and runs all the same.
        keyed = [(run, run.key) for run in fetched if run.key is not None and run.delivery.replay_id is None]
        copies = [(key, run.delivery.origin[:3]) for run, key in keyed]
        permits = await cast(OffsetsTransaction, transaction).permits(self._owner, copies) if copies else []
        for (run, _), permit in zip(keyed, permits, strict=True):
            if permit is Permit.SUPERSEDED:
                run.rule(Duplicate(stale=True))
            elif permit is Permit.PENDING:
                self._worker.postpone([run], "its original is not passed yet")
        pending = {id(run) for (run, _), permit in zip(keyed, permits, strict=True) if permit is Permit.PENDING}
        return [run for run in fetched if run.stage is Stage.FETCHED and id(run) not in pending]


def _before_the_first_that_waits(runs: Sequence[Run]) -> list[Run]:
    """In order, up to one whose dead letter is not there yet."""
    passable = []
    for run in runs:
        if run.stage in (Stage.RULED, Stage.WITHHELD):
            break
        passable.append(run)
    return passable
