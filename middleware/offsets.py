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
from ackwise.middleware.entry import Entry, HandlerRun, Stage
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.pipeline import HandlerStopped
from ackwise.middleware.settlement import PUBLISH_AGAIN, Assignment
from ackwise.middleware.transaction import OffsetsStore, OffsetsTransaction, Permit, Transaction
from ackwise.middleware.transactional import RollBack, TransactionalPipeline, finish_of
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
        self._in_doubt: weakref.WeakSet[Entry] = weakref.WeakSet()

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        partition = cast(OwnedPartition, assignment)
        stopped = self._admission.prepare(entries)
        if stopped is None and await self._is_clear(entries, partition) and await self._may_begin(entries, assignment):
            await self._settle.publish([entry for entry in entries if entry.stage is Stage.RULED], partition)
            stopped = await self._transact(_before_the_first_that_waits(entries), partition)
        passed = list(takewhile(self._is_passed, entries))
        if await self._pass_what_did_not_run(passed, partition):
            await self._settle(passed, partition)
        if stopped is not None:
            raise HandlerStopped(stopped)

    async def _pass_what_did_not_run(self, passed: Sequence[Entry], partition: OwnedPartition) -> bool:
        """Behind the last one that ran: what can't be decoded is passed too, or each next owner would send its dead letter again."""
        if not passed or passed[-1].exec_id is not None:
            return True
        end = passed[-1].delivery.offset + 1
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                if await self._lock(transaction, partition) < end:
                    offsets = cast(OffsetsTransaction, transaction)
                    await offsets.advance(self._owner, partition.topic, partition.partition, partition.generation, end)
        except StoreUnavailable as error:
            self._worker.postpone(passed, "the database does not know yet that they are passed", error)
            return False
        return True

    async def _is_clear(self, entries: Sequence[Entry], partition: OwnedPartition) -> bool:
        """Ask for the outcome of commits that are in doubt: what was passed goes on, the rest is fetched again."""
        doubtful = [entry for entry in entries if entry in self._in_doubt]
        if not doubtful:
            return True
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                passed = await self._lock(transaction, partition)
        except StoreUnavailable as error:
            self._worker.postpone(doubtful, "it is not known whether they were committed", error)
            return False
        for entry in doubtful:
            self._in_doubt.discard(entry)
            if entry.delivery.offset >= passed:
                entry.undo()
        return True

    async def _transact(self, entries: Sequence[Entry], assignment: Assignment) -> BaseException | None:
        fetched = [entry for entry in entries if entry.stage is Stage.FETCHED]
        if not fetched or assignment.cut_off:
            return None
        run = await self._attempt(fetched, assignment)
        if run.raised is None or run.stopped is not None:
            return run.stopped
        if len(fetched) == 1:
            await self._mark_failed(fetched, assignment)
            return None
        middle = len(fetched) // 2
        stopped = await self._transact(fetched[:middle], assignment)
        if stopped is None and all(self._is_passed(entry) for entry in fetched[:middle]):
            stopped = await self._transact(fetched[middle:], assignment)
        return stopped

    async def _claim(self, transaction: Transaction, fetched: Sequence[Entry], assignment: Assignment) -> list[Entry]:
        await self._lock(transaction, cast(OwnedPartition, assignment))
        for entry in fetched:
            entry.stage = Stage.ADMITTED
        return list(fetched)

    async def _publish_and_mark(self, transaction: Transaction, mine: Sequence[Entry], assignment: Assignment) -> None:
        partition = cast(OwnedPartition, assignment)
        await self._settle.publish(mine, partition)
        if any(entry.stage is not Stage.PUBLISHED for entry in mine):
            raise RollBack  # it can't be passed, and what was written for the others can't stay without it
        sent_back = [entry for entry in mine if isinstance(entry.disposition, Later)]
        await transaction.finish([finish_of(entry, entry.key) for entry in sent_back if entry.key is not None])
        offsets = cast(OffsetsTransaction, transaction)
        await offsets.advance(self._owner, partition.topic, partition.partition, partition.generation, mine[-1].delivery.offset + 1)

    def _roll_back(self, mine: Sequence[Entry], run: HandlerRun) -> None:
        waits = [entry for entry in mine if entry.stage is not Stage.ADMITTED]
        if run.raised is None and not run.called_off and run.stopped is None and len(waits) == len(mine):
            for entry in mine:
                entry.undo()
            self._worker.postpone(mine, "copies are not acknowledged", wait=PUBLISH_AGAIN)
        else:
            super()._roll_back(mine, run)

    async def _mark_failed(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        partition = cast(OwnedPartition, assignment)
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                await self._lock(transaction, partition)
                await self._publish_and_mark(transaction, entries, assignment)
        except RollBack:
            self._roll_back(entries, HandlerRun())
        except StoreUnavailable as error:
            self._undo_and_postpone(entries, error)

    def _undo_and_postpone(self, entries: Sequence[Entry], error: StoreUnavailable) -> None:
        """What had come to the commit is in doubt, and is asked for before anything is run again."""
        doubtful = [entry for entry in entries if entry.stage is Stage.PUBLISHED and entry.delivery.at_origin]
        self._in_doubt.update(doubtful)
        self._worker.postpone(doubtful, "it is not known whether they were committed", error)
        super()._undo_and_postpone([entry for entry in entries if entry not in self._in_doubt], error)

    async def _lock(self, transaction: Transaction, partition: OwnedPartition) -> int:
        offsets = cast(OffsetsTransaction, transaction)
        return await offsets.lock(self._owner, partition.topic, partition.partition, partition.generation)

    def _stands(self, entry: Entry) -> bool:
        # A copy counts only with the transaction that passed its original.
        return super()._stands(entry) and not entry.delivery.at_origin

    def _is_passed(self, entry: Entry) -> bool:
        return entry.stage >= Stage.PUBLISHED and entry not in self._in_doubt


class CopiesPipeline(TransactionalPipeline):
    """The spine for one handler on the retry topic: copies whose originals were passed, each with the row that passed it."""

    def __init__(self, agent: Agent, worker: Worker, store: OffsetsStore, owner: str) -> None:
        super().__init__(agent, worker, store)
        self._owner = owner

    async def _claim(self, transaction: Transaction, fetched: Sequence[Entry], assignment: Assignment) -> list[Entry]:
        return await super()._claim(transaction, await self._permitted(transaction, fetched), assignment)

    async def _permitted(self, transaction: Transaction, fetched: Sequence[Entry]) -> list[Entry]:
        keyed = [(entry, entry.key) for entry in fetched if entry.key is not None]
        copies = [(key, entry.delivery.origin[:3]) for entry, key in keyed]
        permits = await cast(OffsetsTransaction, transaction).permits(self._owner, copies) if copies else []
        for (entry, _), permit in zip(keyed, permits, strict=True):
            if permit is Permit.SUPERSEDED:
                entry.rule(Duplicate(stale=True))
            elif permit is Permit.PENDING:
                self._worker.postpone([entry], "its original is not passed yet")
        pending = {id(entry) for (entry, _), permit in zip(keyed, permits, strict=True) if permit is Permit.PENDING}
        return [entry for entry in fetched if entry.stage is Stage.FETCHED and id(entry) not in pending]


def _before_the_first_that_waits(entries: Sequence[Entry]) -> list[Entry]:
    """In order, up to one whose dead letter is not there yet."""
    passable = []
    for entry in entries:
        if entry.stage is Stage.RULED:
            break
        passable.append(entry)
    return passable
