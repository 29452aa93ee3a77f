"""Transactions: the steps of a batch whose handler writes in a transaction of the database.

The handler's writes and "done" are committed together, or neither is.

    start → claim the keys → run the handler → publish copies → mark what is finished → write its outbox → commit → settle

If the handler fails, everything is rolled back and run again in halves, until the failing message is alone. The events of success follow
the commit; if its outcome is unknown, the keys tell when they are claimed again. Messages that the handler publishes are rows
of the outbox in the same transaction: a relay sends them once it has committed.

The rows that are claimed and marked are `Rows`: one for each key (`Inbox`), or one for each partition (`transactionoffsets.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, Protocol

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted, TransactionCommitted
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.disposition import Dead, Delayed, Done, Duplicate, Failure, Reason, Suspended
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.pipeline.pipeline import AT_ONCE, Phases, follow
from ackwise.middleware.pipeline.settlement import PUBLISH_AGAIN, Assignment
from ackwise.middleware.pipeline.start import first_unfinished
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.expiry import has_expired
from ackwise.middleware.runs.redelivery import decide, sent_back_of
from ackwise.middleware.runs.run import Run, Stage, apart, count
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome, Stale
from ackwise.middleware.storage.outbox import Outbox
from ackwise.middleware.storage.transaction import Finish, Finished, Taken, Transaction, TransactionalStore, TransactionAnswer
from ackwise.middleware.usercode import is_a


class _Published(NamedTuple):
    run: Run
    message: Outgoing


class OutboxRows:
    """Takes what the handler published for those of `mine` that are done, so that no other step sends it. The others send nothing."""

    def __init__(self, worker: Worker, handler: str, mine: Sequence[Run]) -> None:
        self._worker = worker
        self._handler = handler
        self._published = [_Published(run, message) for run in mine if isinstance(run.disposition, Done) for message in run.publishes]
        for run in mine:
            run.publishes = []

    async def write(self, connection: Any) -> None:
        """Write the rows, once the transaction on `connection` is known to be the one that started: some databases insert at once.

        Raises `StoreUnavailable`, and `TransactionAborted`, the handler's failure, for what no row can hold and without an outbox.
        """
        if not self._published:
            return
        writer = _required(self._worker.outbox).writer(connection)
        try:
            for _, message in self._published:
                writer.add(message)
        except ConfigurationError as error:
            raise TransactionAborted(str(error)) from None
        await writer.flush()

    def tell(self) -> None:
        """They have committed: relays of this process need not wait until they look again, and their events are recorded."""
        if not self._published:
            return
        _required(self._worker.outbox).wake()
        for run, message in self._published:
            run.succeeded = True
            if self._worker.sink is not None:
                topic, partition, offset, _ = run.delivery.origin
                attrs = json.dumps({"outbox": self._worker.outbox_name, "origin": f"{topic}/{partition}/{offset}"})
                self._worker.sink.record(
                    Event(EventCode.OUTBOX_STORED, message.topic, handler=self._handler, dedup_key=message.message_id, attrs=attrs)
                )


def _required(outbox: Outbox | None) -> Outbox:
    if outbox is None:
        raise TransactionAborted("a handler under Transactional published, and the app has no outbox; use Outbox(url) beside Transactional")
    return outbox


log = Log()

#: What a transaction raises in which no handler runs: nothing of it stays, or that is not known, and it is tried again.
UNDONE: Final = (StoreUnavailable, TransactionAborted)

_COMMITTED: Final = "an earlier handler ended the transaction that it wrote in, and what it wrote until then is committed"

_Begin = Callable[[], AbstractAsyncContextManager[Transaction]]


class RollBack(Exception):
    """Leaves the block of a transaction so that nothing of it stays."""


class Unacknowledged(RollBack):
    """A copy is not acknowledged, and what was written for others can't stay without it."""


