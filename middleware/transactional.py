"""Transactional pipeline: the spine around a transaction of the database.

What the handler writes and "done" come true together, or not at all.

    begin → claim the keys → run the handler → publish copies → mark what is finished → commit → settle

Where the handler fails, everything is rolled back and run again in halves, until the culprit is alone. The events of
success follow the commit; where it is not known whether the commit came through, the keys tell when they are claimed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Dead, Done, Duplicate, Failure, Later
from ackwise.middleware.entry import Entry, HandlerRun, Stage
from ackwise.middleware.errors import StoreUnavailable, TransactionAborted
from ackwise.middleware.events import EventCode
from ackwise.middleware.fate import decide, log_broken_policy
from ackwise.middleware.pipeline import HandlerStopped, Pipeline, follow
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Taken, Transaction, TransactionalStore, TransactionAnswer
from ackwise.middleware.worker import Worker

__all__ = ["RollBack", "TransactionalPipeline", "finish_of"]


class RollBack(Exception):
    """Leaves the block of a transaction so that nothing of it stays."""


class TransactionalPipeline(Pipeline):
    """The spine for one handler under `Transactional`, on `store`."""

    def __init__(self, agent: Agent, worker: Worker, store: TransactionalStore) -> None:
        super().__init__(agent, worker)
        self._store = store
        self._retention = 0.0 if worker.dedup is None else float(worker.dedup.retention)

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        stopped = self._admission.prepare(entries)
        if stopped is None and await self._may_begin(entries, assignment):
            fetched = [entry for entry in entries if entry.stage is Stage.FETCHED]
            stopped = await self._transact(self._admission.elect(fetched), assignment)
        follow(entries)
        now = self._worker.monotonic()
        await self._settle([entry for entry in entries if entry.not_before <= now], assignment)
        if stopped is not None:
            raise HandlerStopped(stopped)

    async def _transact(self, entries: Sequence[Entry], assignment: Assignment) -> BaseException | None:
        """Take `entries` as far as a commit, in as many transactions as it needs; returns what stops the app."""
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
        halves = fetched[:middle], fetched[middle:]
        return await self._transact(halves[0], assignment) or await self._transact(halves[1], assignment)

    async def _attempt(self, fetched: Sequence[Entry], assignment: Assignment) -> HandlerRun:
        """One transaction with one run of the handler; where that has to be rolled back, nothing of it stays."""
        run, mine = HandlerRun(), list[Entry]()
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                mine = await self._claim(transaction, fetched, assignment)
                run = await self._execution.run(mine, assignment, HandlerRun(transaction))
                if run.raised is not None or any(entry.stage is Stage.ADMITTED for entry in mine):
                    raise RollBack
                await self._publish_and_mark(transaction, mine, assignment)
        except RollBack:
            self._roll_back(mine, run)
        except TransactionAborted as error:
            run.raised = error
            self._roll_back([entry for entry in mine if not self._stands(entry)], run)
        except StoreUnavailable as error:
            self._undo_and_postpone(fetched, error)
        return run

    async def _claim(self, transaction: Transaction, fetched: Sequence[Entry], assignment: Assignment) -> list[Entry]:
        """Who is ours under the lock of its row is ADMITTED and answered; who was finished before is RULED."""
        keyed = [(entry, entry.key) for entry in fetched if entry.key is not None]
        answers = await transaction.claim([key for _, key in keyed]) if keyed else []
        for (entry, _), answer in zip(keyed, answers, strict=True):
            self._take(entry, answer)
        for entry in fetched:
            if entry.key is None:
                entry.stage = Stage.ADMITTED
        return [entry for entry in fetched if entry.stage is Stage.ADMITTED]

    def _take(self, entry: Entry, answer: TransactionAnswer) -> None:
        match answer:
            case Taken():
                entry.stage = Stage.ADMITTED
            case Finished(Outcome.OK, origin, exec_id) if origin == entry.delivery.origin[:3]:
                # Itself, and the commit was the last that was seen of it: its success is told now, if it was not then.
                entry.exec_id, entry.started_at = exec_id, self._worker.monotonic()
                entry.rule(Done())
            case Finished(outcome):
                entry.rule(Duplicate(dead=outcome is Outcome.DEAD))
            case Stale():
                entry.rule(Duplicate(stale=True))

    async def _publish_and_mark(self, transaction: Transaction, mine: Sequence[Entry], assignment: Assignment) -> None:
        """Publish the copies, and mark what needs none or has one: a copy is there before anybody is told of it."""
        await self._settle.publish(mine, assignment)
        done = [(entry, entry.key) for entry in mine if entry.stage is Stage.PUBLISHED]
        await transaction.finish([finish_of(entry, key) for entry, key in done if key is not None])

    def _roll_back(self, mine: Sequence[Entry], run: HandlerRun) -> None:
        """One that failed alone keeps its decision, or is given one; of several each is told to have failed, and is fetched again."""
        if run.raised is None:
            for entry in mine:
                entry.undo()
            if run.stopped is None:
                self._worker.postpone(mine, "its handler was called off, or decided nothing")
        elif len(mine) == 1:
            self._blame(mine[0], run.raised)
        else:
            for entry in mine:
                failed = self._worker.event(EventCode.FAILED, self.agent.name, entry, error="RolledBack", exec_id=entry.exec_id)
                self._worker.record(failed)
                entry.undo()

    def _blame(self, entry: Entry, error: BaseException) -> None:
        if isinstance(error, TransactionAborted):  # it was taken for a success until it was to be committed
            broken = decide(entry, Later(failure=Failure.of(error)), self._worker.later, error)
            log_broken_policy(self.agent.name, [] if broken is None else [broken])
        entry.succeeded = False

    async def _mark_failed(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        """What failed alone: its copy is published and its row marked, without anything that the handler wrote."""
        ruled = [entry for entry in entries if entry.stage is Stage.RULED]
        keys = [entry.key for entry in ruled if entry.key is not None]
        if not keys:
            return  # nothing to mark: settling publishes it
        try:
            async with self._store.begin(retention=self._retention) as transaction:
                (answer,) = await transaction.claim(keys)
                if isinstance(answer, Taken):
                    await self._publish_and_mark(transaction, ruled, assignment)
                else:
                    self._take(ruled[0], answer)
        except StoreUnavailable as error:
            self._undo_and_postpone(entries, error)

    def _undo_and_postpone(self, entries: Sequence[Entry], error: StoreUnavailable) -> None:
        """The database is away, or it is not known whether it committed. Only what has its copy, or was finished before, goes on."""
        undone = [entry for entry in entries if not (self._stands(entry) or isinstance(entry.disposition, Duplicate))]
        for entry in undone:
            entry.undo()
        self._worker.postpone(undone, "the database is not available", error)

    def _stands(self, entry: Entry) -> bool:
        """Whether it is parked or dead, whatever becomes of the transaction."""
        return entry.stage is Stage.PUBLISHED and isinstance(entry.disposition, Later | Dead)


def finish_of(entry: Entry, key: ClaimKey) -> Finish:
    """What is marked of an entry that is ruled on."""
    attempt = entry.delivery.attempt
    match entry.disposition:
        case Later():
            outcome, next_attempt = None, attempt + 1
        case Dead():
            outcome, next_attempt = Outcome.DEAD, attempt
        case _:
            outcome, next_attempt = Outcome.OK, attempt
    return Finish(key, entry.delivery.origin[:3], entry.exec_id or 0, outcome, next_attempt)
