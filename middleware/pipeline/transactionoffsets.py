"""The two kinds of rows of `Transactional(mode="offsets")`: one for partitions of sources, one for those of the retry topic.

On a source, a batch, what it wrote and the partition's next offset are one transaction: one row per partition instead of
one per message. Messages of a partition are passed in order, each after the one before it. A message that comes
back has its own row, written by the transaction that passed it. A copy without such a row is one of a transaction
that was rolled back, and does not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import takewhile
from typing import Protocol, cast

from ackwise.middleware.message.disposition import Dead, Delayed, Duplicate
from ackwise.middleware.pipeline.pipeline import Phases, Steps
from ackwise.middleware.pipeline.settlement import Assignment
from ackwise.middleware.pipeline.transactions import UNDONE, Inbox, Transactions, Unacknowledged, finish_of, one_by_one
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.transaction import OffsetsStore, OffsetsTransaction, Permit, Transaction

_Begin = Callable[[], AbstractAsyncContextManager[Transaction]]


class OwnedPartition(Assignment, Protocol):
    """The partition of a source that a batch came from; `generation` is that of its offset in the database."""

    topic: str
    partition: int
    generation: int


def for_sources(store: OffsetsStore, owner: str) -> Callable[[Phases], Steps]:
    """Steps for the sources of a handler; `owner` is whose offsets are in `store`: namespace, epoch and group."""
    return partial(Transactions, store=store, rows=lambda phases, begin: _OfPartition(phases, begin, owner))


def for_copies(store: OffsetsStore, owner: str) -> Callable[[Phases], Steps]:
    """Steps for the retry topic: copies whose originals were passed, each with the row that passed it."""
    return partial(Transactions, store=store, rows=lambda phases, begin: Inbox(phases, begin, partial(_permitted, phases.worker, owner)))


class _OfPartition:
    """One row for a partition: its next offset."""

    keeps_order = True

    def __init__(self, phases: Phases, begin: _Begin, owner: str) -> None:
        self._worker = phases.worker
        self._publish = phases.settlement.publish
        self._begin = begin
        self._owner = owner
        self._in_doubt: weakref.WeakSet[Run] = weakref.WeakSet()

    async def is_clear(self, runs: Sequence[Run], partition: OwnedPartition) -> bool:
        """Ask for the outcome of commits that are in doubt: what was passed goes on, the rest is fetched again.

        Then the dead letters in front of what is to run are published.
        """
        if doubtful := [run for run in runs if run in self._in_doubt]:
            try:
                async with self._begin() as transaction:
                    passed = await self._lock(transaction, partition)
            except UNDONE as error:
                self._worker.postpone(doubtful, "it is not known whether they were committed", error)
                return False
            for run in doubtful:
                self._in_doubt.discard(run)
                if run.delivery.offset >= passed:
                    run.undo()
        await self._publish([run for run in runs if run.stage is Stage.RULED], partition)
        return True

    async def claim(self, transaction: Transaction, fetched: Sequence[Run], partition: OwnedPartition) -> list[Run]:
        """All of them, under the lock of the partition."""
        await self._lock(transaction, partition)
        for run in fetched:
            run.stage = Stage.ADMITTED
        return list(fetched)

    async def mark(self, transaction: Transaction, mine: Sequence[Run], partition: OwnedPartition) -> None:
        """Move the offset behind the last of `mine`; what comes back has a row."""
        await self._publish(mine, partition)
        if any(run.stage is not Stage.PUBLISHED for run in mine):
            raise Unacknowledged
        sent_back = [run for run in mine if isinstance(run.disposition, Delayed)]
        await transaction.finish([finish_of(run, run.key) for run in sent_back if run.key is not None])
        await self._advance(transaction, partition, mine[-1].delivery.offset + 1)

    async def mark_alone(self, runs: Sequence[Run], partition: OwnedPartition, _: Sequence[Run] = ()) -> None:
        """Like `mark`, under the lock of the partition."""
        if not runs:
            return
        async with self._begin() as transaction:
            await self._lock(transaction, partition)
            await self.mark(transaction, runs, partition)

    def doubt(self, runs: Sequence[Run]) -> Collection[Run]:
        """What had come to the commit is in doubt, and is asked for before anything is run again."""
        doubtful = [run for run in runs if run.stage is Stage.PUBLISHED and run.delivery.at_origin]
        self._in_doubt.update(doubtful)
        return doubtful

    def stands(self, run: Run) -> bool:
        """A copy counts only with the transaction that passed its original."""
        return run.stage is Stage.PUBLISHED and isinstance(run.disposition, Delayed | Dead) and not run.delivery.at_origin

    def is_passed(self, run: Run) -> bool:
        """What the offset has passed."""
        return run.stage >= Stage.PUBLISHED and run not in self._in_doubt

    async def passed(self, runs: list[Run], partition: OwnedPartition) -> list[Run]:
        """Those up to the first that is not passed.

        Behind the last one that ran, what can't be decoded is passed too, or each next owner would send its dead letter again.
        """
        one_by_one(runs)
        now = self._worker.monotonic()
        waiting = [run for run in runs if run in self._in_doubt and run.not_before <= now]
        self._worker.postpone(waiting, "it is not known whether they were committed")
        passed = list(takewhile(self.is_passed, runs))
        if not passed or passed[-1].exec_id is not None:
            return passed
        end = passed[-1].delivery.offset + 1
        try:
            async with self._begin() as transaction:
                if await self._lock(transaction, partition) < end:
                    await self._advance(transaction, partition, end)
        except UNDONE as error:
            self._worker.postpone(passed, "the database does not know yet that they are passed", error)
            return []
        return passed

    async def _lock(self, transaction: Transaction, partition: OwnedPartition) -> int:
        offsets = cast(OffsetsTransaction, transaction)
        return await offsets.lock(self._owner, partition.topic, partition.partition, partition.generation)

    async def _advance(self, transaction: Transaction, partition: OwnedPartition, end: int) -> None:
        offsets = cast(OffsetsTransaction, transaction)
        await offsets.advance(self._owner, partition.topic, partition.partition, partition.generation, end)


async def _permitted(worker: Worker, owner: str, transaction: Transaction, fetched: Sequence[Run]) -> list[Run]:
    """The copies of `fetched` that may run; what was superseded is a duplicate, and one whose original is not passed waits.

    What an operator redrives was sent back by no transaction, and runs all the same.
    """
    keyed = [(run, run.key) for run in fetched if run.key is not None and run.delivery.replay_id is None]
    copies = [(key, run.delivery.origin[:3]) for run, key in keyed]
    permits = await cast(OffsetsTransaction, transaction).permits(owner, copies) if copies else []
    for (run, _), permit in zip(keyed, permits, strict=True):
        if permit is Permit.SUPERSEDED:
            run.rule(Duplicate(stale=True))
        elif permit is Permit.PENDING:
            worker.postpone([run], "its original is not passed yet")
    pending = {id(run) for (run, _), permit in zip(keyed, permits, strict=True) if permit is Permit.PENDING}
    return [run for run in fetched if run.stage is Stage.FETCHED and id(run) not in pending]