class Rows(Protocol):
    """What a transaction claims and marks in the database. `assignment` is of the kind that they need."""

    keeps_order: bool
    """Whether nothing is passed before what is in front of it."""

    async def is_clear(self, runs: Sequence[Run], assignment: Any, /) -> bool:
        """Return whether transactions for `runs` may start."""
        ...

    async def claim(self, transaction: Transaction, fetched: Sequence[Run], assignment: Any, /) -> list[Run]:
        """Return what is ours, which is ADMITTED; what was finished before is RULED."""
        ...

    async def mark(self, transaction: Transaction, mine: Sequence[Run], assignment: Any, /) -> None:
        """Publish the copies, then mark what needs none or has one: a copy is there before its mark is written.

        Raises `Unacknowledged` where all of it can be marked together only.
        """

    async def mark_alone(self, runs: Sequence[Run], assignment: Any, unseen: Sequence[Run] = (), /) -> None:
        """Like `mark`, in a transaction without anything that a handler wrote. Raises what is `UNDONE`, and `Unacknowledged`.

        `unseen` was committed by a handler that has not seen it, and is free again.
        """

    def doubt(self, runs: Sequence[Run], /) -> Collection[Run]:
        """Those of `runs`, after a commit without an answer, that wait until the database is asked for it."""
        ...

    def stands(self, run: Run, /) -> bool:
        """Return whether it is parked or dead, whatever becomes of the transaction."""
        ...

    def is_passed(self, run: Run, /) -> bool:
        """Return whether what must not overtake it may go on."""
        ...

    async def passed(self, runs: list[Run], assignment: Any, /) -> list[Run]:
        """Return those of `runs`, in order, that may be settled."""
        ...


class Transactions:
    """The steps for one handler under `Transactional`, on `store`. `rows` are made of the phases and of what starts a transaction."""

    fails_together = True

    def __init__(self, phases: Phases, store: TransactionalStore, rows: Callable[[Phases, _Begin], Rows] | None = None) -> None:
        self._agent, self._worker = phases.agent, phases.worker
        self._admission = phases.admission
        self._execution = phases.execution
        self._settle = phases.settlement
        self._store = store
        self._retention = 0.0 if phases.worker.dedup is None else float(phases.worker.dedup.retention)
        self._rows = (rows or Inbox)(phases, self._begin)

    def _begin(self) -> AbstractAsyncContextManager[Transaction]:
        return self._store.begin(retention=self._retention)

    def new_call(self) -> HandlerCall:
        """Gets `stopped`; each transaction has its own call."""
        return HandlerCall()

    def turn(self, _: Assignment) -> AbstractAsyncContextManager[object]:
        """None: a lane gives one batch at a time, or its keys are locked in the database."""
        return AT_ONCE

    async def execute(self, runs: list[Run], assignment: Assignment, call: HandlerCall) -> None:
        """Take `runs` as far as a commit, in as many transactions as it needs."""
        one_by_one(runs)
        if await self._rows.is_clear(runs, assignment):
            call.stopped = await self._transact(self._in_order(runs, self._admission.elect(runs)), assignment)

    async def settle(self, runs: list[Run], assignment: Assignment, _: HandlerCall) -> None:
        """Settle what is passed, and due."""
        follow(runs)
        passed = await self._rows.passed(runs, assignment)
        await self._settle(passed, assignment, due=self._worker.monotonic())

    def _in_order(self, runs: list[Run], elected: list[Run]) -> list[Run]:
        """Those of `elected` that nothing waits in front of, where the partition has an order."""
        if not self._rows.keeps_order:
            return elected
        waiting = first_unfinished([run for run in runs if run.stage is not Stage.FETCHED])
        if waiting is None:
            return elected
        now = self._worker.monotonic()
        for run in elected:
            if run.last > waiting:
                run.postpone(now, "it waits behind an earlier message of its partition")
        return [run for run in elected if run.last < waiting]

    async def _transact(self, runs: Sequence[Run], assignment: Assignment) -> BaseException | None:
        """Take `runs` as far as a commit, in halves where they fail; returns what stops the app."""
        fetched = [run for run in runs if run.stage is Stage.FETCHED]
        if not fetched or assignment.cut_off:
            return None
        if (stopped := await self._admission.renew(fetched)) is not None:
            return stopped
        fetched = self._in_order(fetched, [run for run in fetched if run.stage is Stage.FETCHED])
        if not fetched:
            return None
        call = await self._attempt(fetched, assignment)
        if buried := [run for run in fetched if _is_buried(run)]:
            await self._mark_buried(buried, assignment)
        if call.raised is None or call.stopped is not None:
            return call.stopped
        if len(fetched) == 1:
            await self._mark_failed(fetched, assignment)
            return None
        middle = len(fetched) // 2
        stopped = await self._transact(fetched[:middle], assignment)
        if stopped is not None or (self._rows.keeps_order and not all(map(self._rows.is_passed, fetched[:middle]))):
            return stopped
        return await self._transact(fetched[middle:], assignment)

    async def _attempt(self, fetched: Sequence[Run], assignment: Assignment) -> HandlerCall:
        """One transaction with one call of the handler; where that has to be rolled back, nothing of it stays."""
        waiting, call, mine = HandlerCall(), HandlerCall(), list[Run]()
        try:
            async with self._execution.starts.turn(fetched, assignment, waiting) as may_claim:
                if not may_claim:
                    return call
                async with self._begin() as transaction:
                    mine = await self._rows.claim(transaction, fetched, assignment)
                    call = HandlerCall(transaction)
                    waiting.unstarted, waiting.parts = (), [call]
                    await self._execution.run(mine, assignment, call)
                    if call.raised is not None or any(run.stage is Stage.ADMITTED for run in mine):
                        raise RollBack
                    rows = OutboxRows(self._worker, self._agent.name, mine)
                    await self._rows.mark(transaction, mine, assignment)
                    await rows.write(transaction.connection)
                rows.tell()
        except RollBack as why:
            if isinstance(why, Unacknowledged) and not call.called_off and call.stopped is None:
                self._await_copies(mine)
            else:
                self._roll_back(mine, call, alone=len(fetched) == 1)
        except TransactionCommitted as error:
            call.raised = None
            await self._give_up(mine, error, assignment)
        except TransactionAborted as error:
            if not any(run.began for run in mine):  # no handler has seen it
                self._undo_and_postpone(fetched, error)
                return call
            call.raised = error
            self._roll_back([run for run in mine if not self._rows.stands(run)], call, alone=len(fetched) == 1)
        except StoreUnavailable as error:
            self._undo_and_postpone(fetched, error)
        return call

    def _roll_back(self, mine: Sequence[Run], call: HandlerCall, *, alone: bool) -> None:
        """One that failed `alone` keeps its decision, or is given one; of several each is reported as failed, and is fetched again.

        So is one that was left of several, since the others were finished before or have their copies: only what was fetched alone is
        marked as failed.
        """
        if call.raised is None:
            for run in mine:
                if call.stopped is None and run.began and run.claims.ids is not None:
                    self._worker.record(EventCode.RELEASED, self._agent.name, run, with_exec_id=True)
                run.undo()
            if call.stopped is None:
                self._worker.postpone(mine, "its handler was called off, or decided nothing")
        elif alone and mine:
            self._blame(mine[0], call.raised)
        else:
            for run in mine:
                if not has_expired(run):
                    self._worker.record(EventCode.FAILED, self._agent.name, run, with_exec_id=True, error="RolledBack")
                run.undo()

    def _await_copies(self, runs: Sequence[Run]) -> None:
        """Nothing of it stays, since the copy of one is not acknowledged."""
        for run in runs:
            run.undo()
        self._worker.postpone(runs, "copies are not acknowledged", wait=PUBLISH_AGAIN)

    def _blame(self, run: Run, error: BaseException) -> None:
        if is_a(error, TransactionAborted):  # it was taken for a success until it was to be committed
            broken = decide(
                run, Delayed(failure=Failure.of(error)), self._worker.later_of(self._agent), error, in_place=self._agent.in_place
            )
            self._worker.report_broken(self._agent.name, [] if broken is None else [broken])
        run.succeeded = False

    async def _give_up(self, mine: Sequence[Run], error: TransactionCommitted, assignment: Assignment) -> None:
        """What the handler saw and committed by itself never runs again: how much of it came true is unknown."""
        unseen = [run for run in mine if not run.began]
        for run in mine:
            if not run.began:
                run.undo()
            elif not self._rows.stands(run):
                _bury(run, error, self._worker)
        await self._mark_buried([run for run in mine if _is_buried(run)], assignment, unseen)

    async def _mark_buried(self, buried: Sequence[Run], assignment: Assignment, unseen: Sequence[Run] = ()) -> None:
        """Mark what handlers committed as dead, and let `unseen` be free. Settling publishes what could not be marked all the same."""
        try:
            await self._rows.mark_alone(buried, assignment, unseen)
        except (RollBack, *UNDONE) as error:
            log.error(
                "dead letters of committed messages not marked",
                handler=self._agent.name,
                messages=count(buried),
                unseen=count(unseen),
                error=said(error),
            )

    async def _mark_failed(self, runs: Sequence[Run], assignment: Assignment) -> None:
        """What failed alone: its copy is published and its row marked, without anything that the handler wrote."""
        try:
            await self._rows.mark_alone(runs, assignment)
        except Unacknowledged:
            self._await_copies(runs)
        except UNDONE as error:
            self._undo_and_postpone(runs, error)

    def _undo_and_postpone(self, runs: Sequence[Run], error: AckwiseError) -> None:
        """Nothing of it stays, or it is not known whether it committed. Only what has its copy, or was finished before, goes on."""
        doubtful = self._rows.doubt(runs)
        self._worker.postpone([*doubtful], "it is not known whether they were committed", error)
        others = [run for run in runs if run not in doubtful]
        undone = [run for run in others if not (self._rows.stands(run) or isinstance(run.disposition, Duplicate))]
        for run in undone:
            run.undo()
        self._worker.postpone(undone, "the database is not available", error)


class Inbox:
    """A row for each key. `permitted` are those of FETCHED runs that may be claimed; default: all."""

    def __init__(
        self, phases: Phases, begin: _Begin, permitted: Callable[[Transaction, Sequence[Run]], Awaitable[list[Run]]] | None = None
    ) -> None:
        self.keeps_order = phases.agent.order == "partition"
        self._worker = phases.worker
        self._publish = phases.settlement.publish
        self._begin = begin
        self._permitted = permitted
        self._unseen: list[Run] = []  #: committed by a handler that has not seen them, and not free again yet
        self._freeing = asyncio.Lock()

    async def is_clear(self, runs: Sequence[Run], assignment: Assignment) -> bool:
        """Let first what no handler has seen be free: a claim would take it for what its handler committed."""
        async with self._freeing:
            unseen, self._unseen = self._unseen, []
            try:
                await self.mark_alone((), assignment, unseen)
            except UNDONE as error:
                waiting = [run for run in runs if run.stage is Stage.FETCHED]
                self._worker.postpone(waiting, "keys that no handler has seen are not free again", error)
                return False
        return True

    async def claim(self, transaction: Transaction, fetched: Sequence[Run], _assignment: Assignment) -> list[Run]:
        """Who is ours under the lock of its row is ADMITTED and answered; who was finished before is RULED."""
        if self._permitted is not None:
            fetched = await self._permitted(transaction, fetched)
        keyed = [(run, run.key) for run in fetched if run.key is not None]
        answers = await transaction.claim([key for _, key in keyed]) if keyed else []
        for (run, _), answer in zip(keyed, answers, strict=True):
            self._take(run, answer)
        for run in fetched:
            if run.key is None:
                run.stage = Stage.ADMITTED
        return [run for run in fetched if run.stage is Stage.ADMITTED]

    def _take(self, run: Run, answer: TransactionAnswer) -> None:
        match answer:
            case Taken():
                run.stage = Stage.ADMITTED
            case Finished(Outcome.OK, origin, exec_id) if origin == run.delivery.origin[:3]:
                # Itself, and the commit was the last that was seen of it: its success is reported now, if it was not then.
                run.exec_ids, run.started_at = [exec_id], self._worker.monotonic()
                run.rule(Done())
            case Finished(None):
                _bury(run, TransactionCommitted(_COMMITTED), self._worker)
            case Finished(outcome):
                run.rule(Duplicate(dead=outcome is Outcome.DEAD))
            case Stale():
                run.rule(Duplicate(stale=True))

    async def mark(self, transaction: Transaction, mine: Sequence[Run], assignment: Assignment, more: Sequence[Finish] = ()) -> None:
        """What has no copy yet is not marked, and comes up again. `more` is written with it: a transaction is finished once."""
        await self._publish(mine, assignment)
        await transaction.finish([*finishes_of([run for run in mine if run.stage is Stage.PUBLISHED]), *more])

    async def mark_alone(self, runs: Sequence[Run], assignment: Assignment, unseen: Sequence[Run] = ()) -> None:
        """Publish the copies of what is ruled on, and mark it. What has no key needs no mark: settling publishes it."""
        ruled = [(run, run.key) for run in runs if run.stage is Stage.RULED and not isinstance(run.disposition, Suspended)]
        keyed = [(run, key) for run, key in ruled if key is not None]
        left = [(run, run.key) for run in unseen if run.key is not None]
        if not (keyed or left):
            return
        try:
            await self._mark_alone(keyed, left, assignment)
        except BaseException:
            self._unseen += unseen
            raise

    async def _mark_alone(
        self, keyed: Sequence[tuple[Run, ClaimKey]], left: Sequence[tuple[Run, ClaimKey]], assignment: Assignment
    ) -> None:
        async with self._begin() as transaction:
            answers = await transaction.claim([key for _, key in (*keyed, *left)])
            taken = list[Run]()
            for (run, _), answer in zip(keyed, answers, strict=False):
                if not (isinstance(answer, Taken) or (_is_buried(run) and _is_committed(answer))):
                    self._take(run, answer)
                if isinstance(answer, Taken) or _is_committed(answer):
                    taken.append(run)
            free = [
                Finish(key, run.delivery.origin[:3], 0, None, key.attempt)
                for (run, key), answer in zip(left, answers[len(keyed) :], strict=True)
                if _is_committed(answer)
            ]
            if taken or free:
                await self.mark(transaction, taken, assignment, free)

    def doubt(self, _: Sequence[Run]) -> Collection[Run]:
        """None: their keys tell when they are claimed again."""
        return ()

    def stands(self, run: Run) -> bool:
        """What has its copy."""
        return run.stage is Stage.PUBLISHED and isinstance(run.disposition, Delayed | Dead)

    def is_passed(self, run: Run) -> bool:
        """What has its copy, or needs none."""
        return run.stage >= Stage.PUBLISHED or isinstance(run.disposition, Done | Duplicate)

    async def passed(self, runs: list[Run], _: Assignment) -> list[Run]:
        """All of them: settling looks at each."""
        return runs


def _bury(run: Run, error: TransactionCommitted, worker: Worker) -> None:
    decide(run, Dead(Reason.ABORTED_AND_COMMITTED, Failure.of(error)), worker.later)
    run.succeeded, run.send_back = False, None


def _is_buried(run: Run) -> bool:
    """Return whether its handler committed it, and its dead letter is to be published."""
    return run.stage is Stage.RULED and isinstance(run.disposition, Dead) and run.disposition.reason == Reason.ABORTED_AND_COMMITTED


def _is_committed(answer: TransactionAnswer) -> bool:
    return isinstance(answer, Finished) and answer.outcome is None


def one_by_one(runs: list[Run]) -> None:
    """Take each message by itself, in order: each has its own row in the database."""
    for run in [*runs]:
        apart(runs, run)
    runs.sort(key=lambda run: run.first)


def finishes_of(runs: Sequence[Run]) -> list[Finish]:
    """Return the marks of decided runs, one for each key. A replay that succeeded also finishes the key of its message.

    The key of a message that expired is free again.
    """
    own = {key.id: finish_of(run, key) for run in runs if (key := run.key) is not None and not has_expired(run)}
    replayed = {
        run.claims.base_id: Finish(
            ClaimKey(run.claims.base_id, run.claims.day, 1), run.delivery.origin[:3], run.exec_id or 0, Outcome.OK, 1
        )
        for run in runs
        if run.claims.base_id is not None and isinstance(run.disposition, Done)
    }
    return [*(own | replayed).values()]


def finish_of(run: Run, key: ClaimKey) -> Finish:
    """Return the mark of a decided run."""
    attempt = run.attempt
    match run.disposition:
        case Delayed():
            outcome, next_attempt = None, sent_back_of(run) or attempt
        case Dead():
            outcome, next_attempt = Outcome.DEAD, attempt
        case _:
            outcome, next_attempt = Outcome.OK, attempt
    return Finish(key, run.delivery.origin[:3], run.exec_id or 0, outcome, next_attempt)
